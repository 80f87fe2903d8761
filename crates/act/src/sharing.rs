//! How much of a region another process may map as well where it is collapsed: a forked child that has not executed a
//! program, its children, or any process KSM has merged pages for. A collapse copies what is shared, for as long as it is.

use megapage_kernel::KernelError;
use megapage_observe::PageTables;
use megapage_units::VirtRange;

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A caller that looks at a program's whole heap for what to promote, and comes back soon: no page. One that is shared is the
    /// sign of a child that will be gone soon, and until then most of the heap is shared, one way or the other.
    NoPage,
    /// A caller that is about to collapse what was decided on, maybe before a fork: 64 of the 512 pages. At most 256 KiB are then
    /// copied, once. A process that was forked shares some page of nearly every region with its parent for good; left
    /// alone for one page, it would never have a huge page.
    FewPages,
}

impl Sharing {
    /// Whether more pages of the aligned 2 MiB `region` are shared than that. `false` where the kernel does
    /// not tell: before Linux 6.7 without root.
    pub(crate) fn is_exceeded(self, tables: &mut PageTables, region: VirtRange) -> Result<bool, KernelError> {
        let most = match self {
            Sharing::NoPage => 0,
            Sharing::FewPages => 64,
        };
        Ok(tables.shared_pages(region)?.is_some_and(|pages| pages > most))
    }
}
