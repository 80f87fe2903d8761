//! `megapage bench`: every wrong argument has its message and its exit status.

use megapage_testing::{assert_refused, copied};
use std::path::Path;
use std::process::{Command, Output};

fn bench(megapage: &Path, arguments: &[&str]) -> Output {
    Command::new(megapage).arg("bench").args(arguments).output().expect("megapage starts")
}

fn megapage() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_megapage"))
}

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, expected) in [
        (&["speed"][..], "speed"),
        (&["access", "--runs", "0"], "0 is not in 1..=1000"),
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
        assert_refused(&bench(megapage(), arguments), 2, expected);
    }
}

#[test]
fn what_does_not_exist_is_named_in_one_line() {
    // A workload program beside this one, so that the tests do not depend on what else has been built.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage");
    copied(megapage(), &copy);
    let missing = bench(&copy, &["idle"]);
    assert_refused(&missing, 2, "megapage-workload is missing from ");
    copied("/bin/true", directory.path().join("megapage-workload"));

    let unwritable = directory.path().join("no/such/result.json");
    let unwritable = unwritable.to_str().unwrap();
    for (arguments, expected) in [
        (
            &["access", "huge"][..],
            "megapage: 'huge' is no case of bench access; its cases are small, array, map",
        ),
        (&["release", "small"], "'small' is no case of bench release; its cases are random, runs, big"),
        (&["access", "--peers", "glibc,dlmalloc"], "megapage: 'dlmalloc' is no peer; the peers are glibc, "),
        (&["idle", "--peers", "glibc", "--save", unwritable], "result.json: No such file or directory"),
        (&["retrieval", "--size", "900t", "--peers", "glibc"], "of which "),
        (&["retrieval", "--size", "900t", "--peers", "glibc"], "stay free: the largest that fits is --size "),
        (&["retrieval", "--threads", "999999", "--peers", "glibc"], "none fits: use fewer --threads"),
        (&["retrieval", "--sizes", "1m"], "--sizes with --runs 5: an interval takes 6 to 1000 pairs"),
        (&["retrieval", "--sizes", "1m", "--runs", "6", "--peers", "glibc"], "leave --peers out"),
        (&["retrieval", "--sizes", "1m,900t", "--runs", "6"], "stay free: the largest that fits is --size "),
    ] {
        let output = bench(&copy, arguments);
        assert_refused(&output, 2, expected);
    }
}

#[test]
fn a_failed_run_is_a_finding_for_check_alone() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("megapage");
    copied(megapage(), &copy);
    copied("/bin/false", directory.path().join("megapage-workload"));
    let arguments = ["idle", "--peers", "glibc", "--runs", "1", "--warm-up", "0"];
    let plain = bench(&copy, &arguments);
    assert_eq!(plain.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&plain.stdout).contains("! glibc: exit status 1"));
    let checked = bench(&copy, &[&arguments[..], &["--check", "--json"]].concat());
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stdout).starts_with("{\n  \"schema\": \"megapage.bench/1\""));
}
