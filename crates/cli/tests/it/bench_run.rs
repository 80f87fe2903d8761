//! `megapage bench run`: it runs a command in each way, names a failure, and leaves nothing
//! running. No test judges how long anything takes.

use crate::run_support;

use megapage_kernel::process::read_stat;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_kernel::{KernelRoot, process};
use megapage_testing::{assert_refused, until};
use megapage_units::Pid;
use run_support::{library, text};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

fn command(arguments: &[&str]) -> Command {
    command_of("run", arguments)
}

fn command_of(bench: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.args(["bench", bench]).args(arguments).env("MEGAPAGE_LIBRARY", library());
    command.stdin(Stdio::null());
    command
}

fn bench(arguments: &[&str]) -> Output {
    command(arguments).output().expect("megapage starts")
}

#[test]
fn a_command_is_run_in_each_way_as_often() {
    let directory = tempfile::tempdir().unwrap();
    let (save, count) = (directory.path().join("result.json"), directory.path().join("count"));
    let script = format!("echo one >> {}", count.display());
    let arguments = ["--runs", "6", "--ways", "ours,tunable", "--json", "--save"];
    let rest = [save.to_str().unwrap(), "--", "sh", "-c", &script];
    let output = bench(&[&arguments[..], &rest].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report, serde_json::from_slice::<Value>(&fs::read(&save).unwrap()).unwrap());
    assert_eq!((&report["schema"], &report["bench"]), (&"megapage.bench/1".into(), &"run".into()));
    assert_eq!(report["command"], format!("sh -c '{script}'"));
    let ways = report["ways"].as_array().unwrap();
    let names: Vec<&str> = ways.iter().map(|way| way["way"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "tunable", "ours"]);
    for way in ways {
        let spent = way["samples"]["spent"].as_array().unwrap();
        assert_eq!(spent.len(), 6, "{way:#}");
        assert!(spent.iter().all(|spent| spent["wall_ns"].as_u64().unwrap() > 0), "{way:#}");
        assert!(way["peak_bytes"]["min"].as_f64().unwrap() > 0.0, "{way:#}");
        assert_eq!(way["of_plain"].is_null(), way["way"] == "plain", "{way:#}");
    }
    // Each way once in the round that does not count, and six times after it.
    assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 3 * 7);
    assert_eq!(report["finding"]["way"], "ours");
    assert!(report["finding"]["sentence"].as_str().unwrap().contains("% interval "), "{report:#}");
}

#[test]
fn what_the_command_writes_goes_to_the_log_and_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let arguments = ["--runs", "1", "--ways", "tunable", "--log", log.to_str().unwrap()];
    let output = bench(&[&arguments[..], &["--", "sh", "-c", "echo to one; echo to the other >&2"]].concat());
    let said = text(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&log).unwrap(), "to one\nto the other\n", "of the last run alone");
    assert!(said.starts_with("bench run: sh -c 'echo to one;"), "{said}");
    assert!(said.contains("too few rounds to tell: with tunable the command took"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn a_command_that_fails_ends_the_bench_with_a_clear_line() {
    let failing = bench(&["--", "sh", "-c", "echo all is well; echo why it failed >&2; exit 7"]);
    assert_refused(&failing, 2, "'sh' ended with status 7, not 0 in way 'plain': why it failed");
    let killed = bench(&["--", "sh", "-c", "kill -9 $$"]);
    assert_refused(&killed, 2, "'sh' was ended by signal 9 in way 'plain', and wrote nothing");
    let absent = bench(&["--", "/nonexistent/program"]);
    assert_refused(&absent, 2, "'/nonexistent/program' did not start (plain)");
    let ours = bench(&["--option=--heap=wood", "--ways", "ours", "--", "true"]);
    assert_refused(&ours, 2, "'true' ended with status 125, not 0 in way 'ours': ");
    let expected = bench(&["--runs", "1", "--ways", "tunable", "--status", "7", "--", "sh", "-c", "exit 7"]);
    assert!(expected.status.success(), "{}", text(&expected.stderr));
}

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, expected) in [
        (&["--ways", "magic", "--", "true"][..], "'magic' is no way; the ways are plain, tunable, ours"),
        (&["--ways", "plain", "--", "true"], "there is nothing to compare with: give --ways tunable,ours"),
        (&["--runs", "0", "--", "true"], "0 is not in 1..=1000"),
        (&["--status", "256", "--", "true"], "256 is not in 0..=255"),
        (&["--runs", "3"], "<COMMAND>"),
        (&["--runs", "many", "--", "true"], "many"),
        (&["--clock", "sun", "--", "true"], "sun"),
        (&["--save", "/nonexistent/result.json", "--", "true"], "result.json: No such file or directory"),
    ] {
        let output = bench(arguments);
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(output.stdout.is_empty() && said.contains(expected), "expected '{expected}' in: {said}");
    }
    assert_refused(&command_of("speed", &[]).output().unwrap(), 2, "speed");
}

#[test]
fn a_dry_run_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("mark");
    let arguments = ["--dry-run", "--option=--children", "--", "touch", mark.to_str().unwrap()];
    let output = bench(&arguments);
    let touch = format!("touch {}", mark.display());
    let lines = format!(
        "# 10 rounds in a drawn order, after one that does not count, each:\n{touch}\n\
         GLIBC_TUNABLES=glibc.malloc.hugetlb=1 {touch}\nmegapage run --children -- {touch}\n"
    );
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), lines));
    assert!(!mark.exists());
}

#[test]
fn a_signal_ends_the_command_too() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", file.display());
    let bench = command(&["--", "sh", "-c", &script]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = until("the command's start", || fs::read_to_string(&file).ok());
    let pid = Pid(pid.trim().parse().unwrap());
    send_signal(Pid(bench.id().cast_signed()), signal::SIGTERM).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(2), None));
    assert!(text(&output.stderr).contains("stopped by signal 15"), "{}", text(&output.stderr));
    let gone = read_stat(&KernelRoot::live(), pid);
    assert!(gone.as_ref().is_ok_and(process::Stat::is_zombie) || gone.is_err(), "{gone:?}");
}
