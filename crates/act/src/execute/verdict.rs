//! Result of one region: from the page tables before and after, and the kernel's answer between.

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

fn done(promoted: Bytes, freed: Bytes) -> Verdict {
    Verdict { obtained: Obtained::Done, promoted, freed, why: None }
}

/// Returns the result of a promotion. `mapped` is true if one mapping of the process holds the
/// whole region; `None` if that is not known.
pub(super) fn promotion(answer: Answer, after: &Region, mapped: Option<bool>) -> Verdict {
    if after.huge == Some(true) {
        let was = answer == Answer::Refused(Refusal::Huge);
        return done(if was { Bytes::ZERO } else { HugeCount(1).bytes() }, Bytes::ZERO);
    }
    match answer {
        Answer::Accepted if after.huge.is_none() => Verdict::refused(Obtained::Busy, UNSEEN),
        Answer::Accepted => Verdict::refused(Obtained::Busy, "it was split again at once"),
        Answer::NotTried => Verdict::refused(Obtained::Busy, "it was not reached"),
        Answer::Refused(Refusal::NoMemory) if mapped == Some(false) => {
            Verdict::refused(Obtained::Impossible, "it is not mapped any more")
        }
        Answer::Refused(Refusal::NoMemory) => {
            Verdict::refused(Obtained::NoMemory, "ENOMEM: no free huge page, and none could be made")
        }
        Answer::Refused(Refusal::GroupFull) => {
            Verdict::refused(Obtained::Busy, "EBUSY: no room in its control group")
        }
        Answer::Refused(Refusal::Invalid) => Verdict::refused(
            Obtained::Impossible,
            "EINVAL: no page table, huge pages are not for this mapping, or userfaultfd protects it",
        ),
        Answer::Refused(refusal) => refused(refusal),
    }
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
    match answer {
        Answer::NotTried => Verdict::refused(Obtained::Busy, "it was on base pages, and is huge now"),
        Answer::Accepted => Verdict::refused(
            Obtained::Busy,
            "it was skipped: a forked process shares it, or something holds it for now",
        ),
        Answer::Refused(Refusal::Invalid) => {
            Verdict::refused(Obtained::Impossible, "EINVAL: locked memory, or a page of a hugetlb pool")
        }
        Answer::Refused(Refusal::NoMemory) => {
            Verdict::refused(Obtained::Impossible, "it is not mapped any more")
        }
        Answer::Refused(refusal) => refused(refusal),
    }
}

fn refused(refusal: Refusal) -> Verdict {
    match refusal {
        Refusal::Denied => Verdict::refused(
            Obtained::Denied,
            "EPERM: a security module, a seccomp filter or a user namespace forbids it",
        ),
        Refusal::Gone => gone(),
        Refusal::Unsupported => {
            Verdict::refused(Obtained::Unsupported, "the kernel does not know this advice")
        }
        Refusal::Busy => {
            Verdict::refused(Obtained::Busy, "EAGAIN: pinned, locked or off the LRU lists for now")
        }
        Refusal::GroupFull => Verdict::refused(Obtained::Busy, "EBUSY: something holds it"),
        Refusal::Locked => {
            Verdict::refused(Obtained::Busy, "the process does not answer: its memory map is locked")
        }
        Refusal::Shared => {
            Verdict::refused(Obtained::Busy, "another process shares it since a fork: it would be copied")
        }
        Refusal::Huge => Verdict::refused(Obtained::Busy, "it was huge, and was split meanwhile"),
        Refusal::Empty => Verdict::refused(Obtained::Busy, "nothing is present there any more"),
        Refusal::BelowFloor => Verdict::refused(
            Obtained::NoMemory,
            "less than 5 % of the machine's memory is available, and a collapse would reclaim some",
        ),
        Refusal::Invalid | Refusal::NoMemory => {
            Verdict::refused(Obtained::Impossible, "the kernel refuses it")
        }
        Refusal::Other(_) => {
            Verdict::refused(Obtained::Impossible, "the kernel refuses it with an unknown error")
        }
    }
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
        let refused = Answer::Refused(Refusal::Busy);
        for answer in [Answer::Accepted, refused, Answer::NotTried] {
            assert_eq!(promotion(answer, &huge, None), done(Bytes::mib(2), Bytes::ZERO));
            assert_eq!(promotion(answer, &base, None).obtained, Obtained::Busy, "{answer:?}");
        }
        let was_huge = |after| promotion(Answer::Refused(Refusal::Huge), after, None);
        assert_eq!(was_huge(&huge), done(Bytes::ZERO, Bytes::ZERO));
        assert_eq!(was_huge(&base).obtained, Obtained::Busy);
        let of = |refusal, mapped| promotion(Answer::Refused(refusal), &base, mapped).obtained;
        assert_eq!(of(Refusal::Empty, None), Obtained::Busy);
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
        assert_eq!(promotion(Answer::Accepted, &unseen, None).obtained, Obtained::Busy);
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
