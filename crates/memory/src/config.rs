//! What was asked of the heap.

/// The backing asked for, as `megapage run --heap` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heap {
    /// 1 GiB pages for very large heaps, else 2 MiB hugetlb, else THP, else base pages.
    Auto,
    /// Like `Auto`, but 1 GiB pages from the first arena on.
    Hugetlb1G,
    /// 2 MiB hugetlb, else THP, else base pages.
    Hugetlb2M,
    /// THP, else base pages.
    Thp,
    /// Base pages.
    None,
}

impl Heap {
    /// Reads the spelling of the command line; `None` for any other.
    pub fn parse(text: &[u8]) -> Option<Heap> {
        Some(match text {
            b"auto" => Heap::Auto,
            b"1g" => Heap::Hugetlb1G,
            b"2m" => Heap::Hugetlb2M,
            b"thp" => Heap::Thp,
            b"none" => Heap::None,
            _ => return None,
        })
    }
}

/// What the program forks for, as `megapage run --fork` spells it: whether, and how, the heap mends what writes after a
/// fork have split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// Nothing is known: nothing is mended.
    Auto,
    /// To start other programs: the heap is mended between the forks, as fast as it goes.
    Cheap,
    /// To save its memory: the heap is mended when the child is gone, in small steps.
    Snapshot,
}

impl Fork {
    /// Reads the spelling of the command line; `None` for any other.
    pub fn parse(text: &[u8]) -> Option<Fork> {
        Some(match text {
            b"auto" => Fork::Auto,
            b"cheap" => Fork::Cheap,
            b"snapshot" => Fork::Snapshot,
            _ => return None,
        })
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
}

impl Config {
    /// What holds until something else is asked, and for a library that was preloaded by hand.
    pub const DEFAULT: Config = Config { heap: Heap::Auto, populate: true, short_below: 0, fork: Fork::Auto };
}
