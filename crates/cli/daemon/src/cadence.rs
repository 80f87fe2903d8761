//! The reason for the next pass, and its time.

use crate::config::Config;
use megapage_decide::Left;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest pause, even if a pass takes us long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Time from the end of a back-off to the next pass: a pass just before that end would ask for
/// nothing.
const MARGIN: Duration = Duration::from_millis(2);

/// A reason for the next pass. If there are several, the last in this order counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The interval is over.
    #[default]
    Interval,
    /// There is more work that is worth doing soon, or memory is short.
    Work,
    /// A large new process waits for its first sample, or for a probe.
    NewProcess,
    /// The first sample of a large new process was read since the last pass: the policy can decide
    /// on it now.
    Sampled,
    /// Time or a budget ran out, so that actions are deferred.
    RanOut,
    /// The policy looks for memory to take back.
    Shortage,
}

/// State between two passes: events since the last, and the time and reason of the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cadence {
    pub(crate) cause: Cause,
    /// True if the kernel has reported since the last pass that tasks wait for memory.
    pub(crate) alarmed: bool,
    /// True if a process was probed for its cost since the last pass: only one is probed in each
    /// pause.
    pub(crate) probed: bool,
    /// Begin of the last pass, since boot.
    pub(crate) began: Duration,
    /// Processor time of looking and deciding in the last pass and in the pause before. Acting has
    /// other budgets.
    pub(crate) cost: Duration,
    /// Back-off ends, as times since boot, of processes with deferred actions.
    rests: BTreeSet<Duration>,
}

impl Cadence {
    /// Notes the actions that a pass has deferred, and the causes that it found. The pass decided
    /// at `decided`; it has taken into account back-offs that had ended by then.
    pub(crate) fn note(&mut self, decided: Duration, left: &Left, causes: &[(Cause, bool)]) {
        let found = causes.iter().filter(|(_, is_found)| *is_found);
        self.cause = found.map(|(cause, _)| *cause).max().unwrap_or_default();
        self.rests.retain(|until| *until > decided);
        self.rests.extend(&left.rests);
    }

    /// Returns the time from the begin of the last pass to the next. Usually that is the interval,
    /// or less while memory is taken back or actions are deferred. It is longer if the last pass
    /// took us more than our share of a processor. If a process with deferred actions ends its
    /// back-off earlier, the next pass comes then, as far as our share allows.
    pub(crate) fn pause(&self, config: &Config) -> Duration {
        let observe = &config.observe;
        let (least, percent) = match self.cause {
            Cause::Interval => (config.interval, observe.own_percent),
            Cause::Work | Cause::NewProcess | Cause::Sampled => (config.interval, observe.own_percent_busy),
            Cause::RanOut => (config.pressure.look, observe.own_percent_busy),
            Cause::Shortage => (config.pressure.look, observe.own_percent_short),
        };
        let usual = least.max(self.share_of(percent, config));
        let soonest = config.pressure.look.max(self.share_of(observe.own_percent_busy, config));
        let first = self.rests.first().map(|until| until.saturating_sub(self.began) + MARGIN);
        first.map_or(usual, |rest| usual.min(rest.max(soonest)))
    }

    /// Returns the shortest pause, for when memory is pressed or a new process was sampled.
    pub(crate) fn least_pause(&self, config: &Config) -> Duration {
        config.pressure.look.max(self.share_of(config.observe.own_percent_short, config))
    }

    /// Returns the time in which the last pass took `percent` of a processor, within bounds.
    fn share_of(&self, percent: f64, config: &Config) -> Duration {
        let longest = LONGEST_PAUSE.max(config.interval);
        let time = Duration::try_from_secs_f64(self.cost.as_secs_f64() * 100.0 / percent);
        time.unwrap_or(longest).min(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_next_pass_is_when_the_first_may_be_acted_on_again() {
        let config = Config { interval: SECOND * 20, ..Config::default() };
        let (usual, soonest) = (config.interval, config.pressure.look);
        let mut cadence = Cadence::default();
        let mut pause = |began: Duration, decided: Duration, rests: &[Duration]| {
            let left = Left { rests: rests.iter().copied().collect(), ..Left::default() };
            cadence.began = began;
            cadence.note(decided, &left, &[]);
            cadence.pause(&config)
        };
        assert_eq!(pause(SECOND, SECOND, &[]), usual);
        assert_eq!(pause(SECOND, SECOND, &[SECOND + usual * 2]), usual, "no later than it would be");
        assert_eq!(pause(SECOND, SECOND, &[SECOND * 3, SECOND * 5]), SECOND * 2 + MARGIN);
        // One pass comes before the first back-off is over, and asks for nothing; one comes after
        // it.
        assert_eq!(pause(SECOND * 2, SECOND * 2, &[]), SECOND + MARGIN);
        assert_eq!(pause(SECOND * 3, SECOND * 3, &[SECOND * 9]), SECOND * 2 + MARGIN);
        assert_eq!(pause(SECOND * 5, SECOND * 4, &[]), soonest);
        assert_eq!(pause(SECOND * 5, SECOND * 5, &[]), SECOND * 4 + MARGIN);
    }

    #[test]
    fn the_most_urgent_cause_decides_when_the_next_pass_begins() {
        let config = Config::default();
        let (observe, look) = (&config.observe, config.pressure.look);
        let mut cadence = Cadence::default();
        let mut pause = |cost: Duration, causes: &[(Cause, bool)]| {
            cadence.cost = cost;
            cadence.note(SECOND, &Left::default(), causes);
            (cadence.cause, cadence.pause(&config), cadence.least_pause(&config))
        };
        let share = |percent: f64| Duration::from_secs_f64(0.1 * 100.0 / percent);
        let tenth = SECOND / 10;
        let short = share(observe.own_percent_short);
        assert_eq!(pause(Duration::ZERO, &[(Cause::Work, false)]), (Cause::Interval, config.interval, look));
        assert_eq!(pause(Duration::ZERO, &[(Cause::NewProcess, true)]).1, config.interval);
        assert_eq!(
            pause(Duration::ZERO, &[(Cause::RanOut, true), (Cause::Work, true)]),
            (Cause::RanOut, look, look)
        );
        assert_eq!(pause(tenth, &[]).1, config.interval.max(share(observe.own_percent)).min(LONGEST_PAUSE));
        assert_eq!(pause(tenth, &[(Cause::RanOut, true)]).1, share(observe.own_percent_busy));
        assert_eq!(
            pause(tenth, &[(Cause::Shortage, true), (Cause::RanOut, true)]),
            (Cause::Shortage, short, short)
        );
    }
}
