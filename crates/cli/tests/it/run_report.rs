//! The proofs of `megapage run`, with each mechanism and each backing.

use crate::run_support;

use megapage_kernel::hugetlb::{PoolScope, counts};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_kernel::{KernelRoot, process};
use megapage_testing::{MachineLock, PoolGuard, is_root, skip};
use megapage_units::PageSize;
use run_support::*;
use serde_json::Value;
use std::process::Command;

/// Returns true if programs can have THP here; else skips loudly.
fn thp_is_on() -> bool {
    let root = KernelRoot::live();
    let settings = settings(&root).unwrap();
    let on = settings.is_some_and(|it| it.anonymous(PageSize::HUGE_2M) != ThpEnabled::Never)
        && process::read_own_status(&root).unwrap().thp_enabled != Some(false);
    if !on {
        skip("needs transparent huge pages");
    }
    on
}

#[test]
fn a_heap_on_thp_is_proved_by_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "heap", &[]) else { return };
    if !thp_is_on() {
        return;
    }
    // The kernel's view while the program lives: a delayed launcher may miss the end.
    let on_thp = |report: &Value| report["end"]["heap"]["thp_bytes"].as_u64() >= Some(64 << 20);
    let arguments = ["--heap", "thp", "--require"];
    let (status, report, _) = held_report(&arguments, &[&program, "128", "64"], "64 MiB on THP", on_thp);
    assert_eq!(report["schema"], "megapage.run/3", "{report:#}");
    // Other tests may have left too few free huge pages for the last ones here; the report then
    // says so.
    let obtained = report["not_obtained"] == serde_json::json!([]);
    assert_eq!(status, if obtained { 3 } else { 125 }, "{report:#}");
    assert!(mib(&report, "peak.heap.thp_bytes") >= 64, "{report:#}");
    assert!(mib(&report, "end.heap.thp_bytes") >= 64, "{report:#}");
    // Not every time, for the same reason.
    let is_final = |_| heap_report(&["--heap", "thp"], &[&program, "8", "64"]).1["end_is_final"] == true;
    assert!((0..20).any(is_final), "the program's last moment was missed 20 times");
    assert_eq!(report["mechanisms"], serde_json::json!(["preload"]));
    assert!(mib(&report, "account.held_at_peak_bytes.thp") >= 120, "{report:#}");
    assert!(mib(&report, "peak_rss_bytes") >= 128, "{report:#}");
    assert!(report["totals"]["minor_faults"].as_u64().unwrap() > 0);
    let cost = report["sampling"]["cost_percent"].as_f64().unwrap();
    // Its size is a matter for `megapage-lab startup`: here the machine may be busy with other
    // work.
    assert!(report["sampling"]["samples"].as_u64().unwrap() >= 1 && cost >= 0.0, "{report:#}");
}

#[test]
fn a_heap_on_hugetlb_pages_is_told_from_thp() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "heap", &[]) else { return };
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 96) else { return };
    let on_pool = |report: &Value| report["end"]["heap"]["hugetlb_2m_bytes"].as_u64() >= Some(116 << 20);
    let held = |arguments| held_report(arguments, &[&program, "128", "64"], "116 MiB on hugetlb", on_pool);
    let (status, report, _) = held(&["--heap", "2m", "--require"]);
    assert_eq!(status, 3, "{report:#}");
    assert!(mib(&report, "peak.heap.hugetlb_2m_bytes") >= 116, "{report:#}");
    assert!(mib(&report, "hugetlb_peak_bytes") >= 116, "{report:#}");
    // The default does the same for a program that does not fork.
    let (status, report, _) = held(&[]);
    assert_eq!(status, 3, "{report:#}");
    assert!(mib(&report, "peak.heap.hugetlb_2m_bytes") >= 116, "{report:#}");
}

