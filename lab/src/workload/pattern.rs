//! Programs that differ in their access to memory, not in its size. `megapage advise` has to
//! predict the gain of each by huge pages. Work comes in units, so that two runs can be compared by
//! processor time for the same work.

use super::idle;
use super::requests::READY;
use crate::workload::measurement::{HeapBacking, Measurement, Phases};
use anyhow::{Context, Result, ensure};
use megapage_bench::random::Random;
use megapage_bench::random::mix;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

megapage_units::named! {
    /// Way in which memory is reached. Each case but `Compute` has 1 GiB and a little.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Case {
        /// Pointers through all cache lines in random order: each access waits for the one before.
        Chase = "chase",
        /// Random reads that do not wait for each other.
        Random = "random",
        /// Random reads of which the k-th most frequent cache line gets a share of about 1/k.
        Zipf = "zipf",
        /// All words one after the other, into a checksum in which each step waits for the one
        /// before.
        Sequential = "sequential",
        /// All words one after the other, added up as fast as memory gives them.
        Stream = "stream",
        /// Random reads within 16 MiB in the middle; the rest was only written once.
        Hot = "hot",
        /// A hash map with open addressing: lookups that mostly succeed.
        Map = "map",
        /// Additions to words at random places.
        Update = "update",
        /// Small matrices that fit in the caches, and no large memory.
        Compute = "compute",
    }
}

impl Case {
    /// Returns the accesses (rounds, for `compute`) in one unit of work: about 1 ms on base pages.
    pub const fn steps_per_unit(self) -> u64 {
        match self {
            Case::Chase => 5_000,
            Case::Random | Case::Update => 50_000,
            Case::Zipf => 25_000,
            Case::Sequential => 1 << 19,
            Case::Stream => 1 << 20,
            Case::Hot => 250_000,
            Case::Map => 20_000,
            Case::Compute => 20,
        }
    }
}

/// Amount of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Number of units.
    Units(u64),
    /// Units until this time has passed, at least one.
    Until(Duration),
}

/// Words in a cache line, and lines in 1 GiB.
const LINE: usize = 8;
const LINES: usize = 1 << 24;
/// Lines of the hot part: 16 MiB.
const HOT_LINES: usize = 1 << 18;
/// The share of the map's slots that hold an entry.
const MAP_LOAD: f64 = 0.36;
/// Lines at the smallest scale.
const LEAST_LINES: usize = 1024;

/// Memory of a case, and the state of its work.
#[derive(Debug)]
pub struct Pattern {
    case: Case,
    memory: Vec<u64>,
    lines: usize,
    random: Random,
    at: usize,
    checksum: u64,
    updates: u64,
}

impl Pattern {
    /// Allocates and fills the memory. `scale` multiplies its size (rounded down to a power of
    /// two).
    pub fn prepare(case: Case, scale: f64) -> Pattern {
        let lines = match case {
            Case::Compute => 0,
            _ => 1 << ((LINES as f64 * scale) as usize).max(LEAST_LINES).ilog2(),
        };
        let mut pattern = Pattern {
            case,
            memory: Vec::new(),
            lines,
            random: Random::new(case as u64 + 31),
            at: 0,
            checksum: 0,
            updates: 0,
        };
        pattern.memory = match case {
            Case::Chase => pattern.chain(),
            Case::Map => pattern.table(),
            Case::Update => touched(lines, |_| 0),
            _ => touched(lines, |word| word as u64),
        };
        pattern
    }

    /// Returns one cycle through all lines: word 0 of each is the number of the next.
    fn chain(&self) -> Vec<u64> {
        let mut memory = touched(self.lines, |_| 0);
        for index in 0..self.lines {
            let next = self.scattered((index + 1) % self.lines);
            memory[self.scattered(index) * LINE] = next as u64;
        }
        memory
    }

    /// Returns the image of `index` in a bijection on the lines that leaves no order among
    /// neighbours.
    fn scattered(&self, index: usize) -> usize {
        let mask = self.lines - 1;
        let half = self.lines.trailing_zeros() / 2;
        // Odd factors and shifts to the right are bijections modulo a power of two.
        let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        let mixed = (mixed ^ (mixed >> half)).wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        mixed ^ (mixed >> half)
    }

    /// Returns slots of two words, key and value; an empty one has key 0. Entry `n` (from 1) has
    /// key `mix(n)`, value `n`.
    fn table(&self) -> Vec<u64> {
        let mut memory = touched(self.lines, |_| 0);
        for number in 1..=self.entries() {
            let key = mix(number);
            let mut slot = self.home(key);
            while memory[2 * slot] != 0 {
                slot = (slot + 1) & (self.slots() - 1);
            }
            memory[2 * slot] = key;
            memory[2 * slot + 1] = number;
        }
        memory
    }

