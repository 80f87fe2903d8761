//! Limit on the pages of a region that another process may map as well when the region is
//! collapsed. Such a process is a forked child that has not executed a program, its children, or
//! any process that KSM has merged pages for. A collapse copies shared pages, which costs memory as
//! long as they are shared.

use crate::engine::Refusal;
use megapage_kernel::KernelError;
use megapage_kernel::pagemap::Entry;
use megapage_observe::PageTables;
use megapage_units::HugePage;

/// Limits, by the kind of caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// No page: for a caller that looks through a program's whole heap for candidates, and comes
    /// back soon. A shared page is the sign of a child that will end soon. Until then most of the
    /// heap is shared, one way or the other.
    NoPage,
    /// 64 of the 512 pages: for a caller that is about to collapse regions that were decided on,
    /// maybe before a fork. At most 256 KiB are then copied, once. A forked process shares some
    /// page of nearly every region with its parent for good. If one shared page were enough to skip
    /// a region, the process would never have a huge page.
    FewPages,
}

impl Sharing {
    /// Returns the reason not to collapse a region, by its page tables as they are now; `None`:
    /// there is none, or it is unknown ([`PageTables::distinguishes_zeros`]). A region that is huge
    /// or empty is refused only for a strict caller. That caller gives a list. A region is added to
    /// it if only smaps shows whether it is huge.
    ///
    /// Reads the entries of the region, which usually suffice. They show neither huge entries nor
    /// the shared page of zeros. Where one of these matters, reads [`PageTables::seen`] as well.
    pub(crate) fn unfit(
        self,
        tables: &mut PageTables,
        region: HugePage,
        strict: Option<&mut Vec<HugePage>>,
    ) -> Result<Option<Refusal>, KernelError> {
        if strict.is_none() && !tables.distinguishes_zeros() {
            return Ok(None);
        }
        let most = match self {
            Sharing::NoPage => 0,
            Sharing::FewPages => 64,
        };
        let entries = tables.entries(region)?;
        // Pages of zeros are among these.
        let shared = entries.iter().filter(|entry| entry.is_shared()).count();
        let is_held = |entry: &Entry| entry.is_swapped() || entry.is_present() && !entry.is_shared();
        let is_clear = strict.is_none() || entries.iter().any(is_held) && !may_be_huge(&entries);
        if shared <= most && is_clear {
            return Ok(None);
        }
        let seen = tables.seen(region, &entries)?;
        let is_shared = tables.shared_pages(&entries, &seen).is_some_and(|pages| usize::from(pages) > most);
        match strict {
            Some(_) if seen.huge == Some(true) => return Ok(Some(Refusal::Huge)),
            Some(_) if seen.present == 0 && seen.swapped == 0 => return Ok(Some(Refusal::Empty)),
            Some(doubtful) if seen.huge.is_none() => doubtful.push(region),
            _ => {}
        }
        Ok(is_shared.then_some(Refusal::Shared))
    }
}

/// Returns false if the entries of a region show that no huge entry maps it. All of its pages are
/// present then, and their frames follow each other, as far as the caller may see them.
fn may_be_huge(entries: &[Entry]) -> bool {
    let first = entries.first().and_then(|entry| entry.frame());
    let in_order = |first: u64| {
        first.is_multiple_of(entries.len() as u64)
            && entries.iter().zip(first..).all(|(entry, frame)| entry.frame() == Some(frame))
    };
    entries.iter().all(|entry| entry.is_present()) && first.is_none_or(in_order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_entry_maps_512_frames_in_order() {
        let full =
            |first: u64| -> Vec<Entry> { (first..first + 512).map(|frame| Entry(1 << 63 | frame)).collect() };
        assert!(may_be_huge(&full(1024)));
        assert!(!may_be_huge(&full(1025)));
        let mut other = full(1024);
        other[7] = Entry(1 << 63 | 5);
        assert!(!may_be_huge(&other));
        other[7] = Entry(0);
        assert!(!may_be_huge(&other));
        assert!(may_be_huge(&vec![Entry(1 << 63); 512]), "frames are hidden without CAP_SYS_ADMIN");
    }
}
