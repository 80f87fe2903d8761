//! Tests of the benches of a live machine end to end, in a few MiB, with a daemon that does
//! nothing.

use megapage_kernel::KernelRoot;
use megapage_kernel::thp::settings;
use megapage_lab::bench::Place;
use megapage_lab::experiment::{Experiment, Failure, Plan, Report, conduct};
use megapage_lab::live::{
    BloatExperiment, CostExperiment, FairExperiment, FairSample, Live, LiveFound, Measured, PromoteExperiment,
};
use megapage_testing::MemoryGroup;
use megapage_testing::{MachineLock, require_root, skip};
use megapage_units::Bytes;
use std::path::PathBuf;

/// Makes a daemon from `script`; it is gone with the first value.
fn place(script: &str) -> (tempfile::TempDir, Place) {
    let directory = tempfile::tempdir().unwrap();
    let megapage = directory.path().join("megapage");
    megapage_testing::script(&megapage, &format!("#!/bin/sh\n{script}\n"));
    let workload = PathBuf::from(env!("CARGO_BIN_EXE_megapage-lab-workload"));
    (directory, Place { megapage, library: workload.clone(), workload })
}

/// Script that runs until it is asked to stop.
const PATIENT: &str = "trap 'exit 0' TERM; while :; do sleep 0.05; done";

fn live(configurations: &[&str]) -> Live {
    let configurations = configurations.iter().map(|name| name.to_string()).collect();
    Live { configurations, scale: 0.01 }
}

/// Runs the experiment, and checks that the machine's settings are unchanged afterwards.
fn run<T: Measured, E: Experiment<Found = LiveFound<T>>>(
    experiment: &E,
    runs: u32,
    place: &Place,
) -> anyhow::Result<Report<LiveFound<T>>> {
    let root = KernelRoot::live();
    let _lock = MachineLock::take();
    let before = settings(&root).unwrap();
    let report = conduct(experiment, &Plan::of(runs), place, &mut |_| {});
    let after = settings(&root).unwrap();
    let chosen = |settings: &Option<megapage_kernel::thp::ThpSettings>| {
        settings
            .as_ref()
            .map(|settings| (settings.enabled, settings.khugepaged.map(|pace| pace.scan_sleep_ms)))
    };
    assert_eq!(chosen(&before), chosen(&after));
    report
}

/// Returns the failures, except for missing huge pages in fragmented memory.
fn failures<T: Measured>(report: &Report<LiveFound<T>>) -> Vec<&Failure> {
    let failures = report.found.found.failures().iter();
    failures.filter(|failure| failure.configuration != "trial").collect()
}

/// Runs the experiment, which must have no failure.
fn run_well<T: Measured, E: Experiment<Found = LiveFound<T>>>(
    experiment: &E,
    place: &Place,
) -> Report<LiveFound<T>> {
    let report = run(experiment, 2, place).unwrap();
    assert!(failures(&report).is_empty(), "{:?}", failures(&report));
    report
}

fn can_run() -> bool {
    if !require_root() {
        return false;
    }
    let has_thp =
        settings(&KernelRoot::live()).unwrap().is_some_and(|settings| settings.khugepaged.is_some());
    if !has_thp {
        skip("this kernel has no khugepaged");
    }
    has_thp
}

fn assert_readable<T: Measured>(report: &Report<LiveFound<T>>) {
    let text = report.human();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["bench"], report.head.bench);
    assert!(json[report.head.bench].is_object(), "{json}");
}

#[test]
fn programs_compete_under_every_kind_of_configuration() {
    if !can_run() {
        return;
    }
    let (_keep, place) = place(PATIENT);
    let report =
        run_well(&FairExperiment { live: live(&["thp-never", "thp-hard", "megapage", "ingens"]) }, &place);
    let fair = &report.found.found;
    assert_eq!(fair.programs.len(), 6);
    // Configurations that no gate compares run once.
    let runs: Vec<_> =
        fair.rows.iter().filter(|row| row.warmed).map(|row| (row.configuration, row.samples.len())).collect();
    assert_eq!(runs, [("thp-never", 2), ("thp-hard", 2), ("megapage", 2), ("ingens", 1), ("huge-before", 2)]);
    // Without any help it is huge from the start.
    let before = fair.rows.iter().find(|row| row.configuration == "huge-before").unwrap();
    let is_huge = |sample: &FairSample| {
        let huge = sample.huge_bytes.iter().zip(&fair.programs);
        huge.clone().all(|(huge, program)| (*huge * 2 > program.bytes) == program.sensitive)
    };
    assert!(!before.kernel_alone && before.samples.iter().all(is_huge), "{before:?}");
    assert_eq!(fair.rows.iter().filter(|row| !row.warmed && row.samples.len() == 1).count(), 2);
    for row in &fair.rows {
        let seconds = row.samples.iter().flat_map(|sample| &sample.finish_seconds);
        assert!(seconds.clone().all(|seconds| *seconds > 0.0), "{row:?}");
        assert!(row.sensitive_ratio.is_some() && seconds.count() == 6 * row.samples.len(), "{row:?}");
    }
    assert_eq!((report.gates.len(), fair.trials.len() + fair.failures().len()), (3, 3));
    assert_readable(&report);
}