    fn slots(&self) -> usize {
        self.lines * LINE / 2
    }

    fn entries(&self) -> u64 {
        (self.slots() as f64 * MAP_LOAD) as u64
    }

    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & (self.slots() - 1)
    }

    /// Does one unit of work.
    fn unit(&mut self) -> Result<()> {
        let steps = self.case.steps_per_unit();
        let sum = match self.case {
            Case::Chase => {
                for _ in 0..steps {
                    self.at = self.memory[self.at * LINE] as usize;
                }
                self.at as u64
            }
            Case::Random => self.reads(steps, 0, self.lines),
            Case::Hot => {
                let hot = HOT_LINES.min(self.lines / 4);
                self.reads(steps, self.lines / 2, hot)
            }
            Case::Zipf => {
                let exponent = f64::from(self.lines.trailing_zeros());
                let mut sum = 0u64;
                for _ in 0..steps {
                    // The rank whose logarithm is uniform has frequency 1/rank.
                    let uniform = (self.random.bits() >> 11) as f64 / (1u64 << 53) as f64;
                    let rank = (uniform * exponent).exp2() as usize;
                    sum = sum.wrapping_add(self.memory[self.scattered(rank - 1) * LINE]);
                }
                sum
            }
            Case::Sequential => self
                .next_words(steps)
                .flatten()
                .fold(0u64, |sum, word| sum.wrapping_mul(31).wrapping_add(*word)),
            Case::Stream => self.next_words(steps).flatten().fold(0u64, |sum, word| sum.wrapping_add(*word)),
            Case::Map => self.look_up(steps)?,
            Case::Update => {
                for _ in 0..steps {
                    let line = self.random.below(self.lines);
                    self.memory[line * LINE] += 1;
                }
                self.updates += steps;
                0
            }
            Case::Compute => idle::compute(steps as usize).to_bits(),
        };
        self.checksum = mix(self.checksum ^ sum);
        Ok(())
    }

    fn reads(&mut self, steps: u64, first: usize, count: usize) -> u64 {
        let mut sum = 0u64;
        for _ in 0..steps {
            let line = first + self.random.below(count);
            sum = sum.wrapping_add(self.memory[line * LINE]);
        }
        sum
    }

    /// Returns the next `count` words, from the start again after the last, in pieces that follow
    /// each other in memory.
    fn next_words(&mut self, count: u64) -> impl Iterator<Item = &[u64]> {
        let words = self.memory.len();
        let (start, end) = (self.at, self.at + count as usize);
        self.at = end % words;
        let memory = &self.memory;
        (0..end.div_ceil(words)).map(move |round| {
            let from = if round == 0 { start } else { 0 };
            let to = (end - round * words).min(words);
            // Adds up one piece at a time: the compiler must not see that the rounds are the same.
            black_box(&memory[from..to])
        })
    }

    fn look_up(&mut self, steps: u64) -> Result<u64> {
        let (entries, mask) = (self.entries(), self.slots() - 1);
        let (mut sum, mut expected) = (0u64, 0u64);
        for _ in 0..steps {
            // One in sixteen is not there.
            let number = 1 + self.random.below((entries + entries / 16) as usize) as u64;
            expected = expected.wrapping_add(if number <= entries { number } else { 0 });
            let key = mix(number);
            let mut slot = self.home(key);
            while self.memory[2 * slot] != 0 {
                if self.memory[2 * slot] == key {
                    sum = sum.wrapping_add(self.memory[2 * slot + 1]);
                    break;
                }
                slot = (slot + 1) & mask;
            }
        }
        ensure!(sum == expected, "the map was damaged: its values sum to {sum}, not {expected}");
        Ok(sum)
    }

    /// Does `amount` of work and reports it: phase `work`, values `units` and
    /// `units_per_cpu_second`. The backing is the one afterwards.
    pub fn work(&mut self, amount: Amount) -> Result<Measurement> {
        let mut phases = Phases::default();
        let start = Instant::now();
        let units = phases.time("work", || {
            let mut done = 0u64;
            loop {
                let more = match amount {
                    Amount::Units(units) => done < units,
                    Amount::Until(time) => done == 0 || start.elapsed() < time,
                };
                if !more {
                    return Ok::<u64, anyhow::Error>(done);
                }
                self.unit()?;
                done += 1;
            }
        })?;
        if self.case == Case::Update {
            let sum: u64 = self.memory.iter().step_by(LINE).sum();
            ensure!(sum == self.updates, "the array was damaged: {sum} updates arrived of {}", self.updates);
        }
        let cpu = phases.0["work"].cpu_ns as f64 / 1e9;
        let values = BTreeMap::from([
            ("units".to_string(), units as f64),
            ("units_per_cpu_second".to_string(), if cpu > 0.0 { units as f64 / cpu } else { 0.0 }),
        ]);
        Ok(Measurement {
            workload: format!("pattern {}", self.case.name()),
            phases,
            values,
            checksum: self.checksum,
            backing: HeapBacking::of_this_process()?,
        })
    }

    /// Says `ready` on one line. Then does the units that each line of `requests` asks for, and
    /// answers each with one line of JSON, until there are no more requests.
    pub fn serve(&mut self, requests: impl BufRead, mut answers: impl Write) -> Result<()> {
        writeln!(answers, "{READY}")?;
        answers.flush()?;
        for line in requests.lines() {
            let line = line?;
            let units = line.trim().parse().with_context(|| format!("'{line}' is no number of units"))?;
            writeln!(answers, "{}", serde_json::to_string(&self.work(Amount::Units(units))?)?)?;
            answers.flush()?;
        }
        Ok(())
    }
}

