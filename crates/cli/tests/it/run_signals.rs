//! Signals and job control under `megapage run`.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_children;
use megapage_units::Pid;
use run_support::*;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A shell that says "ready", then waits for a signal. It names each signal that it gets, and ends
/// with 20.
const TRAPS: &str = "for s in TERM INT HUP QUIT USR2 WINCH; do trap \"echo got $s; exit 20\" $s; done; \
                     echo ready; while :; do sleep 0.05; done";

#[test]
fn signals_are_passed_on() {
    for name in ["TERM", "INT", "HUP", "QUIT", "USR2", "WINCH"] {
        // A shell ignores signals that are ignored at its start: INT and QUIT in the background of
        // a script, HUP under nohup.
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_megapage"), "run", "--report", "/dev/null"]);
        command.args(["--", "bash", "-c", TRAPS]);
        command.env("MEGAPAGE_LIBRARY", library());
        let child = start(command);
        signal(child.id(), name);
        let output = finish(child);
        assert_eq!((status(&output), text(&output.stdout)), (20, format!("got {name}\n")));
    }
}

/// Program that takes signals without being interrupted. It prints their number when one has come,
/// its input has ended, and no more come.
const COUNTS: &str = r#"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>
int main(void) {
    int all[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR2, SIGWINCH}, came = 0;
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < 6; i++) sigaddset(&set, all[i]);
    sigprocmask(SIG_BLOCK, &set, 0);
    struct pollfd wait[] = {{signalfd(-1, &set, 0), POLLIN}, {0, POLLIN}};
    write(1, "ready\n", 6);
    int open = 2;
    for (struct signalfd_siginfo info;;) {
        int ready = poll(wait, open, open == 2 ? -1 : came ? 150 : 20000);
        if (wait[0].revents) came += read(wait[0].fd, &info, sizeof info) > 0;
        else if (ready == 0) break;
        else open = 1;
    }
    printf("%d\n", came);
}
"#;

#[test]
fn a_signal_to_the_launcher_or_to_many_arrives_once() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "counts", COUNTS, &[]) else { return };
    // The launcher, its whole process group, or each process in turn, as a service manager signals
    // a control group.
    type Whom = fn(u32) -> Vec<String>;
    let each = |launcher: u32| {
        let own = Pid(launcher.cast_signed());
        let children = read_children(&KernelRoot::live(), own, usize::MAX).unwrap().unwrap_or_default();
        std::iter::once(own).chain(children).map(|pid| pid.to_string()).collect()
    };
    let ways: [(&str, Whom); 3] = [
        ("the launcher", |launcher| vec![launcher.to_string()]),
        ("its group", |launcher| vec![format!("-{launcher}")]),
        ("each process", each),
    ];
    for arguments in [&[][..], &["--report", "/dev/null"]] {
        for (whom, processes) in ways {
            for name in ["TERM", "INT", "HUP", "QUIT", "USR2", "WINCH"] {
                let mut command = run(&[arguments, &["--", &program]].concat());
                command.process_group(0);
                let child = start(command);
                let mut kill = Command::new("kill");
                kill.args(["-s", name, "--"]).args(processes(child.id()));
                assert!(kill.status().unwrap().success());
                let said = text(&finish(child).stdout);
                assert_eq!(said, "1\n", "SIG{name} to {whom} {arguments:?}");
            }
        }
    }
}

#[test]
fn timeout_ends_a_program_with_one_signal() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "counts", COUNTS, &[]) else { return };
    let mut command = Command::new("timeout");
    command.args(["-s", "USR2", "2", env!("CARGO_BIN_EXE_megapage"), "run"]);
    command.args(["--report", "/dev/null", "--", &program]);
    command.env("MEGAPAGE_LIBRARY", library());
    let child = start(command);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(text(&finish(child).stdout), "1\n");
}

#[test]
fn a_signal_that_kills_the_program_kills_the_launcher() {
    let child = start(run(&["--report", "/dev/null", "--", "sh", "-c", "echo ready; exec sleep 60"]));
    signal(child.id(), "TERM");
    assert_eq!(status(&finish(child)), 1000 + 15);
}

#[test]
fn a_stop_stops_both_and_a_continue_continues_both() {
    let mut command = run(&["--report", "/dev/null", "--", "sh", "-c", "echo ready; read line; exit 6"]);
    // A separate job, as from a shell: the kernel stops no member of an orphaned process group,
    // which the group of the tests may be.
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
    let child = start(run(&["--report", "/dev/null", "--", "sh", "-c", "echo ready; read line; exit 6"]));
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
    // The live report goes to the file, and the final report replaces it.
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
    let inner =
        "trap '' HUP CHLD; exec \"$0\" run --report /dev/null -- sh -c 'echo ready; read line; exit 6'";
    let mut command = Command::new("sh");
    command.args(["-c", inner, launcher]).env("MEGAPAGE_LIBRARY", library());
    let child = start(command);
    signal(child.id(), "HUP");
    assert_eq!(status(&finish(child)), 6);
}
