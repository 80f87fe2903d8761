//! The bench of forks end to end, in a few MiB.

use megapage_lab::bench::Place;
use megapage_lab::experiment::{Experiment, Plan, Report, conduct};
use megapage_lab::fork::{Fork, ForkFound};
use megapage_lab::workload::{concurrent_forks, fork::Found};
use megapage_testing::{MachineLock, is_root, skip};
use megapage_units::Bytes;
use std::path::PathBuf;
use std::process::Command;

fn workload() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_megapage-lab-workload"))
}

fn place() -> Place {
    Place { megapage: PathBuf::from("/nonexistent/megapage"), library: workload(), workload: workload() }
}

fn options(case: &str) -> Fork {
    Fork {
        cases: vec![case.into()],
        sizes: vec![Bytes::mib(4), Bytes::mib(8)],
        jvm_sizes: vec![Bytes::mib(16)],
        launches: 2,
        concurrent_sizes: vec![Bytes::mib(4)],
        slice: 10,
    }
}

/// Runs the experiment, which sizes the pool and restores it.
fn run(fork: &Fork, runs: u32, lines: &mut usize) -> Report<ForkFound> {
    let _lock = MachineLock::take();
    conduct(fork, &Plan::of(runs), &place(), &mut |_| *lines += 1).unwrap()
}

