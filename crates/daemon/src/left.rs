//! Actions that were asked for and not tried: the policy may ask for them again at once.

use megapage_act::execute::Done;
use megapage_decide::{Action, State};
use megapage_snapshot::ProcessId;
use std::collections::BTreeSet;
use std::time::Duration;

/// Actions that none has tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// How many.
    pub(crate) actions: u64,
    /// Whether time or a budget ran out: then all of them may be asked for at once.
    pub(crate) ran_out: bool,
    /// Else when, since boot, the first of their processes may be acted on again, where that is known.
    pub(crate) rests_until: Option<Duration>,
}

/// Tells the policy which of `changes` none of `done` answers, and answers what was left.
///
/// Where time or a budget ran out, some actions of a process were tried and others were not: all that is left then counts
/// as never asked for. Else a process of which nothing was tried is one that is left alone for now, as calls on it were
/// slow: were it asked for again at once, nobody else would ever have a turn. Until when it is, `rests_until` says.
pub(crate) fn give_back(
    state: &mut State,
    now: Duration,
    changes: &[Action],
    done: &[Done],
    rests_until: impl Fn(&Action) -> Option<Duration>,
) -> Left {
    let key = |action: &Action| action.process().zip(action.region());
    let answered: BTreeSet<(ProcessId, u64)> =
        done.iter().filter_map(|done| key(&done.outcome.action)).collect();
    let tried: BTreeSet<ProcessId> = answered.iter().map(|(id, _)| *id).collect();
    let left: Vec<&Action> =
        changes.iter().filter(|action| key(action).is_some_and(|key| !answered.contains(&key))).collect();
    let ran_out = left.iter().filter_map(|action| action.process()).any(|id| tried.contains(&id));
    let mut first: Option<Duration> = None;
    // From the last to the first: a policy may put each before what it has.
    for action in left.iter().rev() {
        if ran_out {
            state.untried(action);
        } else {
            let until = rests_until(action).filter(|until| *until > now);
            state.passed_over(now, action, until);
            first = first.into_iter().chain(until).min();
        }
    }
    Left { actions: left.len() as u64, ran_out, rests_until: first }
}

