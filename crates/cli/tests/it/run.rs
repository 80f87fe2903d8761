//! `megapage run` as a script sees it: status, streams, environment, and every bad input.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::thp::settings;
use megapage_testing::{Call, in_child, is_root, refuse, skip};
use megapage_units::Pid;
use run_support::*;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn wrong_arguments_are_refused() {
    for (arguments, expected) in [
        (&["--bogus", "true"][..], "unexpected argument '--bogus'"),
        (&[], "required arguments were not provided"),
        (&["--heap", "4m", "true"], "'4m' is none of auto, 1g, 2m, thp, none"),
        (&["--text-libs", "libc.so.6", "true"], "--text-libs goes with --text auto, file, thp, 2m or 1g"),
        (&["--text", "big", "true"], "'big' is none of auto, file, thp, 2m, 1g, none"),
        (&["--mechanism", "magic", "true"], "'magic' is none of auto, preload, tunable, runtime, outside"),
        (&["--heap", "4MB", "true"], "'4MB' is none of auto, 1g, 2m, thp, none"),
        (&["--return-after", "soon", "true"], "'soon' is not a time"),
        (&["--return-after", "1", "true"], "write it like 500ms, 1s, 2m or never"),
        (&["--return-after", "99999h", "true"], "more than a day"),
        (&["--pool=x", "--heap", "none", "true"], "leave one out"),
        (&["--once", "true"], "--attach"),
        (&["--attach", "1", "true"], "cannot be used with"),
        (&["--attach", "^no-such-program$"], "no process matches '^no-such-program$'"),
        (&["--attach", "4194999"], "there is no process 4194999"),
    ] {
        assert_refused(&output(arguments), 125, expected);
    }
}

#[test]
fn what_cannot_be_run_has_the_shells_status() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_string();
    fs::write(at("plain"), "").unwrap();
    script(&directory.path().join("broken"), "\u{7f}ELF\u{2}\u{1}\u{1} and no more");
    script(&directory.path().join("orphan"), "#!/no/such/interpreter\n");
    for (program, expected_status, expected) in [
        ("no-such-program-anywhere".to_string(), 127, "not found in PATH"),
        (at("none"), 127, "no such file"),
        (at("plain"), 126, "no permission to execute it"),
        (at(""), 126, "is a directory, not a program"),
        (at("broken"), 126, "not a well-formed program"),
        (at("orphan"), 126, "its interpreter /no/such/interpreter cannot be run"),
        ("/dev/null".to_string(), 126, "is a special file"),
    ] {
        assert_refused(&output(&["--", &program]), expected_status, expected);
    }
}

#[test]
fn a_program_that_cannot_be_read_runs() {
    if !is_root() {
        return skip("needs root to become another user");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = directory.path().join("unreadable");
    copied("/bin/true", &program);
    fs::set_permissions(&program, PermissionsExt::from_mode(0o711)).unwrap();
    let Some(mut command) = as_nobody() else { return };
    let output = command.args(["--report", "-", "--"]).arg(&program).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!((status(&output), text(&output.stderr)), (0, String::new()), "{said}");
    assert!(said.contains("its file cannot be read"), "{said}");
}

/// Returns `megapage run` as an unprivileged user (uid 65534); `None`, after a loud skip, if that
/// user cannot execute it.
fn as_nobody() -> Option<Command> {
    let become_nobody = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program]);
        command.env("MEGAPAGE_LIBRARY", library()).stdin(Stdio::null());
        command
    };
    let megapage = env!("CARGO_BIN_EXE_megapage");
    let reachable = become_nobody(megapage).arg("--version").output();
    if !reachable.is_ok_and(|output| output.status.success()) {
        skip("user nobody cannot execute the build's files here");
        return None;
    }
    let mut command = become_nobody(megapage);
    command.arg("run");
    Some(command)
}

#[test]
fn what_the_launcher_cannot_have_costs_the_report_and_not_the_run() {
    const EPERM: i32 = 1;
    library();
    in_child("run::what_the_launcher_cannot_have_costs_the_report_and_not_the_run", || {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("report");
        let report = ["--report", file.to_str().unwrap()];
        let program = ["--", "sh", "-c", "echo ran; exit 3"];
        let ran = |arguments: &[&str]| {
            let output = output(&[arguments, &program].concat());
            assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "ran\n"), "{output:?}");
            text(&output.stderr)
        };
        let mut limited = Command::new("sh");
        limited.args([
            "-c",
            "ulimit -f 0; exec \"$0\" run -- sh -c 'exit 3'",
            env!("CARGO_BIN_EXE_megapage"),
        ]);
        limited.env("MEGAPAGE_LIBRARY", library()).env(TRIALS, "none");
        assert_eq!(status(&limited.output().unwrap()), 3, "no file may have a byte");

        refuse(Call::MEMORY_FILE, EPERM);
        assert_eq!(ran(&[]), "");
        assert_eq!(ran(&report), "");
        let said = fs::read_to_string(&file).unwrap();
        assert!(said.contains("status 3;") && said.contains("the heap's own account is missing"), "{said}");
        assert_refused(&output(&[&["--require"], &program[..]].concat()), 125, "ledger: ");

        refuse(Call::SIGNALS, EPERM);
        assert_eq!(ran(&[]), "");
        let said = ran(&report);
        assert!(said.starts_with("megapage: no report: signals cannot be taken: "), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_refused(&output(&[&["--require"], &program[..]].concat()), 125, "signals: ");
    });
}