#[test]
fn a_pool_that_runs_dry_is_reported_and_fails_a_requirement() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "heap", &[]) else { return };
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let pool = counts(&KernelRoot::live(), PageSize::HUGE_2M, PoolScope::Machine).unwrap();
    let available = pool.available().unwrap() + pool.overcommit.unwrap().saturating_sub(pool.surplus);
    if available > 512 {
        return skip("needs a pool of 2m pages without others' available ones, or a small one");
    }
    let mib = (2 * available + 96).to_string();
    let (status, report, said) = heap_report(&["--heap", "2m", "--require"], &[&program, &mib, "64"]);
    assert_eq!(status, 125, "{report:#}");
    assert!(said.starts_with("megapage: --require: "), "{said}");
    assert!(said.contains("pool-short-2m"), "{said}");
    assert_eq!(report["totals"]["ended"]["status"], 3, "the program itself came to its end");
    let reasons: Vec<&str> = report["account"]["fall_backs"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|fall_back| fall_back["reason"].as_str())
        .collect();
    assert!(reasons.contains(&"pool-short-2m"), "{report:#}");
    // Without the requirement, the same run ends with the program's success.
    let (status, _, said) = heap_report(&["--heap", "2m"], &[&program, &mib, "64"]);
    assert_eq!((status, said.as_str()), (3, ""));
}

#[test]
fn what_is_known_to_be_impossible_is_refused_before_the_start() {
    let _lock = MachineLock::take();
    for (size, name) in [(PageSize::HUGE_2M, "2m"), (PageSize::HUGE_1G, "1g")] {
        match counts(&KernelRoot::live(), size, PoolScope::Machine) {
            Ok(pool) if pool.available() == Some(0) && pool.overcommit == Some(0) => {}
            _ => {
                skip(&format!("needs a pool of {name} pages without available ones"));
                continue;
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("trace");
        let arguments = ["--heap", name, "--require", "--", "touch", trace.to_str().unwrap()];
        let expected = format!("--require: the pool of {name} pages has none available");
        assert_refused(&output(&arguments), 125, &expected);
        assert!(!trace.exists(), "the program was not started");
    }
}

#[test]
fn a_program_that_forks_gets_thp_and_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let source = "#include <unistd.h>\nint main() { return fork() < 0; }\n";
    let Some(program) = compile("gcc", directory.path(), "forks", source, &[]) else { return };
    let (status, report, _) = heap_report(&[], &[&program]);
    assert_eq!((status, &report["heap"]), (0, &"thp".into()), "{report:#}");
    let reason = report["considered"][1]["reason"].as_str().unwrap();
    assert!(reason.contains("imports fork") && reason.contains("--heap 2m overrides"), "{reason}");
    let (_, report, _) = heap_report(&["--heap", "2m"], &[&program]);
    assert_eq!(report["heap"], "2m");
}

#[test]
fn glibcs_tunable_is_used_where_asked_and_proved() {
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    if !thp_is_on() {
        return;
    }
    // Blocks that are larger than a huge page, in a program without a loader.
    let mut command = run(&["--mechanism", "tunable", "--report", "-", "--", &fixed, "128", "32768"]);
    let output = command.output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(status(&output), 3, "{said}");
    assert!(said.contains("tunable used: glibc.malloc.hugetlb=1"), "{said}");
    // Without the library there is no handshake: the program must be sampled while it runs.
    let (_, report, _) =
        held_report(&["--mechanism", "tunable"], &[&fixed, "128", "32768"], "100 MiB on THP", |report| {
            mib(report, "peak.anonymous.thp_bytes") >= 100
        });
    assert_eq!(report["end_is_final"], false);
}

#[test]
fn a_static_program_is_promoted_from_outside() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    let (status, _, _) =
        held_report(&["--mechanism", "outside"], &[&fixed, "64", "64"], "50 MiB promoted", |report| {
            mib(report, "promotion.obtained_bytes") >= 50 && mib(report, "end.anonymous.thp_bytes") >= 50
        });
    assert_eq!(status, 3);
}

/// A process that is killed at any moment of a pass has ended, which is no failure of megapage.
#[test]
fn an_attached_process_may_be_killed_at_any_moment() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    for after in (0..60).step_by(3) {
        let mut command = Command::new(&fixed);
        command.args(["64", "64"]);
        let mut target = start(command);
        let attached = run(&["--attach", &target.id().to_string(), "--json"]).spawn().unwrap();
        wait_for("the signals to be taken", || takes_signal(attached.id(), 2));
        std::thread::sleep(std::time::Duration::from_millis(after));
        target.kill().unwrap();
        target.wait().unwrap();
        let attached = attached.wait_with_output().unwrap();
        assert_eq!(status(&attached), 0, "after {after} ms: {}", text(&attached.stderr));
    }
}

