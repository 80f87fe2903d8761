//! Course of a trial: a base line, then blocks of two windows, up to a decision.

use crate::judge::budget::{Budget, Cost};
use crate::judge::decision::{Decision, Gain};
use crate::judge::harm::{Guard, Harm, middle};
use crate::judge::reading::{Better, Reading};
use crate::judge::sequence::Sequence;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use serde::Serialize;
use std::time::Duration;

/// Slices of a window. The guard checks after each.
const SLICES: u32 = 8;
/// Shortest slice.
const SHORTEST_SLICE: Duration = Duration::from_millis(50);
/// Maximum of blocks.
const MOST_BLOCKS: usize = 2000;
/// Number of blocks, all without a value, after which the metric is rejected.
const MOST_EMPTY: u32 = 4;
/// Windows that the guard must stop before a change counts as harm. One window may meet an
/// unrelated pause, and the next start uses the decision.
const STOPS: u32 = 2;
/// Longest window, as a divisor of the whole time. A longer `period` overrides it.
const LONGEST: u32 = 8;

/// Subject of a trial: a service whose memory can be made huge and base again, or a model of one.
pub trait Service {
    /// Makes the memory huge, or base as it was before. Returns the cost.
    fn switch(&mut self, huge: bool) -> Result<Cost, Stop>;

    /// Lets the service work for `time`.
    fn wait(&mut self, time: Duration) -> Result<(), Stop>;

    /// Returns the current reading of the metric.
    fn read(&mut self) -> Result<Reading, Stop>;

    /// Returns the time since the trial began.
    fn now(&mut self) -> Duration;

    /// Returns the processor time that the service has taken since the trial began.
    fn processor(&mut self) -> Result<Duration, Stop>;
}

/// Reason for which a trial ends without a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The user has requested it.
    Asked,
    /// The service has ended.
    Ended,
    /// A failure, described by this text.
    Failed(String),
}

/// Terms of a trial.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Least gain that is worth it: 0.01 for 1 %.
    pub least_gain: f64,
    /// Chance that the interval is ever wrong, above 0 and below 1.
    pub error: f64,
    /// Maximum duration.
    pub most: Duration,
    /// Least length of a window. It becomes longer if switching is expensive.
    pub period: Duration,
    /// Time after a switch before the service is measured.
    pub settle: Duration,
    /// Share of the service's processor time that switching may cost: 0.01 for 1 %.
    pub budget: f64,
    /// Expected cost of a switch before the first one.
    pub expected: Cost,
    /// Cost already spent to find out the expected one.
    pub spent: Cost,
    /// Values that are better.
    pub better: Better,
    /// True if the memory stays huge after a gain; else it is made base after any result.
    pub keep: bool,
    /// Seed of the order of the blocks.
    pub seed: u64,
}

/// One block: the values of the metric in its two windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Block {
    /// True if the window with huge pages came first.
    pub huge_first: bool,
    /// Value on base pages; `None` if nothing happened.
    pub base: Option<f64>,
    /// Value on huge pages.
    pub huge: Option<f64>,
}

/// Progress of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Seconds since the start.
    pub seconds: f64,
    /// Number of blocks that count.
    pub blocks: usize,
    /// Gain by these blocks.
    pub gain: Gain,
}

/// Result of a trial.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The decision.
    pub decision: Decision,
    /// The gain with its interval.
    pub gain: Gain,
    /// All blocks.
    pub blocks: Vec<Block>,
    /// Number of blocks without a result, as the metric did not move in one of their windows.
    pub empty_blocks: u32,
    /// Harm, if the guard has stopped the trial.
    pub harm: Option<Harm>,
    /// True if the memory is huge now.
    pub is_huge: bool,
    /// Cost of switching, as a share of the service's processor time: its work, and the whole
    /// service while memory was held.
    pub cost_share: f64,
    /// Processor time that the service took during the trial.
    pub processor_seconds: f64,
    /// Duration of the trial.
    pub seconds: f64,
    /// Length of the last windows.
    pub window_seconds: f64,
    /// Reason for an early end.
    #[serde(skip)]
    pub stopped: Option<Stop>,
}

/// Reasons to end a window early.
enum End {
    Stop(Stop),
    TimeIsUp,
    Harmed { value: Option<f64>, log: f64, after: Duration },
}

