//! Memory that is allocated, touched and then read at random: many small objects, one big array, or
//! a hash map.

use super::measurement::{HeapBacking, Measurement, Phases, scaled};
use anyhow::{Result, ensure};
use megapage_bench::random::{Random, mix};
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::hint::black_box;

megapage_units::named! {
    /// Kinds of memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Case {
        /// Two million objects of 16 to 904 bytes, 920 MB in all, each written in full.
        Small = "small",
        /// One array of 4 GiB, zeroed by calloc(3), with one word of each base page written.
        Array = "array",
        /// A hash map of 20 million entries with chained buckets and one allocation for each entry,
        /// as std::unordered_map has it.
        Map = "map",
    }
}

impl Case {
    /// Returns the memory that it takes at this scale, with the allocators' overhead.
    pub fn memory(self, scale: f64) -> Bytes {
        let whole = match self {
            Case::Small => Bytes::mib(1100),
            Case::Array => Bytes::mib(4100),
            Case::Map => Bytes::mib(1400),
        };
        Bytes((whole.0 as f64 * scale) as u64)
    }
}

/// Runs one case. `scale` multiplies its sizes and its number of accesses; 1 is the published size.
///
/// Phases: `allocate` (obtains and touches all memory) and `access` (random reads). For half of the
/// time of `access` or more, each read waits for the one before it.
pub fn run(case: Case, scale: f64) -> Result<Measurement> {
    let mut phases = Phases::default();
    let (checksum, backing) = match case {
        Case::Small => small(scale, &mut phases)?,
        Case::Array => array(scale, &mut phases)?,
        Case::Map => map(scale, &mut phases)?,
    };
    let workload = format!("access {}", case.name());
    Ok(Measurement { workload, phases, values: BTreeMap::new(), checksum, backing })
}

/// Returns the length of a small object in words: 16 to 904 bytes, 460 on average.
pub fn small_words(random: &mut Random) -> usize {
    2 + random.below(112)
}

/// Returns a small object of `words` words, all written.
pub fn small_object(words: usize, value: u64) -> Box<[u64]> {
    let mut object = Vec::with_capacity(words);
    object.resize(words, value);
    object.into_boxed_slice()
}

fn small(scale: f64, phases: &mut Phases) -> Result<(u64, HeapBacking)> {
    let count = scaled(2_000_000, scale, 1000);
    let mut random = Random::new(1);
    let mut objects: Vec<Box<[u64]>> = Vec::with_capacity(count);
    phases.time("allocate", || {
        for index in 0..count {
            objects.push(small_object(small_words(&mut random), index as u64));
        }
    });
    link_in_one_cycle(&mut objects, &mut random);
    let backing = HeapBacking::of_this_process()?;

    let (dependent_reads, independent_reads) = (scaled(4_000_000, scale, count), 4 * count);
    let (last, sum) = phases.time("access", || {
        let mut at = 0;
        for _ in 0..dependent_reads {
            at = objects[at][0] as usize;
        }
        let mut sum = 0u64;
        for _ in 0..independent_reads {
            let object = &objects[random.below(count)];
            sum = sum.wrapping_add(object[object.len() - 1]);
        }
        (at, sum)
    });

    // One cycle visits all objects: after a whole number of rounds the walk is back at its start.
    let mut expected = 0;
    for _ in 0..dependent_reads % count {
        expected = objects[expected][0] as usize;
    }
    ensure!(last == expected, "the chain of small objects was damaged: at {last}, not at {expected}");
    std::mem::forget(objects);
    Ok((mix(last as u64) ^ sum, backing))
}

/// Writes into word 0 of each object the index of the next one, such that one random cycle visits
/// all objects (Sattolo's algorithm).
fn link_in_one_cycle(objects: &mut [Box<[u64]>], random: &mut Random) {
    let mut order: Vec<u32> = (0..objects.len() as u32).collect();
    for index in (1..order.len()).rev() {
        order.swap(index, random.below(index));
    }
    for (object, next) in objects.iter_mut().zip(order) {
        object[0] = u64::from(next);
    }
}

/// Words in a base page of 4 KiB.
const WORDS_PER_PAGE: usize = 512;

fn array(scale: f64, phases: &mut Phases) -> Result<(u64, HeapBacking)> {
    let words = scaled((4 << 30) / 8, scale, 8 * WORDS_PER_PAGE).next_multiple_of(WORDS_PER_PAGE);
    let mut array = phases.time("allocate", || {
        let mut array = black_box(vec![0u64; words]);
        for page in (0..words).step_by(WORDS_PER_PAGE) {
            array[page] = page as u64;
        }
        array
    });
    let backing = HeapBacking::of_this_process()?;

    let (dependent_reads, updates) = (scaled(4_000_000, scale, 10_000), scaled(24_000_000, scale, 60_000));
    let mut random = Random::new(2);
    let sum = phases.time("access", || {
        // Each place depends on the word read before: no read starts before the last one has ended.
        let (mut state, mut sum) = (Random::new(3), 0u64);
        let mut last = 0u64;
        for _ in 0..dependent_reads {
            let at = state.below(words) ^ (last & 1) as usize;
            last = array[at];
            sum = sum.wrapping_add(last);
            state = Random::new(state.bits() ^ last);
        }
        for _ in 0..updates {
            let word = &mut array[random.below(words)];
            *word = word.wrapping_add(1);
        }
        sum
    });
    // Every update added 1, in any order: the sum of the array is known.
    let pages = (words / WORDS_PER_PAGE) as u64;
    let first_words = (WORDS_PER_PAGE as u64) * (pages * (pages - 1) / 2);
    let total = array.iter().fold(0u64, |total, word| total.wrapping_add(*word));
    ensure!(
        total == first_words + updates as u64,
        "the array was damaged: its words sum to {total}, not {}",
        first_words + updates as u64
    );
    Ok((mix(sum) ^ total, backing))
}

