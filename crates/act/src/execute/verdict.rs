//! Result of one region, by the kernel's answer and the page tables after the call. A split also
//! needs the page tables before it.

use crate::engine::{Answer, Refusal};
use megapage_decide::Obtained;
use megapage_kernel::pagemap::Region;
use megapage_units::{BASE_PAGE, Bytes, HugeCount};

/// Result of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub obtained: Obtained,
    pub promoted: Bytes,
    pub freed: Bytes,
    pub why: Option<&'static str>,
}

impl Verdict {
    /// Returns a verdict of nothing obtained.
    pub fn refused(obtained: Obtained, why: &'static str) -> Verdict {
        Verdict { obtained, promoted: Bytes::ZERO, freed: Bytes::ZERO, why: Some(why) }
    }
}

/// Before Linux 6.7: see [`megapage_observe::PageTables`].
const UNSEEN: &str = "its mapping holds huge pages that are mapped in part: the kernel does not show which";

const UNMAPPED: &str = "it is not mapped any more";

fn done(promoted: Bytes, freed: Bytes) -> Verdict {
    Verdict { obtained: Obtained::Done, promoted, freed, why: None }
}

/// Returns the result of a promotion; `refusal`: `None` if the call named the region without an
/// error. `mapped` is true if one mapping of the process holds the whole region; `None` if that is
/// not known.
pub(super) fn promotion(refusal: Option<Refusal>, after: &Region, mapped: Option<bool>) -> Verdict {
    if after.huge == Some(true) {
        let is_ours = refusal.is_none_or(Refusal::was_asked);
        return done(if is_ours { HugeCount(1).bytes() } else { Bytes::ZERO }, Bytes::ZERO);
    }
    let (obtained, why) = match refusal {
        None if after.huge.is_none() => (Obtained::Busy, UNSEEN),
        None => (Obtained::Busy, "it was split again at once"),
        Some(Refusal::NoMemory) if mapped == Some(false) => (Obtained::Impossible, UNMAPPED),
        Some(Refusal::NoMemory) => (Obtained::NoMemory, "ENOMEM: no free huge page, and none could be made"),
        Some(Refusal::GroupFull) => (Obtained::Busy, "EBUSY: no room in its control group"),
        Some(Refusal::Invalid) => (
            Obtained::Impossible,
            "EINVAL: no page table, huge pages are not for this mapping, or userfaultfd protects it",
        ),
        Some(refusal) => return refused(refusal),
    };
    Verdict::refused(obtained, why)
}

/// Returns the result of a demotion or recovery.
pub(super) fn split(answer: Answer, before: &Region, after: &Region) -> Verdict {
    if after.huge.is_none() {
        return Verdict::refused(Obtained::Busy, UNSEEN);
    }
    if after.huge == Some(false) {
        // Base pages that were present, are not any more, and map the page of zeros instead. Pages
        // that the process itself freed in the meantime do not map it.
        let zeros = before.present.saturating_sub(after.present).min(after.zero_page);
        let was = before.huge == Some(true);
        return done(Bytes::ZERO, Bytes(if was { u64::from(zeros) * BASE_PAGE as u64 } else { 0 }));
    }
    let (obtained, why) = match answer {
        Answer::NotTried => (Obtained::Busy, "it was on base pages, and is huge now"),
        Answer::Accepted => {
            (Obtained::Busy, "it was skipped: a forked process shares it, or something holds it for now")
        }
        Answer::Refused(Refusal::Invalid) => {
            (Obtained::Impossible, "EINVAL: locked memory, or a page of a hugetlb pool")
        }
        Answer::Refused(Refusal::NoMemory) => (Obtained::Impossible, UNMAPPED),
        Answer::Refused(refusal) => return refused(refusal),
    };
    Verdict::refused(obtained, why)
}

/// Returns the result of a region that was refused, for reasons that every kind of work shares.
pub(super) fn refused(refusal: Refusal) -> Verdict {
    let (obtained, why) = match refusal {
        Refusal::Denied => {
            (Obtained::Denied, "EPERM: a security module, a seccomp filter or a user namespace forbids it")
        }
        Refusal::Gone => return gone(),
        Refusal::Unsupported => (Obtained::Unsupported, "the kernel does not know this advice"),
        Refusal::Busy => (Obtained::Busy, "EAGAIN: pinned, locked or off the LRU lists for now"),
        Refusal::GroupFull => (Obtained::Busy, "EBUSY: something holds it"),
        Refusal::Locked => (Obtained::Busy, "the process does not answer: its memory map is locked"),
        Refusal::Shared => (Obtained::Busy, "another process shares it since a fork: it would be copied"),
        Refusal::Huge => (Obtained::Busy, "it was huge, and was split meanwhile"),
        Refusal::Empty => (Obtained::Busy, "nothing is present there any more"),
        Refusal::Unread => (Obtained::Busy, "its page tables cannot be read"),
        Refusal::BelowFloor => (
            Obtained::NoMemory,
            "less than 5 % of the machine's memory is available, and a collapse would reclaim some",
        ),
        Refusal::Invalid | Refusal::NoMemory => (Obtained::Impossible, "the kernel refuses it"),
        Refusal::Other(_) => (Obtained::Impossible, "the kernel refuses it with an unknown error"),
    };
    Verdict::refused(obtained, why)
}

