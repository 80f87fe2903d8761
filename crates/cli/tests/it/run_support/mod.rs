//! Shared parts of the tests of `megapage run`: the command with its library, and programs that the
//! compiler makes.

#![allow(dead_code, reason = "each test file uses its part")]

#[allow(unused_imports, reason = "each test file uses its part")]
pub use megapage_testing::{assert_refused, copied, script, wait_for};
use megapage_testing::{build_programs, skip};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Returns the built library. The library for text lies beside it.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_megapage")).parent().unwrap();
        build_programs(directory);
        directory.join("libmegapage.so")
    })
}

/// Time-out for answers of a broker, which may be slow on a busy machine.
pub const PATIENCE: (&str, &str) = ("MEGAPAGE_POOL_PATIENCE_MS", "60000");

/// Variable that names the directory of trials.
pub const TRIALS: &str = "MEGAPAGE_TRIALS";

/// Returns `megapage run` with these arguments.
pub fn run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.arg("run").args(arguments).env("MEGAPAGE_LIBRARY", library()).stdin(Stdio::null());
    // A JVM reports on standard error that it has read these.
    for name in ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"] {
        command.env_remove(name);
    }
    command.env(PATIENCE.0, PATIENCE.1);
    // Findings of one test about a program must not reach the next test.
    command.env(TRIALS, "none");
    command
}

/// Runs `megapage run` to its end.
pub fn output(arguments: &[&str]) -> Output {
    run(arguments).output().expect("megapage starts")
}

/// Returns the exit status, or 1000 + the signal.
pub fn status(output: &Output) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    output.status.code().unwrap_or_else(|| 1000 + output.status.signal().unwrap())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that allocates argv[1] MiB in blocks of argv[2] KiB, and writes to all of it. Then it
/// says "ready", waits for the end of its input, and exits with 3.
const HEAP: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int c, char **v) {
    size_t block = (size_t)atol(v[2]) << 10, n = ((size_t)atol(v[1]) << 20) / block;
    char **p = malloc(n * sizeof *p), b;
    for (size_t i = 0; i < n; i++) {
        p[i] = malloc(block);
        if (!p[i]) return 9;
        memset(p[i], 1, block);
    }
    write(1, "ready\n", 6);
    while (read(0, &b, 1) > 0) {}
    for (size_t i = 0; i < n; i++) if (p[i][block - 1] != 1) return 8;
    return 3;
}
"#;

/// Compiles the heap program with these arguments. Returns `None`, after a loud skip, if there is
/// no compiler.
pub fn heap_program(directory: &Path, name: &str, arguments: &[&str]) -> Option<String> {
    compile("gcc", directory, name, HEAP, arguments)
}

/// Compiles C. Returns the program's path; `None`, after a loud skip, if there is no compiler.
pub fn compile(
    compiler: &str,
    directory: &Path,
    name: &str,
    source: &str,
    arguments: &[&str],
) -> Option<String> {
    let (code, program) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&code, source).unwrap();
    let mut command = Command::new(compiler);
    match command.args(arguments).arg("-O1").arg("-w").arg(&code).arg("-o").arg(&program).status() {
        Ok(status) => assert!(status.success(), "{compiler} {arguments:?} failed"),
        Err(error) => {
            skip(&format!("needs {compiler}: {error}"));
            return None;
        }
    }
    Some(program.to_str().unwrap().into())
}

/// Starts a command with its input open, and waits for its first line.
pub fn start(mut command: Command) -> Child {
    use std::io::Read;
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut said).expect("the program says that it is ready");
    assert_eq!(&said, b"ready\n");
    child
}

/// Sends a signal, by its name without SIG.
pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(sent.success(), "kill -{name} {pid}");
}

/// Returns the one child of `pid`, besides the helpers that read other processes' files. A helper
/// has its parent's name until it sets its own.
pub fn child_of(pid: u32) -> u32 {
    let mut child = None;
    wait_for("one child", || {
        let mut ps = Command::new("ps");
        let listed = ps.args(["-o", "pid=,comm=", "--ppid", &pid.to_string()]).output().unwrap();
        let listed = text(&listed.stdout);
        let mut children = listed.lines().filter(|line| !line.ends_with("megapage-helper"));
        child = children.next().map(str::to_string);
        child.is_some() && children.next().is_none()
    });
    child.unwrap().split_whitespace().next().unwrap().parse().expect("a number")
}

