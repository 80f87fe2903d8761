//! Names, files and locks that other users choose, and the harm that they must not do.

use megapage_kernel::directory::memory_file;
use megapage_testing::{copied, is_root, skip};
use megapage_units::shown::is_steering;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A command name that clears the screen, ends the line, and reverses the direction of text. Its 13
/// bytes fit the kernel's 15.
const NAME: &[u8] = b"e\x1b[2J\nF\xe2\x80\xae\xc2\x9bz";
/// An argument that does the same. It may be longer: a whole row of a table.
const ARGUMENT: &[u8] = b"\x1b]0;owned\x07\nFORGED 4711 root\xe2\x81\xa6\x1b[8m";

/// Longest time of a command on a busy machine, in seconds.
const PATIENCE: &str = "120";

fn megapage<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", PATIENCE, env!("CARGO_BIN_EXE_megapage")]).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_ne!(output.status.code(), Some(137), "{command:?} has not ended in {PATIENCE} s");
    output
}

/// Returns the harm in `output`, or `None`: text that steers a terminal, a line that a name has
/// begun, or the output of a panic or of a death by a signal.
fn harm(output: &Output) -> Option<String> {
    for stream in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(stream);
        let steers = text.chars().any(|c| is_steering(c) && !matches!(c, '\n' | '\t'));
        let forged = |line: &str| line.starts_with('F') && !line.starts_with("Files");
        if let Some(line) = text.lines().find(|line| forged(line)).or(steers.then_some(&*text)) {
            return Some(format!("{line:?}"));
        }
    }
    // A panic, or a death by a signal.
    (output.status.code().is_none_or(|status| status == 101)).then(|| format!("{output:?}"))
}

/// A program whose name, path and arguments are hostile.
struct Hostile {
    child: Child,
    file: PathBuf,
    _tree: tempfile::TempDir,
}

