//! `megapage bench`: every wrong argument has its message and its exit status.

use std::path::Path;
use std::process::{Command, Output};

fn bench(megapage: &Path, arguments: &[&str]) -> Output {
    Command::new(megapage).arg("bench").args(arguments).output().expect("megapage starts")
}

/// The exit status is 2, nothing is on standard output, and standard error says `expected`, without a backtrace.
fn assert_refused(output: &Output, expected: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(output.stdout.is_empty());
    assert!(said.contains(expected), "expected '{expected}' in: {said}");
    assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "{said}");
}

fn megapage() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_megapage"))
}

/// Copies a program by another process: were the file open here, what a test beside this one starts could hold it open,
/// too, and a file that is open for writing cannot be executed (ETXTBSY).
fn copied(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, expected) in [
        (&["speed"][..], "speed"),
        (&["access", "--runs", "0"], "0 is not in 1..=1000"),
        (&["access", "--runs", "many"], "many"),
        (&["access", "--warm-up", "101"], "101 is not in"),
        (&["observe", "speed"], "'speed' is no case of bench observe; its cases are "),
        (&["observe", "--runs", "1"], "1 is not in 2..=1000"),
        (&["observe", "--scale", "2"], "a scale is a number above 0, at most 1"),
        (&["observe", "--tracker", "eyes"], "the trackers are bpf, idle-pages, "),
        (&["observe", "advice", "--programs", "quake"], "'quake' is no program of this bench"),
        (&["access", "--scale", "0"], "a scale is a number above 0, at most 4"),
        (&["access", "--scale", "-1"], "-1"),
        (&["access", "--size", "8g"], "--size"),
        (&["idle", "--clock", "sun"], "sun"),
        (&["release", "--wait", "60001"], "60001 is not in"),
        (&["promote", "--runs", "0"], "0 is not in 1..=100"),
        (&["bloat", "--scale", "1.5"], "a scale is a number above 0, at most 1"),
        (&["fair", "--install"], "--install"),
        (&["restart", "stops", "--alone"], "bench restart has no case 'stops'; the cases are starts, index"),
        (&["restart", "--size", "1m"], "memory is 64m to 64g"),
        (&["malloc", "--install", "--alone"], "--alone"),
        (&["malloc", "--runs", "101"], "101 is not in 1..=100"),
        (&["fork", "php"], "'php' is no case of bench fork; its cases are native, jvm"),
        (&["fork", "--runs", "0"], "0 is not in 1..=100"),
        (&["fork", "--launches", "1001"], "1001 is not in 1..=1000"),
        (&["fork", "--sizes", "3m", "--dry-run"], "a heap of 3 MiB: it is 2 MiB to 16 GiB in whole 2 MiB"),
        (&["fork", "--jvm-sizes", "1g,64g", "--dry-run"], "the JVM's heap of 64 GiB: it is "),
        (&["fork", "--sizes", "128x"], "unknown unit"),
        (&["snapshot", "--size", "17g", "--dry-run"], "values of 17 GiB: 16 MiB to 16 GiB are possible"),
        (
            &["snapshot", "--configurations", "never", "--dry-run"],
            "'never' is no configuration of bench snapshot",
        ),
        (&["promote", "--configurations", "windows", "--dry-run"], "'windows' is no configuration"),
        (&["cost", "--configurations", "thp-hard", "--dry-run"], "'thp-hard' is none of its policies"),
        (&["text", "--runs", "0"], "0 is not in 1..=100"),
        (&["text", "--scale", "0"], "a scale is a number above 0"),
        (&["retrieval", "--size", "17g"], "the index is 1m to 16g"),
        (&["retrieval", "--size", "8x"], "unknown unit"),
        (&["retrieval", "--size", "99999999999g"], "more than 2^64"),
        (&["retrieval", "--noise", "1.5"], "a share is a number from 0 to 1"),
        (&["retrieval", "--threads", "0"], "0"),
        (&["retrieval", "--queries", "0"], "0 is not in"),
        (&["retrieval", "--seed", "-3"], "-3"),
    ] {
        assert_refused(&bench(megapage(), arguments), expected);
    }
}