impl From<Stop> for End {
    fn from(stop: Stop) -> End {
        End::Stop(stop)
    }
}

struct Trial<'a, S> {
    service: &'a mut S,
    terms: &'a Terms,
    guard: Guard,
    budget: Budget,
    window: Duration,
    is_huge: bool,
    sequence: Sequence,
    blocks: Vec<Block>,
    empty: u32,
    harm: Option<Harm>,
    /// Windows that the guard has stopped, after which the service was as good as before.
    stops: u32,
}

/// Runs a trial. At its end the memory is huge only after a gain, and if `terms.keep` is set. The
/// same holds after a stop, as far as the service can still be switched.
pub fn conduct<S: Service>(service: &mut S, terms: &Terms, progress: &mut dyn FnMut(&Progress)) -> Outcome {
    let mut trial = Trial {
        service,
        terms,
        guard: Guard::default(),
        budget: Budget::new(terms.budget, terms.expected, terms.spent, 1.0),
        window: terms.period,
        is_huge: false,
        sequence: Sequence::new(terms.error),
        blocks: Vec::new(),
        empty: 0,
        harm: None,
        stops: 0,
    };
    let mut stopped = None;
    let decision = match trial.run(progress) {
        Ok(decision) => decision,
        Err(End::Stop(stop)) => {
            stopped = Some(stop);
            Decision::Undecided
        }
        Err(_) => Decision::Undecided,
    };
    let stays = decision == Decision::Gains && terms.keep;
    if let Err(End::Stop(stop)) = trial.make(stays) {
        stopped = stopped.or(Some(stop));
    }
    let processor = trial.service.processor().unwrap_or_default().as_secs_f64();
    let spent = trial.budget.spent();
    Outcome {
        decision,
        gain: if trial.sequence.is_empty() { Gain::default() } else { trial.sequence.interval().into() },
        empty_blocks: trial.empty,
        harm: trial.harm,
        is_huge: trial.is_huge,
        cost_share: if processor > 0.0 { spent / processor } else { 0.0 },
        processor_seconds: processor,
        seconds: trial.service.now().as_secs_f64(),
        window_seconds: trial.window.as_secs_f64(),
        blocks: trial.blocks,
        stopped,
    }
}

