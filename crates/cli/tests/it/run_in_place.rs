//! `megapage run` in a service: the program has the process number that its supervisor knows.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_testing::{is_root, skip};
use megapage_units::Pid;
use run_support::*;
use std::fs;
use std::process::{Child, Command};

/// As systemd starts the main process of a service of Type=notify.
fn in_service(arguments: &[&str]) -> Command {
    let mut command = run(arguments);
    command.env("NOTIFY_SOCKET", "/nonexistent/notify");
    command
}

fn name_of(child: &Child) -> String {
    fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default().trim().to_string()
}

#[test]
fn the_program_takes_the_launchers_place() {
    let told = |command: &mut Command| {
        let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let own = child.id().to_string();
        let output = child.wait_with_output().unwrap();
        (own, text(&output.stdout).trim().to_string(), output.status.code())
    };
    let program = ["--", "sh", "-c", "echo $$; exit 7"];
    let (own, said, code) = told(&mut in_service(&program));
    assert_eq!((&said, code), (&own, Some(7)));
    // Without a supervisor, and where a report is wanted, there is a launcher.
    let mut plain = run(&program);
    for name in ["NOTIFY_SOCKET", "LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"] {
        plain.env_remove(name);
    }
    let (own, said, code) = told(&mut plain);
    assert!(said != own && code == Some(7), "{said} {own} {code:?}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let (own, said, code) = told(&mut in_service(&[&["--report", path], &program[..]].concat()));
    assert!(said != own && code == Some(7), "{said} {own} {code:?}");
    let report = fs::read_to_string(path).unwrap();
    assert!(report.contains("status 7"), "{report}");
    // What cannot be executed is told as ever.
    let output = in_service(&["--", "/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
}

#[test]
fn a_number_of_systemds_that_is_ours_counts_and_no_other() {
    for (value, expected) in [("$$", true), ("1", false)] {
        let launcher = env!("CARGO_BIN_EXE_megapage");
        // The shell's own number is the launcher's after exec.
        let words = format!("export LISTEN_PID={value}; echo $$; exec \"$0\" run -- sh -c 'echo $$'");
        let mut command = Command::new("sh");
        command.args(["-c", &words, launcher]).env("MEGAPAGE_LIBRARY", library());
        for name in ["NOTIFY_SOCKET", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"] {
            command.env_remove(name);
        }
        let output = command.output().unwrap();
        let said = text(&output.stdout);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said} {}", text(&output.stderr));
        assert_eq!(lines[0] == lines[1], expected, "{value}: {said}");
    }
}

#[test]
fn promotion_from_outside_goes_on_beside_the_program() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "in-place", &["-static"]) else { return };
    let child = start(in_service(&["--mechanism", "outside", "--", &program, "64", "64"]));
    let pid = Pid(child.id() as i32);
    assert_eq!(name_of(&child), "in-place");
    let root = KernelRoot::live();
    wait_for("50 MiB promoted", || {
        read_smaps(&root, pid).is_ok_and(|all| all.iter().map(|it| it.anon_huge.0).sum::<u64>() >= 50 << 20)
    });
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(children.trim(), "", "the program has no child that it does not know");
    // The one that promotes was started with the same words.
    let promoting = || -> Vec<i32> {
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let words = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_it =
            |pid: &i32| text(&words(pid)).replace('\0', " ").contains(&format!("outside -- {program} "));
        processes.filter(is_it).collect()
    };
    assert!(!promoting().is_empty());
    assert_eq!(finish(child).status.code(), Some(3), "every byte is as it was");
    wait_for("the one that promotes to end", || promoting().is_empty());
}
