//! When pages are first touched after their bits were cleared. Pure values: observed by [`super::probe`], or synthetic.

use crate::tracker::PageBits;
use megapage_snapshot::PAGES;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One reading of one region. Written as `[cpu, unsure, touched, neighbours]`, the times in units
/// of 100 ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u16, Option<u16>)", into = "(u64, u64, u16, Option<u16>)")]
pub struct Reading {
    /// Processor time that the process took since the region was cleared, in seconds: as regions are cleared, and read,
    /// one after the other at an even pace; without what first touches took of it.
    pub cpu: f64,
    /// By how much it may be less or more at most: the thread that clears and reads may lose the processor in between.
    pub unsure: f64,
    /// Pages touched since then, 0 to 512. Never falls from one reading to the next.
    pub touched: u16,
    /// Of the pages that are new since the reading before, how many have a next page that is new, too; `None` where the
    /// tracker only counts.
    pub neighbours: Option<u16>,
}

/// Units of 100 ns in a second: what a reading is written in.
const WRITTEN: f64 = 1e7;

impl From<(u64, u64, u16, Option<u16>)> for Reading {
    fn from((cpu, unsure, touched, neighbours): (u64, u64, u16, Option<u16>)) -> Reading {
        Reading { cpu: cpu as f64 / WRITTEN, unsure: unsure as f64 / WRITTEN, touched, neighbours }
    }
}

impl From<Reading> for (u64, u64, u16, Option<u16>) {
    fn from(it: Reading) -> Self {
        ((it.cpu * WRITTEN) as u64, (it.unsure * WRITTEN) as u64, it.touched, it.neighbours)
    }
}

/// One region, cleared once and read several times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// The region's first address.
    pub start: u64,
    /// Whether one entry of 2 MiB or more maps it: then there is one bit, and `touched` is 0 or 512.
    pub huge: bool,
    /// Whether a huge page could map it: private anonymous memory on base pages.
    pub promotable: bool,
    /// A closer look at a region that was full at the first reading: it says how hot such regions are, and nothing of
    /// how many there are.
    pub close: bool,
    /// Whether no sample of accesses had found a page of the region touched: see [`Touches::stratify`].
    #[serde(default)]
    pub quiet: bool,
    /// Present base pages, 1 to 512.
    pub present: u16,
    /// The readings, in order of time.
    pub readings: Vec<Reading>,
}

/// What was sampled of a process, and of how much.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Touches {
    /// The sampled regions; a region may be there several times.
    pub histories: Vec<History>,
    /// Base pages of the process that could have been sampled and that a huge page could map.
    pub promotable_pages: u64,
    /// Those of them in regions of which no sample of accesses had found a page touched.
    #[serde(default)]
    pub quiet_pages: u64,
    /// Those on base pages that none could.
    pub other_pages: u64,
    /// Regions that are mapped huge.
    pub huge_regions: u64,
    /// Threads that ran at once on average while it was sampled, at least 1: each has a TLB of its own.
    pub parallel: f64,
    /// Processor seconds that the process took while it was sampled.
    pub cpu_seconds: f64,
    /// Seconds that this took.
    pub seconds: f64,
    /// How far neighbours among its base pages are neighbours in physical memory, too, 0 to 1; `None` where that is not
    /// known.
    #[serde(default)]
    pub contiguity: Option<f64>,
}

/// Pages (or huge regions) that were first touched between two moments, or not at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Not before this processor time after the clearing, in seconds.
    pub after: f64,
    /// Not after this; infinite: not as long as it was watched.
    pub before: f64,
    /// How many.
    pub count: f64,
}

impl History {
    /// Whether (nearly) all pages were touched by the first reading that is known to come after the clearing: that they
    /// are hot is all that it shows.
    pub fn is_full_at_once(&self) -> bool {
        let full = |first: &Reading| 10 * u32::from(first.touched) >= 9 * u32::from(self.present);
        let first = self.readings.iter().find(|reading| reading.cpu > reading.unsure);
        !self.huge && first.or(self.readings.last()).is_some_and(full)
    }