/// How long to wait for the next pass where `usual` would be right with nothing left: what is left is worth looking for as
/// soon as the first of its processes may be acted on again, after `rests`, but not before `soonest`.
pub(crate) fn pause_for(rests: Option<Duration>, usual: Duration, soonest: Duration) -> Duration {
    rests.map_or(usual, |rest| usual.min(rest.max(soonest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_act::execute::Actuator;
    use megapage_decide::{Limits, Obtained, Outcome, by_name, step};
    use megapage_snapshot::{
        Counters, Leaf, Machine, Mapping, Memory, Node, PAGES, Process, Region, Snapshot,
    };
    use megapage_units::{Bytes, HUGE_2M, Pid, VirtRange};

    const SECOND: Duration = Duration::from_secs(1);
    const BASE: u64 = 0x7f00_0000_0000;

    /// Carries out so many of the actions on this process, and none on others, which rest so long.
    struct Partly(i32, usize, Option<Duration>);

    impl Actuator for Partly {
        fn carry_out(&mut self, _now: Duration, actions: &[Action]) -> Vec<Done> {
            let mine = |action: &&Action| action.process().is_some_and(|id| id.pid == Pid(self.0));
            let answer = |action: &Action| Done {
                outcome: Outcome { action: action.clone(), obtained: Obtained::Done },
                promoted: Bytes(HUGE_2M as u64),
                freed: Bytes::ZERO,
                took: Duration::ZERO,
                why: None,
            };
            actions.iter().filter(mine).take(self.1).map(answer).collect()
        }
    }

    /// A process of so many regions, all there and all of base pages.
    fn process(pid: i32, regions: u64) -> Process {
        let id = ProcessId { pid: Pid(pid), start_ticks: 100, start_stack: 0x7fff_0000_0000 + pid as u64 };
        let size = Bytes(regions * HUGE_2M as u64);
        Process {
            cpu: SECOND * 1000,
            rss: size,
            rss_anonymous: size,
            mappings: vec![Mapping::anonymous(VirtRange::new(BASE, BASE + (1 << 40)).unwrap())],
            regions: (0..regions).map(|n| Region::of_base_pages(BASE + n * HUGE_2M as u64, PAGES)).collect(),
            ..Process::without_memory(id, &format!("p{pid}"))
        }
    }

    fn snapshot(taken: Duration, processes: &[Process]) -> Snapshot {
        let free = Bytes::gib(12);
        Snapshot {
            taken,
            machine: Machine {
                memory: Memory { total: Bytes::gib(16), free, available: free, ..Memory::default() },
                nodes: vec![Node {
                    node: 0,
                    free,
                    huge_available: free.0 / HUGE_2M as u64,
                    fragmentation: Some(0.0),
                }],
                pools: Vec::new(),
                thp: None,
                counters: Counters::new(),
                pressure: None,
            },
            sampling: None,
            processes: processes.to_vec(),
            missed: Vec::new(),
        }
    }

    /// What a pass at this time asks for, and how many it leaves; what was done is seen by the next.
    fn pass(
        at: Duration,
        processes: &mut [Process],
        state: &mut State,
        actuator: &mut Partly,
    ) -> (Vec<(i32, u64)>, u64) {
        let changes: Vec<Action> = step(at, &snapshot(at, processes), state)
            .into_iter()
            .filter(|action| action.region().is_some())
            .collect();
        let done = actuator.carry_out(at, &changes);
        for done in &done {
            state.note(at, &done.outcome);
            let process =
                processes.iter_mut().find(|process| Some(process.id) == done.outcome.action.process());
            let regions = &mut process.unwrap().regions;
            let region = regions.iter_mut().find(|region| Some(region.start) == done.outcome.action.region());
            region.unwrap().leaf = Leaf::Huge2m;
        }
        let asked = changes.iter().map(|action| (action.process().unwrap().pid.0, action.region().unwrap()));
        let left = give_back(state, at, &changes, &done, |_| actuator.2);
        assert_eq!(left.ran_out, left.actions > 0 && !done.is_empty());
        let rests = left.actions > 0 && !left.ran_out;
        assert_eq!(left.rests_until, actuator.2.filter(|until| rests && *until > at));
        (asked.collect(), left.actions)
    }

    fn state(policy: &str) -> State {
        State::new(by_name(policy).unwrap(), Limits::default())
    }

    #[test]
    fn what_time_did_not_suffice_for_is_asked_for_at_once() {
        for policy in ["megapage", "ingens", "freebsd", "linux"] {
            let mut processes = [process(1, 100)];
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
        let mut processes = [process(1, 100)];
        let (mut state, mut actuator) = (state("freebsd"), Partly(1, 1, None));
        for moment in 1..40 {
            let at = SECOND + Duration::from_millis(100) * moment;
            let (asked, left) = pass(at, &mut processes, &mut state, &mut actuator);
            assert_eq!((asked.len(), left), (101 - moment as usize, 100 - u64::from(moment)));
        }
    }

    #[test]
    fn who_is_left_alone_does_not_keep_others_from_their_turn() {
        // The first has more to gain than a step asks for.
        let mut processes = [process(1, 2000), process(2, 100)];
        let (mut state, mut nobody) = (state("megapage"), Partly(3, 0, None));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut nobody);
        assert_eq!((asked.len() as u64, left > 0), (left, true));
        let (next, _) = pass(SECOND * 2, &mut processes, &mut state, &mut nobody);
        assert!(!next.is_empty() && next.iter().all(|one| !asked.contains(one)), "{next:?}");
        // It has settled, and was not found at fault.
        let (later, _) = pass(SECOND * 3, &mut processes, &mut state, &mut nobody);
        assert_eq!(later, asked);
    }
    #[test]
    fn the_next_pass_is_when_the_first_may_be_acted_on_again() {
        let (rest, usual, soonest) = (SECOND * 2, SECOND * 5, SECOND / 10);
        assert_eq!(pause_for(None, usual, soonest), usual);
        assert_eq!(pause_for(Some(rest), usual, soonest), rest);
        assert_eq!(pause_for(Some(Duration::ZERO), usual, soonest), soonest);
        assert_eq!(pause_for(Some(rest), SECOND, soonest), SECOND, "no later than it would be");
    }

    #[test]
    fn who_rests_is_asked_for_as_soon_as_that_is_over() {
        let mut processes = [process(1, 20)];
        let tenth = SECOND / 10;
        let (mut state, mut nobody) = (state("megapage"), Partly(3, 0, Some(SECOND + tenth)));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut nobody);
        assert_eq!((asked.len() as u64, left), (20, 20));
        assert_eq!(pass(SECOND + tenth / 2, &mut processes, &mut state, &mut nobody).0, []);
        // It does not rest any more, and is not let settle either.
        let (again, _) = pass(SECOND + tenth, &mut processes, &mut state, &mut nobody);
        assert_eq!(again, asked);
        assert_eq!(pass(SECOND + 2 * tenth, &mut processes, &mut state, &mut nobody).0, []);
    }
}
