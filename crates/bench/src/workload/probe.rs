//! A latency probe: touches its own memory again and again, and tells how long that took. Whatever makes it wait for
//! its memory (a collapse, a split, a fault) shows in the upper end.

use super::random::Random;
use super::wishes::{READY, Wishes};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// What the probe holds.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes, all written once.
    pub size: u64,
    /// The share of base pages that hold more than zeros, above 0, at most 1.
    pub filled: f64,
}

/// How long touches took, in nanoseconds. One touch is of 32 pages at random. Quantiles are the upper ends of buckets 3 %
/// wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalls {
    /// How many there were.
    pub touches: u64,
    /// The median.
    pub p50_ns: u64,
    /// 99 of 100 took at most this.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

const PAGE: usize = 512;
/// Pages in one touch.
const PAGES: usize = 32;
/// Between two touches: the probe leaves most of its processor to others, so that it does not measure them.
const PAUSE_BETWEEN: Duration = Duration::from_micros(150);
/// Buckets for each doubling.
const PARTS: u32 = 32;

/// Counts by logarithm.
struct Histogram {
    counts: Vec<u64>,
    all: u64,
    max: u64,
}

impl Histogram {
    fn new() -> Histogram {
        Histogram { counts: vec![0; (64 * PARTS) as usize], all: 0, max: 0 }
    }

    /// The bucket of `ns`: below 32 each has its own; from there on 32 for each doubling.
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(1);
        let shift = ns.ilog2().saturating_sub(PARTS.ilog2());
        (shift * PARTS + (ns >> shift) as u32) as usize
    }

    /// The greatest value of a bucket.
    fn top(bucket: usize) -> u64 {
        let (bucket, parts) = (bucket as u64, u64::from(PARTS));
        if bucket < 2 * parts {
            return bucket;
        }
        let shift = bucket / parts - 1;
        ((bucket - shift * parts) << shift) | ((1 << shift) - 1)
    }

    fn note(&mut self, ns: u64) {
        self.counts[Histogram::bucket(ns)] += 1;
        self.all += 1;
        self.max = self.max.max(ns);
    }

    fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.all as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Histogram::top(bucket).min(self.max);
            }
        }
        self.max
    }

    fn stalls(&self) -> Stalls {
        Stalls {
            touches: self.all,
            p50_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.max,
        }
    }
}

/// Fills the memory, says ready, and follows `requests` until they end; at `report` writes [`Stalls`] as a line of JSON and
/// begins anew. Fails where a page lost what was written.
pub fn run(options: &Options, requests: impl BufRead + Send, mut answers: impl Write) -> Result<()> {
    ensure!(
        options.filled > 0.0 && options.filled <= 1.0,
        "a share above 0, at most 1, not {}",
        options.filled
    );
    let pages = usize::try_from(options.size / 4096).context("more than fits an address space")?;
    ensure!(pages > 0, "the probe needs a page");
    // Spread over each huge page alike, whatever the alignment.
    let stride = (1.0 / options.filled).round() as usize;
    let mut memory: Vec<u64> = Vec::with_capacity(pages * PAGE);
    memory.extend((0..pages * PAGE).map(|word| {
        let page = word / PAGE;
        if word % PAGE == 0 && page.is_multiple_of(stride) { page as u64 + 1 } else { 0 }
    }));
    let mut memory = black_box(memory);
    writeln!(answers, "{READY}")?;
    answers.flush()?;
    let wishes = Wishes::default();
    std::thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| wishes.follow(requests));
        let worked = (|| -> Result<()> {
            let mut random = Random::new(11);
            let (mut histogram, mut told) = (Histogram::new(), 0);
            while !wishes.ended() {
                if wishes.reports() > told {
                    told += 1;
                    writeln!(answers, "{}", serde_json::to_string(&histogram.stalls())?)?;
                    answers.flush()?;
                    histogram = Histogram::new();
                }
                if !wishes.working() {
                    wishes.wait();
                    continue;
                }
                let start = Instant::now();
                for _ in 0..PAGES {
                    let page = random.below(pages);
                    let word = &mut memory[page * PAGE];
                    let expected = if page.is_multiple_of(stride) { page as u64 + 1 } else { 0 };
                    ensure!(*word == expected, "page {page} was damaged: it holds {word}, not {expected}");
                    if expected != 0 {
                        // Writing a page of zeros would make it one of its own again.
                        *word = black_box(expected);
                    }
                }
                histogram.note(super::nanoseconds(start.elapsed()));
                std::thread::sleep(PAUSE_BETWEEN);
            }
            Ok(())
        })();
        worked?;
        reader.join().map_err(|_| anyhow::anyhow!("the reader of requests panicked"))?
    })
}

#[cfg(test)]
mod tests {
    use super::super::wishes::{GO, REPORT};
    use super::*;
    use std::io::{BufReader, pipe};

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut last = 0;
        for ns in (1..5000).chain([1 << 20, (1 << 20) + 40_000, 1 << 40, u64::MAX]) {
            let bucket = Histogram::bucket(ns);
            assert!(bucket >= last, "{ns}");
            last = bucket;
            let top = Histogram::top(bucket);
            assert!(top >= ns && (top - ns) as f64 <= ns as f64 / 31.0, "{ns} {top}");
        }
        assert!(last < (64 * PARTS) as usize);
    }

    #[test]
    fn quantiles_are_of_what_was_noted() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.stalls(), Stalls::default());
        (0..998).for_each(|_| histogram.note(20));
        histogram.note(1000);
        histogram.note(70_000);
        let stalls = histogram.stalls();
        assert_eq!((stalls.touches, stalls.p50_ns, stalls.p99_ns, stalls.max_ns), (1000, 20, 20, 70_000));
        assert!((1000..1040).contains(&stalls.p999_ns), "{stalls:?}");
    }

    #[test]
    fn touches_are_reported_once() {
        let (requests, mut ask) = pipe().unwrap();
        let (answers, progress) = pipe().unwrap();
        let options = Options { size: 1 << 20, filled: 0.25 };
        let worker = std::thread::spawn(move || run(&options, BufReader::new(requests), progress));
        let mut lines = BufReader::new(answers).lines();
        let mut line = || lines.next().unwrap().unwrap();
        assert_eq!(line(), READY);
        writeln!(ask, "{GO}").unwrap();
        let mut report = || -> Stalls {
            writeln!(ask, "{REPORT}").unwrap();
            serde_json::from_str(&line()).unwrap()
        };
        let mut touches = 0;
        while touches < 20 {
            let stalls = report();
            assert!(stalls.p50_ns <= stalls.p999_ns && stalls.p999_ns <= stalls.max_ns, "{stalls:?}");
            touches += stalls.touches;
        }
        drop(ask);
        worker.join().unwrap().unwrap();
        let bad = run(&Options { size: 4096, filled: 0.0 }, &b""[..], Vec::new()).unwrap_err().to_string();
        assert_eq!(bad, "a share above 0, at most 1, not 0");
    }
}