/// Program that switches transparent huge pages off for itself (PR_SET_THP_DISABLE), and starts the
/// command.
const OFF: &str = "import ctypes, subprocess, sys\n\
                   ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)\n\
                   sys.exit(subprocess.call(sys.argv[1:]))";

#[test]
fn huge_pages_that_another_program_switched_off_are_switched_on() {
    if !matches!(settings(&KernelRoot::live()), Ok(Some(_))) {
        return skip("needs a kernel with transparent huge pages");
    }
    let top = "";
    let file = format!("{top}/proc/self/status");
    let ran = |starter: &[&str], arguments: &[&str]| {
        let plain = run(arguments);
        let mut command = Command::new(starter[0]);
        command.args(&starter[1..]).arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.args(["--", "grep", "THP_enabled", &file]).output().unwrap();
        assert_eq!(status(&output), 0, "{output:?}");
        text(&output.stdout).split_whitespace().map(String::from).collect::<Vec<_>>().join(" ")
    };
    let off = ["python3", "-c", OFF];
    let said = ran(&off, &["--report", "-"]);
    assert!(said.starts_with("THP_enabled: 1 megapage run: "), "{said}");
    assert!(
        said.contains("inherited from python3 (process") && said.contains("cleared for this program"),
        "{said}"
    );
    assert_eq!(ran(&off, &[]), "THP_enabled: 1");
    // They stay off if that is requested, here or by a launcher above, and if no huge pages are
    // requested.
    assert_eq!(ran(&off, &["--thp", "never"]), "THP_enabled: 0");
    assert_eq!(ran(&off, &["--heap", "none"]), "THP_enabled: 0");
    assert_eq!(ran(&[env!("CARGO_BIN_EXE_megapage"), "run", "--thp", "never", "--"], &[]), "THP_enabled: 0");
}

#[test]
fn attaching_to_a_process_without_huge_pages_says_who_can_switch_them_on() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let mut python = Command::new("python3");
    let sleeps = "x = b'1' * (32 << 20); print('ready', flush=True); input()";
    python.args(["-c", OFF, "python3", "-c", sleeps]);
    let child = start(python);
    let output = output(&["--attach", &child_of(child.id()).to_string(), "--once", "--report", "-"]);
    let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("transparent huge pages are switched off for this process"), "{said}");
    assert!(said.contains("inherited from python3 (process") && !said.contains("sparse"), "{said}");
    finish(child);
}

