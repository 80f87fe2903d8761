//! The treatment by `megapage run` of memory that a program maps itself, without malloc.

use crate::run_support;

use megapage_kernel::program_memory::OwnPagemap;
use megapage_kernel::thp_is_possible;
use megapage_testing::skip;
use run_support::*;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const ARENAS: &str = include_str!("../programs/arenas.c");

fn arenas(directory: &Path) -> Option<String> {
    compile("gcc", directory, "arenas", ARENAS, &["-pthread"])
}

/// Returns true if all of the program's mappings can be huge here; else skips loudly.
fn can_be_huge() -> bool {
    let can = thp_is_possible() && OwnPagemap::open().is_some();
    if !can {
        skip("needs transparent huge pages and Linux 6.7");
    }
    can
}

fn own_is_huge(report: &Value, least_mib: u64, least_percent: f64) -> bool {
    let own = &report["end"]["own_mappings"];
    own["thp_bytes"].as_u64() >= Some(least_mib << 20) && own["huge_percent"].as_f64() >= Some(least_percent)
}

const PYTHON: &str = "import os, sys; a = [(i, str(i)) for i in range(1000000)]; \
                      print('ready', flush=True); sys.stdin.read(); \
                      sys.exit(3 if len(a) == 1000000 and 'PYTHONMALLOC' not in os.environ else 4)";

#[test]
fn python_keeps_its_allocator_and_its_arenas_become_huge() {
    const PROGRAM: &str = "/usr/bin/python3";
    if !Command::new(PROGRAM).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skip("needs python3");
    }
    if !can_be_huge() {
        return;
    }
    let program = [PROGRAM, "-c", PYTHON];
    let (status, report, _) = held_report(&["--heap", "thp"], &program, "its arenas on THP", |report| {
        own_is_huge(report, 80, 90.0)
    });
    assert_eq!(status, 3, "{report:#}");
    assert_eq!(report["mechanisms"], serde_json::json!(["preload"]));
}

#[test]
fn arenas_and_a_large_mapping_become_huge() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = arenas(directory.path()) else { return };
    if !can_be_huge() {
        return;
    }
    // Arenas like pymalloc's (256, 1024), of an odd size (1540), like jemalloc's (4096), and one
    // mapping for all. An arena that fills no whole region cannot be huge if no other lies beside
    // it.
    for (kib, percent) in [("256", 95.0), ("1024", 95.0), ("1540", 60.0), ("4096", 95.0), ("196608", 95.0)] {
        let all = [program.as_str(), "hold", "192", kib, "1"];
        let (status, report, _) = held_report(&["--heap", "thp"], &all, "all of it on THP", |report| {
            own_is_huge(report, 100, percent)
        });
        assert_eq!(status, 3, "{kib}: {report:#}");
    }
}

#[test]
fn sparse_arenas_take_no_more_than_they_use() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = arenas(directory.path()) else { return };
    for kib in ["256", "1024", "4096", "196608"] {
        // One page of eight: 24 MiB.
        let all = [program.as_str(), "hold", "192", kib, "8"];
        let (status, report, _) =
            held_report(&["--heap", "thp"], &all, "a report", |report| report["end"].is_object());
        assert_eq!(status, 3, "{kib}: {report:#}");
        assert!(mib(&report, "peak.own_mappings.total_bytes") <= 26 + 16, "{kib}: {report:#}");
    }
}

#[test]
fn children_have_memory_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = arenas(directory.path()) else { return };
    for kib in ["256", "1024", "4096"] {
        let child = start(run(&["--heap", "thp", "--", &program, "fork", "96", kib, "1"]));
        assert_eq!(status(&finish(child)), 3, "{kib}");
    }
}

#[test]
fn many_threads_map_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = arenas(directory.path()) else { return };
    for heap in ["thp", "auto"] {
        assert_eq!(status(&output(&["--heap", heap, "--", &program, "threads"])), 3);
    }
}

#[test]
fn a_limit_on_addresses_leaves_as_much_as_without_the_library() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = arenas(directory.path()) else { return };
    let limited = output(&["--heap", "thp", "--return-after", "never", "--", &program, "limit"]);
    let said = text(&limited.stdout);
    assert_eq!(status(&limited), 3, "{said}");
    let count: u64 = said.split(' ').next().unwrap().parse().unwrap();
    // The library's thread has a stack, which takes addresses.
    assert!((60..=65).contains(&count), "{said}");
}

#[test]
fn a_program_finds_its_arenas_in_its_own_maps() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = arenas(directory.path()) else { return };
    assert_eq!(status(&output(&["--heap", "thp", "--", &program, "maps"])), 3);
}
