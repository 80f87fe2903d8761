//! Actions that were requested and not tried.

use crate::{Action, State};
use std::collections::BTreeSet;
use std::time::Duration;

/// Requested actions that were not tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Number of such actions.
    pub actions: u64,
    /// True if time or a budget ran out for some of them; these may be requested again at once.
    pub ran_out: bool,
    /// Back-off ends of the processes of the other actions, on the snapshot's clock.
    pub rests: BTreeSet<Duration>,
}

impl State {
    /// Returns the changes of the last step that were not tried, and puts off those of processes
    /// that are backed off.
    ///
    /// Calls on such a process were slow. Its actions wait for the end of its back-off. If they
    /// were requested at once, other actions would never be carried out. For all other actions time
    /// or a budget ran out. The next step may request them.
    pub fn put_off(&mut self, now: Duration) -> Left {
        let mut left = Left::default();
        for action in &self.asked {
            let untried = action.place().filter(|place| !self.tried.contains(place));
            let Some((id, region)) = untried else { continue };
            left.actions += 1;
            let promotes = matches!(action, Action::Promote { .. });
            let until = self.promotions.backs_off_until(id, promotes);
            if until > now {
                self.promotions.put_off(now, id, region, until);
                left.rests.insert(until);
            } else {
                left.ran_out = true;
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made::{SECOND, base, outcome, process, snapshot};
    use crate::{Budgets, Call, Latency, Limits, Obtained, by_name, step};
    use megapage_snapshot::{Leaf, PAGES, Process};
    use megapage_units::Pid;

    /// Actuator that carries out this many actions on this process. It carries out none on other
    /// processes, which are backed off until the given time.
    struct Partly(i32, usize, Option<Duration>);

    /// Returns a process of `regions` regions, all present and all on base pages.
    fn full(pid: i32, regions: u64) -> Process {
        Process { cpu: SECOND * 1000, ..process(pid, (0..regions).map(|n| base(n, PAGES)).collect()) }
    }

    /// Backs off the process until `until`, after a call that waited.
    fn rest(state: &mut State, process: &Process, now: Duration, until: Duration) {
        let latency = Latency { pause: until - now, ..Latency::default() };
        state.promotions().configure(Budgets { latency, ..Budgets::default() });
        state.promotions().learn(now, process.id, true, Call { took: SECOND, ..Call::default() });
    }

    /// Returns the requests of a pass at this time, and the number that it defers; the next pass
    /// sees what was done.
    fn pass(
        at: Duration,
        processes: &mut [Process],
        state: &mut State,
        actuator: &mut Partly,
    ) -> (Vec<(i32, u64)>, u64) {
        let changes: Vec<Action> = step(at, &snapshot(at, 0.25, processes.to_vec()), state)
            .into_iter()
            .filter(|action| action.region().is_some())
            .collect();
        let rests = actuator.2.filter(|until| *until > at);
        for action in changes.iter().filter(|action| action.process().pid == Pid(actuator.0)).take(actuator.1)
        {
            state.note(at, &outcome(action, Obtained::Done));
            let process = processes.iter_mut().find(|process| process.id == action.process());
            let regions = &mut process.unwrap().regions;
            let region = regions.iter_mut().find(|region| Some(region.page) == action.region());
            region.unwrap().leaf = Leaf::Huge2m;
        }
        for process in processes.iter().filter(|process| process.id.pid != Pid(actuator.0)) {
            rests.into_iter().for_each(|until| rest(state, process, at, until));
        }
        let asked = changes.iter().map(|action| (action.process().pid.0, action.region().unwrap().start()));
        let left = state.put_off(at);
        let rests = rests.filter(|_| left.actions > 0);
        assert_eq!(left.rests, rests.into_iter().collect());
        assert_eq!(left.ran_out, left.actions > 0 && rests.is_none());
        (asked.collect(), left.actions)
    }

    fn state(policy: &str) -> State {
        State::new(by_name(policy).unwrap(), Limits::default())
    }

    #[test]
    fn what_time_did_not_suffice_for_is_asked_for_at_once() {
        for policy in ["megapage", "ingens", "freebsd", "linux"] {
            let mut processes = [full(1, 100)];
            let (mut state, mut actuator) = (state(policy), Partly(1, 3, None));
            let (mut asked, left) = pass(SECOND, &mut processes, &mut state, &mut actuator);
            assert!(asked.len() > 3, "{policy}: {}", asked.len());
            assert_eq!(left, asked.len() as u64 - 3, "{policy}");
            for moment in 1..3 {
                let at = SECOND + Duration::from_millis(100) * moment;
                let (again, left) = pass(at, &mut processes, &mut state, &mut actuator);
                let rest = asked.split_off(asked.len().min(3));
                assert_eq!(again, rest, "{policy}");
                assert_eq!(left, rest.len().saturating_sub(3) as u64, "{policy}");
                asked = again;
            }
        }
    }

    #[test]
    fn what_was_never_tried_is_no_failure() {
        let mut processes = [full(1, 100)];
        let (mut state, mut actuator) = (state("freebsd"), Partly(1, 1, None));
        for moment in 1..40 {
            let at = SECOND + Duration::from_millis(100) * moment;
            let (asked, left) = pass(at, &mut processes, &mut state, &mut actuator);
            assert_eq!((asked.len(), left), (101 - moment as usize, 100 - u64::from(moment)));
        }
    }

    #[test]
    fn who_is_left_alone_does_not_keep_others_from_their_turn() {
        // The first has more to gain than one step requests.
        let mut processes = [full(1, 2000), full(2, 100)];
        let (mut state, mut partly) = (state("megapage"), Partly(3, 0, Some(SECOND * 3)));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut partly);
        assert_eq!((asked.len() as u64, left > 0), (left, true));
        let (next, _) = pass(SECOND * 2, &mut processes, &mut state, &mut partly);
        assert!(!next.is_empty() && next.iter().all(|one| !asked.contains(one)), "{next:?}");
        // The back-off is over, and no failure was charged.
        let (later, _) = pass(SECOND * 3, &mut processes, &mut state, &mut partly);
        assert_eq!(later, asked);
    }

    #[test]
    fn work_out_of_time_is_distinguished_from_back_off() {
        let mut processes = [full(1, 8)];
        // Nothing was tried, but the process does not back off: it was not reached.
        let (mut state, mut partly) = (state("megapage"), Partly(3, 0, Some(Duration::ZERO)));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut partly);
        assert_eq!((asked.len(), left), (8, 8));
        assert_eq!(pass(SECOND + SECOND / 10, &mut processes, &mut state, &mut partly).0, asked);
    }

    #[test]
    fn a_process_is_asked_for_as_soon_as_its_back_off_is_over() {
        let mut processes = [full(1, 8)];
        let tenth = SECOND / 10;
        let (mut state, mut partly) = (state("megapage"), Partly(3, 0, Some(SECOND + tenth)));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut partly);
        assert_eq!((asked.len() as u64, left), (8, 8));
        assert_eq!(pass(SECOND + tenth / 2, &mut processes, &mut state, &mut partly).0, []);
        // It does not back off any more, and needs no time to settle either.
        let (again, _) = pass(SECOND + tenth, &mut processes, &mut state, &mut partly);
        assert_eq!(again, asked);
    }
}
