//! The executor on the running kernel: on children whose every byte is known.

use super::*;
use crate::execute::counters::ERRORS;
use megapage_decide::{Budgets, Latency, Limits, Reason};
use megapage_kernel::canary::Canary;
use megapage_kernel::pagemap::{Pagemap, Region};
use megapage_kernel::{boot_time, process, spawn};
use megapage_testing::{require_root, skip, wait_for};
use megapage_units::{BASE_PAGE, HUGE_2M, HugeRange, PageSize, Pid};

const PAGES: usize = HUGE_2M / BASE_PAGE;

/// Returns budgets that are too large for a busy machine to reach.
fn unhurried() -> Budgets {
    let (much, long) = (Bytes::gib(1 << 20), Duration::from_secs(600));
    Budgets {
        moved: much,
        moved_per_process: much,
        scanned: much,
        scanned_per_process: much,
        time: long,
        latency: Latency {
            call: Duration::from_millis(1),
            pause_percent: 0,
            slow: long,
            pause: Duration::from_millis(1),
            pause_most: Duration::from_millis(1),
        },
        remembered: 1000,
    }
}

/// Executor with the promotions that it borrows.
struct Acting {
    executor: Executor,
    promotions: Promotions,
    /// Actions handed over that are not answered yet, by kind: each is deferred.
    unanswered: [u64; 3],
}

impl Acting {
    fn new(abilities: Abilities, budgets: Budgets) -> Acting {
        let back_off = Duration::from_millis(1);
        let limits = Limits { back_off, back_off_most: back_off, ..Limits::default() };
        let mut promotions = Promotions::new(limits);
        promotions.configure(budgets);
        let executor = Executor::with_abilities(&KernelRoot::live(), abilities);
        Acting { executor, promotions, unanswered: [0; 3] }
    }

    /// Returns another executor on the same machine, with new promotions.
    fn other(&self, budgets: Budgets) -> Acting {
        Acting::new(self.executor.abilities.clone(), budgets)
    }

    /// Carries actions out, and notes their outcomes.
    fn carry_out(&mut self, now: Duration, actions: &[Action]) -> Vec<Done> {
        let done = self.executor.carry_out(now, actions, &mut self.promotions);
        actions.iter().filter_map(kind).for_each(|kind| self.unanswered[kind] += 1);
        done.iter().filter_map(|done| kind(&done.outcome.action)).for_each(|kind| self.unanswered[kind] -= 1);
        done.iter().for_each(|done| self.promotions.note(now, &done.outcome));
        done
    }

    fn undo(&mut self) -> Vec<Done> {
        self.executor.undo(boot_time(), &mut self.promotions)
    }

    fn counters(&self) -> &Counters {
        self.executor.counters()
    }

    /// Returns the deferred actions of all kinds, as (budget, time, pause).
    fn left(&self) -> (u64, u64, u64) {
        let lefts = self.counters().kinds().map(|(_, kind)| kind.left);
        lefts.iter().fold((0, 0, 0), |sum, it| (sum.0 + it.budget, sum.1 + it.time, sum.2 + it.pause))
    }

    fn promoted(&self) -> usize {
        self.promotions.made().len()
    }
}

/// Returns the place of an action's kind in [`Counters::kinds`]. `None` for a zero scan, which the
/// observer does.
fn kind(action: &Action) -> Option<usize> {
    match action {
        Action::Promote { .. } => Some(0),
        Action::Demote { .. } => Some(1),
        Action::Recover { .. } => Some(2),
        Action::ZeroScan { .. } => None,
    }
}

/// Returns an executor, if this machine can have one.
fn executor(budgets: Budgets) -> Option<Acting> {
    if !require_root() {
        return None;
    }
    match Executor::start(&KernelRoot::live()) {
        Err(ExecuteError::Remote(RemoteError::Unseen)) => {
            skip("needs PAGEMAP_SCAN (Linux 6.7)");
            None
        }
        executor => Some(Acting::new(executor.unwrap().abilities, budgets)),
    }
}

/// Returns a child with `regions` regions that can be huge, all but the first `kept` base pages of
/// each zeroed.
fn child(regions: usize, kept: usize) -> Canary {
    let mut child = Canary::start(0, regions, false).unwrap();
    child.zero((0..regions * PAGES).filter(|page| page % PAGES >= kept)).unwrap();
    child
}

