//! Memory that an index takes, and the largest index that fits.

use super::index::{OFFSETS, dimensions, shards};
use megapage_units::Bytes;
use std::num::NonZeroUsize;

/// Bytes that the table of lists takes for each: a vector. Beside it is, while the index is built,
/// the start of its recorded postings.
const PER_LIST: u64 = 24 + 4;

/// Returns the memory of a run with an index of `size` and `threads` threads, allocators' overhead
/// included.
pub fn memory(size: Bytes, threads: NonZeroUsize) -> Bytes {
    let shards = u64::from(shards(size));
    let (songs, fingerprint_bits) = dimensions(Bytes(size.0 / shards));
    // The counts of each thread, of the shard that is searched. Allocators add a few per cent to
    // the postings.
    let counts = u64::from(songs) * u64::from(OFFSETS);
    let threads = threads.get() as u64;
    Bytes(
        size.0
            .saturating_add(size.0 / 16)
            .saturating_add(PER_LIST.saturating_mul(shards << fingerprint_bits))
            .saturating_add(counts.saturating_mul(threads)),
    )
}

/// Returns the largest index, in whole MiB, with which a run takes at most `available`; `None` if
/// even the smallest, of 1 MiB, takes more.
pub fn largest(available: Bytes, threads: NonZeroUsize) -> Option<Bytes> {
    let fits = |mib: u64| memory(Bytes::mib(mib), threads) <= available;
    let (mut fitting, mut beyond) = (1, available.0 / Bytes::mib(1).0 + 2);
    if !fits(fitting) {
        return None;
    }
    while fitting + 1 < beyond {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(middle) { fitting = middle } else { beyond = middle }
    }
    Some(Bytes::mib(fitting))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: usize) -> NonZeroUsize {
        NonZeroUsize::new(count).unwrap()
    }

    #[test]
    fn memory_is_as_the_workload_takes_it() {
        let gb = memory(Bytes::gib(8), threads(2)).0 as f64 / 1e9;
        // Measured on glibc: 13.3 GB resident, of which 0.4 are page-size rounding of the small
        // lists.
        assert!((13.0..14.0).contains(&gb), "{gb}");
        // The library of 60 GB, and tables for 20 threads: the 100 GB of the service.
        let gb = memory(Bytes::gib(56), threads(20)).0 as f64 / 1e9;
        assert!((100.0..110.0).contains(&gb), "{gb}");
        // A table for each thread, for any number of shards.
        assert!(memory(Bytes::gib(4096), threads(2)) < Bytes::gib(4500));
        assert_eq!(memory(Bytes(u64::MAX), threads(usize::MAX)), Bytes(u64::MAX));
    }

    #[test]
    fn the_largest_that_fits_is_that() {
        for available in [Bytes::mib(64), Bytes::gib(5), Bytes::gib(21), Bytes::gib(2048)] {
            let found = largest(available, threads(2)).unwrap();
            assert!(memory(found, threads(2)) <= available, "{available}");
            assert!(memory(found + Bytes::mib(1), threads(2)) > available, "{available}");
        }
        assert_eq!(largest(Bytes::mib(1), threads(1)), None);
        assert_eq!(largest(Bytes::gib(16), threads(4096)).map(|size| size < Bytes::gib(1)), Some(true));
    }
}