/// Returns memory of `lines` cache lines, every word written.
fn touched(lines: usize, value: impl Fn(usize) -> u64) -> Vec<u64> {
    let mut memory: Vec<u64> = Vec::with_capacity(lines * LINE);
    memory.extend((0..lines * LINE).map(value));
    black_box(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The least size: 1024 lines.
    const SMALL: f64 = 1e-6;

    #[test]
    fn every_case_repeats_itself_and_says_what_it_did() {
        for case in Case::ALL {
            let digest = || {
                let mut pattern = Pattern::prepare(case, SMALL);
                pattern.work(Amount::Units(1)).unwrap();
                pattern.work(Amount::Units(1)).unwrap()
            };
            let (first, second) = (digest(), digest());
            assert_eq!(first.checksum, second.checksum, "{case:?}");
            assert_eq!(first.values["units"], 1.0);
            assert!(first.values["units_per_cpu_second"] > 0.0, "{case:?}");
        }
        let mut pattern = Pattern::prepare(Case::Chase, SMALL);
        assert!(pattern.work(Amount::Until(Duration::ZERO)).unwrap().values["units"] >= 1.0);
    }

    #[test]
    fn sizes_are_powers_of_two_rounded_down() {
        assert_eq!(Pattern::prepare(Case::Hot, 0.001).lines, 1 << 14);
        assert_eq!(Pattern::prepare(Case::Hot, SMALL).lines, 1024);
        assert_eq!(Pattern::prepare(Case::Compute, 1.0).memory.len(), 0);
    }

    #[test]
    fn the_chain_visits_every_line() {
        let pattern = Pattern::prepare(Case::Chase, 0.001);
        let mut seen = HashSet::new();
        let mut at = pattern.scattered(0);
        while seen.insert(at) {
            at = pattern.memory[at * LINE] as usize;
        }
        assert_eq!(seen.len(), pattern.lines);
    }

    #[test]
    fn a_damaged_map_is_noticed() {
        let mut pattern = Pattern::prepare(Case::Map, SMALL);
        assert!(pattern.work(Amount::Units(1)).is_ok());
        pattern.memory.iter_mut().skip(1).step_by(2).for_each(|value| *value += 1);
        assert!(pattern.work(Amount::Units(1)).is_err());
    }

    #[test]
    fn the_sequence_reads_every_word_the_same_number_of_times() {
        let mut pattern = Pattern::prepare(Case::Stream, SMALL);
        // A mebi of steps is a whole number of rounds through 8192 words: the sum is known.
        let words = pattern.memory.len() as u64;
        let rounds = Case::Stream.steps_per_unit() / words;
        pattern.unit().unwrap();
        assert_eq!(pattern.checksum, mix(rounds * (words * (words - 1) / 2)));
        assert_eq!(pattern.at, 0);
        // A piece that ends in the middle is continued.
        let pieces = |pattern: &mut Pattern, count| -> Vec<(u64, usize)> {
            pattern.next_words(count).map(|piece| (piece[0], piece.len())).collect()
        };
        assert_eq!(pieces(&mut pattern, 8000), [(0, 8000)]);
        assert_eq!(pieces(&mut pattern, 9000), [(8000, 192), (0, 8192), (0, 616)]);
    }

    #[test]
    fn requests_are_answered_one_by_one() {
        let mut answers = Vec::new();
        Pattern::prepare(Case::Random, SMALL).serve(&b"1\n2\n"[..], &mut answers).unwrap();
        let answers = String::from_utf8(answers).unwrap();
        let lines: Vec<&str> = answers.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, READY));
        let second: Measurement = serde_json::from_str(lines[2]).unwrap();
        assert_eq!(second.values["units"], 2.0);
        assert!(Pattern::prepare(Case::Random, SMALL).serve(&b"many\n"[..], &mut Vec::new()).is_err());
    }
}
