//! Each entry of the table of runtimes (`launch::runtimes`), with the real program.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::ability::PAGEMAP_SCAN;
use megapage_testing::{MachineLock, is_root, skip};
use run_support::{status as status_of, *};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Returns true if `program` is installed; else skips loudly.
fn installed(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        skip(&format!("needs {program}"));
    }
    there
}

/// Returns the verdict on one mechanism: true if it was used, and the reason.
fn verdict(report: &Value, mechanism: &str) -> (bool, String) {
    let considered = report["considered"].as_array().unwrap();
    let found = considered.iter().find(|it| it["mechanism"] == mechanism).unwrap();
    (found["used"].as_bool().unwrap(), found["reason"].as_str().unwrap().to_string())
}

#[test]
fn node_gets_malloc_and_its_heap_from_inside() {
    if !installed("node") {
        return;
    }
    let code = "const b = []; for (let i = 0; i < 64; i++) b.push(Buffer.alloc(1 << 20, 1)); \
                const a = []; for (let i = 0; i < 5e6; i++) a.push({ x: i }); \
                process.stdin.on('end', () => console.log(b.length, a.length)).resume(); \
                console.log('ready');";
    // The library collapses without any privilege. Before Linux 6.7 the launcher promotes instead,
    // which takes CAP_SYS_NICE.
    let inside = PAGEMAP_SCAN.is_there(&KernelRoot::live());
    let v8 = |report: &Value| !(inside || is_root()) || mib(report, "end.kinds.runtime_heap.thp_bytes") >= 64;
    let (status, report, said) =
        held_report(&["--heap", "thp"], &["node", "-e", code], "malloc's heap and V8's on THP", |report| {
            mib(report, "end.heap.thp_bytes") >= 32 && v8(report)
        });
    assert_eq!((status, said.as_str()), (0, ""), "{report:#}");
    let (switched, why) = verdict(&report, "runtime");
    assert!(!switched && why.contains("--use-largepages"), "{why}");
    assert_eq!(verdict(&report, "outside").0, !inside && is_root(), "{report:#}");
    if !inside && !is_root() {
        skip("needs CAP_SYS_NICE to promote V8's heap");
    }
}

#[test]
fn php_gets_its_switch() {
    if !installed("php") {
        return;
    }
    // The lock keeps other tests from filling the pool meanwhile.
    let _lock = MachineLock::take();
    let code = "$a = []; for ($i = 0; $i < 1500000; $i++) $a[] = [$i]; echo \"ready\\n\"; \
                fgets(STDIN); echo count($a);";
    let program = ["php", "-d", "memory_limit=-1", "-r", code];
    let (status, report, said) = held_report(&["--heap", "thp"], &program, "32 MiB on THP", |report| {
        !verdict(report, "runtime").0 || mib(report, "peak.anonymous.thp_bytes") >= 32
    });
    assert_eq!((status, said.as_str()), (0, ""), "{report:#}");
    let (switched, why) = verdict(&report, "runtime");
    if !switched {
        assert!(why.contains("while the pool has any"), "{report:#}");
        return skip("needs an empty pool of 2m pages: PHP's switch is not for THP otherwise");
    }
    assert!(why.contains("USE_ZEND_ALLOC_HUGE_PAGES=1"), "{report:#}");
}

#[test]
fn php_runs_unharmed_under_the_preload() {
    if !installed("php") {
        return;
    }
    // Its extensions are opened with RTLD_DEEPBIND: they must not free with libc what the library
    // allocated.
    let preloaded = output(&["--mechanism", "preload", "--", "php", "-r", "echo extension_loaded('json');"]);
    assert_eq!(
        (status_of(&preloaded), text(&preloaded.stdout)),
        (0, "1".into()),
        "{}",
        text(&preloaded.stderr)
    );
}

const GO: &str = "package main\nimport (\"fmt\"; \"os\")\nfunc main() { b := make([][]byte, 128)\n\
    for i := range b { b[i] = make([]byte, 1<<20); for j := range b[i] { b[i][j] = 1 } }\n\
    fmt.Println(\"ready\"); os.Stdin.Read(make([]byte, 1)); fmt.Println(len(b)) }\n";

#[test]
fn go_is_promoted_from_outside() {
    let directory = tempfile::tempdir().unwrap();
    if !Command::new("go").arg("version").output().is_ok_and(|output| output.status.success()) {
        return skip("needs go");
    }
    let (source, program) = (directory.path().join("heap.go"), directory.path().join("heap"));
    fs::write(&source, GO).unwrap();
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program).arg(&source).current_dir(&directory);
    assert!(build.status().unwrap().success());
    let program = program.to_str().unwrap();
    let (status, report, said) = held_report(&["--heap", "thp"], &[program], "32 MiB promoted", |report| {
        !is_root() || mib(report, "end.anonymous.thp_bytes") >= 32
    });
    assert_eq!((status, said.as_str()), (0, ""), "{report:#}");
    assert!(verdict(&report, "runtime").1.contains("1.21.1"), "{report:#}");
    if !is_root() {
        skip("needs CAP_SYS_NICE to promote Go's heap");
    }
}
