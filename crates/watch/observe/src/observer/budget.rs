//! The budget of samples of a process: a token bucket of the time that sampling may take from it.
//!
//! The first access to a page after its bit was cleared costs the target about 1000 cycles. So one
//! sample of 1 GiB of base pages in full use costs 0.12 s. Each second of processor time of the
//! target earns `budget` seconds. Each page accessed after a clearing is charged with the cost of a
//! first access. A sample is taken when the tokens pay for all candidates, or the bucket is full.
//! In the latter case it covers as many regions as the tokens pay for, those sampled longest ago
//! first.
//!
//! Times come in as parameters: nothing here reads a clock.

use megapage_units::HugePage;
use std::time::Duration;

/// Capacity of the bucket, as the processor time of the target that fills it. It bounds the cost of
/// one sample.
const CAPACITY: Duration = Duration::from_secs(10);
/// Part of the bucket beyond which a sample for promotion is a burst. It then takes a part of each
/// region, if the parts stand for all. The whole burst would slow the process just when it is to be
/// made faster.
const BURST: f64 = 1.0 / 8.0;
/// Windows after which a target is sampled with the tokens that are left. A target that takes
/// hardly any processor time earns nothing. It is charged nothing if it accesses nothing.
const IDLE_WINDOWS: u32 = 10;
/// Pause after our own clearing and reading, in multiples of their time. For all targets together
/// they take at most 2 % of the time.
const OWN_SHARE: u32 = 50;
/// Largest number of regions in one sample, 128 GiB: bounds the length of one clearing.
const MOST_REGIONS: usize = 1 << 16;
/// Least share of never sampled pages that is expected to be accessed, however few of the others
/// were.
const LEAST_EXPECTED: f64 = 1.0 / 8.0;
/// Factor on the accessed pages of the last sample: the next may find more.
const MARGIN: f64 = 1.25;
/// Bounds of the target's processor use for the advance to the first sample. The advance is the
/// budget of one window at its rate so far. A process that wakes up takes more than before. One
/// busy thread is more common than several.
const RATE_AT_FIRST: (f64, f64) = (0.1, 1.0);
/// Steps of the kernel's count of processor time, in seconds.
const TICK: f64 = 0.01;
/// Greatest period, shown for a target that takes no processor time.
const LONGEST_PERIOD: Duration = Duration::from_secs(3600);

/// Cost of a first access after a clearing, and the part of it that is allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    /// Cost of a first access, in seconds.
    pub(crate) first_access: f64,
    /// Largest cost of sampling, as a share of the target's processor time.
    pub(crate) budget: f64,
    /// Time from clearing to reading.
    pub(crate) window: Duration,
    /// See [`super::Options::promotes`].
    pub(crate) promotes: bool,
}

/// Region that may be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// The region.
    pub(crate) page: HugePage,
    /// Entries with an accessed bit: present base pages, or 1 for a huge page.
    pub(crate) entries: u16,
    /// Entries accessed in its last sample, and the time of that.
    pub(crate) last: Option<(f32, Duration)>,
}

/// Account of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
    terms: Terms,
    /// Seconds that sampling may take from the target; below zero if a sample took more than
    /// expected.
    tokens: f64,
    /// True if the next sample starts with the present tokens and does not wait for more.
    hurried: bool,
    /// Time of the last look at the target, and its processor time then.
    seen: Option<(Duration, Duration)>,
    /// Processor seconds of the target per second, smoothed.
    rate: Option<f64>,
    /// Share of the cleared entries that was accessed; 1 until something is known.
    share: f64,
    /// Entries accessed by the end of a period, over those by the end of the window. At least 1.
    growth: f64,
    /// Length of a window over that of the last sample, which may have been a short first one. At
    /// least 1.
    to_come: f64,
    /// Time of the last clearing.
    cleared: Option<Duration>,
    /// Entries of the last sample accessed so far, for the period that is shown.
    last_charge: u64,
    /// Seconds that sampling has taken from the target, and its processor time at the beginning.
    spent: f64,
    began: Option<Duration>,
    /// Earliest time of the next clearing, so that our own work stays small.
    not_before: Duration,
}

impl Account {
    /// Opens an account. `rate` is the target's processor seconds per second so far; `lived` is all
    /// its processor time.
    pub(crate) fn new(terms: Terms, rate: f64, lived: Duration) -> Account {
        let (least, most) = RATE_AT_FIRST;
        // NaN becomes the least rate.
        let rate = if rate > least { rate.min(most) } else { least };
        let advance = terms.window.mul_f64(rate);
        // It has earned the budget of its life so far, up to a full bucket.
        let earned = if terms.promotes { lived.min(CAPACITY).max(advance) } else { advance };
        Account {
            tokens: earned.as_secs_f64() * terms.budget,
            terms,
            share: 1.0,
            growth: 1.0,
            to_come: 1.0,
            ..Account::default()
        }
    }

