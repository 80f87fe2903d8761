//! Limit on the pages of a region that another process may map as well when the region is
//! collapsed. Such a process is a forked child that has not executed a program, its children, or
//! any process that KSM has merged pages for. A collapse copies shared pages, which costs memory as
//! long as they are shared.

use megapage_kernel::KernelError;
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
    /// Returns true if more pages of `region` are shared than the limit. Returns
    /// false if the kernel does not report it: before Linux 6.7 without root.
    pub(crate) fn is_exceeded(self, tables: &mut PageTables, region: HugePage) -> Result<bool, KernelError> {
        let most = match self {
            Sharing::NoPage => 0,
            Sharing::FewPages => 64,
        };
        Ok(tables.shared_pages(region.range())?.is_some_and(|pages| pages > most))
    }
}
