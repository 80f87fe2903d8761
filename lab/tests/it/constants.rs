//! Tests that the simulator, the plan and the daemon decide alike: on the same snapshots they ask
//! for the same actions.

use megapage_daemon::Config;
use megapage_decide::{
    Action, Fault, FaultSize, Known, Obtained, Outcome, POLICIES, Policy, Reservation, State, Tick, known,
    step,
};
use megapage_simulate::machine::{Machine, Setup};
use megapage_simulate::testbed::Speed;
use megapage_simulate::trace::{Operation, Program, Span, Trace};
use megapage_snapshot::{AccessClass, Snapshot};
use megapage_units::Bytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A step of the simulator: the policy's snapshot, its actions and their results.
#[derive(Debug)]
struct Step {
    now: Duration,
    snapshot: Snapshot,
    outcomes: Vec<Outcome>,
}

/// A policy that keeps the steps of another.
#[derive(Debug)]
struct Recorder {
    policy: Box<dyn Policy>,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Policy for Recorder {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        let (now, snapshot) = (tick.now(), tick.snapshot().clone());
        self.steps.lock().unwrap().push(Step { now, snapshot, outcomes: Vec::new() });
        self.policy.tick(tick);
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        self.policy.on_fault(fault)
    }

    fn samples(&self) -> bool {
        self.policy.samples()
    }

    fn needs_costs(&self) -> bool {
        self.policy.needs_costs()
    }

    fn prefers_zeroed(&self) -> bool {
        self.policy.prefers_zeroed()
    }

    fn breaks(&self, reservations: &[Reservation]) -> Option<usize> {
        self.policy.breaks(reservations)
    }

    fn note(&mut self, now: Duration, outcome: &Outcome) {
        self.steps.lock().unwrap().last_mut().unwrap().outcomes.push(outcome.clone());
        self.policy.note(now, outcome);
    }

    fn tracked(&self) -> usize {
        self.policy.tracked()
    }

    fn wants_more(&self) -> bool {
        self.policy.wants_more()
    }
}

/// Returns the steps of the simulator on a small machine whose memory is fragmented, fills up, and
/// holds zeros to recover.
fn steps(known: &Known) -> Vec<Step> {
    let touch = |first, count, content| Operation::Touch {
        span: Span::new(first, count),
        pages: 512,
        content,
        own_ns: 0.0,
    };
    let access = |first, count, visits| Operation::Access {
        span: Span::new(first, count),
        pages: 400,
        visits,
        class: AccessClass::Dependent,
    };
    let work = |seconds| Operation::Work { seconds };
    let process = |name: &str, start, operations| Program { name: name.into(), start, operations };
    let hot = vec![
        touch(0, 150, 512),
        access(0, 150, 3e5),
        work(200.0),
        touch(150, 165, 512),
        access(100, 200, 2e5),
        work(400.0),
    ];
    let sparse = vec![
        touch(0, 30, 470),
        touch(30, 90, 60),
        access(0, 60, 1e4),
        work(300.0),
        touch(120, 60, 512),
        work(200.0),
    ];
    let processes = vec![process("hot", 0.0, hot), process("sparse", 20.0, sparse)];
    let trace = Trace { origin: "a test".into(), processes, ..Trace::default() };
    let setup = Setup { fragmentation: 1.0, compaction: 0.2, budget: Some(170), ..Setup::new(Bytes::gib(1)) };
    let steps = Arc::new(Mutex::new(Vec::new()));
    let policy = if known.is_published() { known.make_at(Speed::TESTBED.pace()) } else { known.make() };
    let recorder = Recorder { policy, steps: steps.clone() };
    Machine::new(setup, &trace, Box::new(recorder)).unwrap().run(|_| ());
    Arc::into_inner(steps).unwrap().into_inner().unwrap()
}

/// Returns the first step in which `state` asks for other actions than the simulator.
fn differs(mut state: State, steps: &[Step]) -> Option<(Duration, Vec<Action>, Vec<Action>)> {
    steps.iter().find_map(|of| {
        let asked = step(of.now, &of.snapshot, &mut state);
        let simulated: Vec<Action> = of.outcomes.iter().map(|outcome| outcome.action.clone()).collect();
        of.outcomes.iter().for_each(|outcome| state.note(of.now, outcome));
        (asked != simulated).then_some((of.now, asked, simulated))
    })
}

fn daemon(known: &Known) -> State {
    Config::parse("a test", &format!("policy = \"{}\"", known.name)).unwrap().state().unwrap()
}

#[test]
fn simulator_plan_and_daemon_ask_for_the_same_actions() {
    for known in POLICIES {
        let steps = steps(known);
        let plan = megapage_plan::replay::state(known);
        for (who, state) in [("plan", plan), ("daemon", daemon(known))] {
            assert_eq!(differs(state, &steps), None, "{}: {who} and simulator differ", known.name);
        }
    }
}

#[test]
fn the_comparison_covers_what_the_constants_decide_and_finds_another_value() {
    let steps = steps(known("megapage").unwrap());
    let outcomes: Vec<&Outcome> = steps.iter().flat_map(|step| &step.outcomes).collect();
    let count = |of: fn(&Action) -> bool, obtained| {
        outcomes.iter().filter(|outcome| of(&outcome.action) && outcome.obtained == obtained).count()
    };
    let promotions = |obtained| count(|action| matches!(action, Action::Promote { .. }), obtained);
    let recovered = count(|action| matches!(action, Action::Recover { .. }), Obtained::Done);
    let scanned = count(|action| matches!(action, Action::ZeroScan { .. }), Obtained::Done);
    assert!(promotions(Obtained::Done) > 50 && recovered > 5 && scanned > 5, "{recovered} {scanned}");
    assert!(promotions(Obtained::NoMemory) > 3, "{}", promotions(Obtained::NoMemory));

    for other in [
        "[limits]\nback_off_most = \"1m\"",
        "[limits]\nback_off = \"3s\"",
        "[limits]\nleast_zeros = 64",
        "[act]\npromoted_per_second = \"16MiB\"",
    ] {
        let config = Config::parse("a test", other).unwrap();
        assert_ne!(differs(config.state().unwrap(), &steps), None, "{other} makes no difference");
    }
}
