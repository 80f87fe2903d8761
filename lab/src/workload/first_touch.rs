//! Cost of a program's first memory: it allocates, and writes to each 2 MiB for the first time.

use anyhow::{Context, Result, ensure};
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::{backing, read_own_smaps};
use megapage_units::{Bytes, HUGE_2M, VirtRange};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FirstTouches {
    /// The time of calloc(3) of all of the memory.
    pub allocate_ns: u64,
    /// The time of the first write to each 2 MiB, in order, including that of reading the clock
    /// (about 50).
    pub touch_ns: Vec<u64>,
    /// The time from before the allocation to after the last write.
    pub whole_ns: u64,
    /// The share of the memory that the kernel reports on pages of 2 MiB or more, 0 to 1.
    pub huge_share: f64,
}

/// Allocates `size`, a multiple of 2 MiB, and touches it.
pub fn run(size: Bytes) -> Result<FirstTouches> {
    let bytes = usize::try_from(size.0)?;
    ensure!(bytes > 0 && bytes.is_multiple_of(HUGE_2M), "{size} is no multiple of 2 MiB");
    let mut touch_ns = Vec::with_capacity(bytes / HUGE_2M);
    let start = Instant::now();
    let mut memory = black_box(vec![0u8; bytes]);
    let allocate_ns = start.elapsed().as_nanos() as u64;
    for page in memory.chunks_exact_mut(HUGE_2M) {
        let touched = Instant::now();
        page[0] = black_box(1);
        touch_ns.push(touched.elapsed().as_nanos() as u64);
    }
    let whole_ns = start.elapsed().as_nanos() as u64;
    let first = memory.as_ptr().addr() as u64;
    let range = VirtRange::new(first, first + size.0).context("the memory's addresses")?;
    let mappings = read_own_smaps(&KernelRoot::live())?;
    let own = backing(mappings.iter().filter(|mapping| mapping.range.intersection(range).is_some()));
    let huge_share = own.huge().0 as f64 / own.total().0.max(1) as f64;
    let written: u64 = memory.chunks_exact(HUGE_2M).map(|page| u64::from(page[0])).sum();
    ensure!(written == touch_ns.len() as u64, "the memory does not hold what was written");
    Ok(FirstTouches { allocate_ns, touch_ns, whole_ns, huge_share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_touched_once() {
        let found = run(Bytes::mib(8)).unwrap();
        assert_eq!(found.touch_ns.len(), 4);
        assert!(found.whole_ns >= found.allocate_ns + found.touch_ns.iter().sum::<u64>());
        assert!((0.0..=1.0).contains(&found.huge_share));
        assert!(run(Bytes::mib(3)).is_err() && run(Bytes::ZERO).is_err());
    }
}
