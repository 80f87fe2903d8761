//! The report of `megapage run` on each kind of a program's memory.

use crate::run_support;

use megapage_testing::skip;
use run_support::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// A program with 24 MiB of malloc, 16 MiB of mappings, 8 MiB of shared memory, 4 MiB of a file,
/// and 40 MiB of .bss. Its thread uses 1 MiB of stack. argv[1] is the file.
const KINDS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static char bss[40 << 20];
static char *touch(char *at, size_t len) { for (size_t i = 0; i < len; i += 4096) at[i] = 1; return at; }
static void *thread(void *turn) {
    char stack[1 << 20];
    touch(stack, sizeof stack);
    pthread_barrier_wait(turn);
    pause();
    return stack[0] ? turn : 0;
}
int main(int c, char **v) {
    char b;
    int fd = open(v[1], O_RDWR);
    pthread_t id;
    pthread_barrier_t turn;
    for (int i = 0; i < 24; i++) touch(malloc(1 << 20), 1 << 20);
    touch(mmap(0, 16 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 16 << 20);
    touch(mmap(0, 8 << 20, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 8 << 20);
    touch(mmap(0, 4 << 20, 3, MAP_SHARED, fd, 0), 4 << 20);
    touch(bss, sizeof bss);
    pthread_barrier_init(&turn, 0, 2);
    pthread_create(&id, 0, thread, &turn);
    pthread_barrier_wait(&turn);
    write(1, "ready\n", 6);
    while (read(0, &b, 1) > 0) {}
    return 3;
}
"#;

/// Returns MiB of each kind at the end, from the report.
fn kinds(report: &Value) -> BTreeMap<String, u64> {
    let kinds = report["end"]["kinds"].as_object().cloned().unwrap_or_default();
    kinds.into_iter().map(|(kind, it)| (kind, it["total_bytes"].as_u64().unwrap() >> 20)).collect()
}

/// Asserts that the kinds add up to all resident memory, and the reasons of each kind to the memory
/// that is not huge.
fn assert_adds_up(report: &Value) {
    for moment in ["peak", "end", "last_full"] {
        let moment = &report[moment];
        let sum = |field: &str| -> u64 {
            let kinds = moment["kinds"].as_object().expect("kinds");
            kinds.values().map(|kind| kind[field].as_u64().unwrap()).sum()
        };
        for field in ["total_bytes", "base_bytes", "thp_bytes", "hugetlb_2m_bytes", "swapped_bytes"] {
            assert_eq!(sum(field), moment["resident"][field].as_u64().unwrap(), "{field}: {report:#}");
        }
        for (name, kind) in moment["kinds"].as_object().unwrap() {
            let reasons: Option<u64> =
                kind["why_not_more"].as_array().unwrap().iter().map(|it| it["bytes"].as_u64()).sum();
            let lacking = kind["base_bytes"].as_u64().unwrap() + kind["swapped_bytes"].as_u64().unwrap();
            // Several reasons of the heap share some bytes.
            assert!(reasons.is_none_or(|reasons| reasons == lacking), "{name}: {report:#}");
        }
    }
}

fn reasons(report: &Value, kind: &str) -> Vec<String> {
    let reasons = report["end"]["kinds"][kind]["why_not_more"].as_array().cloned().unwrap_or_default();
    reasons.iter().map(|it| it["reason"].as_str().unwrap().to_string()).collect()
}

fn program(directory: &std::path::Path) -> Option<(String, String)> {
    let program = compile("gcc", directory, "kinds", KINDS, &["-pthread"])?;
    let file = directory.join("data");
    fs::write(&file, vec![7; 4 << 20]).unwrap();
    Some((program, file.to_str().unwrap().into()))
}

/// Returns a directory on a disk, for files on a tmpfs count as shared memory.
fn directory_on_disk() -> Option<tempfile::TempDir> {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let on = Command::new("stat").args(["-f", "-c", "%T"]).arg(directory.path()).output().ok()?;
    if text(&on.stdout).trim() == "tmpfs" {
        skip("needs a target directory that is no tmpfs");
        return None;
    }
    Some(directory)
}

#[test]
fn each_kind_is_told_and_they_add_up() {
    let Some(directory) = directory_on_disk() else { return };
    let Some((program, file)) = program(directory.path()) else { return };
    let ready = |report: &Value| kinds(report).get("stacks") >= Some(&1) || report["end"].is_object();
    let (status, report, _) = held_report(&["--heap", "thp"], &[&program, &file], "a report", ready);
    assert_eq!(status, 3, "{report:#}");
    assert_adds_up(&report);
    let found = kinds(&report);
    let about = |kind: &str, mib: u64| {
        let found = *found.get(kind).unwrap_or(&0);
        assert!((mib..mib + 6).contains(&found), "{kind}: {found} MiB of {mib}: {report:#}");
    };
    about("heap", 24);
    about("shared", 8);
    about("files", 4);
    about("text", 40);
    // The kernel marks the thread's stack since Linux 6.7; before, it counts as the program's own
    // mapping.
    let of_thread = |kind: &str| found.get(kind).copied().unwrap_or(0);
    let sum = of_thread("own_mappings") + of_thread("stacks");
    assert!((16..22).contains(&sum), "{report:#}");
    assert!(!found.contains_key("runtime_heap"), "{report:#}");
    // A file system with large folios may have mapped the file by 2 MiB entries.
    let of_files = ["file-pages", "file-misplaced", "mapping-small", "unexplained", "mapping-edge", "sparse"];
    assert!(reasons(&report, "files").iter().all(|it| of_files.contains(&it.as_str())), "{report:#}");
    assert!(reasons(&report, "stacks").contains(&"mapping-small".into()), "{report:#}");
    // The documents list every reason.
    let lists =
        [include_str!("../../../../docs/doctor.md"), include_str!("../../../../docs/run-report.md")].concat();
    for kind in found.keys() {
        for reason in reasons(&report, kind) {
            let listed = [format!("### {reason}\n"), format!("| `{reason}`"), format!("`{reason}`.")];
            assert!(listed.iter().any(|it| lists.contains(it)), "{reason} of {kind}");
        }
    }
}

#[test]
fn without_a_library_all_private_memory_is_the_heap() {
    let Some(directory) = directory_on_disk() else { return };
    let Some((program, file)) = program(directory.path()) else { return };
    for heap in [&["--heap", "none"][..], &["--mechanism", "tunable"]] {
        let seen = |report: &Value| kinds(report).get("heap") >= Some(&40);
        let (status, report, _) = held_report(heap, &[&program, &file], "a heap of 40 MiB", seen);
        assert_eq!(status, 3, "{report:#}");
        assert_adds_up(&report);
        let found = kinds(&report);
        assert!(!found.contains_key("own_mappings"), "{report:#}");
        assert!(found["text"] >= 40 && found["shared"] == 8 && found["files"] >= 4, "{report:#}");
    }
}

#[test]
fn kinds_of_a_running_process_are_told() {
    let Some(directory) = directory_on_disk() else { return };
    let Some((program, file)) = program(directory.path()) else { return };
    let mut command = Command::new(&program);
    command.arg(&file);
    let mut child = start(command);
    let pid = child.id().to_string();
    let report = output(&["--attach", &pid, "--once", "--json"]);
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    if status(&report) != 0 {
        return skip(&format!("needs external promotion: {}", text(&report.stderr)));
    }
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_adds_up(&report);
    // The program waits, so that smaps has not changed since.
    let counted: u64 = smaps
        .lines()
        .filter(|line| line.starts_with("Rss:") || line.starts_with("Private_Hugetlb:"))
        .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10)
        .sum();
    assert_eq!(report["end"]["resident"]["total_bytes"].as_u64(), Some(counted), "{report:#}");
    // All is promoted, except the edges of mappings that do not begin at multiples of 2 MiB.
    assert!(
        reasons(&report, "heap").iter().all(|it| it != "not-advised" && it != "unexplained"),
        "{report:#}"
    );
}
