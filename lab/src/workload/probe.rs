//! A latency probe: it touches its own memory repeatedly, and reports the times. Each cause of a
//! wait for its memory (a collapse, a split, a fault) shows in the upper end.

use super::requests::{MARKED, READY, Requests, locked};
use crate::machine::set_mergeable;
use anyhow::{Context, Result, ensure};
use megapage_bench::random::Random;
use megapage_bench::statistics::nanoseconds;
use megapage_kernel::process::{OwnRunDelay, own_thread_time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Memory of the probe.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes, all written once.
    pub size: u64,
    /// The share of base pages that hold more than zeros, above 0, at most 1.
    pub filled: f64,
}

/// Times of touches, in nanoseconds. One touch is of 32 pages at random. Quantiles are the upper
/// ends of buckets 3 % wide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stalls {
    /// The number of touches.
    pub touches: u64,
    /// The median.
    pub p50_ns: u64,
    /// The time that 99 of 100 did not exceed.
    pub p99_ns: u64,
    /// The time that 999 of 1000 did not exceed.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The causes of the longest, the longest first.
    pub longest: Vec<Stall>,
}

/// A long touch, in nanoseconds. In the remaining time it waited in the kernel: for the process's
/// mmap lock, or a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stall {
    /// All of it.
    pub ns: u64,
    /// The part of it in which the thread could have run, but others had the processors.
    pub processor_ns: u64,
    /// The part of it on a processor: faults, and the work of a virtual machine's host meanwhile.
    pub running_ns: u64,
}

const PAGE: usize = 512;
/// Pages in one touch.
const PAGES: usize = 32;
/// Pause between two touches: the probe leaves most of its processor to others, so that it does not
/// measure them.
const PAUSE_BETWEEN: Duration = Duration::from_micros(100);
/// Buckets for each doubling.
const PARTS: u32 = 32;
/// Time from which on the causes of a touch are recorded.
const LONG: Duration = Duration::from_micros(200);
/// Number of the longest that are kept.
const MOST_LONGEST: usize = 12;

/// Touches by their time. The probe reports them as a line of JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Touches {
    /// Their number, by the logarithm of their time.
    counts: BTreeMap<usize, u64>,
    max_ns: u64,
    /// The longest first.
    longest: Vec<Stall>,
}

impl Touches {
    /// Returns the bucket of `ns`: below 32 each value has a separate one; from there on there are
    /// 32 for each doubling.
    fn bucket(ns: u64) -> usize {
        let ns = ns.max(1);
        let shift = ns.ilog2().saturating_sub(PARTS.ilog2());
        (shift * PARTS + (ns >> shift) as u32) as usize
    }

    /// Returns the greatest value of a bucket.
    fn top(bucket: usize) -> u64 {
        let (bucket, parts) = (bucket as u64, u64::from(PARTS));
        if bucket < 2 * parts {
            return bucket;
        }
        let shift = (bucket / parts - 1).min(63 - u64::from(PARTS.ilog2()));
        ((bucket - shift * parts) << shift) | ((1 << shift) - 1)
    }