impl Hostile {
    fn start() -> Hostile {
        let tree = tempfile::tempdir().unwrap();
        let file = tree.path().join(OsStr::from_bytes(NAME));
        copied("/bin/sleep", &file);
        let child = Command::new(&file).arg0(OsStr::from_bytes(ARGUMENT)).arg("600").spawn().unwrap();
        Hostile { child, file, _tree: tree }
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn names_of_others_do_not_reach_the_terminal() {
    let hostile = Hostile::start();
    let pid = hostile.child.id().to_string();
    // A memory file on hugetlb pages, open in this process: any user can have one.
    let name = String::from_utf8(ARGUMENT.to_vec()).unwrap();
    let _file = memory_file(&name, Some(megapage_units::PageSize::HUGE_2M));
    let file = hostile.file.as_os_str();
    let missing = hostile.file.with_file_name(OsStr::from_bytes(ARGUMENT));
    let missing = missing.as_os_str();
    let text = |words: &'static [&'static str]| words.iter().map(OsStr::new).collect::<Vec<_>>();
    let pid = OsStr::new(&pid);
    let mut commands: Vec<Vec<&OsStr>> = vec![
        text(&["pool", "list"]),
        [text(&["top", "--once", "--no-sample", "--delay", "0.1"]), vec![pid]].concat(),
        [text(&["map", "--no-sample"]), vec![pid]].concat(),
        [text(&["doctor", "--why"]), vec![pid]].concat(),
        [text(&["doctor", "--only-read", "--for"]), vec![file]].concat(),
        [text(&["advise", "--seconds", "1"]), vec![pid]].concat(),
        [text(&["run", "--attach"]), vec![pid], text(&["--once", "--report", "-"])].concat(),
        [text(&["remap", "check"]), vec![file]].concat(),
        text(&["segments", "list"]),
    ];
    for words in commands.clone() {
        if words[0] != "run" {
            commands.push([words, text(&["--json"])].concat());
        }
    }
    commands.extend([
        [text(&["run", "--report", "-", "--"]), vec![file, OsStr::new("0")]].concat(),
        [text(&["run", "--dry-run", "--"]), vec![file, OsStr::from_bytes(ARGUMENT)]].concat(),
        // Errors name their object.
        [text(&["run", "--"]), vec![missing]].concat(),
        [text(&["run", "--report"]), vec![file], text(&["/x/y", "--", "true"])].concat(),
        [text(&["remap", "check"]), vec![missing]].concat(),
        [text(&["remap", "prime"]), vec![missing]].concat(),
        [text(&["segments", "show"]), vec![missing]].concat(),
        [text(&["segments", "remove"]), vec![missing]].concat(),
        [text(&["segments", "list", "--directory"]), vec![missing]].concat(),
        [text(&["daemon", "--check-config", "--config"]), vec![missing]].concat(),
        [text(&["plan"]), vec![missing]].concat(),
        [text(&["pool", "set"]), vec![missing]].concat(),
        [text(&["pool", "stock"]), vec![missing]].concat(),
        [text(&["pool", "serve", "--dry-run", "--socket"]), vec![missing]].concat(),
        [text(&["pool", "persist", "--root"]), vec![missing]].concat(),
        [text(&["doctor", "--log"]), vec![missing]].concat(),
        [text(&["doctor", "--why"]), vec![missing]].concat(),
        [text(&["advise"]), vec![missing]].concat(),
        [text(&["top", "--once"]), vec![missing]].concat(),
        [text(&["bench"]), vec![missing]].concat(),
        vec![missing],
    ]);
    let mut harms = Vec::new();
    for command in &commands {
        let output = megapage(command);
        harms.extend(harm(&output).map(|harm| format!("{command:?}: {harm}")));
        if command.contains(&OsStr::new("--json")) && !output.stdout.is_empty() {
            let parsed: Result<Value, _> = serde_json::from_slice(&output.stdout);
            assert!(parsed.is_ok(), "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }
    assert!(harms.is_empty(), "{}", harms.join("\n"));
}

#[test]
fn the_log_of_the_daemon_steers_nothing() {
    if !is_root() {
        return skip("needs root: a daemon looks at all processes");
    }
    let hostile = Hostile::start();
    let tree = tempfile::tempdir().unwrap();
    let config = tree.path().join("daemon.toml");
    let text = format!(
        "state_file = \"\"\nlock_file = {:?}\n[metrics]\nsocket = \"\"\n[log]\nlevel = \"trace\"\n[processes]\npids = [{}]\n",
        tree.path().join("lock"),
        hostile.child.id()
    );
    fs::write(&config, text).unwrap();
    let arguments = ["daemon", "--once", "--dry-run", "--config", config.to_str().unwrap()];
    assert_eq!(harm(&megapage(arguments)), None);
}

#[test]
fn a_path_that_is_no_text_is_escaped_in_json() {
    let tree = tempfile::tempdir().unwrap();
    let file = tree.path().join(OsStr::from_bytes(b"\xff\xfe"));
    fs::copy("/bin/true", &file).unwrap();
    let output = megapage([OsStr::new("remap"), OsStr::new("check"), OsStr::new("--json"), file.as_os_str()]);
    assert!(output.status.code().is_some_and(|status| status < 2), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let path = report["files"][0]["file"].as_str().unwrap();
    assert!(path.ends_with("/\\xff\\xfe"), "{path}");
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_at_once() {
    let tree = tempfile::tempdir().unwrap();
    let pipe = tree.path().join("libx.so");
    fifo(&pipe);
    let pipe = pipe.to_str().unwrap();
    for arguments in [
        &["remap", "check", pipe][..],
        &["remap", "prime", pipe],
        &["prime", pipe],
        &["plan", pipe],
        &["doctor", "--log", pipe],
        &["daemon", "--check-config", "--config", pipe],
        &["daemon", "--check-config", "--config", "/dev/zero"],
        &["plan", "/dev/zero"],
    ] {
        let output = megapage(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("not a regular file") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn what_is_read_has_a_bound() {
    let tree = tempfile::tempdir().unwrap();
    let long = tree.path().join("long");
    fs::File::create(&long).unwrap().set_len(1 << 40).unwrap();
    let long = long.to_str().unwrap();
    for (arguments, bound) in [
        (&["daemon", "--check-config", "--config", long][..], "longer than 1048576 bytes"),
        (&["plan", long], "longer than 268435456 bytes"),
    ] {
        let output = megapage(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(bound), "{said}");
    }
}

#[test]
fn a_pipe_of_the_callers_own_is_read() {
    let script = format!(
        "{0} daemon --check-config --config <(echo \"interval = '7s'\") | grep '^interval = .7s' && \
         {0} doctor --log <(echo nothing) && \
         echo \"interval = '8s'\" | {0} daemon --check-config --config /dev/stdin | grep '^interval = .8s'",
        env!("CARGO_BIN_EXE_megapage")
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn an_empty_name_means_nothing() {
    for arguments in [
        &["trial", "--forget", ""][..],
        &["trial", ""],
        &["profile", "forget", ""],
        &["profile", "show", ""],
        &["pool", "stock", ""],
        &["pool", "serve", "--dry-run", "--socket", ""],
        &["daemon", "--once", "--dry-run", ""],
        &["advise", ""],
        &["map", ""],
        &["top", "--once", ""],
        &["reclaim", "--dry-run", ""],
        &["enable", "--dry-run", ""],
        &["segments", "show", ""],
        &["segments", "remove", "--dry-run", ""],
        &["prime", ""],
        &["remap", "check", ""],
        &["plan", ""],
        &["doctor", "--why", ""],
    ] {
        let output = megapage(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert_eq!((said.lines().count(), output.stdout.len()), (1, 0), "{arguments:?}: {said}");
    }
}

#[test]
fn files_of_others_are_no_state_and_no_lock() {
    let tree = tempfile::tempdir().unwrap();
    let (victim, config) = (tree.path().join("passwd"), tree.path().join("daemon.toml"));
    fs::write(&victim, "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    for key in ["state_file", "lock_file"] {
        fs::write(&config, format!("interval = \"1s\"\n{key} = {victim:?}\n")).unwrap();
        let output = megapage(["daemon", "--check-config", "--config", config.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("line 2: {key}: ")) || said.contains(":2: "), "{said}");
        assert!(
            said.contains("it is there and no ") && said.contains(": remove it, or give another path"),
            "{said}"
        );
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "root:x:0:0:root:/root:/bin/sh\n");
}

#[test]
fn a_cause_is_said_once_and_without_its_number() {
    let output = megapage(["plan", "/no/such/recording"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, "megapage: /no/such/recording: No such file or directory\n");
}
