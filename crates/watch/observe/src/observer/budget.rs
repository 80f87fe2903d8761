//! How often and how much of a process may be sampled: a token bucket of the time that sampling may take from it.
//!
//! The first access to a page after its bit was cleared costs the target about 1000 cycles, so that one sample of
//! 1 GiB of base pages that are all in use costs it 0.12 s. Each second of processor time that the target takes earns
//! it `budget` seconds; each page that is accessed after a clearing is charged with the cost of a first access. A
//! sample is taken when what has been earned pays for all candidates, or the bucket is full: then for as many regions
//! as it pays for, those that were sampled longest ago first.
//!
//! Times come in as parameters: nothing here reads a clock.

use std::time::Duration;

/// What the bucket holds: the budget of so much processor time of the target. It bounds what one sample may cost at
/// once.
const CAPACITY: Duration = Duration::from_secs(10);
/// Where it is about promotion, a sample that costs more at once than this part of the bucket is of a part of each region, if
/// that says as much: all of a burst falls into the moment in which the process is to be made faster.
const BURST: f64 = 1.0 / 8.0;
/// A target that takes hardly any processor time earns nothing and, where it accesses nothing, is charged nothing.
/// After so many windows it is sampled with what is left.
const IDLE_WINDOWS: u32 = 10;
/// The largest share of the time that clearing and reading may take of ours, for all targets together: 2 %.
const OWN_SHARE: u32 = 50;
/// Regions in one sample at most, 128 GiB: bounds the length of one clearing.
const MOST_REGIONS: usize = 1 << 16;
/// Of pages never sampled, at least this share is expected to be accessed, however few of the others were.
const LEAST_EXPECTED: f64 = 1.0 / 8.0;
/// More pages than in the last sample may be accessed in the next.
const MARGIN: f64 = 1.25;
/// What the first sample may take in advance is the budget of one window of the target's processor time at its rate
/// so far, which is taken to be between these: a process that wakes up takes more than before, and one thread is at
/// work more often than several.
const RATE_AT_FIRST: (f64, f64) = (0.1, 1.0);
/// The steps in which the kernel counts processor time.
const TICK: f64 = 0.01;
/// The period shown of a target that takes no processor time.
const LONGEST_PERIOD: Duration = Duration::from_secs(3600);

/// What one first access after a clearing costs, and how much of that is allowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Terms {
    /// Seconds.
    pub(crate) first_access: f64,
    /// Share of the target's processor time.
    pub(crate) budget: f64,
    /// From clearing to reading.
    pub(crate) window: Duration,
    /// See [`super::Options::promotes`].
    pub(crate) promotes: bool,
}

/// A region that may be sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Its first address.
    pub(crate) start: u64,
    /// Entries that carry an accessed bit: present base pages, or 1 where a huge page is.
    pub(crate) entries: u16,
    /// How many of them were accessed in its last sample, and when that was.
    pub(crate) last: Option<(f32, Duration)>,
}

/// The account of one process.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    terms: Terms,
    /// Seconds that sampling may take from the target; below zero when a sample took more than expected.
    tokens: f64,
    /// Whether the next sample starts with what there is, and does not wait for more.
    hurried: bool,
    /// The target's processor time when it was last seen, and the time.
    seen: Option<(Duration, Duration)>,
    /// Processor seconds per second, smoothed.
    rate: Option<f64>,
    /// Of the entries that were cleared, the share that was accessed; 1 until something is known.
    share: f64,
    /// Accessed by the end of a period, over accessed by the end of the window. At least 1.
    growth: f64,
    /// How much longer a window is than the last sample was looked at, which may have been a short first one. At least 1.
    to_come: f64,
    /// The last clearing.
    cleared: Option<Duration>,
    /// Entries of the last sample that were accessed so far, for the period that is shown.
    last_charge: u64,
    /// Seconds that sampling has taken from the target, and its processor time when that began.
    spent: f64,
    began: Option<Duration>,
    /// No clearing before this time, so that our own work stays small.
    not_before: Duration,
}