/// Runs the workload in a separate process, in which no other thread forks or allocates.
fn one(pages: &str) -> Found {
    let arguments = ["fork", pages, "--size", "64m", "--launches", "2", "--writes", "300"];
    let output = Command::new(workload()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_child_shares_base_pages_until_they_are_written() {
    let found = one("base");
    assert_eq!((found.heap_bytes, found.huge_share), (64 << 20, 0.0));
    // 32 tables of 512 entries map 64 MiB, on both sides.
    assert!(found.page_tables_bytes.min(found.child_page_tables_bytes) >= 128 << 10, "{found:?}");
    assert!(found.launches.contains_key("fork") && found.launches.contains_key("posix_spawn"));
    for times in found.launches.values() {
        assert_eq!((times.call_ns.len(), times.whole_ns.len()), (2, 2), "{found:?}");
        assert!(times.call_ns.iter().zip(&times.whole_ns).all(|(call, whole)| call <= whole), "{found:?}");
    }
    let after = found.after;
    assert_eq!((after.writes, after.huge_after_bytes), (300, 0));
    assert!(after.p50_ns <= after.p99_ns && after.p99_ns <= after.max_ns && after.max_ns <= after.total_ns);
    assert!(after.copied_bytes > 0 && after.copied_bytes < 64 << 20, "{after:?}");
}

#[test]
fn what_a_child_does_not_get_is_not_copied() {
    let found = one("dontfork");
    assert_eq!(found.after.copied_bytes, 0, "{found:?}");
    assert!(found.child_page_tables_bytes < found.page_tables_bytes, "{found:?}");
}

#[test]
fn threads_start_children_at_the_same_time() {
    let arguments = ["concurrent-forks", "base", "--size", "4m", "--threads", "1,3", "--slice", "20"];
    let output = Command::new(workload()).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: concurrent_forks::Found = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((found.heap_bytes, found.huge_share), (4 << 20, 0.0));
    let threads: Vec<u32> = found.by_threads.iter().map(|one| one.threads).collect();
    assert_eq!(threads, [1, 3]);
    for one in &found.by_threads {
        assert!(one.whole_ns.len() >= one.threads as usize && one.elapsed_ns >= 20_000_000, "{one:?}");
        // A thread starts one child after the other: their times fit into those of the threads.
        let sum: u64 = one.whole_ns.iter().sum();
        assert!(sum <= u64::from(one.threads) * one.elapsed_ns, "{one:?}");
    }
    let output =
        Command::new(workload()).args(["concurrent-forks", "base", "--threads", "0"]).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[test]
fn every_kind_of_pages_has_its_row() {
    let mut lines = 0;
    let report = run(&options("native"), 2, &mut lines);
    assert_eq!((report.found.native.len(), lines), (10, 20));
    assert!(report.found.jvm.is_none() && report.found.concurrent.is_empty() && report.gates.is_empty());
    for row in &report.found.native {
        if row.pages.starts_with("hugetlb") {
            // If the pool is not available, the notes say so.
            if let Some(share) = row.huge_share {
                assert_eq!(share.min, 1.0, "{row:?}");
            } else {
                assert!(!row.notes.is_empty(), "{row:?}");
                skip(&row.notes.join("; "));
                continue;
            }
        }
        assert!(row.whole["fork"].median_ns.median >= row.call["fork"].median_ns.median, "{row:?}");
        assert!(row.after.as_ref().is_some_and(|after| after["writes"].median > 0.0), "{row:?}");
    }
    let shared = report.found.native.iter().find(|row| row.pages == "hugetlb-shared").unwrap();
    assert!(shared.after.as_ref().is_none_or(|after| after["copied_bytes"].max == 0.0), "{shared:?}");
    let text = report.human();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["bench"], &json["native"][0]["pages"]), (&"fork".into(), &"base".into()));
}

#[test]
fn a_jvm_starts_children_in_every_way() {
    let mut lines = 0;
    let report = run(&options("jvm"), 1, &mut lines);
    assert!(report.found.native.is_empty());
    let jvm = report.found.jvm.as_ref().unwrap();
    if let Some(why) = &jvm.absent {
        return skip(why);
    }
    let users = if is_root() { 2 } else { 1 };
    assert_eq!((jvm.rows.len(), lines), (users * 9, users * 9));
    for row in jvm.rows.iter().filter(|row| row.pages != "large") {
        // The ordinary user may have no access to files in the directory for temporary files.
        if row.user == "nobody" && row.launch.is_none() {
            assert!(!row.notes.is_empty(), "{row:?}");
            skip(&row.notes.join("; "));
            continue;
        }
        assert_eq!(row.notes, Vec::<String>::new(), "{row:?}");
        assert!(row.launch.as_ref().unwrap().median_ns.median > 0.0, "{row:?}");
    }
    // A pool that was short leaves a note; otherwise large pages are most of the heap.
    for row in jvm.rows.iter().filter(|row| row.pages == "large" && row.notes.is_empty()) {
        assert!(row.huge_share.unwrap().min > 0.5, "{row:?}");
    }
    let text = report.human();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn every_kind_of_pages_has_its_threads() {
    let mut lines = 0;
    let report = run(&options("concurrent"), 2, &mut lines);
    assert_eq!((report.found.concurrent.len(), lines), (5, 10));
    assert!(report.found.jvm.is_none() && report.found.native.is_empty() && report.gates.is_empty());
    for row in &report.found.concurrent {
        if row.by_threads.is_empty() {
            // If the pool is not available, the notes say so.
            assert!(row.pages.starts_with("hugetlb") && !row.notes.is_empty(), "{row:?}");
            skip(&row.notes.join("; "));
            continue;
        }
        let threads: Vec<u32> = row.by_threads.iter().map(|one| one.threads).collect();
        assert_eq!(threads, [1, 2, 4, 8], "{row:?}");
        assert!(row.by_threads.iter().all(|one| one.children_per_second.min > 0.0), "{row:?}");
        let huge = if row.pages.starts_with("hugetlb") { 1.0 } else { 0.0 };
        assert!(row.pages == "thp" || row.huge_share.is_some_and(|share| share.min == huge), "{row:?}");
    }
    let text = report.human();
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.contains("threads that start children at the same time for 10 ms"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["concurrent"][0]["by_threads"][3]["threads"], 8);
}

#[test]
fn what_cannot_be_run_is_refused() {
    let refuse = |fork: Fork, runs| {
        format!("{:#}", conduct(&fork, &Plan::of(runs), &place(), &mut |_| {}).unwrap_err())
    };
    assert_eq!(refuse(options("php"), 1), "'php' is no case of fork; known: native, jvm, concurrent");
    assert!(refuse(options("native"), 0).contains("from 1 to 100"));
    assert!(refuse(Fork { launches: 0, ..options("native") }, 1).contains("from 1 to 1000"));
    let odd = refuse(Fork { sizes: vec![Bytes::mib(3)], ..options("native") }, 1);
    assert!(odd.contains("in whole 2 MiB"), "{odd}");
    let slice = refuse(Fork { slice: 9, ..options("concurrent") }, 1);
    assert!(slice.contains("10 to 10000 ms"), "{slice}");
    let odd = refuse(Fork { concurrent_sizes: vec![Bytes::mib(3)], ..options("concurrent") }, 1);
    assert!(odd.contains("in whole 2 MiB"), "{odd}");
    let threads = options("concurrent").dry_run(&Plan::of(1));
    assert!(threads.iter().any(|line| line.ends_with("--threads 1,2,4,8 --slice 10")), "{threads:?}");
    assert!(threads.contains(&"megapage pool set 2MB:+2".to_string()), "{threads:?}");
    let lines = options("native").dry_run(&Plan::of(1));
    assert!(lines.contains(&"megapage pool set 2MB:+8".to_string()), "{lines:?}");
    let jvm = options("jvm").dry_run(&Plan::of(1));
    assert!(jvm.iter().any(|line| line.contains("java") && line.contains("+UseLargePages")), "{jvm:?}");
}