impl<S: Service> Trial<'_, S> {
    fn run(&mut self, progress: &mut dyn FnMut(&Progress)) -> Result<Decision, End> {
        let mut coin = Pcg64Mcg::new(u128::from(self.terms.seed) << 64 | 0x9e37_79b9_7f4a_7c15);
        // Takes the highest bit: the lower ones of a multiplicative generator are worse.
        let mut toss = move || coin.next_u64() >> 63 == 1;
        let mut huge_first = toss();
        self.window(false, huge_first)?;
        self.adapt()?;
        while self.blocks.len() < MOST_BLOCKS {
            let next_first = toss();
            if let Some(decision) = self.block(huge_first, next_first)? {
                return Ok(decision);
            }
            let interval = self.sequence.interval();
            let gain = if self.sequence.is_empty() { Gain::default() } else { interval.into() };
            let seconds = self.service.now().as_secs_f64();
            progress(&Progress { seconds, blocks: self.sequence.len(), gain });
            if let Some(decision) = Decision::of(&interval, self.terms.least_gain) {
                return Ok(decision);
            }
            if self.sequence.is_empty() && self.empty >= MOST_EMPTY {
                let why = "the metric does not move: choose another one, or a longer --period".into();
                return Err(Stop::Failed(why).into());
            }
            self.adapt()?;
            huge_first = next_first;
        }
        Ok(Decision::Undecided)
    }

    /// Runs two windows. Returns a decision if the guard has stopped enough of them.
    fn block(&mut self, huge_first: bool, next_first: bool) -> Result<Option<Decision>, End> {
        let mut values = [None; 2];
        for (huge, next) in [(huge_first, !huge_first), (!huge_first, next_first)] {
            values[usize::from(huge)] = match self.window(huge, next) {
                Err(End::Harmed { value, log, after }) => {
                    if let Some(harm) = self.confirm(log, after)? {
                        self.stops += 1;
                        if self.stops >= STOPS {
                            self.harm = Some(harm);
                            self.note(huge_first, [values[0], value]);
                            return Ok(Some(Decision::Hurts));
                        }
                        // Drops the value. Only windows on huge pages are cut short, and only bad
                        // ones, which would bias the result.
                        None
                    } else {
                        value
                    }
                }
                value => value?,
            };
        }
        self.note(huge_first, values);
        Ok(None)
    }

    fn note(&mut self, huge_first: bool, [base, huge]: [Option<f64>; 2]) {
        self.blocks.push(Block { huge_first, base, huge });
        match (base, huge) {
            (Some(base), Some(huge)) => {
                self.sequence.add(self.terms.better.log(huge) - self.terms.better.log(base));
            }
            _ => self.empty += 1,
        }
    }

    /// Checks a window that the guard has stopped, on base pages. Returns the harm if the service
    /// is as good as before. If it is still as bad, the change is not the cause.
    fn confirm(&mut self, log: f64, after: Duration) -> Result<Option<Harm>, End> {
        self.make(false)?;
        let (bound, usual) = (self.guard.bound(), self.guard.median());
        self.service.wait(self.terms.settle)?;
        let mut logs = Vec::new();
        let mut last = self.service.read()?;
        for _ in 0..SLICES {
            let value = self.slice(&mut last)?;
            logs.extend(value.map(|value| self.terms.better.log(value)));
        }
        let is_back = !logs.is_empty() && bound.is_some_and(|bound| middle(&mut logs) >= bound);
        if !is_back {
            self.guard.forget();
            logs.iter().for_each(|log| self.guard.note(*log));
            return Ok(None);
        }
        let usual = usual.unwrap_or(log);
        Ok(Some(Harm { drop: 1.0 - (log - usual).exp(), after_seconds: after.as_secs_f64() }))
    }

    /// Runs one window and returns the value of the metric in it. It has the usual length; before
    /// memory is made huge, it lasts until the budget allows the switch. `next` is true if the
    /// memory is huge after it.
    fn window(&mut self, huge: bool, next: bool) -> Result<Option<f64>, End> {
        self.make(huge)?;
        self.service.wait(self.terms.settle)?;
        self.guard.begin();
        let start = self.service.now();
        let first = self.service.read()?;
        let mut last = first;
        loop {
            if let Some(value) = self.slice(&mut last)? {
                let log = self.terms.better.log(value);
                if !huge {
                    self.guard.note(log);
                } else if self.guard.is_harmed(log) {
                    let after = self.service.now().saturating_sub(start) + self.terms.settle;
                    return Err(End::Harmed { value: last.since(&first), log, after });
                }
            }
            let now = self.service.now();
            if now >= self.terms.most {
                return Err(End::TimeIsUp);
            }
            let is_paid = huge || !next || self.budget.allows(self.service.processor()?);
            if now.saturating_sub(start) >= self.window && is_paid {
                return Ok(last.since(&first));
            }
        }
    }

    fn slice(&mut self, last: &mut Reading) -> Result<Option<f64>, End> {
        self.service.wait((self.window / SLICES).max(SHORTEST_SLICE))?;
        let reading = self.service.read()?;
        let value = reading.since(last);
        *last = reading;
        Ok(value)
    }

    fn make(&mut self, huge: bool) -> Result<(), End> {
        if huge != self.is_huge {
            // Memory may be huge from here on, even if the switch fails.
            self.is_huge = true;
            let cores = self.cores()?;
            let cost = self.service.switch(huge)?;
            self.budget.note(huge, cost, cores);
            self.is_huge = huge;
        }
        Ok(())
    }

    /// Sets the length of the next windows by the cost of switches.
    fn adapt(&mut self) -> Result<(), End> {
        let cores = self.cores()?;
        let longest = self.terms.most / LONGEST;
        self.window = self.budget.window(self.terms.period, self.terms.settle, cores, longest);
        Ok(())
    }

    /// Returns the number of processors that the service keeps busy.
    fn cores(&mut self) -> Result<f64, End> {
        let (processor, now) = (self.service.processor(), self.service.now());
        // Ignores a failed reading: a switch must be undone even if the service cannot be read.
        let processor = processor.unwrap_or_default();
        Ok(if now.is_zero() { 1.0 } else { processor.as_secs_f64() / now.as_secs_f64() })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
pub(crate) mod tests;
