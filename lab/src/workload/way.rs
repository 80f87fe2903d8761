//! The ways in which the workload `steady` works.

megapage_units::named! {
    /// Way in which the memory is reached.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Way {
        /// Random reads that do not wait for each other.
        Random = "random",
        /// Each read waits for the one before, in no order.
        Chase = "chase",
        /// As `chase`, in one cache line of each base page, like the headers of large objects. The
        /// lines fit the caches, so the program waits mostly for translation.
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
