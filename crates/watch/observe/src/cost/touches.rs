//! Times of the first touches of pages after a clearing of their bits. Pure values: observed by
//! [`super::probe`], or synthetic.

use crate::tracker::PageBits;
use megapage_snapshot::PAGES;
use megapage_units::HugePage;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// One reading of one region. Its written form is `[cpu, unsure, touched, neighbours]`, with times
/// in units of 100 ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u16, Option<u16>)", into = "(u64, u64, u16, Option<u16>)")]
pub struct Reading {
    /// Processor time of the process since the region was cleared, in seconds, without the delay by
    /// first touches. Regions are taken to be cleared, and read, one after the other at an even
    /// pace.
    pub cpu: f64,
    /// Greatest error of `cpu` in either direction: the thread that clears and reads may lose the
    /// processor in between.
    pub unsure: f64,
    /// Pages touched since the clearing, 0 to 512. Never falls from one reading to the next.
    pub touched: u16,
    /// Number of pages that are new since the reading before and whose next page is new, too;
    /// `None` if the tracker only counts.
    pub neighbours: Option<u16>,
}

/// Units of 100 ns in a second, for the written form of a reading.
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
    /// The region. Its written form is `start`, the first address.
    #[serde(rename = "start", serialize_with = "write_start", deserialize_with = "read_start")]
    pub page: HugePage,
    /// True if one entry of 2 MiB or more maps it: then there is one bit, and `touched` is 0
    /// or 512.
    pub huge: bool,
    /// True if a huge page could map it: whole private anonymous memory, or any region in a probe
    /// of shared memory.
    pub promotable: bool,
    /// True for a closer look at a region that was full at the first reading. It shows how hot such
    /// regions are, but not their number.
    pub close: bool,
    /// True if no sample of accesses had found a touched page in the region: see
    /// [`Touches::stratify`].
    #[serde(default)]
    pub quiet: bool,
    /// Present base pages, 1 to 512.
    pub present: u16,
    /// Readings, in order of time.
    pub readings: Vec<Reading>,
}

fn write_start<S: Serializer>(page: &HugePage, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(page.start())
}

fn read_start<'de, D: Deserializer<'de>>(from: D) -> Result<HugePage, D::Error> {
    u64::deserialize(from).map(HugePage::containing)
}

/// Samples of a process, and the amounts of memory for which they stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Touches {
    /// Sampled regions; a region may be there several times.
    pub histories: Vec<History>,
    /// Base pages of the process that could have been sampled and that a huge page could map.
    pub promotable_pages: u64,
    /// Those pages in regions in which no sample of accesses had found a touched page.
    #[serde(default)]
    pub quiet_pages: u64,
    /// Base pages of the process that could have been sampled and that no huge page could map.
    pub other_pages: u64,
    /// Regions on huge pages.
    pub huge_regions: u64,
    /// Mean number of threads that ran at once during sampling, at least 1: each has its own TLB.
    pub parallel: f64,
    /// Processor seconds of the process during sampling.
    pub cpu_seconds: f64,
    /// Seconds of sampling.
    pub seconds: f64,
    /// Share of neighbours among its base pages that are neighbours in physical memory, too, 0 to
    /// 1; `None` if unknown.
    #[serde(default)]
    pub contiguity: Option<f64>,
}

/// Pages (or huge regions) that were first touched between two moments, or not at all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// Lower bound of the first touch, in seconds of processor time after the clearing.
    pub after: f64,
    /// Upper bound of it; infinite if there was no touch during sampling.
    pub before: f64,
    /// Number of pages.
    pub count: f64,
}

impl History {
    /// Returns true if nine tenths of the pages were touched by the first reading that certainly
    /// came after the clearing. Then the readings show only that they are hot.
    pub fn is_full_at_once(&self) -> bool {
        let full = |first: &Reading| 10 * u32::from(first.touched) >= 9 * u32::from(self.present);
        let first = self.readings.iter().find(|reading| reading.cpu > reading.unsure);
        !self.huge && first.or(self.readings.last()).is_some_and(full)
    }

    /// Returns the bounds of the first touches of all pages, from the readings.
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