fn id(pid: Pid) -> ProcessId {
    let stat = process::read_stat(&KernelRoot::live(), pid).unwrap();
    ProcessId { pid, start_ticks: stat.start_ticks, start_stack: stat.start_stack }
}

fn starts(child: &Canary) -> impl Iterator<Item = HugePage> + Clone + use<> {
    HugeRange::within(child.huge()).unwrap().pages()
}

fn page(address: u64) -> HugePage {
    HugePage::at(address).unwrap()
}

fn promote(process: ProcessId, region: HugePage) -> Action {
    Action::Promote { process, region, size: PageSize::HUGE_2M, reason: Reason::Gain }
}

fn recover(process: ProcessId, region: HugePage) -> Action {
    Action::Recover { process, region, reason: Reason::Bloat }
}

fn demote(process: ProcessId, region: HugePage) -> Action {
    Action::Demote { process, region, reason: Reason::OverCap }
}

fn seen(child: &Canary) -> Vec<Region> {
    Pagemap::open(&KernelRoot::live(), child.pid()).unwrap().regions(child.huge()).unwrap()
}

fn huge(child: &Canary) -> usize {
    seen(child).iter().filter(|region| region.huge == Some(true)).count()
}

/// Carries out until all are done: a page on its way to the LRU lists is skipped, and is worth
/// another try.
fn until_done(executor: &mut Acting, actions: &[Action]) -> Vec<Done> {
    let mut left = actions.to_vec();
    let mut all = Vec::new();
    wait_for("all of them to be done", || {
        for done in executor.carry_out(boot_time(), &left) {
            match done.outcome.obtained {
                Obtained::Done => {
                    left.retain(|action| *action != done.outcome.action);
                    all.push(done);
                }
                obtained => assert!(matches!(obtained, Obtained::Busy | Obtained::NoMemory), "{done:?}"),
            }
        }
        left.is_empty()
    });
    all
}

/// Checks that every action handed over was answered or deferred.
fn assert_adds_up(executor: &Acting) {
    for ((name, kind), unanswered) in executor.counters().kinds().into_iter().zip(executor.unanswered) {
        let left = kind.left;
        assert_eq!(unanswered, left.budget + left.time + left.pause, "{name}: {kind:?}");
    }
}

#[test]
fn regions_are_promoted_recovered_and_promoted_again_without_losing_a_byte() {
    const REGIONS: usize = 12;
    const KEPT: usize = 100;
    let Some(mut executor) = executor(unhurried()) else { return };
    let mut child = child(REGIONS, KEPT);
    let process = id(child.pid());
    let actions = |of: fn(ProcessId, HugePage) -> Action, child: &Canary| {
        starts(child).map(|start| of(process, start)).collect::<Vec<_>>()
    };
    until_done(&mut executor, &actions(promote, &child));
    assert_eq!(huge(&child), REGIONS);
    let done = until_done(&mut executor, &actions(recover, &child));
    assert_eq!(huge(&child), 0);
    if executor.executor.abilities().frees_zeros {
        // Each region's freed bytes are those that its page tables show.
        assert!(done.iter().all(|done| done.freed == Bytes(((PAGES - KEPT) * BASE_PAGE) as u64)), "{done:?}");
        assert!(seen(&child).iter().all(|region| usize::from(region.present) == KEPT));
    }
    let again = until_done(&mut executor, &actions(promote, &child));
    assert!(again.iter().all(|done| done.promoted == Bytes(HUGE_2M as u64) && done.why.is_none()));
    assert_eq!(huge(&child), REGIONS);
    // Regions that are huge already are not touched, and count as done.
    let idle = executor.carry_out(boot_time(), &actions(promote, &child));
    assert!(idle.iter().all(|done| (done.promoted, done.took) == (Bytes::ZERO, Duration::ZERO)), "{idle:?}");
    assert_eq!(idle.len(), REGIONS);
    let kept = (0..REGIONS * PAGES).filter(|page| page % PAGES < KEPT);
    assert_eq!(child.touch(kept).unwrap().wrong, 0);
    assert!(done.iter().all(|done| done.promoted == Bytes::ZERO), "{done:?}");
    assert!(executor.counters().calls.count() > 0);
    assert_adds_up(&executor);
}