#[test]
fn a_daemon_that_ends_is_a_failure_of_its_runs_alone() {
    if !can_run() {
        return;
    }
    let (_keep, place) = place("echo 'no such thing' >&2; exit 2");
    let report = run(&FairExperiment { live: live(&["thp-never", "megapage"]) }, 2, &place).unwrap();
    let mut failures = failures(&report);
    // This configuration comes with thp-never, and may find no free huge pages.
    failures.retain(|failure| failure.configuration != "huge-before");
    // Two rounds, and once in memory as it is.
    assert_eq!(failures.len(), 3, "{failures:?}");
    // It may be asked to end before it prints its message.
    let is_told = |why: &str| {
        let said = why.contains("Exited(2)") && why.contains("no such thing") || why.contains("Died(15)");
        said && why.contains("megapage daemon ended with ")
    };
    assert!(failures.iter().all(|failure| failure.configuration == "megapage"), "{failures:?}");
    assert!(failures.iter().all(|failure| is_told(&failure.why)), "{failures:?}");
    let fair = &report.found.found;
    assert_eq!(fair.rows[0].samples.len(), 2);
    assert!(!report.is_clean());
    assert!(report.human().contains("! megapage: megapage daemon ended"));
}

#[test]
fn an_idle_daemon_is_weighed() {
    if !can_run() {
        return;
    }
    let (_keep, place) = place(PATIENT);
    let report = run_well(&CostExperiment { live: live(&["megapage", "ingens"]) }, &place);
    let cost = &report.found.found;
    let starts: Vec<_> = cost.rows.iter().map(|row| (row.configuration, row.starts)).collect();
    assert_eq!(starts, [("megapage", 2), ("ingens", 1)]);
    assert!(cost.rows[1].slowdowns.is_empty());
    assert_eq!(cost.processes, 50);
    assert!(cost.resident_bytes >= 200 << 20);
    let row = &cost.rows[0];
    assert_eq!((row.configuration, row.slowdowns.len()), ("megapage", 2));
    assert!(row.own_share.median >= 0.0 && row.slowdowns[0].slowdown.median.is_finite(), "{row:?}");
    assert_readable(&report);
}

#[test]
fn redis_goes_through_its_phases_in_a_group_of_its_own() {
    if !can_run() {
        return;
    }
    let name = format!("megapage-test-{}", std::process::id());
    if let Err(error) = MemoryGroup::create(&KernelRoot::live(), &name, Bytes::mib(64)) {
        return skip(&format!("no memory group can be made here: {error}"));
    }
    let (_keep, place) = place(PATIENT);
    let once = BloatExperiment { cases: Vec::new(), live: live(&["thp-never"]) };
    let report = match run(&once, 1, &place) {
        Err(error) if error.to_string().starts_with("bloat needs redis") => return skip(&error.to_string()),
        report => report.unwrap(),
    };
    let bloat = &report.found.found;
    let sample = &bloat.rows[0].samples[0];
    assert_eq!(sample.ended, None);
    assert!(sample.throughput.unwrap() > 0.0 && sample.oom_kills == 0, "{sample:?}");
    let [filled, deleted, end] = sample.rss_bytes.map(Option::unwrap);
    // 16 MB of values, of which a fifth remains, and 16 MB more. The fifth may lie in all of the
    // allocator's pages, so that none goes.
    assert!(filled > 16_000_000 && end > 16_000_000 && deleted < end, "{sample:?}");
    assert!(deleted < filled + (1 << 20), "{sample:?}");
    assert!(sample.charged_bytes[0].unwrap() > 12_000_000, "{sample:?}");
    assert_eq!(sample.phases.len(), 4);
    assert!(sample.curve.len() > 10 && sample.curve.is_sorted_by(|one, other| one.0 < other.0), "{sample:?}");
    assert_eq!(bloat.charts().len(), 1);
    match &bloat.stalls {
        // In memory so fragmented that no huge page is available, the failure says so.
        None => assert_eq!(bloat.failures[0].configuration, "recovery"),
        Some(stalls) => {
            assert!(stalls.recover_gib_per_second.median > 0.0 && stalls.freed_share > 0.0, "{stalls:?}");
            // KSM's gate is absent if KSM is in use, or there is none.
            let gates = report.gates.iter().filter(|gate| !gate.demand.contains("KSM"));
            assert_eq!(gates.count(), 3);
        }
    }
    assert_readable(&report);
}

#[test]
fn what_there_is_not_is_refused() {
    let (_keep, place) = place("exit 0");
    let promote = PromoteExperiment { live: live(&["windows"]) };
    let unknown = conduct(&promote, &Plan::of(1), &place, &mut |_| {}).unwrap_err().to_string();
    assert!(unknown.starts_with("'windows' is no configuration; known: thp-never, "), "{unknown}");
    let cost = CostExperiment { live: live(&["thp-hard"]) };
    let kernel = conduct(&cost, &Plan::of(1), &place, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(kernel, "cost is about the daemon: 'thp-hard' is none of its policies");
    let fair = FairExperiment { live: live(&["thp-hard", "megapage"]) };
    let none = conduct(&fair, &Plan::of(0), &place, &mut |_| {}).unwrap_err().to_string();
    assert!(none.contains("from 1 to 100"), "{none}");
    let lines = fair.dry_run(&Plan::of(1));
    assert!(lines.contains(&"megapage daemon --policy megapage &".to_string()), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("always") && line.ends_with("enabled")), "{lines:?}");
}
