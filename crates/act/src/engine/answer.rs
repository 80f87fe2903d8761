//! What is asked for of a region of another process, and what the kernel answers.

use megapage_kernel::ability::{Ability, COLLAPSE, PROCESS_MADVISE};
use megapage_units::{BASE_PAGE, VirtRange};
use std::io;
use std::time::Duration;

/// What the kernel is asked for, region by region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// MADV_COLLAPSE on the region.
    Collapse,
    /// MADV_COLD on the first base page of the region: splits a huge page whole.
    ColdSplit,
    /// MADV_PAGEOUT on the region: splits a huge page, and swaps out where there is swap.
    PageOut,
}

impl Advice {
    /// What the kernel must have for it, for other processes.
    pub(crate) fn ability(self) -> &'static Ability {
        match self {
            Advice::Collapse => &COLLAPSE,
            Advice::ColdSplit | Advice::PageOut => &PROCESS_MADVISE,
        }
    }

    /// The part of a region that is named to the kernel.
    pub(super) fn part(self, region: VirtRange) -> VirtRange {
        match self {
            Advice::Collapse | Advice::PageOut => region,
            Advice::ColdSplit => {
                VirtRange::new(region.start(), region.start() + BASE_PAGE as u64).unwrap_or(region)
            }
        }
    }
}

/// The kernel's refusal of one region, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// EAGAIN: pinned, locked or off the LRU lists for now. EINTR counts, too.
    Busy,
    /// EBUSY: no room in its control group.
    GroupFull,
    /// EINVAL: not for this mapping.
    Invalid,
    /// ENOMEM: no huge page to be had; or the region is not mapped.
    NoMemory,
    /// Not asked: another process shares pages of it since a fork, and the collapse would copy them.
    Shared,
    /// Not asked: the machine has less available memory than the safe floor ([`super::floor`]).
    BelowFloor,
    /// EPERM, EACCES: not for this caller.
    Denied,
    /// ESRCH: the process has gone.
    Gone,
    /// ENOSYS, EOPNOTSUPP: not with this kernel.
    Unsupported,
    /// The process does not answer: its memory map is locked ([`megapage_kernel::helper::Locked`]).
    Locked,
    /// Another error number.
    Other(i32),
}

impl Refusal {
    pub(crate) fn of(error: &io::Error) -> Refusal {
        match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted, _) => Refusal::Busy,
            (io::ErrorKind::ResourceBusy, _) => Refusal::GroupFull,
            (io::ErrorKind::InvalidInput, _) => Refusal::Invalid,
            (io::ErrorKind::OutOfMemory, _) => Refusal::NoMemory,
            (io::ErrorKind::PermissionDenied, _) => Refusal::Denied,
            (io::ErrorKind::Unsupported, _) => Refusal::Unsupported,
            (io::ErrorKind::TimedOut, _) => Refusal::Locked,
            // ESRCH has no kind of its own.
            (_, Some(3)) => Refusal::Gone,
            (_, number) => Refusal::Other(number.unwrap_or(0)),
        }
    }

    /// Whether it is about the process or the kernel, so that no other region of the process will fare better.
    pub(crate) fn is_final(self) -> bool {
        matches!(
            self,
            Refusal::Denied | Refusal::Gone | Refusal::Unsupported | Refusal::Locked | Refusal::Other(_)
        )
    }

    /// The error that the kernel gave.
    pub(crate) fn to_error(self) -> io::Error {
        match self {
            Refusal::Busy => io::ErrorKind::WouldBlock.into(),
            Refusal::GroupFull | Refusal::Shared => io::ErrorKind::ResourceBusy.into(),
            Refusal::Invalid => io::ErrorKind::InvalidInput.into(),
            Refusal::NoMemory | Refusal::BelowFloor => io::ErrorKind::OutOfMemory.into(),
            Refusal::Denied => io::ErrorKind::PermissionDenied.into(),
            Refusal::Gone => io::Error::from_raw_os_error(3),
            Refusal::Unsupported => io::ErrorKind::Unsupported.into(),
            Refusal::Locked => io::ErrorKind::TimedOut.into(),
            Refusal::Other(number) => io::Error::from_raw_os_error(number),
        }
    }
}

/// What the kernel said to one region. It proves nothing: the page tables do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No error.
    Accepted,
    /// An error.
    Refused(Refusal),
    /// The region was not reached.
    NotTried,
}

impl Answer {
    /// Whether the kernel was asked about the region.
    pub(crate) fn was_asked(self) -> bool {
        !matches!(self, Answer::NotTried | Answer::Refused(Refusal::Shared | Refusal::BelowFloor))
    }

    /// The refusal, where it was one.
    pub(crate) fn refusal(self) -> Option<Refusal> {
        match self {
            Answer::Refused(refusal) => Some(refusal),
            Answer::Accepted | Answer::NotTried => None,
        }
    }
}

/// One region's part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub answer: Answer,
    /// Its part of the time of the call that it was in.
    pub took: Duration,
}

impl Tried {
    /// A region that was not reached.
    pub(crate) const NOT: Tried = Tried { answer: Answer::NotTried, took: Duration::ZERO };
}

/// One call, as it came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Regions that it dealt with: those advised, and the one that it failed at.
    pub regions: usize,
    pub took: Duration,
    /// Processor time of it: the other time was spent waiting, for a processor mostly.
    pub busy: Duration,
    /// How long the process's mmap lock was held at a stretch, at most: a collapse gives it up between two regions, the
    /// other calls keep it to their end.
    pub held: Duration,
    pub refused: Option<Refusal>,
    /// Whether any region of it was refused; with `refused` empty the next calls show which.
    pub failed: bool,
    /// The place of the region that was refused.
    pub at: Option<usize>,
}

impl Call {
    /// The processor time for which the process's mmap lock was held at a stretch: that of one region where the lock was
    /// given up between two, as a collapse does, else that of all.
    pub(crate) fn busy_of_region(&self) -> Duration {
        if self.held < self.took { self.busy / self.regions.max(1) as u32 } else { self.busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_process_are_distinguished_from_those_of_a_region() {
        let of = |errno| Refusal::of(&io::Error::from_raw_os_error(errno));
        for (errno, refusal) in [
            (1, Refusal::Denied),
            (13, Refusal::Denied),
            (3, Refusal::Gone),
            (38, Refusal::Unsupported),
            (95, Refusal::Unsupported),
            (14, Refusal::Other(14)),
        ] {
            assert_eq!(of(errno), refusal);
            assert!(refusal.is_final());
        }
        for errno in [11, 4, 16, 22, 12] {
            assert!(!of(errno).is_final(), "{errno}");
            assert_eq!(Refusal::of(&of(errno).to_error()), of(errno));
        }
    }
}