#[test]
fn undoing_demotes_what_was_promoted_here_and_nothing_else() {
    let Some(mut executor) = executor(unhurried()) else { return };
    let mut child = child(6, PAGES);
    let process = id(child.pid());
    let all: Vec<HugePage> = starts(&child).collect();
    let of = |action: fn(ProcessId, HugePage) -> Action, places: &[usize]| {
        places.iter().map(|&place| action(process, all[place])).collect::<Vec<_>>()
    };
    // Another executor's: huge before this executor came, and not promoted by it.
    let mut before = executor.other(unhurried());
    until_done(&mut before, &of(promote, &[0, 1, 2, 3, 4, 5]));
    until_done(&mut before, &of(demote, &[2, 3, 4, 5]));
    assert!(before.promoted() <= 2);
    until_done(&mut executor, &of(promote, &[0, 1, 2, 3, 4]));
    assert_eq!(executor.promoted(), 3, "those that were huge are not its own");
    until_done(&mut executor, &of(demote, &[4]));
    assert_eq!(executor.promoted(), 2);
    // No time at all: nothing is done, and nothing forgotten.
    let Acting { executor: it, promotions, .. } = &mut executor;
    assert!(it.undo_within(boot_time(), Duration::ZERO, promotions).is_empty());
    assert_eq!(executor.promoted(), 2);
    let mut undone = Vec::new();
    wait_for("all to be undone", || {
        undone.extend(executor.undo());
        executor.promoted() == 0
    });
    let done = undone.iter().filter(|done| done.outcome.obtained == Obtained::Done);
    assert_eq!((done.count(), executor.promoted()), (2, 0), "{undone:?}");
    assert!(undone.iter().all(|done| done.outcome.action.reason() == Reason::Undo));
    assert!(executor.undo().is_empty(), "only once");
    let huge: Vec<bool> = seen(&child).iter().map(|region| region.huge == Some(true)).collect();
    assert_eq!(huge, [true, true, false, false, false, false]);
    assert_adds_up(&executor);
    assert_eq!(child.touch(0..6 * PAGES).unwrap().wrong, 0);
}

#[test]
fn another_process_with_the_number_or_another_program_is_not_touched() {
    let Some(mut executor) = executor(unhurried()) else { return };
    let child = child(1, PAGES);
    let (process, region) = (id(child.pid()), page(child.huge().start()));
    let before = huge(&child);
    let later = ProcessId { start_ticks: process.start_ticks + 1, ..process };
    let other = ProcessId { start_stack: process.start_stack ^ 0x1000, ..process };
    for wrong in [later, other] {
        for action in [promote(wrong, region), recover(wrong, region), demote(wrong, region)] {
            let done = executor.carry_out(boot_time(), &[action]);
            assert_eq!(done.len(), 1);
            assert_eq!(done[0].outcome.obtained, Obtained::Gone);
        }
    }
    assert_eq!(huge(&child), before);
    assert_eq!(executor.counters().calls.count(), 0, "the kernel was not asked");
    // A process whose stack is not known is identified by its start alone.
    let unknown = ProcessId { start_stack: 0, ..process };
    until_done(&mut executor, &[demote(unknown, region)]);
    until_done(&mut executor, &[promote(unknown, region)]);
    assert_eq!(executor.promoted(), 1);
    drop(child);
    let done = executor.carry_out(boot_time(), &[demote(unknown, region), demote(process, region)]);
    assert!(done.iter().all(|done| done.outcome.obtained == Obtained::Gone), "{done:?}");
    assert_eq!((done.len(), executor.promoted()), (2, 0));
}

#[test]
fn what_has_ended_is_forgotten_though_nothing_more_is_done_to_it() {
    let Some(mut executor) = executor(unhurried()) else { return };
    let gone = child(1, PAGES);
    until_done(&mut executor, &[promote(id(gone.pid()), page(gone.huge().start()))]);
    assert_eq!(executor.promoted(), 1);
    drop(gone);
    executor.carry_out(boot_time() + Duration::from_secs(1300), &[]);
    assert_eq!(executor.promoted(), 0);
}