    /// What the readings say about each page's first touch.
    pub fn records(&self) -> Vec<Record> {
        let scale = if self.huge { 1.0 / f64::from(PAGES) } else { 1.0 };
        let (mut after, mut touched) = (0.0, 0u16);
        let mut records = Vec::with_capacity(self.readings.len() + 1);
        for reading in &self.readings {
            let new = reading.touched.saturating_sub(touched);
            let before = reading.cpu + reading.unsure / 2.0 + LEAST_UNSURE;
            if new > 0 && before > after {
                records.push(Record { after, before, count: f64::from(new) * scale });
            }
            touched = touched.max(reading.touched);
            after = (reading.cpu - reading.unsure / 2.0).max(after);
        }
        let whole = if self.huge { PAGES } else { self.present };
        let never = whole.saturating_sub(touched);
        if never > 0 {
            records.push(Record { after, before: f64::INFINITY, count: f64::from(never) * scale });
        }
        records
    }

    /// How far the first touches came in the order of addresses, 0 (anywhere) to 1 (one page after the other), and
    /// how many touches say so. `None` where nothing shows it: all pages were touched before the first reading, or none.
    ///
    /// Two signs. Neighbours are touched in the same step: among the pages that are new in a step, more have a new
    /// neighbour than chance would give. And the whole region is new in one step: pages that are touched at random,
    /// each at its own time, spread over several steps ([`most_in_a_step`]).
    pub fn order(&self) -> Option<(f64, f64)> {
        if self.huge || self.close {
            return None;
        }
        let end = self.readings.last().map_or(0.0, |reading| f64::from(reading.touched));
        let (mut sum, mut weight) = (0.0, 0.0);
        let (mut former, mut begun) = (0u16, 0.0f64);
        for (step, reading) in self.readings.iter().enumerate() {
            let new = f64::from(reading.touched.saturating_sub(former));
            let open = f64::from(self.present.saturating_sub(former));
            let former_share = f64::from(former) / f64::from(self.present.max(1));
            // The first step begins at once, and so does one after a reading that came too soon to say: a hot region is
            // full in it, in any order.
            let most = most_in_a_step(begun, reading.cpu + reading.unsure) + STEP_MARGIN;
            let jumped = most < MOST_TELLING && former_share < 0.1 && new >= LEAST_TO_TELL;
            let mut score = 0.0f64;
            if jumped {
                score = ((new / open - most) / (1.0 - most)).clamp(0.0, 1.0);
            }
            let chance = new / open.max(1.0);
            // Hot pages side by side are new side by side in the first step, in whatever order they are visited.
            let goes_on = step > 0 || end >= 1.5 * new;
            let tells = new >= LEAST_TO_TELL && chance < 0.9 && goes_on;
            let neighbours = reading.neighbours.filter(|_| tells);
            if let Some(neighbours) = neighbours {
                let share = f64::from(neighbours) / new;
                score = score.max(((share - chance) / (1.0 - chance)).clamp(0.0, 1.0));
            }
            if neighbours.is_some() || jumped {
                sum += score * new;
                weight += new;
            }
            former = reading.touched.max(former);
            begun = (reading.cpu - reading.unsure).max(begun);
        }
        (weight > 0.0).then(|| (sum / weight, weight))
    }
}

impl Touches {
    /// Whether the process has grown by more than a quarter since `former` was sampled: it was still starting then.
    pub fn grew_from(&self, former: &Touches) -> bool {
        4 * (self.promotable_pages + self.other_pages) > 5 * (former.promotable_pages + former.other_pages)
    }

    /// Says which regions (by first address; with their present pages) are quiet: of which no sample of accesses had found a
    /// page touched. They are a stratum of their own: fewer of them are looked at, each of which stands for more.
    pub fn stratify(&mut self, quiet: &BTreeMap<u64, u16>) {
        let pages = quiet.values().map(|present| u64::from(*present)).sum::<u64>();
        self.quiet_pages = pages.min(self.promotable_pages);
        for history in &mut self.histories {
            history.quiet = history.promotable && quiet.contains_key(&history.start);
        }
    }

