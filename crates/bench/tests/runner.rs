//! The runner end to end, in a few MiB.

use megapage_bench::run::{self, Bench, Clock, Options, Place, ReleaseOptions};
use megapage_bench::workload::retrieval;
use megapage_units::Bytes;
use std::num::NonZeroUsize;
use std::path::PathBuf;

fn place() -> Place {
    let workload = PathBuf::from(env!("CARGO_BIN_EXE_megapage-workload"));
    Place { megapage: PathBuf::from("/nonexistent/megapage"), library: workload.clone(), workload }
}

fn options(bench: Bench, peers: &[&str]) -> Options {
    Options {
        bench,
        cases: Vec::new(),
        peers: peers.iter().map(|name| name.to_string()).collect(),
        runs: 2,
        warm_up: 1,
        scale: 0.002,
        clock: Clock::Wall,
    }
}

#[test]
fn every_bench_measures_what_it_names() {
    let search = retrieval::Options {
        size: Bytes::mib(4),
        threads: NonZeroUsize::new(2).unwrap(),
        queries: 20,
        seed: 1,
        noise: 0.75,
    };
    for (bench, cases, phase) in [
        (Bench::Access, 3, "access"),
        (Bench::Release(ReleaseOptions { wait_ms: 20, quiet: false }), 3, "free"),
        (Bench::Retrieval(search), 1, "access"),
        (Bench::Idle, 1, "process"),
        (Bench::Startup, 1, "process"),
    ] {
        let mut lines = 0;
        // The baseline alone, and a peer that needs no package.
        let report = run::run(&options(bench, &["glibc-thp"]), &place(), &mut |_| lines += 1).unwrap();
        assert_eq!(report.cases.len(), cases, "{bench:?}");
        assert_eq!(lines, 3 * 2 * cases, "{bench:?}: a line for each run");
        for case in &report.cases {
            assert_eq!(case.rows.len(), 2);
            let baseline = case.row("glibc").unwrap();
            assert_eq!(baseline.samples.len(), 2, "{bench:?}: the warm-up does not count");
            assert!(baseline.phases_ns[phase].median > 0.0, "{bench:?}");
            assert_eq!(baseline.ratios[phase], 1.0, "{bench:?}");
            assert!(case.rows.iter().all(|row| row.notes.is_empty()), "{:?}", case.rows);
            // The same work was done, whatever allocated.
            let digests: Vec<u64> =
                case.rows.iter().flat_map(|row| &row.samples).map(|sample| sample.checksum).collect();
            assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{bench:?}: {digests:?}");
        }
        assert!(report.gates.is_empty(), "nothing of megapage's ran");
        assert!(run::human(&report).lines().all(|line| line.chars().count() <= 100));
    }
}

#[test]
fn the_report_is_versioned_json() {
    let report = run::run(&options(Bench::Idle, &["glibc"]), &place(), &mut |_| {}).unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&megapage_report::json("megapage.bench/1", &report)).unwrap();
    assert_eq!(value["schema"], "megapage.bench/1");
    assert_eq!(value["bench"], "idle");
    assert!(value["machine"]["memory_bytes"].as_u64().unwrap() > 0);
    assert!(value["cases"][0]["rows"][0]["samples"][1]["phases"]["compute"]["wall_ns"].as_u64().unwrap() > 0);
}

#[test]
fn a_failing_run_is_told_and_counts_for_nothing() {
    // A launcher that does not exist ends the bench; a workload that fails is one row.
    let error = run::run(&options(Bench::Idle, &["megapage"]), &place(), &mut |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("did not start"), "{error:#}");

    let failing = Place { workload: PathBuf::from("/bin/false"), ..place() };
    let report = run::run(&options(Bench::Idle, &["glibc"]), &failing, &mut |_| {}).unwrap();
    let row = report.cases[0].row("glibc").unwrap();
    assert_eq!((row.notes.as_slice(), row.samples.len()), (&["exit status 1".to_string()][..], 0));
    assert!(!report.is_clean());
    assert!(run::human(&report).contains("! glibc: exit status 1"));
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refuse = |options: Options| format!("{:#}", run::run(&options, &place(), &mut |_| {}).unwrap_err());
    let mut wrong_case = options(Bench::Access, &["glibc"]);
    wrong_case.cases = vec!["huge".into()];
    assert_eq!(refuse(wrong_case), "'huge' is no case of bench access; its cases are small, array, map");
    assert_eq!(
        refuse(options(Bench::Idle, &["megapage-1g"])),
        "megapage-1g is for bench access and retrieval alone, not for idle"
    );
    let too_large = retrieval::Options {
        size: Bytes::gib(16),
        threads: NonZeroUsize::new(4096).unwrap(),
        queries: 1,
        seed: 1,
        noise: 0.5,
    };
    let message = refuse(options(Bench::Retrieval(too_large), &["glibc"]));
    assert!(
        message.contains("of memory; ") && message.contains("the largest that fits is --size "),
        "{message}"
    );
}