#[test]
fn an_attached_process_is_promoted_proved_and_left_unharmed() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    let mut command = Command::new(&fixed);
    command.args(["64", "64"]);
    let target = start(command);
    let pid = target.id().to_string();

    let planned = text(&output(&["--attach", &pid, "--dry-run"]).stdout);
    assert!(
        planned.contains("MADV_COLLAPSE") && planned.contains(&format!("--attach {pid} --once")),
        "{planned}"
    );
    let attached = output(&["--attach", &pid, "--once", "--require", "--json"]);
    let report: Value = serde_json::from_slice(&attached.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&attached.stdout), text(&attached.stderr)));
    assert_eq!(status(&attached), 0, "{report:#}");
    assert!(mib(&report, "promotion.obtained_bytes") >= 50, "{report:#}");
    assert!(mib(&report, "end.anonymous.thp_bytes") >= 50, "{report:#}");

    // Without --once it stays until SIGINT, or until the process ends.
    let report = text(&output(&["--attach", &pid, "--once", "--report", "-"]).stdout);
    let words = report.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the program runs on") && !words.contains("exit of the program"), "{report}");
    let watch = || {
        let file = directory.path().join("watched.json");
        let _ = std::fs::remove_file(&file);
        let watching =
            run(&["--attach", &pid, "--json", "--report", file.to_str().unwrap()]).spawn().unwrap();
        wait_for("the signals to be taken", || takes_signal(watching.id(), 2));
        until_reported(&watching, &file, "a report", |report| report["running"] == true);
        watching
    };
    let watching = watch();
    signal(watching.id(), "INT");
    assert_eq!(status(&watching.wait_with_output().unwrap()), 0);
    let watching = watch();
    assert_eq!(finish(target).status.code(), Some(3), "every byte is as it was");
    assert_eq!(status(&watching.wait_with_output().unwrap()), 0);
}

#[test]
fn what_one_promotion_leaves_is_told_by_its_status() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to promote another process's memory");
    }
    let directory = tempfile::tempdir().unwrap();
    let source = include_str!("../programs/pinned.c");
    let Some(program) = compile("gcc", directory.path(), "pinned", source, &[]) else { return };
    let target = start(Command::new(program));
    let attached = output(&["--attach", &target.id().to_string(), "--once", "--json"]);
    let report: Value = serde_json::from_slice(&attached.stdout).unwrap();
    assert_eq!(
        mib(&report, "promotion.asked_bytes") - mib(&report, "promotion.obtained_bytes"),
        2,
        "{report:#}"
    );
    let said = text(&attached.stderr);
    assert_eq!((status(&attached), said.lines().count()), (1, 1), "{said}");
    assert!(said.contains("obtained ") && said.contains(" of "), "{said}");
    assert_eq!(finish(target).status.code(), Some(3), "every byte is as it was");
}

#[test]
fn a_program_that_execs_another_takes_the_library_along() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = heap_program(directory.path(), "heap", &[]) else { return };
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    if !thp_is_on() {
        return;
    }
    let notes = |report: &Value| report["notes"].to_string();
    let exec = |program: &str| format!("exec {program} 64 64");
    let on_thp = |report: &Value| report["end"]["heap"]["thp_bytes"].as_u64() >= Some(32 << 20);
    let words = ["sh", "-c", &exec(&program)];
    let (status, report, _) = held_report(&["--heap", "thp"], &words, "32 MiB on THP", on_thp);
    assert_eq!(status, 3, "{report:#}");
    assert!(notes(&report).contains("has replaced itself by"), "{report:#}");

    // A static program loses the library, and the report says so.
    let (_, report, _) = held_report(&[], &["sh", "-c", &exec(&fixed)], "the exec to be seen", |report| {
        notes(report).contains("which the preloaded library cannot reach")
    });
    assert!(report["not_obtained"].to_string().contains("does not report"), "{report:#}");
}

#[test]
fn the_human_report_fits_100_columns() {
    let output = output(&["--report", "-", "--", "sh", "-c", ":"]);
    let said = text(&output.stdout);
    assert!(said.starts_with("megapage run: status 0; on huge pages, of all memory:"), "{said}");
    // A path may be longer than a line.
    let long = said.lines().find(|line| line.chars().count() > 100 && line.trim().contains(' '));
    assert_eq!(long, None);
}
