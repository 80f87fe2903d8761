//! Memory that is allocated and then mostly freed, to measure the share that the allocator
//! releases.

use crate::workload::access::{small_object, small_words};
use crate::workload::measurement::{HeapBacking, Measurement, Phases, scaled};
use anyhow::Result;
use megapage_bench::random::Random;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

megapage_units::named! {
    /// Objects that are freed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Case {
        /// Four of five of 2 million small objects, each chosen at random: nearly every page keeps
        /// a live one.
        Random = "random",
        /// Four of five runs of [`RUN`] consecutive allocations, of 2 million small objects: whole
        /// pages come free.
        Runs = "runs",
        /// Four of five objects of 64 KiB to 4 MiB, chosen at random; 920 MB in all.
        Big = "big",
    }
}

/// Consecutive allocations that are freed or kept together: 4 MiB of small objects.
pub const RUN: usize = 9118;

/// Share of the objects (or runs) that are freed.
const FREED_SHARE: f64 = 0.8;

/// Options of a case.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Multiplies the number of objects; 1 is the published size.
    pub scale: f64,
    /// The wait after the last free.
    pub wait: Duration,
    /// True if it allocates and frees a little while waiting, as a living program does. Some
    /// allocators release memory only as a side effect of the next call.
    pub trickle: bool,
}

/// Runs one case. Phases: `allocate`, `free`. Values: `before_bytes` and `after_bytes` (the
/// resident heap with all objects live, and after the wait), `live_bytes` (asked for and still
/// held).
pub fn run(case: Case, options: Options) -> Result<Measurement> {
    let (mut random, mut phases) = (Random::new(5), Phases::default());
    let mut objects = phases.time("allocate", || match case {
        Case::Random | Case::Runs => small_objects(options.scale, &mut random),
        Case::Big => big_objects(options.scale, &mut random),
    });
    let before = HeapBacking::of_this_process()?;
    let run_length = if case == Case::Runs { RUN } else { 1 };
    phases.time("free", || free_most(&mut objects, run_length, &mut random));
    wait(options, &mut random);
    let after = HeapBacking::of_this_process()?;

    let (mut live_bytes, mut checksum) = (0u64, 0u64);
    for object in objects.iter().flatten() {
        live_bytes += 8 * object.len() as u64;
        checksum = checksum.wrapping_add(object[object.len() - 1]);
    }
    Ok(Measurement {
        workload: format!("release {}", case.name()),
        phases,
        values: BTreeMap::from([
            ("before_bytes".into(), before.resident() as f64),
            ("after_bytes".into(), after.resident() as f64),
            ("after_huge_share".into(), after.huge_share()),
            ("live_bytes".into(), live_bytes as f64),
        ]),
        checksum,
        backing: before,
    })
}

type Objects = Vec<Option<Box<[u64]>>>;

fn small_objects(scale: f64, random: &mut Random) -> Objects {
    let count = scaled(2_000_000, scale, 1000);
    (0..count).map(|index| Some(small_object(small_words(random), index as u64))).collect()
}

fn big_objects(scale: f64, random: &mut Random) -> Objects {
    let mut words_left = scaled(920_000_000 / 8, scale, 1 << 20);
    let mut objects = Vec::new();
    while words_left > 0 {
        let words = ((64 << 10) + random.below((4 << 20) - (64 << 10))) / 8;
        let words = words.min(words_left);
        objects.push(Some(small_object(words, objects.len() as u64)));
        words_left -= words;
    }
    objects
}

/// Frees 80 % of the runs of `run_length` objects, each chosen at random.
fn free_most(objects: &mut Objects, run_length: usize, random: &mut Random) {
    for run in objects.chunks_mut(run_length) {
        if random.chance(FREED_SHARE) {
            run.fill_with(|| None);
        }
    }
}

fn wait(options: Options, random: &mut Random) {
    const STEP: Duration = Duration::from_millis(10);
    let (start, mut step) = (Instant::now(), 0);
    while let Some(left) = options.wait.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        if options.trickle {
            let batch: Vec<_> = (0..64).map(|_| small_object(small_words(random), 0)).collect();
            drop(black_box(batch));
            // 64 KiB to 2 MiB in turn: some allocators look for memory to release only when a large
            // object is freed.
            drop(black_box(small_object(((64 << 10) << (step % 6)) / 8, 0)));
            step += 1;
        }
        std::thread::sleep(STEP.min(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_of_five_are_freed_in_runs_of_the_stated_length() {
        for run_length in [1, 10] {
            let mut objects: Objects = (0..20_000).map(|_| Some(small_object(2, 0))).collect();
            free_most(&mut objects, run_length, &mut Random::new(11));
            let live = objects.iter().flatten().count() as f64 / 20_000.0;
            assert!((0.17..0.23).contains(&live), "{live}");
            for run in objects.chunks(run_length) {
                assert!(run.iter().all(|object| object.is_some() == run[0].is_some()));
            }
        }
    }

    #[test]
    fn the_report_distinguishes_before_from_after() {
        let options = Options { scale: 0.01, wait: Duration::from_millis(20), trickle: true };
        for case in Case::ALL {
            let found = run(case, options).unwrap();
            let live = found.values["live_bytes"];
            // Live memory is resident, and all of it was resident before.
            assert!(found.values["after_bytes"] >= live, "{case:?}: {found:?}");
            assert!(found.values["before_bytes"] >= 7e6, "{case:?}: {found:?}");
        }
    }
}
