//! `megapage run` claims no memory that it has not seen, and `--require` does not pass it.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_testing::skip;
use megapage_units::PageSize;
use run_support::*;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Program that fills v[1] MiB, says "ready", waits for the end of its input, and fills v[2] MiB
/// more. It ends as v[3] says: by exit, _exit, or a signal.
const GROWS: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int c, char **v) {
    char b, *p = malloc(atol(v[1]) << 20);
    memset(p, 1, atol(v[1]) << 20);
    write(1, "ready\n", 6);
    while (read(0, &b, 1) > 0) {}
    p = malloc(atol(v[2]) << 20);
    memset(p, 1, atol(v[2]) << 20);
    if (!strcmp(v[3], "_exit")) _exit(3);
    if (!strcmp(v[3], "signal")) kill(getpid(), SIGKILL);
    exit(3);
}
"#;

fn thp_is_on() -> bool {
    let settings = settings(&KernelRoot::live()).unwrap();
    let on = settings.is_some_and(|it| it.anonymous(PageSize::HUGE_2M) != ThpEnabled::Never);
    if !on {
        skip("needs transparent huge pages");
    }
    on
}

/// Returns the program of a report. The launcher may have other children.
fn program_of(report: &Path) -> u32 {
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    report["program"]["pid"].as_u64().unwrap() as u32
}

/// Runs `--require` on the program, which grows from 64 MiB by `second` MiB while its launcher is
/// stopped. Returns the output, the report, and the time until the program's end.
fn unseen(program: &str, second: &str, end: &str) -> (Output, Value, Duration) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let arguments = ["--heap", "thp", "--require", "--json", "--report", file.to_str().unwrap(), "--"];
    let mut launcher = start(run(&[&arguments[..], &[program, "64", second, end]].concat()));
    until_reported(&launcher, &file, "the first 64 MiB", |report| {
        report["end"]["anonymous"]["total_bytes"].as_u64() >= Some(64 << 20)
    });
    let (pid, child) = (launcher.id(), program_of(&file));
    signal(pid, "STOP");
    let began = Instant::now();
    drop(launcher.stdin.take());
    wait_for("the program's end", || ps(child, "stat").starts_with('Z'));
    let took = began.elapsed();
    signal(pid, "CONT");
    let output = launcher.wait_with_output().unwrap();
    let report = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    (output, report, took)
}

#[test]
fn memory_that_nobody_saw_is_not_proved() {
    let directory = tempfile::tempdir().unwrap();
    let Some(dynamic) = compile("gcc", directory.path(), "dynamic", GROWS, &[]) else { return };
    let Some(fixed) = compile("gcc", directory.path(), "fixed", GROWS, &["-static"]) else { return };
    if !thp_is_on() {
        return;
    }
    for (program, end) in [(&dynamic, "exit"), (&dynamic, "signal"), (&fixed, "exit")] {
        let (output, report, took) = unseen(program, "200", end);
        let said = text(&output.stderr);
        assert_eq!(status(&output), 125, "{program} {end}: {said}{report:#}");
        assert!(said.starts_with("megapage: --require: only ") && said.lines().count() == 1, "{said}");
        assert!(said.contains("was seen (") && said.contains("ms before the end"), "{said}");
        assert_eq!(report["end_is_final"], false);
        let (seen, unseen) = (mib(&report, "peak.resident.total_bytes"), mib(&report, "peak.unseen_bytes"));
        assert!(seen < 100 && unseen > 190, "{report:#}");
        let percent = report["peak"]["peak_seen_percent"].as_f64().unwrap();
        assert!((15.0..50.0).contains(&percent), "{percent}");
        // The program waits for the stopped launcher, but not without end.
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}

#[test]
fn an_old_sample_proves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = compile("gcc", directory.path(), "fixed", GROWS, &["-static"]) else { return };
    if !thp_is_on() {
        return;
    }
    // The program grows by nothing, but no sample was taken for most of its time.
    let file = directory.path().join("report.json");
    let arguments = ["--heap", "thp", "--require", "--json", "--report", file.to_str().unwrap(), "--"];
    let mut launcher = start(run(&[&arguments[..], &[&fixed, "64", "0", "exit"]].concat()));
    let (pid, began) = (launcher.id(), Instant::now());
    until_reported(&launcher, &file, "the first 64 MiB", |report| {
        report["end"]["anonymous"]["total_bytes"].as_u64() >= Some(64 << 20)
    });
    let child = program_of(&file);
    signal(pid, "STOP");
    std::thread::sleep(began.elapsed() * 2 + Duration::from_secs(3));
    drop(launcher.stdin.take());
    wait_for("the program's end", || ps(child, "stat").starts_with('Z'));
    signal(pid, "CONT");
    let output = launcher.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(status(&output), 125, "{said}");
    assert!(said.contains(" ms were not seen; "), "{said}");
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert!(report["end"]["age_ms"].as_u64().unwrap() >= 3000, "{report:#}");
}

/// Keeps all processors busy until it is dropped.
struct Load<'a>(&'a AtomicBool);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_short_program_is_seen_to_its_end_on_a_busy_machine() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "short", GROWS, &[]) else { return };
    if !thp_is_on() {
        return;
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _load = Load(&over);
        for _ in 0..2 * std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        for end in ["exit", "_exit"] {
            let is_seen = |_| is_seen_to_its_end(&[&program, "64", "32", end], 3, 90.0);
            assert!((0..20).any(is_seen), "{end}: the program's last moment was missed 20 times");
        }
    });
}

#[test]
fn what_a_child_had_is_not_seen() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "child", GROWS, &[]) else { return };
    if !thp_is_on() {
        return;
    }
    let script = format!("{program} 64 1 exit </dev/null >/dev/null; exit 3");
    let (status, report, said) = heap_report(&["--heap", "thp", "--require"], &["sh", "-c", &script]);
    assert_eq!(status, 125, "{report:#}");
    assert!(said.contains("children") && said.contains("of which nothing was seen"), "{said}");
    assert!(mib(&report, "others_peak_rss_bytes") >= 64, "{report:#}");
    assert!(mib(&report, "peak_rss_bytes") < 30, "the shell's own: {report:#}");
}

#[test]
fn the_report_says_how_much_of_the_peak_it_saw() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "short", GROWS, &[]) else { return };
    let file = directory.path().join("report.txt");
    let arguments = ["--heap", "thp", "--report", file.to_str().unwrap(), "--", &program, "64", "1", "exit"];
    assert_eq!(status(&output(&arguments)), 3);
    let words = words(&file);
    assert!(words.contains("seen: ") && words.contains("% of the peak); the end is"), "{words}");
    assert!(words.contains("; on huge pages, of all memory: "), "{words}");
    for line in [" heap: ", " text: ", " stacks: "] {
        assert!(words.contains(line) && words.contains("; why not more: "), "{line}: {words}");
    }
}

fn words(file: &Path) -> String {
    fs::read_to_string(file).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}