/// Returns the verdict that the process has ended, or is another one now.
pub(super) fn gone() -> Verdict {
    Verdict::refused(Obtained::Gone, "the process has ended, or runs another program")
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::HugePage;

    fn region(huge: bool, present: u16, zero_page: u16) -> Region {
        Region { present, zero_page, ..Region::empty(HugePage::nth(0), Some(huge)) }
    }

    #[test]
    fn the_page_tables_have_the_last_word_on_a_promotion() {
        let (base, huge) = (region(false, 300, 0), region(true, 512, 0));
        for refusal in [None, Some(Refusal::Busy)] {
            assert_eq!(promotion(refusal, &huge, None), done(Bytes::mib(2), Bytes::ZERO));
            assert_eq!(promotion(refusal, &base, None).obtained, Obtained::Busy, "{refusal:?}");
        }
        // Nothing was called for: it was huge before, or another actor made it huge.
        for refusal in [Refusal::Huge, Refusal::Shared, Refusal::Empty, Refusal::Unread] {
            assert_eq!(promotion(Some(refusal), &huge, None), done(Bytes::ZERO, Bytes::ZERO));
            assert_eq!(promotion(Some(refusal), &base, None).obtained, Obtained::Busy, "{refusal:?}");
        }
        let of = |refusal, mapped| promotion(Some(refusal), &base, mapped).obtained;
        assert_eq!(of(Refusal::Invalid, None), Obtained::Impossible);
        assert_eq!(of(Refusal::NoMemory, None), Obtained::NoMemory);
        assert_eq!(of(Refusal::NoMemory, Some(true)), Obtained::NoMemory);
        assert_eq!(of(Refusal::NoMemory, Some(false)), Obtained::Impossible);
        assert_eq!(of(Refusal::GroupFull, None), Obtained::Busy);
        assert_eq!(of(Refusal::Denied, None), Obtained::Denied);
        assert_eq!(of(Refusal::Gone, None), Obtained::Gone);
        assert_eq!(of(Refusal::Unsupported, None), Obtained::Unsupported);
        assert_eq!(of(Refusal::Other(14), None), Obtained::Impossible);
    }

    #[test]
    fn the_page_tables_have_the_last_word_on_a_split() {
        let huge = region(true, 512, 0);
        let freed = |after: &Region| split(Answer::Accepted, &huge, after).freed;
        assert_eq!(freed(&region(false, 100, 412)), Bytes::kib(4 * 412));
        // The process has freed 200 pages itself, or has written to pages that the split had freed.
        assert_eq!(freed(&region(false, 100, 212)), Bytes::kib(4 * 212));
        assert_eq!(freed(&region(false, 500, 12)), Bytes::kib(4 * 12));
        assert_eq!(freed(&region(false, 512, 0)), Bytes::ZERO);
        let unseen = Region { huge: None, ..huge };
        assert_eq!(split(Answer::Accepted, &huge, &unseen).obtained, Obtained::Busy, "no split was seen");
        assert_eq!(promotion(None, &unseen, None).obtained, Obtained::Busy);
        // Nothing was huge before: pages that map the page of zeros did so already.
        let before = region(false, 100, 412);
        assert_eq!(split(Answer::NotTried, &before, &before), done(Bytes::ZERO, Bytes::ZERO));
        let of = |answer| split(answer, &huge, &huge).obtained;
        assert_eq!(of(Answer::Accepted), Obtained::Busy);
        assert_eq!(of(Answer::Refused(Refusal::Invalid)), Obtained::Impossible);
        assert_eq!(of(Answer::Refused(Refusal::NoMemory)), Obtained::Impossible);
        assert_eq!(of(Answer::Refused(Refusal::Denied)), Obtained::Denied);
        assert_eq!(of(Answer::Refused(Refusal::Gone)), Obtained::Gone);
    }
}
