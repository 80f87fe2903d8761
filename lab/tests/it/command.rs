//! Tests of `megapage-lab`: every wrong argument has its message and its exit status, and
//! experiments that need no root and little time run to their end.

use crate::built;

use megapage_testing::{assert_refused, copied};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn lab(megapage_lab: &Path, arguments: &[&str]) -> Output {
    Command::new(megapage_lab).args(arguments).output().expect("megapage-lab starts")
}

fn megapage_lab() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_megapage-lab"))
}

/// Makes a copy of the laboratory and of `megapage` that has no library beside it, with a workload
/// that does nothing.
fn laboratory(directory: &tempfile::TempDir) -> PathBuf {
    let copy = directory.path().join("megapage-lab");
    copied(megapage_lab(), &copy);
    copied(built::megapage(), directory.path().join("megapage"));
    copied("/bin/true", directory.path().join("megapage-lab-workload"));
    copy
}

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, expected) in [
        (&["speed"][..], "speed"),
        (&["fork", "--runs", "many"], "many"),
        (&["text", "huge"], "'huge' is no case of text; known: generated, cc1plus, mariadb"),
        (&["observe", "speed"], "'speed' is no case of observe; known: exact, "),
        (&["observe", "--runs", "1"], "1 runs: from 2 to 1000 are possible"),
        (&["observe", "--scale", "2"], "a scale is a number above 0, at most 1"),
        (&["observe", "--tracker", "eyes"], "the trackers are bpf, idle-pages, "),
        (&["observe", "advice", "--programs", "quake"], "'quake' is no program of advice; known: "),
        (&["plan", "speed"], "'speed' is no case of plan; known: plan, cost"),
        (&["plan", "--hosts", "3"], "3 is not in 4..=60"),
        (&["promote", "--runs", "0"], "0 runs: from 1 to 100 are possible"),
        (&["bloat", "--scale", "1.5"], "a scale is a number above 0, at most 1"),
        (&["restart", "stops", "--alone"], "'stops' is no case of restart; known: starts, sizes, index"),
        (&["restart", "--size", "1m"], "64 MiB to 64 GiB are possible"),
        (&["malloc", "--install", "--alone"], "--alone"),
        (&["malloc", "--runs", "101"], "101 runs: from 1 to 100 are possible"),
        (&["fork", "php"], "'php' is no case of fork; known: native, jvm, concurrent"),
        (&["fork", "--runs", "0"], "0 runs: from 1 to 100 are possible"),
        (&["fork", "--launches", "1001"], "1001 launches: from 1 to 1000 are possible"),
        (&["fork", "--slice", "0"], "--slice 0: 10 to 10000 ms are possible"),
        (&["fork", "--concurrent-sizes", "3m", "--dry-run"], "a heap of 3 MiB: it is 2 MiB to 16 GiB"),
        (&["fork", "--sizes", "3m", "--dry-run"], "a heap of 3 MiB: it is 2 MiB to 16 GiB in whole 2 MiB"),
        (&["fork", "--jvm-sizes", "1g,64g", "--dry-run"], "the JVM's heap of 64 GiB: it is "),
        (&["fork", "--sizes", "128x"], "unknown unit"),
        (&["snapshot", "--size", "17g", "--dry-run"], "values of 17 GiB: 16 MiB to 16 GiB are possible"),
        (&["snapshot", "--configurations", "never", "--dry-run"], "'never' is no configuration of snapshot"),
        (&["promote", "--configurations", "windows", "--dry-run"], "'windows' is no configuration"),
        (&["cost", "--configurations", "thp-hard", "--dry-run"], "'thp-hard' is none of its policies"),
        (&["text", "--runs", "0"], "0 runs: from 1 to 100 are possible"),
        (&["text", "--scale", "0"], "a scale is a number above 0"),
    ] {
        assert_refused(&lab(megapage_lab(), arguments), 2, expected);
    }
}

