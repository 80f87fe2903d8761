//! Tests with synthetic passes, and of the reports on them.

use super::*;
use crate::Times;
use megapage_decide::{Outcome, Reason};
use megapage_snapshot::{BackingBytes, Machine, Process, Snapshot};
use megapage_units::{Bytes, HugePage, PageSize, Pid};
use std::sync::Arc;

pub fn id(pid: i32) -> ProcessId {
    ProcessId { pid: Pid(pid), start_ticks: 100, start_stack: 1 }
}

fn process(pid: i32, name: &str) -> Process {
    let backing =
        BackingBytes { thp: Bytes::mib(pid as u64 * 2), base: Bytes::mib(10), ..BackingBytes::default() };
    Process {
        rss: backing.total(),
        rss_anonymous: backing.total(),
        backing,
        ..Process::without_memory(id(pid), name)
    }
}

/// Returns a pass that did nothing, over these processes; each has as many huge pages as its pid
/// says.
pub fn pass(number: u64, processes: &[(i32, &str)]) -> Pass {
    Pass {
        number,
        at: Duration::from_secs(number),
        policy: "megapage",
        dry_run: false,
        snapshot: Arc::new(Snapshot {
            taken: Duration::from_secs(number),
            machine: Machine::default(),
            sampling: None,
            processes: processes.iter().map(|(pid, name)| process(*pid, name)).collect(),
            missed: Vec::new(),
        }),
        done: Vec::new(),
        left: 3,
        backed_off: 0,
        executor: None,
        costs: None,
        short: false,
        times: Times {
            observe: Duration::from_millis(4),
            decide: Duration::from_micros(200),
            act: Duration::from_millis(60),
            cpu: Duration::from_millis(8),
        },
        huge: Bytes::mib(100),
        watched: processes.len(),
        skipped: 1,
    }
}

/// Returns a promotion that was obtained.
pub fn promoted(pid: i32, region: u64) -> Done {
    let action = Action::Promote {
        process: id(pid),
        region: HugePage::nth(region),
        size: PageSize::HUGE_2M,
        reason: Reason::Gain,
    };
    Done {
        outcome: Outcome { action, obtained: Obtained::Done },
        promoted: Bytes::mib(2),
        freed: Bytes::ZERO,
        took: Duration::from_millis(2),
        why: None,
    }
}

/// Returns a recovery that was not obtained.
pub fn refused(pid: i32, region: u64) -> Done {
    let action = Action::Recover { process: id(pid), region: HugePage::nth(region), reason: Reason::Bloat };
    Done {
        outcome: Outcome { action, obtained: Obtained::Busy },
        promoted: Bytes::ZERO,
        freed: Bytes::ZERO,
        took: Duration::from_millis(20),
        why: Some("EAGAIN\x07: pinned".into()),
    }
}

pub fn telemetry(shown: usize, kept: usize) -> Telemetry {
    Telemetry::new(Duration::ZERO, shown, kept)
}

const NOW: Duration = Duration::from_secs(1000);

#[test]
fn sums_are_of_all_passes_and_shown_processes_are_the_heaviest() {
    let mut telemetry = telemetry(2, 10);
    let mut first = pass(1, &[(5, "a"), (6, "b"), (4000, "big")]);
    first.done = vec![promoted(5, 1), promoted(5, 2), refused(6, 3)];
    telemetry.note(&first, NOW);
    let mut second = pass(2, &[(5, "a"), (6, "b")]);
    second.done = (0..40).map(|region| promoted(5, region)).collect();
    telemetry.note(&second, NOW);
    let status = telemetry.status(NOW + Duration::from_secs(1), Duration::from_secs(3), Some(7));
    assert_eq!((status.passes, status.policy.as_str(), status.resident_bytes), (2, "megapage", Some(7)));
    let expected = Totals { actions: 43, obtained: 42, promoted_bytes: 42 << 21, freed_bytes: 0 };
    assert_eq!(status.totals, expected);
    let last = status.last_pass.unwrap();
    assert_eq!((last.number, last.ago_seconds, last.actions, last.left), (2, 1.0, 40, 3));
    let shown: Vec<_> = status.processes.iter().map(|one| (one.pid, one.done.actions)).collect();
    assert_eq!(shown, [(5, 42), (6, 1)], "one that has gone is forgotten, its actions are not");
    let first_shown = &status.processes[0];
    assert_eq!((first_shown.huge_bytes, first_shown.resident_bytes), (10 << 20, 20 << 20));
}

#[test]
fn the_last_decisions_are_kept_and_no_more() {
    let mut telemetry = telemetry(2, 4);
    assert_eq!(telemetry.decisions(0, 9, true, NOW).decisions.len(), 0);
    let mut one = pass(1, &[(5, "na\u{202e}me")]);
    one.done = vec![promoted(5, 1), refused(5, 2), promoted(5, 3)];
    telemetry.note(&one, NOW);
    let all = telemetry.decisions(0, usize::MAX, true, NOW);
    let numbers = |reported: &megapage_snapshot::daemon::Decisions| {
        reported.decisions.iter().map(|one| one.number).collect::<Vec<_>>()
    };
    assert_eq!((all.newest, all.lost, numbers(&all)), (3, 0, vec![1, 2, 3]));
    let refused = &all.decisions[1];
    assert_eq!((refused.process.as_str(), refused.pid), ("na?me", Some(5)));
    assert_eq!((refused.action.as_str(), refused.reason.as_str()), ("recover", "bloat"));
    assert_eq!((refused.obtained.as_str(), refused.why.as_deref()), ("busy", Some("EAGAIN?: pinned")));
    assert_eq!((refused.region.as_deref(), refused.ago_seconds), (Some("400000"), 999.0));
    assert_eq!(telemetry.decisions(0, 9, false, NOW).decisions[1].region, None, "not for all clients");
    telemetry.note(&one, NOW);
    let after = telemetry.decisions(1, usize::MAX, true, NOW);
    assert_eq!((after.newest, after.lost, numbers(&after)), (6, 1, vec![3, 4, 5, 6]));
    assert_eq!(numbers(&telemetry.decisions(0, 1, true, NOW)), [6]);
    assert_eq!(numbers(&telemetry.decisions(6, 9, true, NOW)), [0; 0]);
    assert_eq!(numbers(&telemetry.decisions(u64::MAX, 9, true, NOW)), [0; 0]);
}

#[test]
fn names_of_kinds_and_results_are_those_of_json() {
    for (done, text) in [(promoted(1, 1), "promote"), (refused(1, 1), "recover")] {
        let json = serde_json::to_value(&done.outcome).unwrap();
        assert_eq!(json["action"]["action"], kind(&done.outcome.action));
        assert_eq!(
            (kind(&done.outcome.action), &json["obtained"]),
            (text, &done.outcome.obtained.name().into())
        );
    }
    for obtained in Obtained::ALL {
        assert_eq!(serde_json::to_value(obtained).unwrap(), obtained.name());
    }
    for reason in Reason::ALL {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.name());
    }
}

#[test]
fn a_great_many_processes_are_bounded() {
    let mut telemetry = telemetry(3, 4);
    let many: Vec<(i32, &str)> = (1..6000).map(|pid| (pid, "x")).collect();
    telemetry.note(&pass(1, &many), NOW);
    assert_eq!(telemetry.processes.len(), MOST_PROCESSES);
    assert_eq!(telemetry.heaviest().len(), 3);
    telemetry.note(&pass(2, &[(1, "x")]), NOW);
    assert_eq!(telemetry.processes.len(), 1);
}