/// Returns a column of ps(1) for `pid`.
pub fn ps(pid: u32, column: &str) -> String {
    let listed =
        Command::new("ps").args(["-o", &format!("{column}="), "-p", &pid.to_string()]).output().unwrap();
    text(&listed.stdout).trim().to_string()
}

/// Waits until `accept` is true of a report that the launcher writes as JSON to `file`. Sends
/// SIGUSR1, upon which the launcher samples and reports while the program runs: no fixed time is
/// long enough on every machine.
pub fn until_reported(launcher: &Child, file: &Path, what: &str, accept: impl Fn(&Value) -> bool) {
    let mut last = String::new();
    let start = Instant::now();
    loop {
        signal(launcher.id(), "USR1");
        std::thread::sleep(Duration::from_millis(100));
        // A report that is just being written is no valid JSON.
        if let Ok(report) = serde_json::from_slice::<Value>(&fs::read(file).unwrap_or_default()) {
            if accept(&report) {
                return;
            }
            last = format!("{report:#}");
        }
        assert!(start.elapsed() < Duration::from_secs(180), "waited in vain for {what}: {last}");
    }
}

/// Returns the report of a program that says "ready", and then waits for the end of its input. Ends
/// the input once `accept` is true of a report.
pub fn held_report(
    arguments: &[&str],
    program: &[&str],
    what: &str,
    accept: impl Fn(&Value) -> bool,
) -> (i32, Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let all = [&["--json", "--report", file.to_str().unwrap()], arguments, &["--"], program].concat();
    let child = start(run(&all));
    until_reported(&child, &file, what, accept);
    let output = finish(child);
    let report = serde_json::from_slice(&fs::read(&file).unwrap());
    (status(&output), report.unwrap_or_else(|error| panic!("{error}: {output:?}")), text(&output.stderr))
}

/// Returns true if `pid` already catches or blocks the signal with this number, so that the signal
/// does not end it.
pub fn takes_signal(pid: u32, number: u32) -> bool {
    let column = |name: &str| u64::from_str_radix(&ps(pid, name), 16).unwrap_or(0);
    (column("blocked") | column("caught")) >> (number - 1) & 1 == 1
}

/// Ends the program's input, and waits for its end.
pub fn finish(mut child: Child) -> Output {
    drop(child.stdin.take());
    child.wait_with_output().unwrap()
}

/// Returns the exit status of a run, its report, and its standard error.
pub fn heap_report(arguments: &[&str], program: &[&str]) -> (i32, Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let mut all = vec!["--json", "--report", file.to_str().unwrap()];
    all.extend(arguments);
    all.push("--");
    all.extend(program);
    let output = output(&all);
    let report = fs::read_to_string(&file).unwrap_or_default();
    let report = serde_json::from_str(&report).unwrap_or_else(|error| {
        panic!("{error}: '{report}', status {}: {}", status(&output), text(&output.stderr))
    });
    (status(&output), report, text(&output.stderr))
}

/// Returns a value of a report, such as `peak.heap.thp_bytes`, in MiB.
pub fn mib(report: &Value, path: &str) -> u64 {
    let value = path.split('.').fold(report, |value, key| &value[key]);
    value.as_u64().unwrap_or_else(|| panic!("{path} in {report:#}")) >> 20
}

/// Runs a program that should end with `expected` under --require. Returns true if it was seen to
/// its last moment, with at least this percentage of its peak. On a busy machine it is not always:
/// a launcher may be delayed for as long as the program waits for it, and says so.
pub fn is_seen_to_its_end(program: &[&str], expected: i32, least_percent: f64) -> bool {
    let (status, report, said) = heap_report(&["--heap", "thp", "--require"], program);
    if report["end_is_final"] != true {
        assert!(status == 125 && said.contains("seen"), "{program:?}: {said}{report:#}");
        return false;
    }
    // Other tests may have left too few free huge pages: then the message says that.
    assert!(status == expected || said.contains("not on huge pages"), "{program:?}: {said}{report:#}");
    assert!(report["peak"]["peak_seen_percent"].as_f64().unwrap() >= least_percent, "{report:#}");
    true
}