/// One entry of [`Map`], in a separate allocation.
struct Node {
    key: u64,
    value: u64,
    next: Option<Box<Node>>,
}

/// A hash map laid out as std::unordered_map: an array of buckets, each the head of a chain of
/// nodes. The array doubles when an entry comes for which there is no bucket left.
struct Map {
    buckets: Vec<Option<Box<Node>>>,
    entries: usize,
}

impl Map {
    fn new() -> Map {
        Map { buckets: empty_buckets(16), entries: 0 }
    }

    fn bucket(&self, key: u64) -> usize {
        // Uses the upper half of the product: the keys' low bits need not be random.
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn get(&self, key: u64) -> Option<u64> {
        let mut node = self.buckets[self.bucket(key)].as_deref();
        while let Some(found) = node {
            if found.key == key {
                return Some(found.value);
            }
            node = found.next.as_deref();
        }
        None
    }

    /// Adds an entry unless the key is present. Returns true if it added one.
    fn insert(&mut self, key: u64, value: u64) -> bool {
        if self.get(key).is_some() {
            return false;
        }
        if self.entries == self.buckets.len() {
            self.double();
        }
        let bucket = self.bucket(key);
        let next = self.buckets[bucket].take();
        self.buckets[bucket] = Some(Box::new(Node { key, value, next }));
        self.entries += 1;
        true
    }

    fn double(&mut self) {
        let doubled = empty_buckets(2 * self.buckets.len());
        for head in std::mem::replace(&mut self.buckets, doubled) {
            let mut chain = head;
            while let Some(mut node) = chain {
                chain = node.next.take();
                let bucket = self.bucket(node.key);
                node.next = self.buckets[bucket].take();
                self.buckets[bucket] = Some(node);
            }
        }
    }
}

/// Returns `count` empty buckets; `count` is a power of two.
fn empty_buckets(count: usize) -> Vec<Option<Box<Node>>> {
    std::iter::repeat_with(|| None).take(count).collect()
}

fn map(scale: f64, phases: &mut Phases) -> Result<(u64, HeapBacking)> {
    let count = scaled(20_000_000, scale, 10_000) as u64;
    let map = phases.time("allocate", || {
        let mut map = Map::new();
        for index in 0..count {
            map.insert(mix(index), index);
        }
        map
    });
    ensure!(map.entries as u64 == count, "the map holds {} entries, not {count}", map.entries);
    let backing = HeapBacking::of_this_process()?;

    let mut random = Random::new(4);
    let lookups = scaled(10_000_000, scale, 10_000);
    let (sum, expected) = phases.time("access", || {
        let (mut sum, mut expected) = (0u64, 0u64);
        for _ in 0..lookups {
            let index = random.below(count as usize) as u64;
            expected = expected.wrapping_add(index);
            sum = sum.wrapping_add(map.get(mix(index)).unwrap_or(u64::MAX));
        }
        (sum, expected)
    });
    ensure!(sum == expected, "the map was damaged: its values sum to {sum}, not {expected}");
    std::mem::forget(map);
    Ok((mix(sum), backing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_have_the_stated_sizes() {
        let mut random = Random::new(1);
        let words: Vec<usize> = (0..100_000).map(|_| small_words(&mut random)).collect();
        assert_eq!((words.iter().min(), words.iter().max()), (Some(&2), Some(&113)));
        let mean = 8.0 * words.iter().sum::<usize>() as f64 / words.len() as f64;
        assert!((455.0..465.0).contains(&mean), "{mean}");
    }

    #[test]
    fn the_cycle_visits_every_object() {
        let mut objects: Vec<_> = (0..1000).map(|_| small_object(2, 0)).collect();
        link_in_one_cycle(&mut objects, &mut Random::new(7));
        let (mut at, mut steps) = (0, 0);
        loop {
            at = objects[at][0] as usize;
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, 1000);
    }

    #[test]
    fn the_map_keeps_what_it_is_given() {
        let mut map = Map::new();
        for index in 0..1000 {
            assert!(map.insert(mix(index), index));
        }
        assert!(!map.insert(mix(3), 99));
        assert_eq!(map.get(mix(3)), Some(3));
        assert_eq!(map.get(mix(1000)), None);
        assert_eq!((map.entries, map.buckets.len()), (1000, 1024));
    }

    #[test]
    fn every_case_checks_out_and_repeats() {
        for case in Case::ALL {
            let (first, second) = (run(case, 0.001).unwrap(), run(case, 0.001).unwrap());
            assert_eq!(first.checksum, second.checksum, "{case:?}");
            assert!(
                ["allocate", "access"].iter().all(|&phase| first.phases.0[phase].wall_ns > 0),
                "{case:?}"
            );
            assert!(first.backing.resident() > 0, "{case:?}");
        }
    }
}
