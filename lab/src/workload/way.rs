//! The ways in which the workload `steady` works.

/// How the memory is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Reads at random that do not wait for each other.
    Random,
    /// Each read waits for the one before, in no order.
    Chase,
    /// The same, but of one cache line in each base page, as of the headers of large objects: the lines fit caches, so
    /// that what the program waits for is mostly translation.
    Sparse,
    /// One word after the other, into a checksum.
    Sequential,
    /// Not at all: small matrices in the caches.
    Compute,
    /// Nothing is done.
    Sleep,
}

impl Way {
    /// Every one of them.
    pub const ALL: [Way; 6] =
        [Way::Random, Way::Chase, Way::Sparse, Way::Sequential, Way::Compute, Way::Sleep];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Random => "random",
            Way::Chase => "chase",
            Way::Sparse => "sparse",
            Way::Sequential => "sequential",
            Way::Compute => "compute",
            Way::Sleep => "sleep",
        }
    }

    /// Accesses (rounds, for `compute`) in one unit of work: a fraction of a millisecond.
    pub(super) const fn steps(self) -> usize {
        match self {
            Way::Random => 8_192,
            Way::Chase | Way::Sparse => 1_024,
            Way::Sequential => 1 << 17,
            Way::Compute => 4,
            Way::Sleep => 0,
        }
    }
}
