//! Tests of the benches of peers end to end, in a few MiB.

use megapage_lab::bench::{
    Access, BenchFound, Clock, Common, Idle, OfPeers, Place, Release, ReleaseOptions, Retrieval, Startup,
};
use megapage_lab::experiment::{Plan, Report, conduct};
use megapage_lab::workload::retrieval;
use megapage_units::Bytes;
use std::num::NonZeroUsize;
use std::path::PathBuf;

const SCALE: f64 = 0.002;

fn place() -> Place {
    let workload = PathBuf::from(env!("CARGO_BIN_EXE_megapage-lab-workload"));
    Place { megapage: PathBuf::from("/nonexistent/megapage"), library: workload.clone(), workload }
}

fn common(peers: &[&str]) -> Common {
    Common { warm_up: 1, peers: peers.iter().map(|name| name.to_string()).collect(), clock: Clock::Wall }
}

fn search(size: Bytes, threads: usize) -> retrieval::Options {
    let threads = NonZeroUsize::new(threads).unwrap();
    retrieval::Options { size, threads, queries: 20, seed: 1, noise: 0.75 }
}

fn access(peers: &[&str]) -> Access {
    Access { cases: Vec::new(), scale: SCALE, common: common(peers) }
}

fn idle(peers: &[&str]) -> Idle {
    Idle { scale: SCALE, common: common(peers) }
}

fn run(bench: &impl OfPeers, place: &Place, say: &mut dyn FnMut(&str)) -> anyhow::Result<Report<BenchFound>> {
    conduct(bench, &Plan::of(2), place, say)
}

/// Runs the baseline, and a peer that needs no package.
fn measures(bench: &impl OfPeers, cases: usize, phase: &str) {
    let mut lines = 0;
    let report = run(bench, &place(), &mut |_| lines += 1).unwrap();
    let name = report.head.bench;
    assert_eq!(report.found.cases.len(), cases, "{name}");
    assert_eq!(lines, 3 * 2 * cases, "{name}: a line for each run");
    for case in &report.found.cases {
        assert_eq!(case.rows.len(), 2);
        let baseline = case.row("glibc").unwrap();
        assert_eq!(baseline.samples.len(), 2, "{name}: the warm-up does not count");
        assert!(baseline.phases_ns[phase].median > 0.0, "{name}");
        assert_eq!(baseline.ratios[phase], 1.0, "{name}");
        assert!(case.rows.iter().all(|row| row.notes.is_empty()), "{:?}", case.rows);
        // The same work was done with every allocator.
        let digests: Vec<u64> =
            case.rows.iter().flat_map(|row| &row.samples).map(|sample| sample.checksum).collect();
        assert!(digests.windows(2).all(|pair| pair[0] == pair[1]), "{name}: {digests:?}");
    }
    assert!(report.gates.is_empty(), "nothing of megapage's ran");
    assert!(report.human().lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn every_bench_measures_what_it_names() {
    let peers = &["glibc-thp"];
    measures(&access(peers), 3, "access");
    let wait = ReleaseOptions { wait_ms: 20, quiet: false };
    measures(&Release { cases: Vec::new(), scale: SCALE, wait, common: common(peers) }, 3, "free");
    let search = search(Bytes::mib(4), 2);
    measures(&Retrieval { search, sizes: None, common: common(peers) }, 1, "access");
    measures(&idle(peers), 1, "process");
    measures(&Startup { scale: SCALE, common: common(peers) }, 1, "process");
}

#[test]
fn the_report_is_versioned_json() {
    let report = run(&idle(&["glibc"]), &place(), &mut |_| {}).unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&megapage_report::json("megapage.bench/1", &report)).unwrap();
    assert_eq!(value["schema"], "megapage.bench/1");
    assert_eq!(value["bench"], "idle");
    assert!(value["machine"]["memory_bytes"].as_u64().unwrap() > 0);
    assert!(value["cases"][0]["rows"][0]["samples"][1]["phases"]["compute"]["wall_ns"].as_u64().unwrap() > 0);
    for key in ["runs", "peers", "warm_up_runs", "pool", "scale", "clock", "gates"] {
        assert!(value.get(key).is_some(), "{key}");
    }
}

#[test]
fn a_failing_run_is_told_and_counts_for_nothing() {
    // A launcher that does not exist ends the bench; a workload that fails is one row.
    let error = run(&idle(&["megapage"]), &place(), &mut |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("did not start"), "{error:#}");

    let failing = Place { workload: PathBuf::from("/bin/false"), ..place() };
    let report = run(&idle(&["glibc"]), &failing, &mut |_| {}).unwrap();
    let row = report.found.cases[0].row("glibc").unwrap();
    assert_eq!((row.notes.as_slice(), row.samples.len()), (&["exit status 1".to_string()][..], 0));
    assert!(!report.is_clean());
    assert!(report.human().contains("! glibc: exit status 1"));
}

#[test]
fn what_cannot_be_run_is_refused() {
    fn refuse(bench: &impl OfPeers) -> String {
        format!("{:#}", run(bench, &place(), &mut |_| {}).unwrap_err())
    }
    let wrong_case = Access { cases: vec!["huge".into()], ..access(&["glibc"]) };
    assert_eq!(refuse(&wrong_case), "'huge' is no case of access; known: small, array, map");
    assert_eq!(
        refuse(&idle(&["megapage-1g"])),
        "megapage-1g is for access and retrieval alone, not for idle"
    );
    let search = search(Bytes::gib(16), 4096);
    let message = refuse(&Retrieval { search, sizes: None, common: common(&["glibc"]) });
    assert!(
        message.contains("of memory; ") && message.contains("the largest that fits is --size "),
        "{message}"
    );
}
