//! Tests of the experiments on persistent memory end to end, in a few MiB.

use megapage_lab::bench::Place;
use megapage_lab::experiment::{Plan, conduct};
use megapage_lab::persistent::RestartExperiment;
use megapage_testing::PoolGuard;
use megapage_units::{Bytes, PageSize};
use std::path::PathBuf;

fn place() -> Place {
    let workload = PathBuf::from(env!("CARGO_BIN_EXE_megapage-lab-workload"));
    Place { megapage: PathBuf::from("/nonexistent/megapage"), library: workload.clone(), workload }
}

fn restart(cases: &[&str]) -> RestartExperiment {
    let cases = cases.iter().map(|name| name.to_string()).collect();
    RestartExperiment {
        cases,
        size: Bytes::mib(64),
        largest: Bytes::mib(64),
        index: Bytes::mib(1),
        alone: true,
        peers: vec!["glibc-thp".into()],
    }
}

#[test]
fn memory_and_an_index_in_it_are_found_again() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    // The result depends on other processes that change the pool at that moment, or have just used
    // the memory.
    let found = (0..3).find_map(|_| match conduct(&restart(&[]), &Plan::of(1), &place(), &mut |_| {}) {
        Ok(report) => Some(report),
        Err(error) => {
            eprintln!("{error:#}");
            None
        }
    });
    let report = found.expect("none of three runs ended well");
    let found = &report.found.restart;
    for layout in ["single file", "file per page"] {
        let ours: Vec<&str> = found
            .starts
            .iter()
            .filter(|row| row.side == "megapage" && row.layout == layout)
            .map(|row| row.start)
            .collect();
        assert!(ours.starts_with(&["cold", "first", "second"]), "{ours:?}");
    }
    assert!(found.starts.iter().all(|row| row.wall_ms.median > 0.0));
    let sizes = found.sizes.as_ref().unwrap();
    let measured: Vec<_> = sizes.starts.iter().map(|row| (row.size_bytes >> 20, row.start)).collect();
    let kinds = ["cold", "second", "populated"];
    assert_eq!(measured, [4, 16, 64].map(|size| kinds.map(|kind| (size, kind))).concat());
    assert!(sizes.starts.iter().all(|row| row.open_ms.is_some_and(|open| open.min > 0.0)));
    assert_eq!(sizes.pays.len(), 2, "second and populated");
    assert_eq!(report.gates.iter().filter(|gate| gate.case == "sizes").count(), 2);
    let index = found.index.as_ref().unwrap();
    assert!(index.same_answers && index.recall >= 0.99, "{index:?}");
    let built: Vec<&str> =
        found.rebuilds.iter().filter(|row| row.built_ms.is_some()).map(|row| row.peer).collect();
    assert_eq!(built, ["glibc", "glibc-thp"], "{:?}", found.rebuilds);
    assert!(report.gates.iter().any(|gate| gate.demand == "the same answers" && gate.holds));
    assert!(report.human().lines().all(|line| line.chars().count() <= 100));
    let json = megapage_report::json("megapage.bench/1", &report);
    assert!(json.contains("\"bench\": \"restart\"") && json.contains("\"restart\": {"), "{json}");
}

#[test]
fn what_cannot_be_run_is_refused() {
    let error = conduct(&restart(&["stops"]), &Plan::of(1), &place(), &mut |_| {}).unwrap_err().to_string();
    assert_eq!(error, "'stops' is no case of restart; known: starts, sizes, index");
}
