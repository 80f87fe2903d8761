//! Memory by the kind of page that backs it.

use megapage_kernel::smaps::{BackingBytes, Mapping};
use megapage_units::Bytes;
use std::ops::AddAssign;

/// Memory by the kind of page that backs it, with its swapped part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory that is present.
    pub present: BackingBytes,
    /// Memory that is swapped out.
    pub swapped: Bytes,
}

impl Memory {
    /// Returns the sum of all `mappings`.
    pub fn of<'a>(mappings: impl IntoIterator<Item = &'a Mapping>) -> Memory {
        let mut sum = Memory::default();
        for mapping in mappings {
            sum += Memory { present: mapping.backing(), swapped: mapping.swap };
        }
        sum
    }

    /// Returns the memory that is present and not on huge pages.
    pub fn not_huge(&self) -> Bytes {
        self.present.base
    }

    /// Returns all memory, present or swapped out.
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
