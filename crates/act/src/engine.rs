//! Calls that make and split huge pages of another process: the only way in which megapage does so.
//! Each call runs under the latency guard. Right before a collapse the page tables of its regions
//! are read: some regions are left out. Callers read the page tables again for the result.
//!
//! [`advise`] is the only function of this crate that makes the call; the daemon's executor,
//! promotion and demotion go through it. The guard has three rules. A call names only as many
//! regions as keep the process's mmap lock for a bounded time. After each call the engine pauses
//! for a moment; after a slow one it backs off from the process for longer. Nothing is collapsed
//! while the machine has less available memory than the safe [`floor`]. Each region gets its own
//! result.
//!
//! The engine stores nothing: [`Promotions`] knows the pace of each process, and its back-offs.

mod answer;
mod batches;
#[cfg(test)]
#[path = "engine/model_tests.rs"]
mod model;
mod target;
mod turn;

pub(crate) use answer::{Advice, Answer, Refusal, Tried};
pub(crate) use target::{CanaryTarget, Target, is_mapped, is_same};
pub(crate) use turn::{Clock, Terms};

use batches::{Advisable, Called, in_batches};
use megapage_decide::{Call, Promotions};
use megapage_units::{Bytes, HugePage};
use std::thread::sleep;
use std::time::Duration;

/// Longest pauses between two calls: of those that the guard takes, and of those that a caller asks
/// for.
const MOST_PAUSE: Duration = Duration::from_millis(1);
const MOST_ASKED_PAUSE: Duration = Duration::from_millis(50);
/// Regions that are collapsed between two looks at the machine's memory: 64 MiB.
const FLOOR_LOOK: usize = 32;

/// Returns the available memory that promotion does not use: 5 % of all memory. Below it, a
/// collapse would reclaim memory of other processes while the process waits for its mmap lock.
pub(crate) fn floor(total: Bytes) -> Bytes {
    Bytes(total.0 / 20)
}

/// Gives `advice` to each of `regions`, as far as `promotions` and `terms` allow; the other regions
/// are [`Answer::NotTried`]. `watch` sees each call.
pub(crate) fn advise<T: Advisable>(
    promotions: &mut Promotions,
    advice: Advice,
    target: &mut T,
    regions: &[HugePage],
    terms: &Terms,
    mut watch: impl FnMut(Call),
) -> Vec<Tried> {
    let mut untried = vec![Tried::NOT; regions.len()];
    let (clock, id, promotes) = (&terms.clock, target.id(), advice == Advice::Collapse);
    let rests = !clock.urgent && !promotions.pause(clock.now(), id, promotes).is_zero();
    if regions.is_empty() || rests || clock.is_up() {
        return untried;
    }
    if promotes && target.is_below_floor() {
        promotions.memory_is_short(clock.now());
        untried[0].answer = Answer::Refused(Refusal::BelowFloor);
        return untried;
    }
    let named =
        |promotions: &mut Promotions| promotions.batch(clock.now(), id, promotes).min(terms.batch).max(1);
    let (mut left, mut shortages, mut to_look) = (regions.len(), 0, FLOOR_LOOK);
    let mut size = named(promotions);
    in_batches(target, advice, regions, size, |target, called| {
        let Some(Called { call, refused, failed, at }) = called else {
            return (!clock.is_up()).then_some(size);
        };
        watch(call);
        left = left.saturating_sub(call.regions);
        to_look = to_look.saturating_sub(call.regions);
        let is_fine = promotions.learn(clock.now(), id, promotes, call);
        if !is_fine && !clock.urgent {
            return None;
        }
        match refused {
            Some(Refusal::GroupFull) if promotes => {
                promotions.group_is_full(clock.now(), id);
                return None;
            }
            // A region that was unmapped meanwhile says nothing about the others.
            Some(Refusal::NoMemory)
                if promotes && at.is_none_or(|at| target.is_mapped(regions[at]) != Some(false)) =>
            {
                shortages += 1;
                if shortages >= terms.shortages {
                    promotions.memory_is_short(clock.now());
                    return None;
                }
            }
            Some(refusal) if refusal.is_final() => return None,
            None if promotes && !failed => {
                shortages = 0;
                promotions.accepted(clock.now(), id, call.regions);
            }
            _ => {}
        }
        if clock.is_up() {
            return None;
        }
        let asked = (call.took * terms.pause_percent / 100).min(MOST_ASKED_PAUSE);
        let own = call.took * promotions.budgets().latency.pause_percent / 100;
        sleep(own.min(MOST_PAUSE).max(asked));
        size = named(promotions);
        if promotes && to_look == 0 && left > 0 {
            to_look = FLOOR_LOOK;
            if target.is_below_floor() {
                promotions.memory_is_short(clock.now());
                return None;
            }
        }
        Some(size)
    })
}