    fn note(&mut self, ns: u64) {
        *self.counts.entry(Touches::bucket(ns)).or_default() += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    fn note_long(&mut self, stalls: impl IntoIterator<Item = Stall>) {
        self.longest.extend(stalls);
        self.longest.sort_unstable_by(|one, other| other.cmp(one));
        self.longest.truncate(MOST_LONGEST);
    }

    /// Adds other touches, as if one probe had made them all.
    pub fn add(&mut self, others: Touches) {
        for (bucket, count) in others.counts {
            *self.counts.entry(bucket).or_default() += count;
        }
        self.max_ns = self.max_ns.max(others.max_ns);
        self.note_long(others.longest);
    }

    /// Returns their number.
    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Returns the time that this share of them did not exceed, in nanoseconds.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in &self.counts {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Touches::top(*bucket).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// Returns them as values.
    pub fn stalls(&self) -> Stalls {
        Stalls {
            touches: self.count(),
            p50_ns: self.quantile(0.5),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: self.max_ns,
            longest: self.longest.clone(),
        }
    }
}

/// Reader of the causes before and after a touch.
struct Causes {
    /// Run delay of the thread; `None` if the kernel does not count it.
    delay: Option<OwnRunDelay>,
    before: (Duration, Duration),
}

impl Causes {
    /// Makes one for the calling thread.
    fn new() -> Causes {
        Causes { delay: OwnRunDelay::open().ok(), before: Default::default() }
    }

    fn now(&self) -> (Duration, Duration) {
        let delay = self.delay.as_ref().and_then(|delay| delay.read().ok());
        (delay.unwrap_or_default(), own_thread_time())
    }

    /// Returns the causes of a touch that took `took`, and that began when [`Causes::before`] was
    /// last set.
    fn of(&self, took: Duration) -> Stall {
        let (delay, running) = self.now();
        Stall {
            ns: nanoseconds(took),
            processor_ns: nanoseconds(delay.saturating_sub(self.before.0)),
            running_ns: nanoseconds(running.saturating_sub(self.before.1)),
        }
    }
}

/// Fills the memory, says ready, and follows `input` until its end. At `report` it writes
/// [`Touches`] as a line of JSON and starts new ones. On request it marks its memory for KSM, or
/// unmarks it. Fails if a page lost its value.
pub fn run(options: &Options, input: impl BufRead + Send, mut answers: impl Write) -> Result<()> {
    ensure!(
        options.filled > 0.0 && options.filled <= 1.0,
        "a share above 0, at most 1, not {}",
        options.filled
    );
    let pages = usize::try_from(options.size / 4096).context("more than fits an address space")?;
    ensure!(pages > 0, "the probe needs a page");
    // Spread evenly over each huge page, at any alignment.
    let stride = (1.0 / options.filled).round() as usize;
    let mut memory: Vec<u64> = Vec::with_capacity(pages * PAGE);
    memory.extend((0..pages * PAGE).map(|word| {
        let page = word / PAGE;
        if word % PAGE == 0 && page.is_multiple_of(stride) { page as u64 + 1 } else { 0 }
    }));
    let mut memory = black_box(memory);
    writeln!(answers, "{READY}")?;
    answers.flush()?;
    let requests = Requests::default();
    std::thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| requests.follow(input));
        let worked = (|| -> Result<()> {
            let mut random = Random::new(11);
            let (mut touches, mut reported) = (Touches::default(), 0);
            let mut causes = Causes::new();
            while !requests.ended() {
                if requests.reports.load(SeqCst) > reported {
                    reported += 1;
                    writeln!(answers, "{}", serde_json::to_string(&std::mem::take(&mut touches))?)?;
                    answers.flush()?;
                }
                if let Some(on) = locked(&requests.merge).take() {
                    let why = set_mergeable(on).map_err(|error| error.to_string());
                    writeln!(answers, "{}", why.err().as_deref().unwrap_or(MARKED))?;
                    answers.flush()?;
                }
                if !requests.working() {
                    requests.wait();
                    continue;
                }
                causes.before = causes.now();
                let start = Instant::now();
                for _ in 0..PAGES {
                    let page = random.below(pages);
                    let word = &mut memory[page * PAGE];
                    let expected = if page.is_multiple_of(stride) { page as u64 + 1 } else { 0 };
                    ensure!(*word == expected, "page {page} was damaged: it holds {word}, not {expected}");
                    if expected != 0 {
                        // Writing to a page of zeros would make it a separate page again.
                        *word = black_box(expected);
                    }
                }
                let took = start.elapsed();
                touches.note(nanoseconds(took));
                if took > LONG {
                    touches.note_long([causes.of(took)]);
                }
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
    use super::super::requests::{GO, REPORT};
    use super::*;
    use std::io::{BufReader, pipe};

    #[test]
    fn buckets_follow_each_other_and_are_narrow() {
        let mut last = 0;
        for ns in (1..5000).chain([1 << 20, (1 << 20) + 40_000, 1 << 40, u64::MAX]) {
            let bucket = Touches::bucket(ns);
            assert!(bucket >= last, "{ns}");
            last = bucket;
            let top = Touches::top(bucket);
            assert!(top >= ns && (top - ns) as f64 <= ns as f64 / 31.0, "{ns} {top}");
        }
    }

    #[test]
    fn quantiles_are_of_what_was_noted() {
        let mut touches = Touches::default();
        assert_eq!(touches.stalls(), Stalls::default());
        (0..998).for_each(|_| touches.note(20));
        touches.note(1000);
        touches.note(70_000);
        let stalls = touches.stalls();
        assert_eq!((stalls.touches, stalls.p50_ns, stalls.p99_ns, stalls.max_ns), (1000, 20, 20, 70_000));
        assert!((1000..1040).contains(&stalls.p999_ns), "{stalls:?}");
        // All of them count alike, from either report.
        let mut others = Touches::default();
        (0..4).for_each(|_| others.note(80_000));
        touches.add(others.clone());
        assert_eq!((touches.count(), touches.stalls().max_ns), (1004, 80_000));
        assert!(touches.quantile(0.999) > 70_000 && touches.quantile(0.9) == 20);
        let line = serde_json::to_string(&touches).unwrap();
        assert_eq!(serde_json::from_str::<Touches>(&line).unwrap(), touches);
    }

    #[test]
    fn the_longest_are_kept_with_their_causes() {
        let stall = |ns| Stall { ns, processor_ns: ns / 2, running_ns: 1 };
        let mut touches = Touches::default();
        touches.note_long((1..=100).map(stall));
        let mut others = Touches::default();
        others.note_long([stall(95), stall(1000)]);
        touches.add(others);
        let longest = touches.stalls().longest;
        assert_eq!((longest.len(), longest[0], longest[1].ns), (MOST_LONGEST, stall(1000), 100));
        assert!(longest.is_sorted_by(|one, other| one >= other));
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
            serde_json::from_str::<Touches>(&line()).unwrap().stalls()
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
