//! Shared parts of the tests of `megapage run --text`: the program whose segments are moved, and
//! its runs.

#![allow(dead_code, reason = "each test file uses its part")]

use crate::run_support::*;
use megapage_testing::skip;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// A program with 6 MiB of code, 5 MiB of constants, 4 MiB of data and 6 MiB of .bss, and a task
/// for each test. Each task first proves that the program is whole.
pub const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define HIDDEN __attribute__((visibility("hidden")))
__asm__(".text\n.globl first\nfirst: lea 1(%rdi), %eax\n ret\n .skip 3 << 20, 0x90\n"
        ".globl middle\nmiddle: lea 3(%rdi), %eax\n ret\n .skip 3 << 20, 0x90\n"
        ".globl last\nlast: lea 2(%rdi), %eax\n ret\n"
        ".section .rodata\n.globl constants\nconstants: .skip 5 << 20, 7\n.text\n");
HIDDEN int first(int), middle(int), last(int);
HIDDEN extern const unsigned char constants[5 << 20];
static int (*const both[])(int) = {first, last, middle};
static int data[1 << 20] = {5, 6, [(1 << 20) - 1] = 8};
static unsigned char zeros[6 << 20];
static __thread int local = 9;
static int constructed;
__attribute__((constructor)) static void construct(void) { constructed = 1; data[7] = 70; }
static int whole(void) {
    unsigned long sum = 0;
    for (int i = 0; i < 5 << 20; i += 64) sum += constants[i];
    for (const char *code = (const char *)first; code < (const char *)last; code += 4096) sum += *code & 1;
    for (int i = 0; i < 6 << 20; i += 64) sum += zeros[i];
    for (int i = 0; i < 1 << 20; i++) sum += data[i];
    return both[0](10) == 11 && both[1](20) == 22 && both[2](30) == 33 && local == 9 && constructed == 1 && sum == 573440 + 89 + 1;
}
__attribute__((noinline)) void later(void) { __asm__ volatile("nop"); }
__attribute__((noinline)) void traced(void) {
    void *frames[9];
    backtrace_symbols_fd(frames, backtrace(frames, 9), 1);
}
int main(int count, char **arguments) {
    const char *task = count > 1 ? arguments[1] : "";
    char byte;
    /* The first page of the code need not begin with an odd or an even byte: what it adds is taken away. */
    unsigned long code = 0;
    for (const char *at = (const char *)first; at < (const char *)last; at += 4096) code += *at & 1;
    data[9] = 1 - (int)code;
    if (!whole()) return 9;
    if (!strcmp(task, "fork")) {
        int status;
        pid_t child = fork();
        if (child == 0) { memset(data, 1, sizeof data); memset(zeros, 2, sizeof zeros); _exit(both[1](3)); }
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) != 5 || !whole()) return 8;
    } else if (!strcmp(task, "exec")) {
        execl(arguments[2], arguments[2], "again", NULL);
        return 7;
    } else if (!strcmp(task, "become")) {
        execv(arguments[2], arguments + 2);
        return 7;
    } else if (!strcmp(task, "maps")) {
        FILE *maps = fopen("/proc/self/maps", "r");
        for (int letter; (letter = getc(maps)) != EOF;) putchar(letter);
    } else if (!strcmp(task, "dlopen")) {
        void *library = dlopen(arguments[2], RTLD_NOW);
        int (*answer)(void) = library ? (int (*)(void))dlsym(library, "answer") : NULL;
        if (!answer || answer() != 42) return 6;
    } else if (!strcmp(task, "loop")) {
        write(1, "ready\n", 6);
        if (fork() == 0) { while (read(0, &byte, 1) > 0) {} kill(getppid(), 10); _exit(0); }
        for (;;) { later(); usleep(1000); }
    } else if (!strcmp(task, "abort")) {
        abort();
    } else if (!strcmp(task, "backtrace")) {
        traced();
    } else if (!strcmp(task, "heap")) {
        char *block = sbrk(0);
        if (sbrk(8 << 20) != block) return 5;
        memset(block, 3, 8 << 20);
        if (!whole()) return 4;
    } else if (!strcmp(task, "children")) {
        return system("env") ? 2 : 3;
    }
    printf("whole %s\n", task);
    fflush(stdout);
    return 3;
}
"#;

pub fn text_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| library().with_file_name("libmegapage_text.so"))
}

/// Returns a directory on the disk, for the usual place of temporary files may be in memory.
pub fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Compiles the program with these options. Returns `None`, after a loud skip, if the linker is not
/// installed.
pub fn program(directory: &Path, name: &str, options: &[&str]) -> Option<String> {
    let linker = options.iter().find_map(|option| option.strip_prefix("-fuse-ld="));
    if let Some(linker) = linker {
        let is_there = |name: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|directory| directory.join(name).exists())
        };
        if !is_there(&format!("ld.{linker}")) && !is_there(linker) {
            skip(&format!("needs the linker {linker}"));
            return None;
        }
    }
    // The compiler, another process, writes it, so that no test holds it open for writing
    // (ETXTBSY).
    compile("gcc", directory, name, SOURCE, &[options, &["-rdynamic", "-ldl"]].concat())
}

/// Compiles a library with the function `answer`, for the program's task `dlopen`.
pub fn answer(directory: &Path) -> Option<String> {
    compile("gcc", directory, "answer.so", "int answer(void) { return 42; }", &["-shared", "-fPIC"])
}

/// Returns `megapage run --heap none` with the library for text.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
    command.args(["run", "--heap", "none"]).args(arguments).stdin(Stdio::null());
    command.env("MEGAPAGE_TEXT_LIBRARY", text_library());
    command
}

/// Runs `words` with `--text kind`. Returns the report and the output of the run.
pub fn report(kind: &str, more: &[&str], words: &[&str]) -> (Value, Output) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let asked =
        [&["--text", kind, "--json", "--report", file.to_str().unwrap()], more, &["--"], words].concat();
    let output = command(&asked).output().unwrap();
    let report = fs::read_to_string(&file).unwrap_or_default();
    let report = serde_json::from_str(&report)
        .unwrap_or_else(|error| panic!("{error}: '{report}', {}", text(&output.stderr)));
    (report, output)
}

pub fn value(file: &Value, name: &str) -> u64 {
    file[name].as_u64().unwrap_or_else(|| panic!("{name} in {file:#}"))
}

/// Returns the report's entry of the program's file. Asserts that it is consistent: all that is
/// possible was obtained, or the kernel had too few free blocks of 2 MiB.
pub fn consistent(report: &Value, mechanism: &str) -> Value {
    let file = report["text"]["files"][0].clone();
    assert_eq!(file["mechanism"], mechanism, "{file:#}");
    let done = value(&file, "obtained_bytes") + value(&file, "advised_bytes");
    match file["missing"].as_str() {
        None => assert_eq!(done, value(&file, "possible_bytes"), "{file:#}"),
        Some(why) => assert!(why.contains("gave no huge pages") || why.contains("by now"), "{why}"),
    }
    assert_eq!(report["not_obtained"].as_array().unwrap().is_empty(), file["missing"].is_null());
    if report["end_is_final"] == true && value(&file, "obtained_bytes") > 0 {
        let end = &report["text"]["end"];
        let huge = value(end, "thp_bytes") + value(end, "hugetlb_2m_bytes");
        assert!(huge >= value(&file, "obtained_bytes"), "never more than the kernel shows: {report:#}");
    }
    file
}

pub const MIB: u64 = 1 << 20;
