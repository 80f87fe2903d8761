//! The cost of a miss of the second-level TLB, on processors that count misses but not the cycles
//! of walks.

use megapage_kernel::KernelRoot;
use megapage_kernel::perf::{Event, Group, Reading, Scope};
use megapage_kernel::spare::Spare;
use megapage_units::{BASE_PAGE, Bytes};
use std::hint::black_box;

/// Cost of a miss, in cycles: `low <= cycles <= high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Geometric mean of the two others: the overlap of a program's misses is unknown.
    pub cycles: f64,
    /// Cost with as many walks under way at once as the processor supports.
    pub low: f64,
    /// Cost if each access waits for the one before.
    pub high: f64,
}

/// Cache lines in the chase: half a mebibyte, within the second-level cache of Zen.
const LINES: usize = 8192;
/// 4-byte words of a cache line, and of a base page.
const WORDS_PER_LINE: usize = 16;
const WORDS_PER_PAGE: usize = 1024;
/// Counted rounds of the chase.
const ROUNDS: usize = 20;
/// Least share of the steps that must miss with each line on a separate page.
const LEAST_MISSES: f64 = 0.25;

/// Measures the cost of a miss. Chases pointers through 8192 cache lines, once side by side (128
/// pages) and once on a page each. 8192 pages are more than a second-level TLB holds. Divides the
/// additional cycles of the second chase by its additional misses. Only the places of the lines
/// differ, not their number. Fails if the kernel lays the 32 MiB on huge pages, or there is too
/// little memory.
pub(super) fn measure(
    root: &KernelRoot,
    events: &[Event],
    scope: Scope,
    walkers: u32,
) -> Result<Calibration, String> {
    let spare = Spare::read(root).map_err(|error| error.to_string())?;
    spare.allows(Bytes((LINES * BASE_PAGE) as u64)).map_err(|error| error.to_string())?;
    let group =
        Group::open(0, events, Scope { new_threads: false, ..scope }).map_err(|error| error.to_string())?;
    let count = |place: fn(usize) -> usize, words: usize| {
        let chain = chain(place, words);
        let mut at = chase(&chain, place(0), LINES);
        let before = group.read().map_err(|error| error.to_string())?;
        at = chase(&chain, at, ROUNDS * LINES);
        let after = group.read().map_err(|error| error.to_string())?;
        black_box(at);
        Ok::<_, String>(super::counters::difference(&before, &after))
    };
    let packed = count(|line| line * WORDS_PER_LINE, LINES * WORDS_PER_LINE)?;
    // The place of the line in its page changes from page to page; otherwise all would fall into
    // one set of the cache.
    let spread = count(spread_place, LINES * WORDS_PER_PAGE)?;
    calibration(&packed, &spread, (ROUNDS * LINES) as f64, walkers)
}

fn spread_place(line: usize) -> usize {
    line * WORDS_PER_PAGE + (line % (WORDS_PER_PAGE / WORDS_PER_LINE)) * WORDS_PER_LINE
}

/// Computes the cost from the counts (cycles, misses) of `steps` steps on few pages and on many.
fn calibration(packed: &Reading, spread: &Reading, steps: f64, walkers: u32) -> Result<Calibration, String> {
    let more = |index: usize| match (packed.counts.get(index), spread.counts.get(index)) {
        (Some(few), Some(many)) => *many as f64 - *few as f64,
        _ => 0.0,
    };
    let (cycles, misses) = (more(0), more(1));
    if misses < LEAST_MISSES * steps {
        return Err(format!(
            "{misses:.0} misses in {steps:.0} steps through as many pages (transparent huge pages, perhaps)"
        ));
    }
    let high = cycles / misses;
    if high < 1.0 {
        return Err(format!("{high:.1} cycles for a miss"));
    }
    let low = high / f64::from(walkers.max(1));
    Ok(Calibration { cycles: (low * high).sqrt(), low, high })
}

/// Returns `words` words of memory with one cycle through all lines: the word at a line's place is
/// the next place.
fn chain(place: fn(usize) -> usize, words: usize) -> Vec<u32> {
    let mut memory = vec![0u32; words];
    // A full cycle of a linear congruential generator (Hull and Dobell 1962) hides the next line
    // from any prefetcher.
    let next = |line: usize| (line * 1229 + 4817) % LINES;
    for line in 0..LINES {
        memory[place(line)] = place(next(line)) as u32;
    }
    black_box(memory)
}

fn chase(memory: &[u32], from: usize, steps: usize) -> usize {
    (0..steps).fold(from, |at, _| memory[at] as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(cycles: u64, misses: u64) -> Reading {
        Reading { enabled_ns: 1, running_ns: 1, counts: vec![cycles, misses] }
    }

    #[test]
    fn the_chase_visits_every_line_once_a_round() {
        for (place, words) in [
            ((|line| line * WORDS_PER_LINE) as fn(usize) -> usize, LINES * WORDS_PER_LINE),
            (spread_place, LINES * WORDS_PER_PAGE),
        ] {
            let memory = chain(place, words);
            let mut seen = vec![false; words];
            let mut at = place(0);
            for _ in 0..LINES {
                assert!(!seen[at]);
                seen[at] = true;
                at = memory[at] as usize;
            }
            assert_eq!(at, place(0));
        }
        let pages: std::collections::BTreeSet<_> =
            (0..LINES).map(|line| spread_place(line) / WORDS_PER_PAGE).collect();
        assert_eq!(pages.len(), LINES);
    }

    #[test]
    fn a_miss_costs_what_it_adds() {
        let steps = 100_000.0;
        let cost = calibration(&reading(1_500_000, 100), &reading(4_500_000, 100_100), steps, 6).unwrap();
        assert_eq!((cost.low, cost.high), (5.0, 30.0));
        assert!((cost.cycles - 12.247).abs() < 0.001);
        // Huge pages hide the misses; noise may exceed the difference.
        assert!(calibration(&reading(1_500_000, 0), &reading(1_500_000, 500), steps, 6).is_err());
        assert!(calibration(&reading(1_500_000, 0), &reading(1_400_000, 90_000), steps, 6).is_err());
        assert!(calibration(&Reading::default(), &Reading::default(), steps, 6).is_err());
    }
}