    fn capacity(&self) -> f64 {
        CAPACITY.max(self.terms.window).as_secs_f64() * self.terms.budget
    }

    /// Returns the tokens for a sample, at most a full bucket. Tokens beyond that may still pay for
    /// the last sample.
    fn available(&self) -> f64 {
        self.tokens.min(self.capacity())
    }

    /// Notes that the target has taken `cpu` of processor time so far.
    pub(crate) fn earn(&mut self, now: Duration, cpu: Duration) {
        self.began = self.began.or(Some(cpu));
        let Some((then, before)) = self.seen.replace((now, cpu)) else { return };
        let taken = cpu.saturating_sub(before).as_secs_f64();
        self.tokens += taken * self.terms.budget;
        let elapsed = now.saturating_sub(then).as_secs_f64();
        if elapsed > 0.0 {
            let rate = taken / elapsed;
            // A longer interval shows the rate better.
            let weight = (elapsed / self.terms.window.as_secs_f64().max(1e-3)).clamp(0.0, 0.5);
            self.rate = Some(self.rate.map_or(rate, |old| old + weight * (rate - old)));
        }
    }

    /// Makes the next sample start at once, with as many regions as the tokens pay for.
    pub(crate) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// Notes that the bits were cleared.
    pub(crate) fn cleared(&mut self, now: Duration) {
        self.hurried = false;
        self.tokens = self.available();
        self.cleared = Some(now);
    }

    /// Charges `accessed` entries, which the target has accessed for the first time since they were
    /// cleared, at whatever time.
    pub(crate) fn charge(&mut self, accessed: u64) {
        let cost = accessed as f64 * self.terms.first_access;
        self.tokens -= cost;
        self.spent += cost;
    }

    /// Learns from the last sample. Among the `entries` cleared, `in_window` were accessed by the
    /// end of the window, and `by_now` so far. The clearing was `passed` ago.
    pub(crate) fn learn(&mut self, passed: Duration, entries: u64, in_window: u64, by_now: u64) {
        self.last_charge = by_now;
        if entries > 0 {
            let share = (by_now as f64 / entries as f64).min(1.0);
            // The share rises at once and falls by halves: a sample should be too small rather than
            // too expensive.
            self.share = share.max(self.share / 2.0);
        }
        if in_window > 0 {
            self.growth = by_now as f64 / in_window as f64;
            self.to_come = (self.terms.window.as_secs_f64() / passed.as_secs_f64().max(1e-3)).max(1.0);
        }
    }

    /// Notes that clearing or reading took `busy` of our time, with `targets` sampled. Delays the
    /// next clearing.
    pub(crate) fn worked(&mut self, now: Duration, busy: Duration, targets: usize) {
        let pause = busy * OWN_SHARE.saturating_mul(targets.max(1) as u32);
        self.not_before = self.not_before.max(now) + pause;
    }

    /// Returns the number of entries of a candidate that are expected to be accessed by the end of
    /// the period.
    fn expected(&self, candidate: &Candidate) -> f64 {
        self.expected_after(candidate, self.growth)
    }

    fn expected_after(&self, candidate: &Candidate, growth: f64) -> f64 {
        let entries = f64::from(candidate.entries);
        let expected = match candidate.last {
            Some((accessed, _)) => f64::from(accessed) * growth * MARGIN + 1.0,
            None => entries * (self.share * MARGIN).max(LEAST_EXPECTED),
        };
        expected.min(entries)
    }

    /// Returns true if a sample of all candidates costs more than a full bucket, or, before the
    /// first sample, more than the present tokens. Then parts of all regions show more than some
    /// whole regions.
    pub(crate) fn is_too_expensive(&self, candidates: &[Candidate]) -> bool {
        let most = if self.cleared.is_some() { self.capacity() } else { self.available() };
        self.costs(candidates) > most
    }

    /// Returns true if a sample of all candidates, for promotion, would be a burst ([`BURST`]).
    /// Accesses seen in less than a window are taken to grow until a whole window has passed. For a
    /// process that is `filling` its memory, it counts every entry. Once such a process uses what
    /// it has filled, it accesses far more than the last samples showed.
    pub(crate) fn is_burst(&self, candidates: &[Candidate], filling: bool) -> bool {
        let growth = self.growth * self.to_come;
        let all = |it: &Candidate| filling.then_some(f64::from(it.entries));
        let expected = |it| all(it).unwrap_or_else(|| self.expected_after(it, growth));
        let pages: f64 = candidates.iter().map(expected).sum();
        self.terms.promotes && pages * self.terms.first_access > BURST * self.capacity()
    }

