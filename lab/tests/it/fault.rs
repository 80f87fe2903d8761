//! Test of `megapage-lab fault` end to end, on one extent: it reports its measurements and restores
//! the pool. No times are judged here.

use crate::built;

use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn fault(directory: &Path, arguments: &[&str]) -> Output {
    built::experiment(directory, "fault", arguments)
}

#[test]
fn sources_are_measured_and_the_pool_is_put_back() {
    let Some(pool) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    let directory = tempfile::tempdir().unwrap();
    let output = fault(directory.path(), &["--size", "32m", "--runs", "1", "--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (report["schema"].as_str(), report["bench"].as_str()),
        (Some("megapage.bench/1"), Some("fault"))
    );
    let sources = report["sources"].as_array().unwrap();
    let names: Vec<&str> = sources.iter().map(|source| source["source"].as_str().unwrap()).collect();
    assert_eq!(names, ["thp", "hugetlb", "broker", "reused", "run-thp", "run-pool"]);
    for source in sources {
        let value = |name: &str| source["touch_ns"][name].as_f64().unwrap();
        assert!(0.0 < value("p50") && value("p50") <= value("p99") && value("p99") <= value("max"));
        // Transparent huge pages may be off, or not available.
        let may_be_plainer = ["thp", "run-thp", "run-pool"].contains(&source["source"].as_str().unwrap());
        assert!(may_be_plainer || source["huge_share"] == 1.0, "{source}");
    }
    assert_eq!(report["clearing"].as_array().unwrap().len(), 3);
    assert_eq!(report["gates"].as_array().unwrap().len(), 3);
    assert_eq!(pool.counts().persistent(), pool.former().persistent());
}

#[test]
fn the_workload_is_an_ordinary_program() {
    // A program that imports fork(2) or clone(2), also for code that never runs, gets no page of a
    // broker.
    let workload = env!("CARGO_BIN_EXE_megapage-lab-workload");
    let arguments =
        ["run", "--dry-run", "--mechanism", "preload", "--pool=/nowhere", "--", workload, "first-touch"];
    let output = Command::new(built::megapage())
        .args(arguments)
        .env("MEGAPAGE_LIBRARY", built::library())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nothing can be had of the broker") && !said.contains("imports"), "{said}");
}

#[test]
fn sizes_that_are_no_extents_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for size in ["33m", "0", "96g", "much"] {
        let output = fault(directory.path(), &["--size", size]);
        assert_eq!(output.status.code(), Some(2), "{size}");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    }
}