#[test]
fn one_variable_or_file_switches_everything_off() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "off", &[]) else { return };
    let off = |arguments: &[&str]| run(arguments).env("MEGAPAGE", "off").output().unwrap();
    let why = "megapage is off: the variable MEGAPAGE is off";
    let words = ["--", "sh", "-c", "echo $LD_PRELOAD$MEGAPAGE_HEAP; exit 7"];
    let plain = off(&words);
    assert_eq!((status(&plain), text(&plain.stdout).as_str(), text(&plain.stderr)), (7, "\n", String::new()));
    let watched = off(&[&["--report", "-"], &words[..]].concat());
    assert_eq!((status(&watched), text(&watched.stdout).as_str()), (7, "\n"));
    assert_eq!(text(&watched.stderr), format!("megapage: no report: {why}\n"));
    assert_refused(&off(&[&["--require"], &words[..]].concat()), 125, why);
    assert_refused(&off(&["--attach", "1"]), 125, why);
    assert_refused(&off(&["--", "/no/such/program"]), 127, "/no/such/program");
    assert_eq!(text(&off(&["--dry-run", "--", "a b"]).stdout), format!("# {why}\n'a b'\n"));
    // The library itself, preloaded in spite of the switch.
    let huge = |command: &mut Command| {
        command.env("LD_PRELOAD", library()).env("MEGAPAGE_HEAP", "thp");
        let child = start({
            let mut taken = Command::new(command.get_program());
            taken.args(command.get_args());
            taken.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            taken
        });
        let mappings = read_smaps(&KernelRoot::live(), Pid(child.id().cast_signed())).unwrap();
        assert_eq!(status(&finish(child)), 3);
        mappings.iter().any(|mapping| mapping.has_flag("hg"))
    };
    let program = [program.as_str(), "64", "64"];
    let mut command = Command::new(program[0]);
    command.args(&program[1..]);
    if !huge(&mut command) {
        return skip("needs a kernel with transparent huge pages");
    }
    assert!(!huge(command.env("MEGAPAGE", "off")));
    if !is_root() {
        return skip("needs root to mount another /etc");
    }
    // In a mount namespace, so that the machine's /etc stays as it is.
    let layers = "mount -t tmpfs none \"$0\" && mkdir \"$0/upper\" \"$0/work\" && mount -t overlay overlay -o \
                  lowerdir=/etc,upperdir=\"$0/upper\",workdir=\"$0/work\" /etc && mkdir -p /etc/megapage && \
                  : >/etc/megapage/off && exec \"$@\"";
    let scratch = directory.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let within = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", layers, scratch.to_str().unwrap()]).args(words);
        command
    };
    if !within(&["true"]).status().is_ok_and(|status| status.success()) {
        return skip("needs mount namespaces and overlayfs");
    }
    assert!(!huge(&mut within(&program)));
    let output = within(&[env!("CARGO_BIN_EXE_megapage"), "status"]).output().unwrap();
    assert!(text(&output.stdout).starts_with("megapage is off: /etc/megapage/off exists. "), "{output:?}");
    let output = within(&[env!("CARGO_BIN_EXE_megapage"), "doctor", "--only-read"]).output().unwrap();
    assert!(text(&output.stdout).contains("megapage-off"), "{output:?}");
}

#[test]
fn without_privileges_it_runs_and_says_what_was_left_out() {
    if !is_root() {
        return skip("needs root to become another user");
    }
    let Some(mut command) = as_nobody() else { return };
    let output = command.args(["--report", "-", "--", "sh", "-c", "exit 4"]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(status(&output), 4, "{said}{}", text(&output.stderr));
    assert!(said.contains("preload used"), "{said}");
    assert!(said.contains("needs CAP_SYS_NICE"), "{said}");

    let Some(mut command) = as_nobody() else { return };
    let own = std::process::id().to_string();
    let output = command.args(["--attach", &own, "--once"]).output().unwrap();
    assert_refused(&output, 125, "external promotion needs CAP_SYS_NICE");
}

#[test]
fn a_mechanism_that_cannot_reach_the_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    let Some(dynamic) = heap_program(directory.path(), "dynamic", &[]) else { return };
    for (mechanism, program, expected) in [
        ("preload", &fixed, "--mechanism preload: it is statically linked"),
        ("runtime", &dynamic, "--mechanism runtime: no language runtime"),
    ] {
        assert_refused(&output(&["--mechanism", mechanism, "--", program, "1", "4"]), 125, expected);
    }
    let refused = run(&["--mechanism", "preload", "--", &dynamic, "1", "4"])
        .env("MEGAPAGE_LIBRARY", "/no/such/library.so")
        .output()
        .unwrap();
    assert_refused(&refused, 125, "MEGAPAGE_LIBRARY: /no/such/library.so");
    let refused = run(&["--mechanism", "tunable", "--", &dynamic, "1", "4"])
        .env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
        .output()
        .unwrap();
    assert_refused(&refused, 125, "GLIBC_TUNABLES sets glibc.malloc.hugetlb already");
}

#[test]
fn a_report_that_cannot_be_written_stops_the_run_before_it_starts() {
    let directory = tempfile::tempdir().unwrap();
    let (report, trace) = (directory.path().join("no/such/report"), directory.path().join("trace"));
    let output = output(&["--report", report.to_str().unwrap(), "--", "touch", trace.to_str().unwrap()]);
    assert_refused(&output, 125, "--report ");
    assert!(!trace.exists(), "the program was not started");
}

