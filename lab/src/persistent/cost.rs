//! Cost of a block of memory.

use crate::bench::Spread;
use crate::workload::measurement::Measurement;
use serde::Serialize;

/// Medians of the cost of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Blocks that were allocated one after the other, and then freed.
    pub runs: f64,
    /// Microseconds to allocate one, including the clearing for it.
    pub allocate_us: f64,
    /// Microseconds to free one, including the clearing then.
    pub free_us: f64,
    /// Microseconds to write all of one: the cost of clearing alone.
    pub memset_us: f64,
    /// Bytes cleared when one was allocated; 0 for DPDK, which does not report it.
    pub cleared_allocating: f64,
    /// Bytes cleared when one was freed; 0 for DPDK, which does not report it.
    pub cleared_freeing: f64,
}

impl Cost {
    const VALUES: [&str; 6] =
        ["runs", "allocate_us", "free_us", "memset_us", "cleared_allocating", "cleared_freeing"];

    /// Reads the values of blocks of one kind and size; `None` if the workload did not print them
    /// all.
    pub(super) fn read(found: &Measurement, kind: &str, bytes: u64) -> Option<Cost> {
        let mut values = [0.0; 6];
        for (value, name) in values.iter_mut().zip(Cost::VALUES) {
            *value = *found.values.get(&format!("{kind}.{bytes}.{name}"))?;
        }
        Some(Cost::of(values))
    }

    fn of(values: [f64; 6]) -> Cost {
        let [runs, allocate_us, free_us, memset_us, cleared_allocating, cleared_freeing] = values;
        Cost { runs, allocate_us, free_us, memset_us, cleared_allocating, cleared_freeing }
    }

    fn values(&self) -> [f64; 6] {
        let Cost { runs, allocate_us, free_us, memset_us, cleared_allocating, cleared_freeing } = *self;
        [runs, allocate_us, free_us, memset_us, cleared_allocating, cleared_freeing]
    }

    pub(super) fn median(samples: &[Cost]) -> Cost {
        let median = |at: usize| {
            Spread::of(samples.iter().map(|cost| cost.values()[at])).map_or(f64::NAN, |spread| spread.median)
        };
        Cost::of(std::array::from_fn(median))
    }
}