    /// Adds a later sample of the same process. The values of the whole are those of the later.
    pub fn add(&mut self, later: Touches) {
        let seconds = self.seconds + later.seconds;
        self.parallel = (self.parallel * self.seconds + later.parallel * later.seconds) / seconds.max(1e-9);
        self.histories.extend(later.histories);
        self.promotable_pages = later.promotable_pages;
        self.quiet_pages = later.quiet_pages;
        self.other_pages = later.other_pages;
        self.huge_regions = later.huge_regions;
        self.cpu_seconds += later.cpu_seconds;
        self.seconds = seconds;
        self.contiguity = later.contiguity.or(self.contiguity);
    }

    /// The rate at which pages are touched that were not for a while, for a process that goes through its memory in
    /// order: the share touched grows evenly with time then, so that the whole of it up to the half shows the slope.
    /// Of base pages, all of them, per second of processor time.
    pub fn rate_in_order(&self) -> f64 {
        let base = || self.histories.iter().filter(|history| !history.huge && !history.close);
        let present = |of: &dyn Fn(&History) -> bool| -> f64 {
            base().filter(|history| of(history)).map(|history| f64::from(history.present)).sum()
        };
        let pages = present(&|_| true);
        let steps = base().map(|history| history.readings.len()).max().unwrap_or(0);
        // Of the two strata each counts by what it stands for.
        let quiet = present(&|history| history.quiet);
        let [of_quiet, of_others] = [
            (quiet, self.quiet_pages),
            (pages - quiet, self.promotable_pages + self.other_pages - self.quiet_pages),
        ]
        .map(|(sampled, all)| if quiet > 0.0 && sampled > 0.0 { all as f64 / sampled } else { 1.0 });
        let weight = |history: &History| if history.quiet { of_quiet } else { of_others };
        let pages = of_quiet * quiet + of_others * (pages - quiet);
        let mut best = 0.0;
        for step in 0..steps {
            // Pages times the time that each was watched up to this step.
            let (mut touched, mut watched) = (0.0, 0.0);
            for history in base() {
                let reading = history.readings.get(step).or(history.readings.last());
                let weight = weight(history);
                touched += weight * reading.map_or(0.0, |reading| f64::from(reading.touched));
                watched += weight * reading.map_or(0.0, |reading| reading.cpu) * f64::from(history.present);
            }
            if watched > 0.0 && (best == 0.0 || touched < 0.5 * pages) {
                best = touched / watched;
            }
        }
        best * (self.promotable_pages + self.other_pages) as f64
    }
}

/// A moment is known no better, in seconds: a call takes as long to come back.
const LEAST_UNSURE: f64 = 10e-6;
/// New pages in a step below which neighbours say nothing.
const LEAST_TO_TELL: f64 = 8.0;
/// What chance may add to the largest share of touches that a step holds.
const STEP_MARGIN: f64 = 0.05;
/// A step that may hold so large a share of touches at random times says nothing of their order.
const MOST_TELLING: f64 = 0.75;

/// The largest share of first touches at random times that can fall between two moments after the clearing, in seconds,
/// whatever the rate: the largest of `exp(-rate begin) - exp(-rate end)`, where `rate = ln(end / begin) / (end - begin)`.
/// 0.40 where the second comes 3.16 times as late as the first; all of them where the first is the clearing itself.
fn most_in_a_step(begin: f64, end: f64) -> f64 {
    if begin <= 0.0 {
        return 1.0;
    }
    let factor = (end / begin).max(1.0 + 1e-6);
    let log = factor.ln() / (factor - 1.0);
    (-log).exp() - (-log * factor).exp()
}

/// How many of the pages that are set in `bits` and not in `former` have a next page that is too.
pub(super) fn neighbours_among(bits: &PageBits, former: &PageBits) -> u16 {
    let mut count = 0;
    let new = |word: usize| bits.get(word).map_or(0, |bits| bits & !former[word]);
    for word in 0..bits.len() {
        let next = (new(word) >> 1) | (new(word + 1) << 63);
        count += (new(word) & next).count_ones() as u16;
    }
    count
}
