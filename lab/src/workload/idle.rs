//! A program that has nothing to gain from huge pages: its data fits in the caches.

use crate::workload::measurement::{HeapBacking, Measurement, Phases, scaled};
use anyhow::{Result, ensure};
use megapage_bench::random::Random;
use megapage_bench::random::mix;
use std::collections::BTreeMap;

/// Multiplies small matrices and churns a heap of a few hundred kilobytes, for about a second at
/// scale 1. Phases: `compute`, `churn`.
pub fn run(scale: f64) -> Result<Measurement> {
    let mut phases = Phases::default();
    let trace = phases.time("compute", || compute(scaled(12_000, scale, 10)));
    let digest = phases.time("churn", || churn(scaled(20_000_000, scale, 10_000)))?;
    Ok(Measurement {
        workload: "idle".into(),
        phases,
        values: BTreeMap::new(),
        checksum: mix(trace.to_bits()) ^ digest,
        backing: HeapBacking::of_this_process()?,
    })
}

/// Rows and columns of the matrices: three of them are 96 KiB.
const SIDE: usize = 64;

/// Applies a rotation-like matrix `rounds` times to a dense one. Returns the trace of the result.
pub fn compute(rounds: usize) -> f64 {
    let mut random = Random::new(21);
    let mut entry = || (random.bits() >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
    let left: Vec<f64> = (0..SIDE * SIDE).map(|_| entry() / 4.0).collect();
    let mut right: Vec<f64> = (0..SIDE * SIDE).map(|_| entry()).collect();
    let mut product = vec![0.0; SIDE * SIDE];
    for _ in 0..rounds {
        for row in 0..SIDE {
            let target = &mut product[row * SIDE..][..SIDE];
            target.fill(0.0);
            for (inner, &factor) in left[row * SIDE..][..SIDE].iter().enumerate() {
                for (cell, &value) in target.iter_mut().zip(&right[inner * SIDE..][..SIDE]) {
                    *cell += factor * value;
                }
            }
        }
        // Scaled back to entries of at most 1, so that they neither vanish nor grow over the
        // rounds.
        let largest = product.iter().fold(f64::MIN_POSITIVE, |largest: f64, cell| largest.max(cell.abs()));
        for (cell, &value) in right.iter_mut().zip(&product) {
            *cell = value / largest;
        }
    }
    (0..SIDE).map(|index| right[index * SIDE + index]).sum()
}

/// Replaces, `rounds` times, one of 2,000 strings of 1 to 64 bytes by another.
fn churn(rounds: usize) -> Result<u64> {
    let mut random = Random::new(22);
    let mut slots: Vec<Vec<u8>> = vec![Vec::new(); 2000];
    let mut bytes = 0u64;
    for _ in 0..rounds {
        let bits = random.bits();
        let slot = ((bits >> 32) % slots.len() as u64) as usize;
        let replaced = std::mem::replace(&mut slots[slot], vec![bits as u8; 1 + (bits & 63) as usize]);
        bytes += replaced.len() as u64;
    }
    for slot in &slots {
        ensure!(slot.iter().all(|byte| byte == &slot[0]), "a small string was damaged");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_repeats_and_stays_small() {
        let (first, second) = (run(0.01).unwrap(), run(0.01).unwrap());
        assert_eq!(first.checksum, second.checksum);
        assert!(compute(50).is_finite() && compute(50) != 0.0);
    }
}