impl Account {
    /// `rate`: processor seconds that the target took per second so far; `lived`: all that it has taken.
    pub(crate) fn new(terms: Terms, rate: f64, lived: Duration) -> Account {
        let (least, most) = RATE_AT_FIRST;
        // What is no number is no rate.
        let rate = if rate > least { rate.min(most) } else { least };
        let advance = terms.window.mul_f64(rate);
        // It has earned what was not taken from it yet, up to what a bucket holds.
        let earned = if terms.promotes { lived.min(CAPACITY).max(advance) } else { advance };
        Account {
            tokens: earned.as_secs_f64() * terms.budget,
            terms,
            hurried: false,
            seen: None,
            rate: None,
            share: 1.0,
            growth: 1.0,
            to_come: 1.0,
            cleared: None,
            last_charge: 0,
            spent: 0.0,
            began: None,
            not_before: Duration::ZERO,
        }
    }

    fn capacity(&self) -> f64 {
        CAPACITY.max(self.terms.window).as_secs_f64() * self.terms.budget
    }

    /// Tokens for a sample: no more than the bucket holds. What is beyond that may still pay for the last sample.
    fn available(&self) -> f64 {
        self.tokens.min(self.capacity())
    }

    /// The target has taken `cpu` so far.
    pub(crate) fn earn(&mut self, now: Duration, cpu: Duration) {
        self.began = self.began.or(Some(cpu));
        let Some((then, before)) = self.seen.replace((now, cpu)) else { return };
        let taken = cpu.saturating_sub(before).as_secs_f64();
        self.tokens += taken * self.terms.budget;
        let elapsed = now.saturating_sub(then).as_secs_f64();
        if elapsed > 0.0 {
            let rate = taken / elapsed;
            // A longer interval says more of the rate.
            let weight = (elapsed / self.terms.window.as_secs_f64().max(1e-3)).clamp(0.0, 0.5);
            self.rate = Some(self.rate.map_or(rate, |old| old + weight * (rate - old)));
        }
    }

    /// Has the next sample start at once, with as many regions as there are tokens for.
    pub(crate) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// The bits were cleared.
    pub(crate) fn cleared(&mut self, now: Duration) {
        self.hurried = false;
        self.tokens = self.available();
        self.cleared = Some(now);
    }

    /// Charges `accessed` entries: the target has accessed so many for the first time since they were cleared,
    /// whenever that was.
    pub(crate) fn charge(&mut self, accessed: u64) {
        let cost = accessed as f64 * self.terms.first_access;
        self.tokens -= cost;
        self.spent += cost;
    }

    /// Of the `entries` cleared last `in_window` were accessed by the end of the window, and `by_now` so far, which is
    /// `passed` since.
    pub(crate) fn learn(&mut self, passed: Duration, entries: u64, in_window: u64, by_now: u64) {
        self.last_charge = by_now;
        if entries > 0 {
            let share = (by_now as f64 / entries as f64).min(1.0);
            // Up at once, down by halves: rather too little sampled than too expensive.
            self.share = share.max(self.share / 2.0);
        }
        if in_window > 0 {
            self.growth = by_now as f64 / in_window as f64;
            self.to_come = (self.terms.window.as_secs_f64() / passed.as_secs_f64().max(1e-3)).max(1.0);
        }
    }

    /// Clearing and reading took `busy` of our time, with `targets` sampled: no clearing for a while.
    pub(crate) fn worked(&mut self, now: Duration, busy: Duration, targets: usize) {
        let pause = busy * OWN_SHARE.saturating_mul(targets.max(1) as u32);
        self.not_before = self.not_before.max(now) + pause;
    }

    /// How many entries of a candidate are expected to be accessed by the end of the period.
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

