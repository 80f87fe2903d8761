//! The reason for the next pass, and its time.

use crate::config::Config;
use crate::left::Left;
use std::collections::BTreeSet;
use std::time::Duration;

/// The longest pause, however long a pass takes us.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The time from the end of a back-off to the next pass: one that came a hair before it would ask
/// for nothing.
const MARGIN: Duration = Duration::from_millis(2);

/// A reason for the next pass. Where there are several, the last in this order counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The interval is over.
    #[default]
    Interval,
    /// There is more to do that is worth doing soon, or memory is short.
    Work,
    /// There is a large new process,
    NewProcess,
    /// and its first sample was read since the last pass: what to do about it is known now.
    Sampled,
    /// Time or a budget ran out, so that actions are deferred.
    RanOut,
    /// The policy looks for memory to take back.
    Shortage,
}

/// The state between two passes: what has happened since the last, and when and why the next begins.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cadence {
    pub(crate) cause: Cause,
    /// The kernel has reported since the last pass that tasks wait for memory.
    pub(crate) alarmed: bool,
    /// A process was probed for its cost since the last pass: one each time.
    pub(crate) probed: bool,
    /// The begin of the last pass.
    pub(crate) began: Duration,
    /// The processor time that looking and deciding took in the last pass and the pause before.
    /// Acting has other budgets.
    pub(crate) cost: Duration,
    /// The times since boot at which processes that back off may be acted on again, where something
    /// is left to be done to them.
    rests: BTreeSet<Duration>,
}

impl Cadence {
    /// Notes what a pass that decided at `decided` has deferred, and the causes that it found.
    /// Back-offs that had ended by then were asked for.
    pub(crate) fn note(&mut self, decided: Duration, left: &Left, causes: &[(Cause, bool)]) {
        let found = causes.iter().filter(|(_, is_found)| *is_found);
        self.cause = found.map(|(cause, _)| *cause).max().unwrap_or_default();
        self.rests.retain(|until| *until > decided);
        self.rests.extend(&left.rests);
    }

    /// Returns the time from the begin of the last pass to the next: the interval, less while memory
    /// is taken back or actions are deferred, and longer where the last pass took us more than our
    /// share of a processor. Where actions are deferred because their process backs off, no longer
    /// than that.
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

    /// Returns the shortest pause, where memory is pressed or a new process was sampled.
    pub(crate) fn least_pause(&self, config: &Config) -> Duration {
        config.pressure.look.max(self.share_of(config.observe.own_percent_short, config))
    }

    /// Returns the time of which the last pass took this part of a processor.
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
        // A pass before the first back-off is over, which asks for nothing, and one after it.
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
