//! A kernel with base pages of 16 KiB, as arm64 can have: every command refuses in one line, and
//! the libraries do nothing. For the command, a library before its C library makes sysconf(3)
//! return 16 KiB. The preloaded libraries call no such function: for them a filter makes madvise(2)
//! answer so. Mappings in multiples of 16 KiB are also valid on this kernel.

use crate::run_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_units::Pid;
use run_support::{assert_refused, compile, finish, heap_program, library, start, status, text};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const OTHER_PAGES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
long sysconf(int name) {
    static long (*real)(int);
    if (name == _SC_PAGESIZE) return 16384;
    if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return real(name);
}
"#;

/// Executes its arguments under a filter, by which no page seems to begin at 4 KiB and at 8 KiB.
const OTHER_PAGES_BELOW: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
int main(int count, char **words) {
    struct sock_filter filter[] = {
        LOAD(nr), UNLESS(SYS_madvise, 6), LOAD(args[1]), UNLESS(0, 4), LOAD(args[0]),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 4096, 1, 0), UNLESS(8192, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 98;
    execv(words[1], words + 1);
    return 99;
}
"#;

/// Returns `None`, after a loud skip, if there is no compiler.
fn other_pages(directory: &Path) -> Option<String> {
    compile("gcc", directory, "other_pages.so", OTHER_PAGES, &["-shared", "-fPIC"])
}

fn megapage(pages: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.args(arguments).env("LD_PRELOAD", pages).stdin(Stdio::null()).output().unwrap()
}

const REFUSED: &str = "this kernel's base pages are 16 KiB; megapage supports base pages of 4 KiB";

#[test]
fn every_command_refuses_other_base_pages_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let Some(pages) = other_pages(directory.path()) else { return };
    let own = std::process::id().to_string();
    let commands: [&[&str]; 19] = [
        &["pool", "list"],
        &["pool", "list", "--json"],
        &["pool", "set", "2m=+1", "--dry-run"],
        &["pool", "persist", "2m=4"],
        &["pool", "serve", "--dry-run"],
        &["pool", "stock"],
        &["doctor", "--why", &own],
        &["advise", &own],
        &["map", &own],
        &["top", "--once"],
        &["daemon"],
        &["daemon", "--once", "--dry-run"],
        &["daemon", "--once", "--dry-run", "--json"],
        &["record", "--once"],
        &["segments", "list"],
        &["segments", "verify", "a"],
        &["bench", "run", "--", "true"],
        &["remap", "check", "/bin/true"],
        &["remap", "prime", "/bin/true"],
    ];
    for arguments in commands {
        let output = megapage(&pages, arguments);
        let known = !text(&output.stderr).contains("--help");
        assert!(known, "{arguments:?}: {}", text(&output.stderr));
        assert_refused(&output, 2, REFUSED);
    }
}

#[test]
fn run_refuses_other_base_pages_before_the_program_starts() {
    let directory = tempfile::tempdir().unwrap();
    let Some(pages) = other_pages(directory.path()) else { return };
    let made = directory.path().join("made");
    let made = made.to_str().unwrap();
    for options in [&[][..], &["--heap", "none"], &["--mechanism", "outside"], &["--dry-run"]] {
        let output = megapage(&pages, &[&["run"], options, &["--", "touch", made]].concat());
        assert_refused(&output, 125, REFUSED);
    }
    let own = std::process::id().to_string();
    assert_refused(&megapage(&pages, &["run", "--once", "--attach", &own]), 125, REFUSED);
    assert!(!Path::new(made).exists());
}

#[test]
fn doctor_finds_other_base_pages_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let Some(pages) = other_pages(directory.path()) else { return };
    let output = megapage(&pages, &["doctor", "--json"]);
    assert_eq!(status(&output), 1, "{}", text(&output.stderr));
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["schema"], "megapage.doctor/1");
    let findings = found["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{found:#}");
    assert_eq!(
        (&findings[0]["id"], &findings[0]["severity"]),
        (&"base-pages-other".into(), &"blocker".into())
    );
    assert_eq!(findings[0]["evidence"][0]["value"], "16 KiB");
    assert_eq!(found["verdicts"].as_array().map(Vec::len), Some(0), "no number that would be wrong");
    let human = megapage(&pages, &["doctor", "--only-read"]);
    let said = text(&human.stdout);
    assert!(status(&human) == 1 && said.contains("16 KiB") && said.contains("[base-pages-other]"), "{said}");
}