#[cfg(test)]
mod tests {
    use super::model::{Model, answers, region};
    use super::*;
    use megapage_decide::{Budgets, Latency, Pauses};
    use megapage_snapshot::ProcessId;
    use megapage_units::Pid;
    use std::time::Instant;

    const NOW: Duration = Duration::from_secs(1000);
    const ID: ProcessId = ProcessId { pid: Pid(1), start_ticks: 1, start_stack: 1 };
    const OTHER: ProcessId = ProcessId { pid: Pid(2), start_ticks: 1, start_stack: 1 };
    const MILLISECOND: Duration = Duration::from_millis(1);

    fn promotions() -> Promotions {
        let latency = Latency { pause_percent: 0, ..Latency::default() };
        let mut promotions = Promotions::default();
        promotions.configure(Budgets { latency, ..Budgets::default() });
        promotions
    }

    fn backs_off(promotions: &Promotions, id: ProcessId, promotes: bool) -> bool {
        !promotions.pause(NOW, id, promotes).is_zero()
    }

    fn terms(now: Duration, urgent: bool) -> Terms {
        let most = Duration::from_secs(600);
        Terms::of(Clock { now, started: Instant::now(), most, urgent })
    }

    fn regions(count: u64) -> Vec<HugePage> {
        (0..count).map(region).collect()
    }

    fn turn(
        promotions: &mut Promotions,
        id: ProcessId,
        model: &mut Model,
        count: u64,
        terms: &Terms,
    ) -> usize {
        model.id = id;
        let tried = advise(promotions, Advice::Collapse, model, &regions(count), terms, |_| {});
        answers(&tried).iter().filter(|answer| **answer == Answer::Accepted).count()
    }

    #[test]
    fn a_call_names_as_many_regions_as_hold_the_lock_for_its_time() {
        for (advice, most) in [(Advice::Collapse, 4), (Advice::ColdSplit, 1)] {
            let mut model = Model { busy: MILLISECOND / 4, took: MILLISECOND / 4, ..Model::refusing(&[]) };
            let mut promotions = promotions();
            let mut longest = Duration::ZERO;
            let tried =
                advise(&mut promotions, advice, &mut model, &regions(64), &terms(NOW, false), |call| {
                    longest = longest.max(call.busy);
                });
            assert_eq!(answers(&tried), vec![Answer::Accepted; 64], "{advice:?}");
            assert!(longest > MILLISECOND / 4 && longest <= most * MILLISECOND, "{advice:?} {longest:?}");
            assert_eq!(model.sizes()[0], 1, "nothing is known of it yet");
        }
        // The caller's batch is a bound, too.
        let (mut model, mut promotions) = (Model::refusing(&[]), promotions());
        assert_eq!(turn(&mut promotions, ID, &mut model, 8, &Terms { batch: 1, ..terms(NOW, false) }), 8);
        assert_eq!(model.sizes(), [1; 8]);
    }

    #[test]
    fn a_process_whose_lock_was_held_for_long_is_left_alone_and_no_other() {
        let mut slow = Model { busy: 16 * MILLISECOND, took: 16 * MILLISECOND, ..Model::refusing(&[]) };
        let (mut fine, mut promotions) = (Model::refusing(&[]), promotions());
        assert_eq!(turn(&mut promotions, ID, &mut slow, 8, &terms(NOW, false)), 1);
        let until = promotions.backs_off_until(ID, true);
        assert!(until >= NOW + Latency::default().pause, "{until:?}");
        assert_eq!(turn(&mut promotions, ID, &mut slow, 8, &terms(NOW, false)), 0);
        assert_eq!(slow.sizes(), [1], "not even asked");
        assert_eq!(turn(&mut promotions, OTHER, &mut fine, 8, &terms(NOW, false)), 8);
        // After its back-off it has its turn, and a longer back-off follows.
        assert_eq!(turn(&mut promotions, ID, &mut slow, 8, &terms(until, false)), 1);
        assert!(promotions.backs_off_until(ID, true) >= until + 2 * Latency::default().pause);
        assert_eq!(promotions.pauses(), Pauses { slow: 2, ..Pauses::default() });
        // An urgent turn, such as a caller's undo, goes on.
        assert_eq!(turn(&mut promotions, ID, &mut slow, 8, &terms(until, true)), 8);
    }

