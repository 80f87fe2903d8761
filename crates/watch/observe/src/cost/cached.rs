//! Timings that are cached until the next boot, so that not every command has to make them. The
//! median of the last few counts, so that a busy moment does not spoil them.

use super::calibrate::{AccessTimes, MOST_MEMORY, MOST_UNASKED, NoTimes};
use crate::cached::{Cached, MOST};
use megapage_kernel::KernelRoot;
use megapage_tlb::Geometry;
use serde::{Deserialize, Serialize};

/// Enough timings for a caller that does not need the latest.
const ENOUGH: u32 = 3;
/// Greatest age of a timing that counts as present, in seconds. The other load of the machine, and
/// its use of the caches, changes.
const FRESH: u64 = 300;
const FILE: &str = "access-times.json";
const SCHEMA: &str = "megapage.access-times/3";

/// Processor for which timings hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    geometry: Geometry,
}

type Cache = Cached<Key>;

impl AccessTimes {
    /// Returns the access times of this machine. It uses the cached timings if there are at least
    /// three since boot, or any if the caller cannot write the cache. Otherwise it makes one more
    /// timing on at most 256 MiB. Root keeps the timings in `/run/megapage/access-times.json`;
    /// others read them there. A debug build is slower and keeps none.
    pub fn known(root: &KernelRoot, geometry: &Geometry) -> Result<AccessTimes, NoTimes> {
        let measure = || AccessTimes::measure(root, geometry, MOST_UNASKED);
        let Some(cache) = cache(root, geometry) else { return measure() };
        known_in(&cache, Cache::may_keep(), measure)
    }

    /// Returns the cached times, and times nothing; `None` if nothing is cached.
    pub fn cached(root: &KernelRoot, geometry: &Geometry) -> Option<AccessTimes> {
        AccessTimes::median(&read(&cache(root, geometry)?))
    }

    /// Returns the median of the `times` of such a file, given as JSON; `None` if they make no
    /// sense. For the fuzz targets.
    #[doc(hidden)]
    pub fn of_cached(times: &[u8]) -> Option<AccessTimes> {
        let all: Vec<AccessTimes> = serde_json::from_slice(times).ok()?;
        (all.len() <= MOST && all.iter().all(is_sound)).then(|| AccessTimes::median(&all)).flatten()
    }

    /// Returns true if [`AccessTimes::known`] would make no further timing.
    pub fn is_enough(&self) -> bool {
        self.times() >= ENOUGH
    }

    /// Returns the present access times: from one more timing, made now on at most 1 GiB, and those
    /// of the last five minutes. The other load of the machine takes cache space from the page
    /// tables of every program.
    pub fn renewed(root: &KernelRoot, geometry: &Geometry) -> Result<AccessTimes, NoTimes> {
        let measure = || AccessTimes::measure(root, geometry, MOST_MEMORY);
        let Some(cache) = cache(root, geometry) else { return measure() };
        renewed_in(&cache, Cache::may_keep(), measure)
    }
}

/// Returns the cache; `None` if nothing is cached.
fn cache(root: &KernelRoot, geometry: &Geometry) -> Option<Cache> {
    Cached::of(root, FILE, SCHEMA, Key { geometry: *geometry })
}

/// Returns the cached timings that make sense.
fn read(cache: &Cache) -> Vec<AccessTimes> {
    cache.read(is_sound)
}

fn is_sound(times: &AccessTimes) -> bool {
    times.is_sound() && !times.is_guess()
}

fn known_in(
    cache: &Cache,
    may_keep: bool,
    measure: impl FnOnce() -> Result<AccessTimes, NoTimes>,
) -> Result<AccessTimes, NoTimes> {
    let former = AccessTimes::median(&read(cache));
    if let Some(former) = former.filter(|former| former.times() >= ENOUGH || !may_keep) {
        return Ok(former);
    }
    AccessTimes::median(&with_one_more(cache, may_keep, measure)?).ok_or(NoTimes::Senseless)
}

fn renewed_in(
    cache: &Cache,
    may_keep: bool,
    measure: impl FnOnce() -> Result<AccessTimes, NoTimes>,
) -> Result<AccessTimes, NoTimes> {
    let mut all = with_one_more(cache, may_keep, measure)?;
    if let Some(latest) = all.last().cloned() {
        all.retain(|times| times.is_near(&latest, FRESH));
    }
    AccessTimes::median(&all).ok_or(NoTimes::Senseless)
}

/// Returns the cached timings, with one more. If that one fails, the cached ones are enough.
fn with_one_more(
    cache: &Cache,
    may_keep: bool,
    measure: impl FnOnce() -> Result<AccessTimes, NoTimes>,
) -> Result<Vec<AccessTimes>, NoTimes> {
    let mut all = read(cache);
    match measure() {
        Ok(now) => {
            all.push(now);
            all.drain(..all.len().saturating_sub(MOST));
            if may_keep {
                // A later process makes a timing again if this one cannot write the file.
                let _ = cache.write(&all);
            }
        }
        Err(why) if all.is_empty() => return Err(why),
        Err(_) => {}
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::calibrate::synthetic;
    use std::cell::Cell;

    /// Returns a directory like `/run/megapage`, and the file of a machine in it.
    fn synthetic_file() -> (tempfile::TempDir, Cache) {
        let top = tempfile::tempdir().unwrap();
        let key = Key { geometry: Geometry::FALLBACK };
        let cache = Cached::within(&top.path().join("megapage"), FILE, SCHEMA, "one", key);
        (top, cache)
    }

    #[test]
    fn machines_are_timed_three_times_and_then_cached() {
        let (top, cache) = synthetic_file();
        let measured = Cell::new(0);
        let known = |may_keep| {
            let measure = || {
                measured.set(measured.get() + 1);
                Ok(synthetic(1.0))
            };
            known_in(&cache, may_keep, measure).unwrap()
        };
        assert_eq!(known(false).times(), 1);
        let path = top.path().join("megapage");
        assert!(!path.exists(), "who may not keep them writes nothing");
        for round in 1..=5 {
            assert_eq!(known(true).times(), round.min(3));
        }
        assert_eq!(measured.get(), 4);
        assert_eq!((known(false).times(), measured.get()), (3, 4), "others read them");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_was_timed_long_ago_says_nothing_of_the_moment() {
        let (_top, cache) = synthetic_file();
        let long_ago =
            [synthetic(9.0).made_at(1000), synthetic(9.0).made_at(1001), synthetic(1.0).made_at(1900)];
        cache.write(&long_ago).unwrap();
        let now = renewed_in(&cache, true, || Ok(synthetic(1.0).made_at(2000))).unwrap();
        assert_eq!((now.times(), &now.steps()[0]), (2, &synthetic(1.0).steps()[0]));
        assert_eq!(known_in(&cache, true, || panic!("there are enough")).unwrap().times(), 4);
        let failed = renewed_in(&cache, true, || Err(NoTimes::Senseless)).unwrap();
        assert_eq!(failed.times(), 2, "the latest are the best that there is");
    }

    #[test]
    fn what_makes_no_sense_is_made_again_and_former_timings_serve_where_none_can_be_made() {
        let (_top, cache) = synthetic_file();
        cache.write(&[synthetic(1.0), synthetic(-1.0)]).unwrap();
        assert!(read(&cache).is_empty());
        let failed = || Err(NoTimes::Senseless);
        assert!(known_in(&cache, true, failed).is_err());
        cache.write(&[synthetic(1.0)]).unwrap();
        assert!(known_in(&cache, true, failed).is_ok());
    }
}