#[test]
fn what_looks_at_no_machine_works_on_other_base_pages() {
    let directory = tempfile::tempdir().unwrap();
    let Some(pages) = other_pages(directory.path()) else { return };
    let log = directory.path().join("log");
    std::fs::write(&log, "nothing of it\n").unwrap();
    let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/fuzz/recording/seed");
    let commands: [&[&str]; 5] = [
        &["--version"],
        &["run", "--help"],
        &["pool", "set", "--help"],
        &["plan", recorded],
        &["doctor", "--log", log.to_str().unwrap()],
    ];
    for arguments in commands {
        let output = megapage(&pages, arguments);
        assert_eq!(status(&output), 0, "{arguments:?}: {}", text(&output.stderr));
        assert!(!output.stdout.is_empty(), "{arguments:?}");
    }
}

/// Returns the flags of all mappings of a process that holds 64 MiB, with the library before its
/// malloc, and its exit status. `hg` marks memory for which huge pages were requested.
fn flags(library: &str, words: &[&str]) -> (String, i32) {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["64", "48"]).env("LD_PRELOAD", library).env("MEGAPAGE_HEAP", "thp");
    let child = start(command);
    let mappings = read_smaps(&KernelRoot::live(), Pid(child.id() as i32)).unwrap();
    let output = finish(child);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    (mappings.iter().map(|mapping| format!(" {} ", mapping.vm_flags)).collect(), status(&output))
}

#[test]
fn the_preloaded_library_stays_out_of_the_way_of_other_base_pages() {
    let directory = tempfile::tempdir().unwrap();
    let Some(below) = compile("gcc", directory.path(), "below", OTHER_PAGES_BELOW, &[]) else { return };
    let Some(program) = heap_program(directory.path(), "heap", &[]) else { return };
    let library = library().display().to_string();
    let (of_4_kib, ended) = flags(&library, &[&program]);
    assert!(of_4_kib.contains(" hg "), "the control: {of_4_kib}");
    assert_eq!(ended, 3);
    let (of_16_kib, ended) = flags(&library, &[&below, &program]);
    assert!(!of_16_kib.contains(" hg "), "{of_16_kib}");
    assert_eq!(ended, 3);
}

/// Program that forks, has threads, grows and shrinks blocks, and frees them elsewhere. Its status
/// is 0 if every byte was right.
const BUSY: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *unused) {
    char *held[64] = {0};
    size_t sizes[64] = {0};
    unsigned seed = 1;
    for (int turn = 0; turn < 20000; turn++) {
        unsigned n = (seed = seed * 1103515245 + 12345) >> 16 & 63;
        size_t size = 1 + (seed >> 8) % (turn % 100 ? 5000 : 3000000);
        for (size_t k = 0; k < sizes[n]; k += 511) if (held[n][k] != (char)n) return (void *)1;
        held[n] = turn % 3 ? realloc(held[n], size) : (free(held[n]), malloc(size));
        if (!held[n]) return (void *)1;
        memset(held[n], n, sizes[n] = size);
    }
    for (int n = 0; n < 64; n++) free(held[n]);
    return NULL;
}
int main() {
    pthread_t threads[3];
    for (int n = 0; n < 3; n++) pthread_create(&threads[n], NULL, work, NULL);
    for (int n = 0; n < 5; n++) {
        pid_t child = fork();
        int status;
        if (child == 0) _exit(work(NULL) != NULL);
        if (waitpid(child, &status, 0) != child || status) return 2;
    }
    for (int n = 0; n < 3; n++) {
        void *failed;
        pthread_join(threads[n], &failed);
        if (failed) return 1;
    }
    return 0;
}
"#;

#[test]
fn malloc_is_right_on_other_base_pages() {
    let directory = tempfile::tempdir().unwrap();
    let Some(below) = compile("gcc", directory.path(), "below", OTHER_PAGES_BELOW, &[]) else { return };
    let Some(program) = compile("gcc", directory.path(), "busy", BUSY, &["-pthread"]) else { return };
    for heap in ["auto", "2m", "thp"] {
        let output = Command::new(&below)
            .arg(&program)
            .env("LD_PRELOAD", library())
            .env("MEGAPAGE_HEAP", heap)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(status(&output), 0, "{heap}");
        assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}