    /// Whether a sample of all candidates costs more than can ever be saved for one; of a process that was not sampled
    /// yet, more than there is. Then a part of each says more than some of them whole.
    pub(crate) fn is_too_expensive(&self, candidates: &[Candidate]) -> bool {
        let most = if self.cleared.is_some() { self.capacity() } else { self.available() };
        self.costs(candidates) > most
    }

    /// Whether a sample of all candidates can be paid for, but would be a burst ([`BURST`]). What was seen in less than a window
    /// is taken to grow until one has passed.
    pub(crate) fn is_burst(&self, candidates: &[Candidate]) -> bool {
        let growth = self.growth * self.to_come;
        let pages: f64 = candidates.iter().map(|candidate| self.expected_after(candidate, growth)).sum();
        self.terms.promotes && pages * self.terms.first_access > BURST * self.capacity()
    }

    /// What a sample of all candidates is expected to take from the target, in seconds.
    fn costs(&self, candidates: &[Candidate]) -> f64 {
        let pages: f64 = candidates.iter().map(|candidate| self.expected(candidate)).sum();
        pages * self.terms.first_access
    }

    /// Whether a sample may start now, as far as is charged. What was accessed since the last reading is not: read,
    /// charge, and ask whether it still [`can_pay`](Account::can_pay).
    pub(crate) fn may_start(&self, now: Duration, candidates: &[Candidate]) -> bool {
        (now >= self.not_before || self.hurried) && self.can_pay(now, candidates)
    }

    /// Whether a sample of a target that does not run, which takes nothing from it, may begin: as often as one of a target
    /// that takes hardly any time.
    pub(crate) fn may_wait(&self, now: Duration) -> bool {
        self.cleared.is_none_or(|cleared| now.saturating_sub(cleared) >= self.terms.window * IDLE_WINDOWS)
    }

    /// Whether there are tokens enough for a sample.
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

    /// The tokens at which a sample starts: what all candidates cost, or a full bucket.
    fn goal(&self, candidates: &[Candidate]) -> f64 {
        // A hair below the full bucket, which sums of small values may not reach.
        self.costs(candidates).min(self.capacity() * 0.999)
    }

    /// The starts of the regions that the next sample covers, ascending: those sampled longest ago, and among those
    /// of the same time ones that lie evenly spread. At least one.
    pub(crate) fn plan(&self, candidates: &[Candidate]) -> Vec<u64> {
        let count = candidates.len();
        let stride = spread(count);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&index| (candidates[index].last.map(|(_, when)| when), index * stride % count));
        let mut rest = self.available() / self.terms.first_access;
        let mut chosen: Vec<u64> = order
            .into_iter()
            .take(MOST_REGIONS)
            .enumerate()
            .take_while(|(place, index)| {
                rest -= self.expected(&candidates[*index]);
                rest >= 0.0 || *place == 0
            })
            .map(|(_, index)| candidates[index].start)
            .collect();
        chosen.sort_unstable();
        chosen
    }

    /// From one clearing to the next at the target's present rate.
    pub(crate) fn period(&self) -> Duration {
        let cost = self.last_charge as f64 * self.terms.first_access;
        let needed = cost / self.terms.budget / self.rate.unwrap_or(1.0).max(1e-9);
        let least = self.terms.window.as_secs_f64();
        Duration::from_secs_f64(needed.max(least).min(LONGEST_PERIOD.as_secs_f64()))
    }

    /// What sampling has taken from the target so far.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_secs_f64(self.spent)
    }

    /// The same as a share of the processor time that the target has taken since. Above the budget at first, where
    /// the target takes less time than it did, or more was accessed than expected.
    pub(crate) fn slowdown(&self) -> f64 {
        let taken = match (self.began, self.seen) {
            (Some(began), Some((_, cpu))) => cpu.saturating_sub(began).as_secs_f64(),
            _ => 0.0,
        };
        self.spent / taken.max(TICK)
    }

    /// How long until a sample may start, at the target's present rate; never less than a tenth of a window.
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

/// A step that visits all of `count` places, each far from the ones visited before: near the golden section of
/// `count`, and without a common divisor.
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
