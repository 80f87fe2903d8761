//! Memory by what backs it.

use megapage_kernel::smaps::{BackingBytes, Mapping};
use megapage_units::Bytes;
use std::ops::AddAssign;

/// Memory by what backs it, and what of it is swapped out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What is present.
    pub present: BackingBytes,
    /// What is swapped out.
    pub swapped: Bytes,
}

impl Memory {
    /// Of all `mappings`.
    pub fn of<'a>(mappings: impl IntoIterator<Item = &'a Mapping>) -> Memory {
        let mut sum = Memory::default();
        for mapping in mappings {
            sum += Memory { present: mapping.backing(), swapped: mapping.swap };
        }
        sum
    }

    /// What is present, and not on huge pages.
    pub fn not_huge(&self) -> Bytes {
        self.present.base
    }

    /// Present or swapped out.
    pub fn total(&self) -> Bytes {
        self.present.total() + self.swapped
    }
}

impl AddAssign for Memory {
    fn add_assign(&mut self, other: Memory) {
        self.present += other.present;
        self.swapped += other.swapped;
    }
}
