//! The ways in which the workload `steady` works.

megapage_units::named! {
    /// Way in which the memory is reached.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Way {
        /// Reads at random that do not wait for each other.
        Random = "random",
        /// Each read waits for the one before, in no order.
        Chase = "chase",
        /// The same, but of one cache line in each base page, as of the headers of large objects:
        /// the lines fit caches, so that what the program waits for is mostly translation.
        Sparse = "sparse",
        /// One word after the other, into a checksum.
        Sequential = "sequential",
        /// Not at all: small matrices in the caches.
        Compute = "compute",
        /// Nothing is done.
        Sleep = "sleep",
    }
}

impl Way {
    /// Returns the accesses (rounds, for `compute`) in one unit of work: a fraction of a
    /// millisecond.
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
