//! Tests that the daemon carries out each kind of action that a policy asks for.

use super::*;
use megapage_decide::Promotions;
use megapage_kernel::KernelRoot;
use megapage_observe::process_id;
use megapage_snapshot::ProcessId;
use megapage_units::{HugePage, PageSize, Pid};
use std::iter::successors;
use std::sync::Mutex;

const REGION: HugePage = HugePage::containing(0x2000_0000_0000);

/// Actuator that keeps the actions, and answers that all of them are done.
struct Recording(Arc<Mutex<Vec<Action>>>);

impl Actuator for Recording {
    fn carry_out(&mut self, _now: Duration, actions: &[Action], _: &mut Promotions) -> Vec<Done> {
        self.0.lock().unwrap().extend_from_slice(actions);
        let done = |action: &Action| Done {
            outcome: Outcome { action: action.clone(), obtained: Obtained::Done },
            promoted: Bytes::ZERO,
            freed: Bytes::ZERO,
            took: Duration::ZERO,
            why: None,
        };
        actions.iter().map(done).collect()
    }
}

/// Returns one action of each kind. A new kind must be added here, or this does not compile.
fn one_of_each(process: ProcessId) -> Vec<Action> {
    let (region, reason) = (REGION, Reason::Gain);
    let first = Action::Promote { process, region, size: PageSize::HUGE_2M, reason };
    let next = |action: &Action| match action {
        Action::Promote { .. } => Some(Action::Demote { process, region, reason }),
        Action::Demote { .. } => Some(Action::Recover { process, region, reason }),
        Action::Recover { .. } => Some(Action::ZeroScan { process, regions: vec![region], reason }),
        Action::ZeroScan { .. } => None,
    };
    successors(Some(first), next).collect()
}

#[test]
fn each_kind_of_action_is_carried_out() {
    let root = KernelRoot::live();
    let own = process_id(&root, Pid(std::process::id().cast_signed())).unwrap();
    let options = Options { sample: false, ..Options::default() };
    let mut observer = Observer::with_parts(&root, options, None, Box::new(BootClock)).unwrap();
    // The observer scans only regions that it has seen.
    observer.snapshot(&[own.pid]);
    let given = Arc::new(Mutex::new(Vec::new()));
    let parts = Parts {
        root,
        observer,
        costs: None,
        actuator: Box::new(Recording(given.clone())),
        veto: Box::new(|_, _| None),
        clock: Box::new(BootClock),
        dry_run: false,
        samples: false,
    };
    let mut daemon = Daemon::with_parts(Config::default(), parts).unwrap();
    let actions = one_of_each(own);
    let (done, left) = daemon.act(Duration::from_secs(1), &actions);
    assert_eq!(left, Left::default());
    for action in &actions {
        let answers: Vec<Obtained> = done
            .iter()
            .filter(|done| done.outcome.action == *action)
            .map(|done| done.outcome.obtained)
            .collect();
        assert_eq!(answers, [Obtained::Done], "{action:?}");
        // The actuator changes regions; the observer counts zeros.
        assert_eq!(given.lock().unwrap().contains(action), action.place().is_some(), "{action:?}");
    }
    assert_eq!(done.len(), actions.len());
}
