//! Blocks of every size on the system allocator, for comparison with those of a segment
//! ([`super::keep::malloc`]).

use super::keep::{KINDS, MOST_RUNS, SIZES};
use crate::workload::measurement::{HeapBacking, Measurement, Phases};
use anyhow::{Result, ensure};
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::time::Instant;

/// Allocates blocks of every size of which one fits into nine tenths of `size`, of each kind,
/// writes all of them and frees them.
///
/// Values: as of [`super::keep::malloc`]; an allocator does not report the bytes that it clears.
/// The backing is that of the blocks that took most memory.
pub fn run(size: Bytes) -> Result<Measurement> {
    let room = size.0 / 10 * 9;
    let mut found = Measurement { workload: "blocks".into(), ..Measurement::default() };
    let start = Instant::now();
    for kind in KINDS {
        for bytes in SIZES {
            let runs = ((room / bytes) as usize).min(MOST_RUNS);
            if runs == 0 {
                continue;
            }
            let (values, backing) = blocks(runs, kind == "zmalloc", bytes)?;
            found.checksum += runs as u64;
            for (what, value) in values {
                found.values.insert(format!("{kind}.{bytes}.{what}"), value);
            }
            if backing.resident() > found.backing.resident() {
                found.backing = backing;
            }
        }
    }
    let spent = megapage_bench::statistics::nanoseconds(start.elapsed());
    let spent = megapage_bench::statistics::Spent { wall_ns: spent, cpu_ns: 0 };
    found.phases = Phases(BTreeMap::from([("blocks".to_string(), spent)]));
    Ok(found)
}

type Values = [(&'static str, f64); 6];

fn blocks(runs: usize, zeroed: bool, bytes: u64) -> Result<(Values, HeapBacking)> {
    let words = (bytes / 8) as usize;
    let mut blocks: Vec<Vec<u64>> = Vec::with_capacity(runs);
    let start = Instant::now();
    for _ in 0..runs {
        // calloc(3) and malloc(3).
        blocks.push(if zeroed { vec![0; words] } else { Vec::with_capacity(words) });
    }
    let allocating = start.elapsed();
    let start = Instant::now();
    for block in &mut blocks {
        if zeroed {
            ensure!(block[0] == 0, "a block of zeros holds an old byte");
            block.fill(u64::MAX);
        } else {
            block.resize(words, u64::MAX);
        }
    }
    let writing = start.elapsed();
    let backing = HeapBacking::of_this_process()?;
    ensure!(blocks.iter().all(|block| block[words - 1] == u64::MAX), "a block lost what was written");
    let start = Instant::now();
    blocks.clear();
    let freeing = start.elapsed();
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6 / runs as f64;
    let values = [
        ("runs", runs as f64),
        ("allocate_us", us(allocating)),
        ("free_us", us(freeing)),
        ("memset_us", us(writing)),
        ("cleared_allocating", 0.0),
        ("cleared_freeing", 0.0),
    ];
    Ok((values, backing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_every_size_that_fits_are_measured() {
        let found = run(Bytes::mib(20)).unwrap();
        assert_eq!(found.values["malloc.64.runs"], 10_000.0);
        assert_eq!(found.values["zmalloc.16777216.runs"], 1.0);
        assert!(!found.values.contains_key("malloc.1073741824.runs"), "it does not fit");
        assert!(found.values["zmalloc.1048576.memset_us"] > 0.0);
        assert!(found.backing.resident() > 10 << 20, "{:?}", found.backing);
    }
}
