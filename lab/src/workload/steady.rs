//! A program that works without end and reports its progress, so that its rate shows the effect of
//! an outside change moment by moment.
//!
//! Its memory is one allocation, every word written once in order of address. It works in the part
//! with the highest addresses, which a scan from the bottom finds last.

use super::idle;
use super::requests::{READY, Requests, TOUCHED, locked};
pub use super::way::Way;
use anyhow::{Context, Result, ensure};
use megapage_bench::random::{Random, mix};
use megapage_bench::statistics::nanoseconds;
use megapage_kernel::process_cpu_time;
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Work of the program.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its way of working.
    pub way: Way,
    /// Bytes that are allocated and written.
    pub size: u64,
    /// Bytes to work in, a power of two, at the end of them.
    pub hot: u64,
    /// Time between two lines of progress.
    pub interval: Duration,
    /// Units after which it stops working; `None`: never.
    pub units: Option<u64>,
}

/// Progress of the program since it began, as one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beat {
    /// Nanoseconds since it was ready.
    pub wall_ns: u64,
    /// Its processor time since then.
    pub cpu_ns: u64,
    /// Units of work done.
    pub units: u64,
    /// True if it has done all its units.
    pub finished: bool,
}

const LINE: usize = 8;
/// Cache lines in a base page.
const PAGE: usize = 64;
const FAULT_WORDS: usize = (4 << 20) / 8;
/// Time for which a sleeping program pauses at a time.
const DOZE: Duration = Duration::from_millis(20);

/// Memory, and the state of the work.
struct Steady {
    way: Way,
    /// Each word holds the number of lines after its own: so every way of working finds its line's
    /// number, in a part of any size. No page holds only zeros.
    memory: Vec<u64>,
    first: usize,
    lines: usize,
    random: Random,
    at: usize,
    checksum: u64,
}

impl Steady {
    fn prepare(options: &Options) -> Result<Steady> {
        let words = usize::try_from(options.size / 8).context("more than fits an address space")?;
        let mut steady = Steady {
            way: options.way,
            memory: Vec::new(),
            first: 0,
            lines: 0,
            random: Random::new(47),
            at: 0,
            checksum: 0,
        };
        (steady.first, steady.lines) = part(options.way, words, options.hot)?;
        let mut memory: Vec<u64> = Vec::with_capacity(words);
        memory.extend((0..words).map(|word| ((words - 1 - word) / LINE) as u64));
        steady.memory = black_box(memory);
        Ok(steady)
    }

    /// Works in another way, or in another part, from now on.
    fn change(&mut self, way: Way, hot: u64) -> Result<()> {
        (self.first, self.lines) = part(way, self.memory.len(), hot)?;
        (self.way, self.at) = (way, 0);
        Ok(())
    }

    /// Reads a word of each base page, so that the kernel sees all of them accessed, as after they
    /// were written.
    fn touch(&self) {
        let words: u64 = self.memory.iter().step_by(PAGE * LINE).fold(0, |sum, word| sum.wrapping_add(*word));
        black_box(words);
    }

    fn unit(&mut self) {
        let steps = self.way.steps();
        let hot = &self.memory[self.first..];
        let mask = self.lines - 1;
        let sum = match self.way {
            Way::Random => (0..steps).fold(0u64, |sum, _| {
                let line = self.random.below(self.lines);
                sum.wrapping_add(hot[line * LINE])
            }),
            Way::Chase => {
                for _ in 0..steps {
                    self.at = successor(number(hot, self.lines, self.at)) & mask;
                }
                self.at as u64
            }
            Way::Sparse => {
                let mask = self.lines / PAGE - 1;
                for _ in 0..steps {
                    let read = number(hot, self.lines, line_of_page(self.at));
                    self.at = successor(read / PAGE) & mask;
                }
                self.at as u64
            }
            Way::Sequential => {
                let words = self.lines * LINE;
                let (from, steps) = (self.at, steps.min(words));
                self.at = (from + steps) % words;
                let wrapped = (from + steps).saturating_sub(words);
                let pieces = [&hot[from..(from + steps).min(words)], &hot[..wrapped]];
                let fold = |sum: u64, word: &u64| sum.wrapping_mul(31).wrapping_add(*word);
                pieces.iter().flat_map(|piece| piece.iter()).fold(0u64, fold)
            }
            Way::Compute => idle::compute(steps).to_bits(),
            Way::Sleep => 0,
        };
        self.checksum = mix(self.checksum ^ black_box(sum));
    }
}

/// Returns the start of the part to work in, in words, and the number of its lines.
fn part(way: Way, words: usize, hot: u64) -> Result<(usize, usize)> {
    ensure!(hot.is_power_of_two(), "the part that is worked in is a power of two, not {hot}");
    ensure!(hot / 8 <= words as u64, "{hot} are worked in of {}", 8 * words);
    let lines = usize::try_from(hot / 64).context("more than fits an address space")?;
    ensure!(lines > 0, "the part that is worked in is at least 64 bytes");
    let pages = way != Way::Sparse || lines >= PAGE;
    ensure!(pages, "the part that is worked in is at least 4096 bytes where one line of each page is read");
    Ok((words - lines * LINE, lines))
}