    /// Returns the expected cost of a sample of all candidates to the target, in seconds.
    fn costs(&self, candidates: &[Candidate]) -> f64 {
        let pages: f64 = candidates.iter().map(|candidate| self.expected(candidate)).sum();
        pages * self.terms.first_access
    }

    /// Returns true if a sample may start now, judged by the charges so far. Accesses since the
    /// last reading are not charged yet: read, charge, and check [`can_pay`](Account::can_pay)
    /// again.
    pub(crate) fn may_start(&self, now: Duration, candidates: &[Candidate]) -> bool {
        (now >= self.not_before || self.hurried) && self.can_pay(now, candidates)
    }

    /// Returns true if a sample of a target that does not run may begin. It takes nothing from the
    /// target. It may begin as often as one of a target that takes hardly any time.
    pub(crate) fn may_wait(&self, now: Duration) -> bool {
        self.cleared.is_none_or(|cleared| now.saturating_sub(cleared) >= self.terms.window * IDLE_WINDOWS)
    }

    /// Returns true if there are enough tokens for a sample.
    pub(crate) fn can_pay(&self, now: Duration, candidates: &[Candidate]) -> bool {
        match self.cleared {
            _ if candidates.is_empty() => false,
            None => true,
            Some(_) if self.hurried => self.tokens > 0.0,
            Some(cleared) => {
                let waited = now.saturating_sub(cleared) >= self.terms.window * IDLE_WINDOWS;
                self.tokens >= self.goal(candidates) || (self.tokens > 0.0 && waited)
            }
        }
    }

    /// Returns the tokens at which a sample starts: the cost of all candidates, or a full bucket.
    fn goal(&self, candidates: &[Candidate]) -> f64 {
        // Slightly below the full bucket, which sums of small values may not reach.
        self.costs(candidates).min(self.capacity() * 0.999)
    }

    /// Returns the regions of the next sample, ascending: those sampled longest ago.
    /// Among regions of the same time it takes evenly spread ones. Returns at least one.
    pub(crate) fn plan(&self, candidates: &[Candidate]) -> Vec<HugePage> {
        let count = candidates.len();
        let stride = spread(count);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&index| (candidates[index].last.map(|(_, when)| when), index * stride % count));
        let mut rest = self.available() / self.terms.first_access;
        let mut chosen: Vec<HugePage> = order
            .into_iter()
            .take(MOST_REGIONS)
            .enumerate()
            .take_while(|(place, index)| {
                rest -= self.expected(&candidates[*index]);
                rest >= 0.0 || *place == 0
            })
            .map(|(_, index)| candidates[index].page)
            .collect();
        chosen.sort_unstable();
        chosen
    }

    /// Returns the time from one clearing to the next at the target's present rate.
    pub(crate) fn period(&self) -> Duration {
        let cost = self.last_charge as f64 * self.terms.first_access;
        let needed = cost / self.terms.budget / self.rate.unwrap_or(1.0).max(1e-9);
        let least = self.terms.window.as_secs_f64();
        Duration::from_secs_f64(needed.max(least).min(LONGEST_PERIOD.as_secs_f64()))
    }

    /// Returns the time that sampling has taken from the target so far.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_secs_f64(self.spent)
    }

    /// Returns that time as a share of the target's processor time since the first look. It exceeds
    /// the budget at first, if the target takes less time than before or accesses more than
    /// expected.
    pub(crate) fn slowdown(&self) -> f64 {
        let taken = match (self.began, self.seen) {
            (Some(began), Some((_, cpu))) => cpu.saturating_sub(began).as_secs_f64(),
            _ => 0.0,
        };
        self.spent / taken.max(TICK)
    }

    /// Returns the time until a sample may start, at the target's present rate: at least a tenth of
    /// a window.
    pub(crate) fn wait(&self, now: Duration, candidates: &[Candidate]) -> Duration {
        let idle = match self.cleared {
            Some(cleared) => (cleared + self.terms.window * IDLE_WINDOWS).saturating_sub(now),
            None => Duration::ZERO,
        };
        let missing = (self.goal(candidates) - self.tokens).max(0.0) / self.terms.budget;
        let rate = self.rate.unwrap_or(1.0).max(1e-9);
        let earning = Duration::from_secs_f64((missing / rate).min(LONGEST_PERIOD.as_secs_f64()));
        let soonest = if self.tokens > 0.0 { earning.min(idle) } else { earning };
        soonest.max(self.not_before.saturating_sub(now)).max(self.terms.window / 10)
    }
}

/// Returns a step that visits all of `count` places, each far from the ones visited before. It is
/// near the golden section of `count`, and has no common divisor with it.
fn spread(count: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let golden = (count as f64 * 0.618_033_988_749_895) as usize;
    (golden.max(1)..).find(|step| gcd(*step, count.max(1)) == 1).unwrap_or(1)
}
