//! What was requested for the heap.

megapage_units::named! {
    /// The backing asked for, as `megapage run --heap` spells it.
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
    /// What the program forks for, as `megapage run --fork` spells it: whether, and how, the heap
    /// repairs what writes after a fork have split.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Fork {
        /// Nothing is known: nothing is repaired.
        #[default]
        Auto = "auto",
        /// To start other programs: the heap is repaired between the forks, as fast as it goes.
        Cheap = "cheap",
        /// To save its memory: the heap is repaired when the child is gone, in small steps.
        Snapshot = "snapshot",
    }
}

/// How the heap behaves. Set once, before the program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The backing asked for.
    pub heap: Heap,
    /// Populate large hugetlb mappings at once: wherever a fault may be refused after the reservation was
    /// granted (a hugetlb cgroup limit), it is a refusal here and a SIGBUS there.
    pub populate: bool,
    /// Memory counts as short when less than this many bytes are available; 0 stands for a tenth of all.
    pub short_below: u64,
    /// What the program forks for.
    pub fork: Fork,
    /// The launcher has chosen the backing, not its user: a heap has huge pages only where they
    /// cost little memory.
    pub spares: bool,
}

impl Config {
    /// What holds until something else is asked, and for a library that was preloaded by hand.
    pub const DEFAULT: Config =
        Config { heap: Heap::Auto, populate: true, short_below: 0, fork: Fork::Auto, spares: false };
}