/// Returns the number of a line of the part to work in, as its memory shows it.
fn number(hot: &[u64], lines: usize, line: usize) -> usize {
    (lines - 1).wrapping_sub(hot[line * LINE] as usize)
}

/// Returns the successor of `at`, modulo any power of two in a full period (Hull and Dobell).
fn successor(at: usize) -> usize {
    at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

/// Returns the line that is read of a page. Its place in the page depends on all bits of the page's
/// number. If it depended only on the lowest ones, then on huge pages, which are contiguous, few
/// sets of the caches would have to hold all lines.
fn line_of_page(page: usize) -> usize {
    let hash = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    page * PAGE + (hash >> (64 - PAGE.ilog2())) as usize
}

/// Fills the memory, says [`READY`], and follows `input` until its end. While it works it writes a
/// [`Beat`] as a line of JSON at each interval, and one when it stops. Returns the checksum of its
/// work.
pub fn run(options: &Options, input: impl BufRead + Send, mut progress: impl Write) -> Result<u64> {
    let mut steady = Steady::prepare(options)?;
    writeln!(progress, "{READY}")?;
    progress.flush()?;
    let requests = Requests::default();
    let (start, cpu_start) = (Instant::now(), process_cpu_time());
    std::thread::scope(|scope| -> Result<u64> {
        let reader = scope.spawn(|| requests.follow(input));
        let mut units = 0u64;
        let beat = |units, finished, progress: &mut dyn Write| -> Result<()> {
            let beat = Beat {
                wall_ns: nanoseconds(start.elapsed()),
                cpu_ns: nanoseconds(process_cpu_time().saturating_sub(cpu_start)),
                units,
                finished,
            };
            writeln!(progress, "{}", serde_json::to_string(&beat)?)?;
            Ok(progress.flush()?)
        };
        let mut more: Vec<Vec<u64>> = Vec::new();
        let mut reported: Option<Instant> = None;
        let mut touched = 0;
        let worked = (|| -> Result<()> {
            while !requests.ended() {
                while (more.len() as u64) < requests.faults.load(SeqCst) {
                    more.push(black_box(vec![1; FAULT_WORDS]));
                }
                while touched < requests.touches.load(SeqCst) {
                    steady.touch();
                    touched += 1;
                    writeln!(progress, "{TOUCHED}")?;
                    progress.flush()?;
                }
                if let Some((way, hot)) = locked(&requests.change).take() {
                    steady.change(way, hot)?;
                }
                let done = options.units.is_some_and(|most| units >= most);
                if done || !requests.working() {
                    if reported.take().is_some() {
                        beat(units, done, &mut progress)?;
                    }
                    requests.wait();
                    continue;
                }
                if reported.is_none_or(|reported| reported.elapsed() >= options.interval) {
                    beat(units, false, &mut progress)?;
                    reported = Some(Instant::now());
                }
                if steady.way == Way::Sleep {
                    std::thread::sleep(DOZE);
                } else {
                    steady.unit();
                }
                units += 1;
            }
            Ok(())
        })();
        worked?;
        reader.join().map_err(|_| anyhow::anyhow!("the reader of requests panicked"))??;
        Ok(steady.checksum)
    })
}

#[cfg(test)]
mod tests {
    use super::super::requests::{FAULT, GO};
    use super::*;
    use std::collections::HashSet;
    use std::io::{BufReader, pipe};

    fn options(way: Way) -> Options {
        Options { way, size: 1 << 20, hot: 1 << 18, interval: Duration::from_millis(1), units: Some(3) }
    }

    #[test]
    fn every_way_does_what_it_says_and_reports_it() {
        for way in Way::ALL {
            let (requests, mut ask) = pipe().unwrap();
            let (answers, progress) = pipe().unwrap();
            let worker = std::thread::spawn(move || run(&options(way), BufReader::new(requests), progress));
            let mut lines = BufReader::new(answers).lines();
            assert_eq!(lines.next().unwrap().unwrap(), READY);
            writeln!(ask, "{FAULT}\n{GO}").unwrap();
            let mut beats = Vec::new();
            for line in lines.by_ref() {
                let beat: Beat = serde_json::from_str(&line.unwrap()).unwrap();
                beats.push(beat);
                if beat.finished {
                    break;
                }
            }
            drop(ask);
            worker.join().unwrap().unwrap();
            assert_eq!(beats[0].units, 0, "{way:?}");
            assert_eq!(beats.last().unwrap().units, 3, "{way:?}");
            let ascends =
                |pair: &[Beat]| pair[0].units <= pair[1].units && pair[0].wall_ns <= pair[1].wall_ns;
            assert!(beats.windows(2).all(ascends), "{beats:?}");
        }
    }

    #[test]
    fn the_work_is_at_the_highest_addresses() {
        let steady = Steady::prepare(&options(Way::Chase)).unwrap();
        assert_eq!((steady.memory.len(), steady.first, steady.lines), (1 << 17, 3 << 15, 1 << 12));
        assert!(steady.memory[..steady.first].iter().all(|word| *word != 0));
        for line in [0, 1, 77, steady.lines - 1] {
            assert_eq!(number(&steady.memory[steady.first..], steady.lines, line), line);
        }
    }

    #[test]
    fn way_and_part_can_be_changed_while_it_works() {
        let mut steady = Steady::prepare(&options(Way::Chase)).unwrap();
        steady.unit();
        steady.change(Way::Sparse, 1 << 19).unwrap();
        assert_eq!((steady.first, steady.lines, steady.at), (1 << 16, 1 << 13, 0));
        let mask = steady.lines / PAGE - 1;
        let expected = (0..Way::Sparse.steps()).fold(0usize, |at, _| successor(at) & mask);
        steady.unit();
        assert_eq!(steady.at, expected);
        assert!(steady.change(Way::Chase, 1 << 21).is_err(), "more than there is");
        let (requests, mut ask) = pipe().unwrap();
        let (answers, progress) = pipe().unwrap();
        let endless = Options { units: None, ..options(Way::Compute) };
        let worker = std::thread::spawn(move || run(&endless, BufReader::new(requests), progress));
        let mut lines = BufReader::new(answers).lines().map(Result::unwrap);
        assert_eq!(lines.next().unwrap(), READY);
        writeln!(ask, "touch\nwork random 4096\ngo").unwrap();
        // It may have begun to work before it handled the touch.
        assert!(lines.by_ref().any(|line| line == TOUCHED));
        while serde_json::from_str::<Beat>(&lines.next().unwrap()).unwrap().units == 0 {}
        drop((ask, lines));
        // Work that it no longer reports does not count.
        let _ = worker.join().unwrap();
    }

    #[test]
    fn the_chase_visits_every_line() {
        let mut steady = Steady::prepare(&options(Way::Chase)).unwrap();
        let mask = steady.lines - 1;
        let (mut seen, mut at) = (HashSet::new(), 0usize);
        while seen.insert(at) {
            at = successor(at) & mask;
        }
        assert_eq!(seen.len(), steady.lines);
        // A unit takes [`Way::steps`] steps along it.
        let expected = (0..Way::Chase.steps()).fold(0usize, |at, _| successor(at) & mask);
        steady.unit();
        assert_eq!(steady.at, expected);
    }

    #[test]
    fn one_line_of_each_page_is_visited_at_differing_places() {
        let mut steady =
            Steady::prepare(&Options { size: 2 << 20, hot: 1 << 20, ..options(Way::Sparse) }).unwrap();
        let pages = steady.lines / PAGE;
        let places: HashSet<usize> = (0..pages).map(|page| line_of_page(page) % PAGE).collect();
        assert_eq!((pages, places.len()), (256, PAGE));
        for page in 0..pages {
            assert_eq!(line_of_page(page) / PAGE, page);
            let read = number(&steady.memory[steady.first..], steady.lines, line_of_page(page));
            assert_eq!(read / PAGE, page, "the line shows its page");
        }
        let mut seen = HashSet::new();
        while seen.insert(steady.at) {
            steady.at = successor(steady.at) & (pages - 1);
        }
        assert_eq!(seen.len(), pages);
        let expected = (0..Way::Sparse.steps()).fold(steady.at, |at, _| successor(at) & (pages - 1));
        steady.unit();
        assert_eq!(steady.at, expected);
    }

    #[test]
    fn the_sequence_starts_again_after_its_end() {
        let sizes = |hot| Options { size: 4 << 20, hot, ..options(Way::Sequential) };
        // 262,144 words, and half of them in a unit.
        let mut steady = Steady::prepare(&sizes(2 << 20)).unwrap();
        let places: Vec<usize> = (0..3)
            .map(|_| {
                steady.unit();
                steady.at
            })
            .collect();
        assert_eq!(places, [1 << 17, 0, 1 << 17]);
        steady.at = (1 << 18) - 5;
        steady.unit();
        assert_eq!(steady.at, (1 << 17) - 5);
        let mut small = Steady::prepare(&sizes(1 << 12)).unwrap();
        small.unit();
        assert_eq!(small.at, 0, "a unit of less than its steps is one round");
    }

    #[test]
    fn bad_sizes_and_requests_are_refused() {
        let refused = |options: Options| format!("{:#}", run(&options, &b""[..], Vec::new()).unwrap_err());
        assert!(
            refused(Options { hot: 3 << 10, ..options(Way::Random) }).contains("a power of two, not 3072")
        );
        let line = Options { hot: 64, ..options(Way::Sparse) };
        assert!(refused(line).contains("at least 4096 bytes"));
        assert!(refused(Options { hot: 2 << 20, ..options(Way::Random) }).contains("are worked in of"));
        let unknown = run(&options(Way::Random), &b"dance\n"[..], Vec::new()).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "'dance' is no request; the requests are go, pause, fault, report, touch, merge, unmerge, work WAY BYTES"
        );
    }
}