#[test]
fn each_region_of_a_lot_gets_its_own_answer() {
    let Some(mut executor) = executor(unhurried()) else { return };
    // The first two regions are on base pages, and MADV_NOHUGEPAGE forbids them to be huge.
    let child = Canary::start(2, 2, true).unwrap();
    let process = id(child.pid());
    let (base, first) = (page(child.base().start()), page(child.huge().start()));
    let second = page(child.huge().end() - HUGE_2M as u64);
    until_done(&mut executor, &[promote(process, first), promote(process, second)]);
    until_done(&mut executor, &[demote(process, second)]);
    // Far from every mapping.
    let nowhere = page(0x1000_0000_0000);
    let small = Action::Promote {
        process,
        region: second,
        size: PageSize::new(64 << 10).unwrap(),
        reason: Reason::WouldBloat,
    };
    let actions = [
        promote(process, base),
        promote(process, second),
        promote(process, nowhere),
        recover(process, first),
        small,
        Action::ZeroScan { process, regions: vec![first], reason: Reason::Period },
        recover(process, base),
    ];
    let mut answers = BTreeMap::new();
    wait_for("an answer to each", || {
        for done in executor.carry_out(boot_time(), &actions) {
            let place = actions.iter().position(|action| *action == done.outcome.action).unwrap();
            // Busy is a matter of time, except at a place without memory.
            let waits = matches!(done.outcome.obtained, Obtained::Busy | Obtained::NoMemory);
            if !waits || place == 2 {
                answers.entry(place).or_insert(done);
            }
        }
        answers.len() == 6
    });
    let obtained: Vec<_> = answers.iter().map(|(place, done)| (*place, done.outcome.obtained)).collect();
    assert_eq!(
        obtained,
        [
            (0, Obtained::Impossible),
            (1, Obtained::Done),
            (2, Obtained::Busy),
            (3, Obtained::Done),
            (4, Obtained::Unsupported),
            (6, Obtained::Done),
        ],
        "{answers:?}"
    );
    assert!(answers.values().all(|done| done.why.is_none() == (done.outcome.obtained == Obtained::Done)));
    assert_eq!(answers[&6].freed, Bytes::ZERO, "it was on base pages already");
}

#[test]
fn budgets_defer_the_remainder_and_report_it() {
    // One action at once, the next half a minute later.
    let little = Bytes::kib(64);
    let Some(mut unbound) = executor(unhurried()) else { return };
    let child = child(5, PAGES);
    let process = id(child.pid());
    let promotions: Vec<Action> = starts(&child).map(|start| promote(process, start)).collect();
    let recoveries: Vec<Action> = starts(&child).map(|start| recover(process, start)).collect();
    until_done(&mut unbound, &promotions);
    let now = boot_time();
    for budgets in
        [Budgets { scanned: little, ..unhurried() }, Budgets { scanned_per_process: little, ..unhurried() }]
    {
        let mut executor = unbound.other(budgets);
        let done = executor.carry_out(now, &recoveries);
        assert_eq!((done.len(), executor.left().0), (1, 4), "{done:?}");
        assert_eq!(done[0].outcome.action, recoveries[0], "in the policy's order");
        // The bytes that have come in meanwhile are enough for one more.
        assert_eq!(executor.carry_out(now + Duration::from_secs(40), &recoveries).len(), 1);
        // Promotion has its own budget.
        assert_eq!(executor.carry_out(now, &promotions[4..]).len(), 1);
    }
    // A budget of zero allows no action.
    let mut none = unbound.other(Budgets { moved: Bytes::ZERO, ..unhurried() });
    assert!(none.carry_out(now, &promotions).is_empty());
    assert_eq!((none.left().0, none.counters().calls.count()), (5, 0));
    assert_adds_up(&none);
}

#[test]
fn no_call_is_made_when_time_is_up() {
    let Some(mut executor) = executor(Budgets { time: Duration::ZERO, ..unhurried() }) else {
        return;
    };
    let child = child(3, PAGES);
    let process = id(child.pid());
    let actions: Vec<Action> = starts(&child).map(|start| promote(process, start)).collect();
    assert!(executor.carry_out(boot_time(), &actions).is_empty());
    assert_eq!((executor.counters().calls.count(), executor.left().1), (0, 3));
}

#[test]
fn a_slow_call_pauses_its_process_and_no_other() {
    // By this measure, every call is slow.
    let long = Duration::from_secs(600);
    let latency = Latency { slow: Duration::ZERO, pause: long, pause_most: long, ..unhurried().latency };
    let Some(mut executor) = executor(Budgets { latency, ..unhurried() }) else { return };
    let mut unbound = executor.other(unhurried());
    let (child, other) = (child(3, PAGES), child(1, PAGES));
    let (process, twin) = (id(child.pid()), id(other.pid()));
    let all = |of: fn(ProcessId, HugePage) -> Action| {
        starts(&child).map(|start| of(process, start)).collect::<Vec<_>>()
    };
    until_done(&mut unbound, &all(promote));
    until_done(&mut unbound, &[promote(twin, page(other.huge().start()))]);
    let actions = all(recover);
    let now = boot_time();
    let done = executor.carry_out(now, &actions);
    assert_eq!((done.len(), executor.counters().pauses.slow), (1, 1), "{done:?}");
    assert_eq!(executor.promotions.pauses().count(), 1);
    assert!(executor.carry_out(now, &actions).is_empty());
    assert_eq!(executor.promotions.pauses().count(), 1, "counted once");
    assert_eq!(executor.left().2, 2 + 3);
    assert_eq!(executor.counters().recover.left.pause, 2 + 3);
    assert_adds_up(&executor);
    assert_eq!(executor.carry_out(now, &[recover(twin, page(other.huge().start()))]).len(), 1);
    // The back-off ends.
    assert!(!executor.carry_out(now + Duration::from_secs(1300), &actions).is_empty());
}

