//! Actions that were requested and not tried.

use megapage_act::execute::Done;
use megapage_decide::{Action, State};
use megapage_snapshot::ProcessId;
use megapage_units::HugePage;
use std::collections::BTreeSet;
use std::time::Duration;

/// Requested actions that the actuator did not try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    /// Number of such actions.
    pub(crate) actions: u64,
    /// True if time or a budget ran out for some of them; these may be requested again at once.
    pub(crate) ran_out: bool,
    /// Back-off ends of the processes of the others, as times since boot, as far as known.
    pub(crate) rests: BTreeSet<Duration>,
}

/// Returns the actions of `changes` that `done` does not answer, and puts off those of processes
/// that back off.
///
/// Calls on such a process were slow. Its actions wait for the end of its back-off, which
/// `backs_off_until` gives. If they were requested at once, other actions would never be carried
/// out. For all other actions time or a budget ran out: the next step may request them. An actuator
/// may give no end. Then time or a budget has run out if it tried some actions of a process and not
/// others.
pub(crate) fn put_off(
    state: &mut State,
    now: Duration,
    changes: &[Action],
    done: &[Done],
    backs_off_until: impl Fn(&Action) -> Option<Duration>,
) -> Left {
    let key = Action::place;
    let answered: BTreeSet<(ProcessId, HugePage)> =
        done.iter().filter_map(|done| key(&done.outcome.action)).collect();
    let tried: BTreeSet<ProcessId> = answered.iter().map(|(id, _)| *id).collect();
    let untried: Vec<&Action> =
        changes.iter().filter(|action| key(action).is_some_and(|key| !answered.contains(&key))).collect();
    let partly = untried.iter().map(|action| action.process()).any(|id| tried.contains(&id));
    let mut left = Left { actions: untried.len() as u64, ..Left::default() };
    for action in untried {
        let until = backs_off_until(action);
        let resting = until.filter(|until| *until > now);
        if resting.is_some() || until.is_none() && !partly {
            state.put_off(now, action, resting);
            left.rests.extend(resting);
        } else {
            left.ran_out = true;
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_act::execute::Actuator;
    use megapage_decide::{Limits, Obtained, Outcome, by_name, step};
    use megapage_snapshot::{Leaf, Machine, Mapping, Memory, Node, PAGES, Process, Region, Snapshot};
    use megapage_units::{Bytes, HUGE_2M, HugeCount, Pid, VirtRange};

    const SECOND: Duration = Duration::from_secs(1);
    const BASE: u64 = 0x7f00_0000_0000;

    /// Actuator that carries out this many of the actions on this process, and none on others,
    /// which back off for the given time.
    struct Partly(i32, usize, Option<Duration>);

    impl Actuator for Partly {
        fn carry_out(&mut self, _now: Duration, actions: &[Action]) -> Vec<Done> {
            let mine = |action: &&Action| action.process().pid == Pid(self.0);
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

    /// Returns a process of `regions` regions, all present and all on base pages.
    fn process(pid: i32, regions: u64) -> Process {
        let id = ProcessId { pid: Pid(pid), start_ticks: 100, start_stack: 0x7fff_0000_0000 + pid as u64 };
        let size = HugeCount(regions).bytes();
        Process {
            cpu: SECOND * 1000,
            rss: size,
            rss_anonymous: size,
            mappings: vec![Mapping::anonymous(VirtRange::new(BASE, BASE + (1 << 40)).unwrap())],
            regions: (0..regions)
                .map(|n| Region::of_base_pages(HugePage::containing(BASE).offset(n), PAGES))
                .collect(),
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
                    huge_available: free.0 / HugePage::SIZE,
                    fragmentation: Some(0.0),
                }],
                ..Machine::default()
            },
            sampling: None,
            processes: processes.to_vec(),
            missed: Vec::new(),
        }
    }

    /// Returns the requests of a pass at this time, and the number that it defers; the next pass
    /// sees what was done.
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
            let process = processes.iter_mut().find(|process| process.id == done.outcome.action.process());
            let regions = &mut process.unwrap().regions;
            let region = regions.iter_mut().find(|region| Some(region.page) == done.outcome.action.region());
            region.unwrap().leaf = Leaf::Huge2m;
        }
        let asked = changes.iter().map(|action| (action.process().pid.0, action.region().unwrap().start()));
        let left = put_off(state, at, &changes, &done, |_| actuator.2);
        let rests = actuator.2.filter(|until| left.actions > 0 && *until > at);
        assert_eq!(left.rests, rests.into_iter().collect());
        let ran_out = rests.is_none() && (actuator.2.is_some() || !done.is_empty());
        assert_eq!(left.ran_out, left.actions > 0 && ran_out);
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
        // The first has more to gain than one step requests.
        let mut processes = [process(1, 2000), process(2, 100)];
        let (mut state, mut partly) = (state("megapage"), Partly(3, 0, None));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut partly);
        assert_eq!((asked.len() as u64, left > 0), (left, true));
        let (next, _) = pass(SECOND * 2, &mut processes, &mut state, &mut partly);
        assert!(!next.is_empty() && next.iter().all(|one| !asked.contains(one)), "{next:?}");
        // It has settled, and was not charged with a failure.
        let (later, _) = pass(SECOND * 3, &mut processes, &mut state, &mut partly);
        assert_eq!(later, asked);
    }

    #[test]
    fn work_out_of_time_is_distinguished_from_back_off() {
        let mut processes = [process(1, 8)];
        // Nothing was tried, but the process does not back off: it was not reached.
        let (mut state, mut partly) = (state("megapage"), Partly(3, 0, Some(Duration::ZERO)));
        let (asked, left) = pass(SECOND, &mut processes, &mut state, &mut partly);
        assert_eq!((asked.len(), left), (8, 8));
        assert_eq!(pass(SECOND + SECOND / 10, &mut processes, &mut state, &mut partly).0, asked);
    }

    #[test]
    fn a_process_is_asked_for_as_soon_as_its_back_off_is_over() {
        let mut processes = [process(1, 8)];
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
