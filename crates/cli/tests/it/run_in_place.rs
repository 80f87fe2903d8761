//! `megapage run` without a report: the program has the process number that its starter knows, and
//! inherits the same as without megapage.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_testing::{is_root, skip};
use megapage_units::Pid;
use run_support::*;
use std::fs;
use std::process::{Child, Command, Stdio};

fn name_of(child: &Child) -> String {
    fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default().trim().to_string()
}

/// Returns the number of the started process, its output, and its status.
fn told(command: &mut Command) -> (String, String, Option<i32>) {
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let own = child.id().to_string();
    let output = child.wait_with_output().unwrap();
    (own, text(&output.stdout).trim().to_string(), output.status.code())
}

#[test]
fn the_program_takes_the_launchers_place_unless_a_report_is_asked_for() {
    let program = ["--", "sh", "-c", "echo $$; exit 7"];
    let (own, said, code) = told(&mut run(&program));
    assert_eq!((&said, code), (&own, Some(7)));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let (own, said, code) = told(&mut run(&[&["--report", path], &program[..]].concat()));
    assert!(said != own && code == Some(7), "{said} {own} {code:?}");
    let report = fs::read_to_string(path).unwrap();
    assert!(report.contains("status 7"), "{report}");
    let output = run(&["--", "/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
}

#[test]
fn ignored_signals_are_inherited() {
    let launcher = [env!("CARGO_BIN_EXE_megapage"), "run"];
    let plain: &[&str] = &[];
    let [plain, ours @ ..] =
        [plain, &launcher, &[launcher[0], launcher[1], "--report", "/dev/null"]].map(|words| {
            let mut command = Command::new("env");
            command.arg("--ignore-signal=PIPE,USR2,CHLD").args(words).args([
                "grep",
                "SigIgn",
                "/proc/self/status",
            ]);
            let output = command.env("MEGAPAGE_LIBRARY", library()).output().unwrap();
            (text(&output.stdout), text(&output.stderr))
        });
    assert!(plain.0.ends_with("11800\n"), "{plain:?}");
    assert_eq!(ours, [plain.clone(), plain]);
}

#[test]
fn a_run_in_the_place_of_another_decides_alone() {
    for (inner, is_there) in [("none", false), ("thp", true)] {
        let own = env!("CARGO_BIN_EXE_megapage");
        let words = ["--heap", "thp", "--", own, "run", "--heap", inner, "--", "cat", "/proc/self/maps"];
        let output = run(&words).output().unwrap();
        assert_eq!(text(&output.stdout).contains("libmegapage.so"), is_there, "{inner}: {output:?}");
    }
    // The program's variables are the starter's.
    let own = env!("CARGO_BIN_EXE_megapage");
    let output = run(&["--heap", "thp", "--", own, "run", "--heap", "none", "--", "env"]).output().unwrap();
    let ours = run(&[]);
    let set = ours.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let plain = Command::new("env").envs(set).output().unwrap();
    assert_eq!(text(&output.stdout), text(&plain.stdout));
}

#[test]
fn promotion_from_outside_goes_on_beside_the_program() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "in-place", &["-static"]) else { return };
    let mut command = Command::new("sh");
    let words = ["run", "--mechanism", "outside", "--", &program, "64", "64"];
    command.args(["-c", "exec \"$0\" \"$@\" 9</dev/null", env!("CARGO_BIN_EXE_megapage")]).args(words);
    let child = start(command);
    let pid = Pid(child.id() as i32);
    assert_eq!(name_of(&child), "in-place");
    let root = KernelRoot::live();
    wait_for("50 MiB promoted", || {
        read_smaps(&root, pid).is_ok_and(|all| all.iter().map(|it| it.anon_huge.0).sum::<u64>() >= 50 << 20)
    });
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(children.trim(), "", "the program has no child that it does not know");
    // The process that promotes was started with the same words.
    let promoting = || -> Vec<i32> {
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let words = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_it =
            |pid: &i32| text(&words(pid)).replace('\0', " ").contains(&format!("outside -- {program} "));
        processes.filter(is_it).collect()
    };
    let of_caller = |pid: &i32| fs::read_link(format!("/proc/{pid}/fd/9")).is_ok();
    assert!(!promoting().is_empty() && of_caller(&pid.0) && !promoting().iter().any(of_caller));
    assert_eq!(finish(child).status.code(), Some(3), "every byte is as it was");
    wait_for("the one that promotes to end", || promoting().is_empty());
}
