//! Signals and job control under `megapage run`.

use crate::run_support;

use run_support::*;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A shell that says "ready", then waits for a signal; each one it gets is named, and ends it with 20.
const TRAPS: &str = "for s in TERM INT HUP QUIT USR2 WINCH; do trap \"echo got $s; exit 20\" $s; done; \
                     echo ready; while :; do sleep 0.05; done";

#[test]
fn signals_are_passed_on() {
    for name in ["TERM", "INT", "HUP", "QUIT", "USR2", "WINCH"] {
        // What is ignored when a shell starts stays so: in the background of a script that is INT and QUIT, under
        // nohup HUP.
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_megapage"), "run", "--", "bash", "-c", TRAPS]);
        command.env("MEGAPAGE_LIBRARY", library());
        let child = start(command);
        signal(child.id(), name);
        let output = finish(child);
        assert_eq!((status(&output), text(&output.stdout)), (20, format!("got {name}\n")));
    }
}

#[test]
fn a_signal_that_kills_the_program_kills_the_launcher() {
    let child = start(run(&["--", "sh", "-c", "echo ready; exec sleep 60"]));
    signal(child.id(), "TERM");
    assert_eq!(status(&finish(child)), 1000 + 15);
}

#[test]
fn a_stop_stops_both_and_a_continue_continues_both() {
    let mut command = run(&["--", "sh", "-c", "echo ready; read line; exit 6"]);
    // A job of its own, as from a shell: the kernel stops no member of an orphaned process group, which the
    // tests' own may be.
    let child = start({
        command.process_group(0);
        command
    });
    let (launcher, program) = (child.id(), child_of(child.id()));
    assert_eq!(ps(launcher, "pgid"), ps(program, "pgid"), "one job for the terminal");
    signal(launcher, "TSTP");
    wait_for("both to stop", || {
        ps(launcher, "stat").starts_with('T') && ps(program, "stat").starts_with('T')
    });
    signal(launcher, "CONT");
    wait_for("both to go on", || {
        !ps(launcher, "stat").starts_with('T') && !ps(program, "stat").starts_with('T')
    });
    assert_eq!(status(&finish(child)), 6);
}

#[test]
fn a_program_stopped_behind_our_back_does_not_stop_the_launcher() {
    let child = start(run(&["--", "sh", "-c", "echo ready; read line; exit 6"]));
    let program = child_of(child.id());
    signal(program, "STOP");
    wait_for("the program to stop", || ps(program, "stat").starts_with('T'));
    signal(program, "CONT");
    assert_eq!(status(&finish(child)), 6);
}

#[test]
fn usr1_makes_a_report_while_the_program_runs() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "heap", &[]) else { return };
    // Without --report: on standard error, and nothing at the end.
    let mut child = start(run(&["--heap", "thp", "--", &program, "64", "64"]));
    signal(child.id(), "USR1");
    let mut said = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    wait_for("a report", || {
        let mut byte = [0];
        while !said.contains("sampling:") && stderr.read(&mut byte).unwrap() > 0 {
            said.push(char::from(byte[0]));
        }
        said.contains("sampling:")
    });
    assert!(said.starts_with("megapage run: running; all memory on huge pages:"), "{said}");
    let output = finish(child);
    assert_eq!(status(&output), 3);
    assert!(!text(&output.stderr).contains("megapage run:"), "{}", text(&output.stderr));

    // With --report: in the file, which the final report replaces.
    let file = directory.path().join("report.json");
    let arguments =
        ["--json", "--report", file.to_str().unwrap(), "--heap", "thp", "--", &program, "64", "64"];
    let child = start(run(&arguments));
    signal(child.id(), "USR1");
    let read =
        || fs::read(&file).ok().and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    wait_for("a live report", || read().is_some());
    let live = read().unwrap();
    assert_eq!(live["running"], true);
    assert!(mib(&live, "end.resident.total_bytes") >= 64, "{live:#}");
    assert_eq!(status(&finish(child)), 3);
    assert_eq!(read().unwrap()["running"], false);
    assert_eq!(read().unwrap()["totals"]["ended"]["status"], 3);
}

#[test]
fn ignored_signals_stay_ignored_and_the_status_is_not_lost() {
    // As under nohup, and under a parent that ignores SIGCHLD.
    let launcher = env!("CARGO_BIN_EXE_megapage");
    let inner = "trap '' HUP CHLD; exec \"$0\" run -- sh -c 'echo ready; read line; exit 6'";
    let mut command = Command::new("sh");
    command.args(["-c", inner, launcher]).env("MEGAPAGE_LIBRARY", library());
    let child = start(command);
    signal(child.id(), "HUP");
    assert_eq!(status(&finish(child)), 6);
}