    #[test]
    fn a_call_that_waited_pauses_its_process_for_the_first_time_of_pauses() {
        let mut late = Model { took: Duration::from_secs(1), ..Model::refusing(&[]) };
        let mut promotions = promotions();
        for round in 1..4 {
            assert!(turn(&mut promotions, ID, &mut late, 8, &terms(NOW * round, false)) > 0);
            assert_eq!(late.sizes().len(), round as usize, "one call, then it is skipped");
            let pause = promotions.backs_off_until(ID, false) - NOW * round;
            let first = Latency::default().pause;
            assert!(pause >= first && pause < first + Duration::from_secs(60), "{pause:?}");
        }
        assert_eq!(promotions.pauses(), Pauses { late: 3, ..Pauses::default() });
    }

    #[test]
    fn nothing_is_collapsed_below_the_safe_floor_and_what_is_huge_can_be_split() {
        let mut model = Model { calls_to_floor: 0, ..Model::refusing(&[]) };
        let mut promotions = promotions();
        let tried =
            advise(&mut promotions, Advice::Collapse, &mut model, &regions(3), &terms(NOW, false), |_| {});
        let untried = Answer::NotTried;
        assert_eq!(answers(&tried), [Answer::Refused(Refusal::BelowFloor), untried, untried]);
        assert!(model.calls.borrow().is_empty() && !answers(&tried)[0].was_asked());
        assert_eq!(promotions.pauses(), Pauses { memory: 1, ..Pauses::default() });
        assert!(backs_off(&promotions, OTHER, true), "of no process");
        assert_eq!(turn(&mut promotions, OTHER, &mut Model::refusing(&[]), 3, &terms(NOW, false)), 0);
        let split =
            advise(&mut promotions, Advice::ColdSplit, &mut model, &regions(3), &terms(NOW, false), |_| {});
        assert_eq!(answers(&split), [Answer::Accepted; 3]);
        // Available memory is looked at now and then while more is collapsed.
        let mut model = Model { calls_to_floor: 1, ..Model::refusing(&[]) };
        let done = turn(&mut promotions, ID, &mut model, 1000, &terms(NOW * 2, false));
        assert!((FLOOR_LOOK..2 * FLOOR_LOOK).contains(&done), "{done}");
        assert_eq!(promotions.pauses().memory, 2);
    }

    #[test]
    fn want_of_memory_pauses_promotion_and_a_full_group_that_of_its_process() {
        // ENOMEM at the second, third and fifth region. The third is not mapped any more, which
        // says nothing.
        let mut model = Model::refusing(&[(1, 12), (2, 12), (4, 12)]);
        model.unmapped = [region(2)].into();
        let mut one = promotions();
        assert_eq!(turn(&mut one, ID, &mut model, 8, &terms(NOW, false)), 1);
        assert!(backs_off(&one, OTHER, true) && !backs_off(&one, OTHER, false));
        let mut two = promotions();
        let patient = Terms { shortages: 2, batch: 1, ..terms(NOW, false) };
        assert_eq!(turn(&mut two, ID, &mut model, 8, &patient), 7 - 2, "in between one was obtained");
        assert_eq!((one.pauses().memory, two.pauses().memory), (1, 0));
        let mut full = promotions();
        let mut model = Model::refusing(&[(1, 16)]);
        assert_eq!(turn(&mut full, ID, &mut model, 8, &terms(NOW, false)), 1);
        assert!(backs_off(&full, ID, true) && !backs_off(&full, OTHER, true));
        assert!(!backs_off(&full, ID, false), "it can be split");
        assert_eq!(full.pauses(), Pauses { group: 1, ..Pauses::default() });
    }

    #[test]
    fn nothing_is_called_for_when_time_is_up() {
        let (mut model, mut promotions) = (Model::refusing(&[]), promotions());
        let up = Terms::of(Clock { now: NOW, started: Instant::now(), most: Duration::ZERO, urgent: true });
        assert_eq!((turn(&mut promotions, ID, &mut model, 8, &up), model.sizes().len()), (0, 0));
        assert_eq!(turn(&mut promotions, ID, &mut model, 8, &terms(NOW, false)), 8);
    }
}