#[test]
fn the_status_is_the_programs() {
    for wanted in [0, 1, 7, 255] {
        assert_eq!(status(&output(&["--", "sh", "-c", &format!("exit {wanted}")])), wanted);
    }
    for (name, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("USR1", 10)] {
        let died = output(&["--", "sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(status(&died), 1000 + number, "SIG{name}");
    }
}

#[test]
fn nothing_is_printed_and_the_streams_are_the_programs() {
    let mut child = run(&["--", "sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in and out\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((text(&output.stdout).as_str(), text(&output.stderr).as_str()), ("in and out\n", "err\n"));
}

#[test]
fn children_are_untouched_unless_asked() {
    let mut plain = Command::new("sh");
    plain.args(["-c", "env; :"]).env("MEGAPAGE_LIBRARY", library()).env(PATIENCE.0, PATIENCE.1);
    let plain = plain.output().unwrap();
    let sorted = |bytes: &[u8]| {
        let mut lines: Vec<String> = text(bytes).lines().map(String::from).collect();
        // The shell prints its number, and names the command that it runs.
        lines.retain(|line| !line.starts_with("_="));
        lines.sort();
        lines
    };
    let ours = output(&["--", "sh", "-c", "env; :"]);
    assert_eq!(sorted(&ours.stdout), sorted(&plain.stdout), "{}", text(&ours.stderr));

    let ours = output(&["--children", "--", "sh", "-c", "env; :"]);
    let said = text(&ours.stdout);
    assert!(said.contains("LD_PRELOAD=") && said.contains("MEGAPAGE_HEAP="), "{said}");

    // A library that the user preloads stays.
    let ours = run(&["--", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", "libm.so.6").output().unwrap();
    assert_eq!(text(&ours.stdout), "libm.so.6\n", "{}", text(&ours.stderr));
}

#[test]
fn names_and_arguments_arrive_as_given() {
    let ours = output(&["--", "sh", "-c", "printf '%s|' \"$0\" \"$@\"", "zero", "--heap", "-", "two words"]);
    assert_eq!(text(&ours.stdout), "zero|--heap|-|two words|");

    let directory = tempfile::tempdir().unwrap();
    for first in ["#!/bin/sh -e", "#!/usr/bin/env sh", ""] {
        let path = directory.path().join("script");
        script(&path, &format!("{first}\nprintf '%s|' \"$0\" \"$@\"\n"));
        let ours = output(&["--", path.to_str().unwrap(), "a", "b c"]);
        assert_eq!(
            text(&ours.stdout),
            format!("{}|a|b c|", path.display()),
            "{first}: {}",
            text(&ours.stderr)
        );
    }
}

#[test]
fn a_dry_run_does_nothing_and_its_command_works() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("trace of it");
    let planned = output(&["--dry-run", "--heap", "thp", "--", "touch", trace.to_str().unwrap()]);
    let said = text(&planned.stdout);
    assert_eq!(status(&planned), 0, "{}", text(&planned.stderr));
    assert!(!trace.exists());
    assert!(said.contains("# preload used: libmegapage.so provides malloc"), "{said}");
    assert!(said.contains("MEGAPAGE_HEAP=thp"), "{said}");
    assert!(Command::new("sh").arg("-c").arg(&said).status().unwrap().success());
    assert!(trace.exists(), "the command that was shown does what the run would do");
}

#[test]
fn a_runaway_reader_of_the_report_is_one_clear_line() {
    if fs::metadata("/dev/full").is_err() {
        return skip("needs /dev/full");
    }
    let failed = output(&["--report", "/dev/full", "--", "sh", "-c", "exit 0"]);
    assert_refused(&failed, 125, "--report /dev/full: No space left on device");
}

#[test]
fn a_running_process_is_named_as_pgrep_does() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("mp-attach-me");
    // Copied by another process. A child of a parallel test could keep a file open that this
    // process opens for writing (ETXTBSY).
    let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status().unwrap();
    assert!(copied.success());
    let mut one = Command::new(&program).arg("600").spawn().unwrap();
    let named = output(&["--attach", "^mp-attach-me$", "--dry-run"]);
    let numbered = output(&["--attach", &one.id().to_string(), "--dry-run"]);
    let mut other = Command::new(&program).arg("600").spawn().unwrap();
    let several = output(&["--attach", "^mp-attach-me$", "--dry-run"]);
    for child in [&mut one, &mut other] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(text(&named.stdout), text(&numbered.stdout), "{}", text(&named.stderr));
    assert_eq!(named.status.code(), numbered.status.code());
    assert_refused(&several, 125, "names 2 processes; give one of ");
}

#[test]
fn options_that_left_are_warned_of_and_change_nothing_else() {
    for (options, name) in [(&["--fix"][..], "--fix"), (&["--shm", "1g"], "--shm 1g")] {
        let output = output(&[options, &["--", "sh", "-c", "echo said; exit 3"]].concat());
        let warned = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "said\n".into()), "{warned}");
        let line = format!("megapage: warning: {name} is gone: ");
        assert!(warned.starts_with(&line) && warned.lines().count() == 1, "{warned}");
    }
    let kept = output(&["--", "sh", "-c", "echo $1", "sh", "--fix"]);
    assert_eq!((text(&kept.stdout), text(&kept.stderr)), ("--fix\n".into(), String::new()));
}
