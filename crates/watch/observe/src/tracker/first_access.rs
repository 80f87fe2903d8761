//! The cost of clearing accessed bits to a target: the first access to each page afterwards takes
//! longer.

use super::Tracker;
use super::self_test::{REGION_PAGES, clear, start_child, whole};
use crate::cached::Cached;
use megapage_kernel::KernelRoot;
use megapage_kernel::canary::Canary;
use megapage_kernel::spare::Spare;
use megapage_units::{Bytes, HUGE_2M};
use serde::{Deserialize, Serialize};

/// Regions of memory for the measurement. Fewer stay in the caches with their page tables: a first
/// access costs less there.
const REGIONS: usize = 64;
/// Regions for the measurement if [`Spare::budget`] does not allow that many. Below, the cost of a
/// first access in the larger memory (335 ns) over that in this one (245 ns).
const FEW_REGIONS: usize = 4;
const OF_FEW: f64 = 335.0 / 245.0;
/// Enough measurements, which are then cached until the next boot.
const ENOUGH: usize = 3;
/// Least plausible result, in nanoseconds: not even a bit in a cache is set in that time. A smaller
/// one was disturbed and is discarded.
const LEAST: f64 = 20.0;
const FILE: &str = "first-access.json";
const SCHEMA: &str = "megapage.first-access/1";

/// Tracker for which measurements hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    tracker: String,
}

/// Returns the cost of the first access to a base page after a clearing, in nanoseconds of the
/// target's processor time. It is measured now, or at up to three moments since boot; the median
/// counts. Root keeps the measurements in `/run/megapage/first-access.json`, for the tracker
/// measured last. It does not keep measurements on little memory.
pub(super) fn known(root: &KernelRoot, tracker: &mut dyn Tracker) -> Result<f64, String> {
    let budget = Spare::read(root).map_err(|error| error.to_string())?.budget();
    let large = budget >= Bytes((REGIONS * HUGE_2M) as u64);
    let key = Key { tracker: tracker.kind().name().into() };
    let Some(cache) = Cached::of(root, FILE, SCHEMA, key) else { return measure(tracker, large) };
    known_in(&cache, large && Cached::<Key>::may_keep(), || measure(tracker, large))
}

fn known_in(
    cache: &Cached<Key>,
    may_keep: bool,
    measure: impl FnOnce() -> Result<f64, String>,
) -> Result<f64, String> {
    let is_sound = |time: &f64| time.is_finite() && *time >= LEAST;
    let mut all: Vec<f64> = cache.read(is_sound);
    if all.is_empty() || may_keep && all.len() < ENOUGH {
        match measure() {
            Ok(now) if is_sound(&now) => {
                all.push(now);
                if may_keep {
                    // A process that cannot write the file measures again.
                    let _ = cache.write(&all);
                }
            }
            found if all.is_empty() => return found,
            _ => {}
        }
    }
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// Measures the time of touching pages after a clearing, less that of touching them again. Returns
/// the median of several tries. It is 0 only for a tracker that clears nothing. If the machine is
/// disturbed in between, the least times are used. Takes about 0.15 s, and meanwhile 128 MiB of
/// memory if `large`, else 8 MiB.
fn measure(tracker: &mut dyn Tracker, large: bool) -> Result<f64, String> {
    const TRIES: usize = 3;
    let (regions, scale) = if large { (REGIONS, 1.0) } else { (FEW_REGIONS, OF_FEW) };
    let mut child = start_child(regions, 0)?;
    let pages = regions * REGION_PAGES;
    let time = |child: &mut Canary| match child.touch(0..pages) {
        Ok(touched) => Ok(touched.cpu.as_nanos() as f64),
        Err(error) => Err(error.to_string()),
    };
    let mut times = Vec::new();
    for _ in 0..TRIES {
        clear(tracker, &child, &[whole(&child)])?;
        times.push([time(&mut child)?, time(&mut child)?]);
    }
    Ok(scale * extra(&times) / pages as f64)
}

/// Returns the additional time of the first of each pair over the second: the median. If the second
/// of most was disturbed, it is the difference of the least times, because a disturbance only adds.
/// Never below 0.
fn extra(pairs: &[[f64; 2]]) -> f64 {
    let mut extra: Vec<f64> = pairs.iter().map(|[first, again]| first - again).collect();
    extra.sort_by(f64::total_cmp);
    let least = |which: usize| pairs.iter().map(|pair| pair[which]).fold(f64::INFINITY, f64::min);
    match extra.get(extra.len() / 2) {
        Some(&median) if median > 0.0 => median,
        Some(_) => (least(0) - least(1)).max(0.0),
        None => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_snapshot::TrackerKind;
    use std::cell::Cell;

    #[test]
    fn a_disturbed_timing_does_not_make_first_accesses_free() {
        assert_eq!(extra(&[[15.0, 5.0], [16.0, 4.0], [90.0, 5.0]]), 12.0, "the median");
        assert_eq!(
            extra(&[[15.0, 50.0], [16.0, 40.0], [15.0, 5.0]]),
            10.0,
            "most of the second times were disturbed"
        );
        assert_eq!((extra(&[[5.0, 5.0]; 3]), extra(&[])), (0.0, 0.0));
    }

    #[test]
    fn it_is_measured_three_times_and_then_cached() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("megapage");
        let of = |tracker: TrackerKind| {
            let key = Key { tracker: tracker.name().into() };
            Cached::within(&path, FILE, SCHEMA, "one", key)
        };
        let measured = Cell::new(0);
        let known = |tracker, may_keep| {
            let measure = || {
                measured.set(measured.get() + 1);
                Ok(f64::from(measured.get() * 100))
            };
            known_in(&of(tracker), may_keep, measure).unwrap()
        };
        assert_eq!(known(TrackerKind::Bpf, false), 100.0);
        assert!(!path.exists(), "who may not keep it writes nothing");
        let found: Vec<f64> = (0..5).map(|_| known(TrackerKind::Bpf, true)).collect();
        assert_eq!((found, measured.get()), (vec![200.0, 300.0, 300.0, 300.0, 300.0], 4));
        assert_eq!(known(TrackerKind::Bpf, false), 300.0, "others read it");
        assert_eq!(known(TrackerKind::IdlePages, true), 500.0, "another tracker costs something else");
        assert_eq!(known_in(&of(TrackerKind::Bpf), true, || Ok(0.0)), Ok(0.0), "disturbed");
        assert!(known_in(&of(TrackerKind::Bpf), true, || Err("nor is that cached".into())).is_err());
        assert_eq!(known(TrackerKind::IdlePages, true), 600.0);
        let failed = || Err("no child could be started".into());
        assert_eq!(known_in(&of(TrackerKind::IdlePages), true, failed), Ok(600.0));
        assert!(known_in(&of(TrackerKind::Bpf), true, failed).is_err());
    }
}