#[test]
fn what_does_not_exist_is_named_in_one_line() {
    // A workload program beside this one, so that the tests do not depend on what else has been built.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage");
    copied(megapage(), &copy);
    let missing = bench(&copy, &["idle"]);
    assert_refused(&missing, "megapage-workload is missing; build it with 'cargo build");
    copied(Path::new("/bin/true"), &directory.path().join("megapage-workload"));

    let unwritable = directory.path().join("no/such/result.json");
    let unwritable = unwritable.to_str().unwrap();
    for (arguments, expected) in [
        (
            &["access", "huge"][..],
            "megapage: 'huge' is no case of bench access; its cases are small, array, map",
        ),
        (&["text", "huge"], "'huge' is no case of bench text; its cases are generated, cc1plus, mariadb"),
        (&["release", "small"], "'small' is no case of bench release; its cases are random, runs, big"),
        (&["access", "--peers", "glibc,dlmalloc"], "megapage: 'dlmalloc' is no peer; the peers are glibc, "),
        (&["idle", "--peers", "glibc", "--save", unwritable], "result.json: No such file or directory"),
        (&["retrieval", "--size", "16g", "--threads", "4096", "--peers", "glibc"], "use a smaller --size"),
    ] {
        let output = bench(&copy, arguments);
        assert_refused(&output, expected);
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{arguments:?}");
    }
}

#[test]
fn a_dry_run_shows_how_the_machine_would_be_set() {
    let output = bench(megapage(), &["promote", "--configurations", "thp-always,ingens", "--dry-run"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!((lines[0], lines[2]), ("# thp-always", "# ingens"), "{shown}");
    assert!(lines[1].starts_with("echo always > ") && lines[1].ends_with("/enabled"), "{shown}");
    assert!(lines.contains(&"megapage daemon --policy ingens &"), "{shown}");
    let output = bench(megapage(), &["restart", "--size", "1g", "--index", "256m", "--dry-run"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.starts_with("megapage pool set 2m=+576\n") && shown.contains("\nmount -t hugetlbfs "),
        "{shown}"
    );
}

#[test]
fn a_failed_run_is_a_finding_for_check_alone() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage");
    copied(megapage(), &copy);
    copied(Path::new("/bin/false"), &directory.path().join("megapage-workload"));
    let arguments = ["idle", "--peers", "glibc", "--runs", "1", "--warm-up", "0"];
    let plain = bench(&copy, &arguments);
    assert_eq!(plain.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&plain.stdout).contains("! glibc: exit status 1"));
    let checked = bench(&copy, &[&arguments[..], &["--check", "--json"]].concat());
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stdout).starts_with("{\n  \"schema\": \"megapage.bench/1\""));
}

#[test]
fn code_is_measured_on_pages_of_each_kind() {
    // It changes the pool of 2 MiB pages, and puts it back.
    let _lock = megapage_testing::MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage");
    copied(megapage(), &copy);
    copied(Path::new("/bin/true"), &directory.path().join("megapage-workload"));
    let arguments = ["text", "generated", "--runs", "1", "--scale", "0.001", "--json"];
    let output = bench(&copy, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "megapage.bench/1");
    for way in ["none", "file", "thp"] {
        let row = report["rows"].as_array().unwrap().iter().find(|row| row["way"] == way).unwrap();
        for hot in ["1024", "2048", "4096", "8192"] {
            assert!(row["ns"][hot][0].as_f64().unwrap() > 0.0, "{row:#}");
            assert!(row["gains"][hot]["median"].as_f64().unwrap() > 0.0, "{row:#}");
        }
        // The copy has no library beside it: that is told.
        let failure = row["failures"][0].as_str().unwrap_or_default();
        assert_eq!(way == "thp", failure.contains("libmegapage_text.so is not installed"), "{row:#}");
    }
    let absent = report["absent"].as_array().unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(absent.len() + rows.len(), 6, "each way has run or says why not: {report:#}");
}

#[test]
fn real_programs_are_measured_where_they_are_installed() {
    // It changes the pool of 2 MiB pages, and puts it back.
    let _lock = megapage_testing::MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage");
    copied(megapage(), &copy);
    copied(Path::new("/bin/true"), &directory.path().join("megapage-workload"));
    let output = bench(&copy, &["text", "node", "--runs", "1", "--scale", "0.002", "--json"]);
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
