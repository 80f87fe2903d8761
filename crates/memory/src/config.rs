//! What was requested for the heap.

use std::str::FromStr;

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
    /// All of them, in the order of messages.
    pub const ALL: [Heap; 5] = [Heap::Auto, Heap::Hugetlb1G, Heap::Hugetlb2M, Heap::Thp, Heap::None];

    /// As on the command line, in the variable of the preloaded library, and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Heap::Auto => "auto",
            Heap::Hugetlb1G => "1g",
            Heap::Hugetlb2M => "2m",
            Heap::Thp => "thp",
            Heap::None => "none",
        }
    }

    /// Reads a name; `None` for any other text. Allocates nothing.
    pub fn parse(text: &[u8]) -> Option<Heap> {
        Heap::ALL.into_iter().find(|it| it.name().as_bytes() == text)
    }
}

impl FromStr for Heap {
    type Err = String;

    fn from_str(text: &str) -> Result<Heap, String> {
        Heap::parse(text.as_bytes()).ok_or_else(|| format!("'{text}' is none of auto, 1g, 2m, thp, none"))
    }
}

/// What the program forks for, as `megapage run --fork` spells it: whether, and how, the heap repairs what writes after a
/// fork have split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fork {
    /// Nothing is known: nothing is repaired.
    #[default]
    Auto,
    /// To start other programs: the heap is repaired between the forks, as fast as it goes.
    Cheap,
    /// To save its memory: the heap is repaired when the child is gone, in small steps.
    Snapshot,
}

impl Fork {
    /// All of them, in the order of messages.
    pub const ALL: [Fork; 3] = [Fork::Auto, Fork::Cheap, Fork::Snapshot];

    /// As on the command line, in the variable of the preloaded library, and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Fork::Auto => "auto",
            Fork::Cheap => "cheap",
            Fork::Snapshot => "snapshot",
        }
    }

    /// Reads a name; `None` for any other text. Allocates nothing.
    pub fn parse(text: &[u8]) -> Option<Fork> {
        Fork::ALL.into_iter().find(|it| it.name().as_bytes() == text)
    }
}

impl FromStr for Fork {
    type Err = String;

    fn from_str(text: &str) -> Result<Fork, String> {
        Fork::parse(text.as_bytes()).ok_or_else(|| format!("'{text}' is none of auto, cheap, snapshot"))
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
