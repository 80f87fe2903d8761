//! Configuration of the heap.

megapage_units::named! {
    /// Requested backing, as `megapage run --heap` spells it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Heap {
        /// 1 GiB pages for very large heaps, else 2 MiB hugetlb, else THP, else base pages.
        #[default]
        Auto = "auto",
        /// Like `Auto`, but 1 GiB pages from the first arena on.
        Hugetlb1G = "1g",
        /// 2 MiB hugetlb, else THP, else base pages.
        Hugetlb2M = "2m",
        /// THP, else base pages.
        Thp = "thp",
        /// Base pages.
        None = "none",
    }
}

megapage_units::named! {
    /// Purpose of the program's forks, as `megapage run --fork` spells it. It decides if and how
    /// the heap repairs huge pages that writes after a fork have split.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Fork {
        /// Unknown purpose: nothing is repaired.
        #[default]
        Auto = "auto",
        /// Start of other programs: the heap is repaired between the forks, as fast as it goes.
        Cheap = "cheap",
        /// Copy of its memory: the heap is repaired once the child is gone, in small steps.
        Snapshot = "snapshot",
    }
}

/// Behaviour of the heap. Set once, before the program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Requested backing.
    pub heap: Heap,
    /// True if large hugetlb mappings are populated at once. A fault may be refused after the
    /// reservation was granted (a hugetlb cgroup limit). Populating reports that as a refusal; a
    /// later fault would be a SIGBUS.
    pub populate: bool,
    /// Available bytes below which memory counts as short; 0 stands for a tenth of all memory.
    pub short_below: u64,
    /// Purpose of the program's forks.
    pub fork: Fork,
    /// True if the launcher has chosen the backing, and not its user: a heap then has huge pages
    /// only where they cost little memory.
    pub spares: bool,
}

impl Config {
    /// Configuration before another is requested, and of a library that was preloaded by hand.
    pub const DEFAULT: Config =
        Config { heap: Heap::Auto, populate: true, short_below: 0, fork: Fork::Auto, spares: false };
}