#[test]
fn what_is_missing_is_named_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage-lab");
    copied(megapage_lab(), &copy);
    let output = lab(&copy, &["text", "generated"]);
    assert_refused(&output, 2, "/megapage is missing; 'make lab' builds it");
    copied("/bin/true", directory.path().join("megapage"));
    let output = lab(&copy, &["text", "generated"]);
    assert_refused(&output, 2, "/megapage-lab-workload is missing; 'make lab' builds it");
}

#[test]
fn a_dry_run_shows_how_the_machine_would_be_set() {
    let output = lab(megapage_lab(), &["promote", "--configurations", "thp-always,ingens", "--dry-run"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((lines[0], lines[2]), ("# thp-always", "# ingens"), "{shown}");
    assert!(lines[1].starts_with("echo always > ") && lines[1].ends_with("/enabled"), "{shown}");
    assert!(lines.contains(&"megapage daemon --policy ingens &"), "{shown}");
    let output =
        lab(megapage_lab(), &["restart", "starts", "index", "--size", "1g", "--index", "256m", "--dry-run"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.starts_with("megapage pool set 2m=+576\n") && shown.contains("\nmount -t hugetlbfs "),
        "{shown}"
    );
}

#[test]
fn each_experiment_has_rounds_of_its_own() {
    for (arguments, expected) in [
        (&["interference", "--dry-run"][..], "# 9 rounds"),
        (&["interference", "--runs", "2", "--dry-run"], "# 2 rounds"),
        (&["trial", "--dry-run"], "# 1 rounds"),
        (&["observe", "--dry-run"], "# exact, 5 rounds"),
    ] {
        let output = lab(megapage_lab(), arguments);
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(shown.starts_with(expected), "{arguments:?}: {shown}");
    }
}

#[test]
fn code_is_measured_on_pages_of_each_kind() {
    // It changes the pool of 2 MiB pages, and restores it.
    let _lock = megapage_testing::MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let copy = laboratory(&directory);
    let arguments = ["text", "generated", "--runs", "1", "--scale", "0.001", "--json"];
    let output = lab(&copy, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "megapage.bench/1");
    for way in ["none", "file", "thp"] {
        let row = report["rows"].as_array().unwrap().iter().find(|row| row["way"] == way).unwrap();
        for hot in ["1024", "2048", "4096", "8192"] {
            assert!(row["ns"][hot][0].as_f64().unwrap() > 0.0, "{row:#}");
            assert!(row["gains"][hot]["median"].as_f64().unwrap() > 0.0, "{row:#}");
        }
        // The copy has no library beside it: the report says so.
        let failure = row["failures"][0].as_str().unwrap_or_default();
        assert_eq!(way == "thp", failure.contains("libmegapage_text.so is not installed"), "{row:#}");
    }
    let absent = report["absent"].as_array().unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(absent.len() + rows.len(), 6, "each way has run or says why not: {report:#}");
}

#[test]
fn real_programs_are_measured_where_they_are_installed() {
    // It changes the pool of 2 MiB pages, and restores it.
    let _lock = megapage_testing::MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let copy = laboratory(&directory);
    let output = lab(&copy, &["text", "node", "--runs", "1", "--scale", "0.002", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let absent: Vec<&str> =
        report["absent"].as_array().unwrap().iter().filter_map(|it| it["way"].as_str()).collect();
    if absent.contains(&"node") {
        return megapage_testing::skip("needs node");
    }
    for way in ["none", "file", "thp", "own"] {
        let row = report["rows"].as_array().unwrap().iter().find(|row| row["way"] == way).unwrap();
        assert!(row["ns"]["cpu"][0].as_f64().unwrap() > 0.0, "{row:#}");
    }
    // Two rounds are no interval, and nothing is claimed.
    let findings = report["findings"].as_array().unwrap();
    let ways: Vec<&str> = findings.iter().map(|finding| finding["way"].as_str().unwrap()).collect();
    assert!(["again", "file", "thp", "own"].iter().all(|way| ways.contains(way)), "{ways:?}");
    assert!(findings.iter().all(|finding| finding["shown"] == "too-few-rounds"), "{findings:#?}");
    assert!(findings.iter().all(|finding| finding["to_again"].is_null() == (finding["way"] == "again")));
}

/// Returns the laboratory's program beside a `megapage` and a workload program that are not its
/// own.
fn beside(directory: &Path, workload: &str) -> PathBuf {
    let copy = directory.join("megapage-lab");
    copied(env!("CARGO_BIN_EXE_megapage-lab"), &copy);
    copied("/bin/true", directory.join("megapage"));
    copied(workload, directory.join("megapage-lab-workload"));
    copy
}

#[test]
fn wrong_arguments_of_the_benches_of_peers_are_refused() {
    for (arguments, expected) in [
        (&["access", "--runs", "0"][..], "0 runs: from 1 to 1000 are possible"),
        (&["access", "--runs", "many"], "many"),
        (&["access", "--warm-up", "101"], "101 is not in"),
        (&["access", "--scale", "0"], "a scale is a number above 0, at most 4"),
        (&["access", "--scale", "-1"], "-1"),
        (&["access", "--size", "8g"], "--size"),
        (&["idle", "--clock", "sun"], "sun"),
        (&["release", "--wait", "60001"], "60001 is not in"),
        (&["retrieval", "--size", "1023k"], "1 MiB is the least"),
        (&["retrieval", "--size", "8x"], "unknown unit"),
        (&["retrieval", "--size", "99999999999g"], "more than 2^64"),
        (&["retrieval", "--noise", "1.5"], "a share is a number from 0 to 1"),
        (&["retrieval", "--threads", "0"], "0"),
        (&["retrieval", "--queries", "0"], "0 is not in"),
        (&["retrieval", "--seed", "-3"], "-3"),
        (&["retrieval", "--sizes", "1m,2q"], "unknown unit"),
        (&["retrieval", "--sizes", "1k"], "1 MiB is the least"),
        (&["retrieval", "--sizes", "1m", "--size", "1m"], "cannot be used with"),
    ] {
        assert_refused(&lab(megapage_lab(), arguments), 2, expected);
    }
}

#[test]
fn what_a_bench_of_peers_does_not_know_is_named_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let copy = beside(directory.path(), "/bin/true");
    let unwritable = directory.path().join("no/such/result.json");
    let unwritable = unwritable.to_str().unwrap();
    for (arguments, expected) in [
        (&["access", "huge"][..], "megapage-lab: 'huge' is no case of access; known: small, array, map"),
        (&["release", "small"], "'small' is no case of release; known: random, runs, big"),
        (&["access", "--peers", "glibc,dlmalloc"], "'dlmalloc' is no peer; the peers are glibc, "),
        (&["idle", "--peers", "glibc", "--save", unwritable], "result.json: No such file or directory"),
        (&["retrieval", "--size", "900t", "--peers", "glibc"], "of which "),
        (&["retrieval", "--size", "900t", "--peers", "glibc"], "stay free: the largest that fits is --size "),
        (&["retrieval", "--threads", "999999", "--peers", "glibc"], "none fits: use fewer --threads"),
        (&["retrieval", "--sizes", "1m", "--runs", "5"], "5 runs: from 6 to 1000 are possible"),
        (&["retrieval", "--sizes", "1m", "--runs", "6", "--peers", "glibc"], "leave --peers out"),
        (&["retrieval", "--sizes", "1m,900t", "--runs", "6"], "stay free: the largest that fits is --size "),
    ] {
        assert_refused(&lab(&copy, arguments), 2, expected);
    }
}

#[test]
fn a_failed_run_is_a_finding_for_check_alone() {
    let directory = tempfile::tempdir().unwrap();
    let copy = beside(directory.path(), "/bin/false");
    let arguments = ["idle", "--peers", "glibc", "--runs", "1", "--warm-up", "0"];
    let plain = lab(&copy, &arguments);
    assert_eq!(plain.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&plain.stdout).contains("! glibc: exit status 1"));
    let checked = lab(&copy, &[&arguments[..], &["--check", "--json"]].concat());
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stdout).starts_with("{\n  \"schema\": \"megapage.bench/1\""));
}