#[test]
fn what_the_kernel_cannot_do_is_unsupported_and_not_tried() {
    let abilities = Abilities { collapse: false, split: None, frees_zeros: false, notes: Vec::new() };
    let mut executor = Acting::new(abilities, unhurried());
    let process = id(Pid(std::process::id().cast_signed()));
    let region = page(0x1000_0000_0000);
    let actions = [promote(process, region), recover(process, region), demote(process, region)];
    let done = executor.carry_out(boot_time(), &actions);
    assert_eq!(done.len(), 3);
    assert!(done.iter().all(|done| done.outcome.obtained == Obtained::Unsupported && done.why.is_some()));
    assert_eq!(executor.counters().calls.count(), 0);
    assert_adds_up(&executor);
}

#[test]
fn refusals_are_counted_by_error_and_tries_after_them_as_retries() {
    let Some(mut executor) = executor(unhurried()) else { return };
    // Huge pages are forbidden there (MADV_NOHUGEPAGE).
    let child = Canary::start(2, 0, true).unwrap();
    let process = id(child.pid());
    let action = promote(process, page(child.base().start()));
    for tries in 1..=3u64 {
        let done = executor.carry_out(boot_time(), std::slice::from_ref(&action));
        assert_eq!(done[0].outcome.obtained, Obtained::Impossible, "{done:?}");
        let promotions = executor.counters().promote;
        assert_eq!(promotions.retried, tries - 1);
        let refused = ERRORS.iter().zip(promotions.refused).filter(|(_, count)| *count > 0);
        assert_eq!(refused.collect::<Vec<_>>(), [(&"EINVAL", tries)]);
    }
    // Other work on it succeeds: it is on base pages, as after a split.
    let split = executor.carry_out(boot_time(), &[demote(process, page(child.base().start()))]);
    assert_eq!(split[0].outcome.obtained, Obtained::Done, "{split:?}");
    assert_eq!((executor.counters().demote.retried, executor.counters().promote.retried), (0, 2));
    // Nothing is known of another region.
    let other = promote(process, page(child.base().start()).offset(1));
    executor.carry_out(boot_time(), &[other]);
    assert_eq!((executor.counters().promote.retried, executor.counters().promote.shared), (2, 0));
    assert_adds_up(&executor);
}

#[test]
fn a_process_that_dies_meanwhile_is_no_error() {
    let Some(mut executor) = executor(unhurried()) else { return };
    for round in 0..10u64 {
        let child = child(8, PAGES);
        let process = id(child.pid());
        let actions: Vec<Action> = starts(&child)
            .flat_map(|start| [recover(process, start), promote(process, start)])
            .cycle()
            .take(160)
            .collect();
        let pid = child.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(round));
            spawn::send_signal(pid, spawn::signal::SIGKILL).unwrap();
        });
        for done in executor.carry_out(boot_time(), &actions) {
            let obtained = done.outcome.obtained;
            assert!(!matches!(obtained, Obtained::Denied | Obtained::Unsupported), "{done:?}");
        }
        killer.join().unwrap();
        // A signal takes its time.
        let is_gone = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            executor.carry_out(boot_time(), &actions[..1])[0].outcome.obtained == Obtained::Gone
        });
        assert!(is_gone);
    }
    assert_eq!(executor.promoted(), 0);
    assert_adds_up(&executor);
}

#[test]
fn a_captured_tree_is_not_acted_on() {
    let tree = tempfile::tempdir().unwrap();
    let started = Executor::start(&KernelRoot::captured(tree.path()));
    assert!(matches!(started, Err(ExecuteError::Remote(RemoteError::NotLive))));
}
