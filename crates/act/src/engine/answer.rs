//! Requests about regions of another process, and the kernel's answers.

use megapage_kernel::ability::{Ability, COLLAPSE, PROCESS_MADVISE};
use megapage_units::{BASE_PAGE, HugePage, VirtRange};
use std::io;
use std::time::Duration;

/// Requests to the kernel, region by region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// MADV_COLLAPSE on the region.
    Collapse,
    /// MADV_COLD on the first base page of the region: splits a huge page whole.
    ColdSplit,
    /// MADV_PAGEOUT on the region: splits a huge page, and swaps out if there is swap.
    PageOut,
}

impl Advice {
    /// Returns the ability that the kernel must have for it, for other processes.
    pub(crate) fn ability(self) -> &'static Ability {
        match self {
            Advice::Collapse => &COLLAPSE,
            Advice::ColdSplit | Advice::PageOut => &PROCESS_MADVISE,
        }
    }

    /// Returns the part of a region that the call names.
    pub(super) fn part(self, region: HugePage) -> VirtRange {
        match self {
            Advice::Collapse | Advice::PageOut => region.range(),
            Advice::ColdSplit => {
                VirtRange::new(region.start(), region.start() + BASE_PAGE as u64).unwrap_or(region.range())
            }
        }
    }
}

/// Refusal of one region, by the kernel or by a check before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// EAGAIN: pinned, locked or off the LRU lists for now. Also EINTR.
    Busy,
    /// EBUSY: no room in its control group.
    GroupFull,
    /// EINVAL: not possible for this mapping.
    Invalid,
    /// ENOMEM: no huge page available; or the region is not mapped.
    NoMemory,
    /// Not asked: another process shares pages of it since a fork, and the collapse would copy
    /// them.
    Shared,
    /// Not asked: it is huge already.
    Huge,
    /// Not asked: no page of it is present or swapped, apart from the shared page of zeros. A huge
    /// page would only add memory.
    Empty,
    /// Not asked: its page tables cannot be read, though the process lives and answers.
    Unread,
    /// Not asked: the machine has less available memory than the safe floor ([`super::floor`]).
    BelowFloor,
    /// EPERM, EACCES: not allowed for this caller.
    Denied,
    /// ESRCH: the process has gone.
    Gone,
    /// ENOSYS, EOPNOTSUPP: not possible with this kernel.
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
            // ESRCH has no `io::ErrorKind`.
            (_, Some(3)) => Refusal::Gone,
            (_, number) => Refusal::Other(number.unwrap_or(0)),
        }
    }

    /// Returns true if it is about the process or the kernel: no other region of the process would
    /// fare better.
    pub(crate) fn is_final(self) -> bool {
        matches!(
            self,
            Refusal::Unread
                | Refusal::Denied
                | Refusal::Gone
                | Refusal::Unsupported
                | Refusal::Locked
                | Refusal::Other(_)
        )
    }

    /// Returns true if the kernel was asked about the region.
    pub(crate) fn was_asked(self) -> bool {
        use Refusal::{BelowFloor, Empty, Huge, Shared, Unread};
        !matches!(self, Shared | Huge | Empty | Unread | BelowFloor)
    }

    /// Returns the refusal as an error of the kernel.
    pub(crate) fn to_error(self) -> io::Error {
        match self {
            Refusal::Busy => io::ErrorKind::WouldBlock.into(),
            Refusal::GroupFull | Refusal::Shared => io::ErrorKind::ResourceBusy.into(),
            Refusal::Invalid | Refusal::Huge | Refusal::Empty => io::ErrorKind::InvalidInput.into(),
            Refusal::NoMemory | Refusal::BelowFloor => io::ErrorKind::OutOfMemory.into(),
            Refusal::Denied | Refusal::Unread => io::ErrorKind::PermissionDenied.into(),
            Refusal::Gone => io::Error::from_raw_os_error(3),
            Refusal::Unsupported => io::ErrorKind::Unsupported.into(),
            Refusal::Locked => io::ErrorKind::TimedOut.into(),
            Refusal::Other(number) => io::Error::from_raw_os_error(number),
        }
    }
}

/// Answer for one region. It proves nothing: the page tables do.
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
    /// Returns true if the kernel was asked about the region.
    pub(crate) fn was_asked(self) -> bool {
        self != Answer::NotTried && self.refusal().is_none_or(Refusal::was_asked)
    }

    /// Returns the refusal, if it was one.
    pub(crate) fn refusal(self) -> Option<Refusal> {
        match self {
            Answer::Refused(refusal) => Some(refusal),
            Answer::Accepted | Answer::NotTried => None,
        }
    }
}

/// Answer for one region, with its share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    pub answer: Answer,
    /// Its share of the time of the call that named it.
    pub took: Duration,
}

impl Tried {
    /// A region that was not reached.
    pub(crate) const NOT: Tried = Tried { answer: Answer::NotTried, took: Duration::ZERO };
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