    /// Returns the degree to which first touches came in the order of addresses, 0 (anywhere) to 1
    /// (one page after the other). Also returns the number of touches that show it. `None` if none
    /// does: all pages were touched before the first reading, or none was.
    ///
    /// There are two signs:
    ///
    /// - Neighbours are touched in the same step: more of the new pages in a step have a new
    ///   neighbour than chance would give.
    /// - The whole region is new in one step. Random touches spread over several steps
    ///   ([`most_in_a_step`]).
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
            // The first step begins at the clearing, and so does one after a reading that came too
            // soon. A hot region is full in it, in any order.
            let most = most_in_a_step(begun, reading.cpu + reading.unsure) + STEP_MARGIN;
            let jumped = most < MOST_TELLING && former_share < 0.1 && new >= LEAST_TO_TELL;
            let mut score = 0.0f64;
            if jumped {
                score = ((new / open - most) / (1.0 - most)).clamp(0.0, 1.0);
            }
            let chance = new / open.max(1.0);
            // Hot neighbours are new together in the first step, in whatever order they are
            // visited.
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
    /// Returns true if the process has grown by more than a quarter since `former` was sampled: it
    /// was still starting then.
    pub fn grew_from(&self, former: &Touches) -> bool {
        4 * (self.promotable_pages + self.other_pages) > 5 * (former.promotable_pages + former.other_pages)
    }

    /// Marks the quiet regions, in which no sample of accesses had found a touched page. `quiet`
    /// gives their present pages. They form a separate stratum: fewer of them
    /// are sampled, and each stands for more.
    pub fn stratify(&mut self, quiet: &BTreeMap<HugePage, u16>) {
        let pages = quiet.values().map(|present| u64::from(*present)).sum::<u64>();
        self.quiet_pages = pages.min(self.promotable_pages);
        for history in &mut self.histories {
            history.quiet = history.promotable && quiet.contains_key(&history.page);
        }
    }

    /// Adds a later sample of the same process. Takes the totals from the later one.
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

    /// Returns the rate at which a process that goes through its memory in order touches pages not
    /// touched for a while. The touched share then grows evenly with time, so that the readings up
    /// to one half show the slope. The rate is for all base pages, per second of processor time.
    pub fn rate_in_order(&self) -> f64 {
        let base = || self.histories.iter().filter(|history| !history.huge && !history.close);
        let present = |of: &dyn Fn(&History) -> bool| -> f64 {
            base().filter(|history| of(history)).map(|history| f64::from(history.present)).sum()
        };
        let pages = present(&|_| true);
        let steps = base().map(|history| history.readings.len()).max().unwrap_or(0);
        // Each of the two strata has the weight of the pages for which it stands.
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

/// Least error of a moment, in seconds: a call takes as long to return.
const LEAST_UNSURE: f64 = 10e-6;
/// Least number of new pages in a step from which neighbours show an order.
const LEAST_TO_TELL: f64 = 8.0;
/// Margin for chance on the largest share of touches in a step.
const STEP_MARGIN: f64 = 0.05;
/// Largest possible share of random touches in a step that still shows an order.
const MOST_TELLING: f64 = 0.75;

/// Returns the largest share of random first touches that can fall between two moments after the
/// clearing, in seconds, whatever the rate. It is the largest of
/// `exp(-rate begin) - exp(-rate end)`, where `rate = ln(end / begin) / (end - begin)`. It is 0.40
/// if the second moment is 3.16 times as late as the first, and 1 if the first is the clearing
/// itself.
fn most_in_a_step(begin: f64, end: f64) -> f64 {
    if begin <= 0.0 {
        return 1.0;
    }
    let factor = (end / begin).max(1.0 + 1e-6);
    let log = factor.ln() / (factor - 1.0);
    (-log).exp() - (-log * factor).exp()
}

/// Returns the number of pages set in `bits` and not in `former` with a next page that is so, too.
pub(super) fn neighbours_among(bits: &PageBits, former: &PageBits) -> u16 {
    let mut count = 0;
    let new = |word: usize| bits.get(word).map_or(0, |bits| bits & !former[word]);
    for word in 0..bits.len() {
        let next = (new(word) >> 1) | (new(word + 1) << 63);
        count += (new(word) & next).count_ones() as u16;
    }
    count
}
