//! A program that damages the memory that it shares with its launcher, or uses up all memory.

use crate::run_support;

use run_support::*;
use serde_json::Value;

/// Program that finds its launcher's ledgers as any program can, and does to each of them what
/// argv[1] says. It exits with 7 if it could open one, no matter what else failed.
const HOSTILE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int c, char **v) {
    int found = 0;
    char *held = malloc(16 << 20);
    memset(held, 1, 16 << 20);
    for (int fd = 0; fd < 64; fd++) {
        char path[64], name[256];
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getppid(), fd);
        ssize_t n = readlink(path, name, sizeof name - 1);
        if (n < 0) continue;
        name[n] = 0;
        if (!strstr(name, "megapage-ledger") && !strstr(name, "megapage-text")) continue;
        int file = open(path, O_RDWR);
        struct stat st;
        if (file < 0 || fstat(file, &st) != 0) continue;
        found++;
        if (!strcmp(v[1], "truncate")) {
            ftruncate(file, 0);
            close(open(path, O_RDWR | O_TRUNC));
            fallocate(file, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, st.st_size);
            // Longer than the launcher looks away.
            usleep(300 * 1000);
        } else {
            unsigned long *words = mmap(0, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            unsigned long fill = strtoul(v[1], 0, 0);
            if (words == MAP_FAILED) return 9;
            for (int round = 0; round < 30; round++) {
                for (long i = 0; i < st.st_size / 8; i++) words[i] = fill;
                usleep(10 * 1000);
            }
        }
    }
    return found ? 7 : 8;
}
"#;

fn report(arguments: &[&str]) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let mut all = vec!["--heap", "thp", "--json", "--report", file.to_str().unwrap(), "--"];
    all.extend(arguments);
    let output = output(&all);
    assert_eq!((status(&output), text(&output.stderr).as_str()), (7, ""), "{arguments:?}");
    serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
}

#[test]
fn a_program_that_truncates_the_ledger_ends_no_launcher() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "hostile", HOSTILE, &[]) else { return };
    let report = report(&[&program, "truncate"]);
    assert_eq!(report["totals"]["ended"]["status"], 7, "{report:#}");
}

#[test]
fn a_ledger_that_a_program_has_written_over_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "hostile", HOSTILE, &[]) else { return };
    // All bits; the sign bit; a number whose sums overflow; an address; a small number; zero.
    for fill in ["0xffffffffffffffff", "0x8000000000000000", "0x5555555555555555", "0x7fffffffffff", "3", "0"]
    {
        let report = report(&[&program, fill]);
        assert_eq!(report["totals"]["ended"]["status"], 7, "{report:#}");
        assert!(report["account"].is_null(), "{fill}: {report:#}");
        // The kernel's values stay valid.
        assert!(mib(&report, "end.resident.total_bytes") < 1 << 20, "{report:#}");
    }
}

/// Program that takes memory until there is none (RLIMIT_DATA), in blocks of every size, and exits
/// with 7.
const GREEDY: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
int main(void) {
    struct rlimit limit = {200ul << 20, 200ul << 20};
    setrlimit(RLIMIT_DATA, &limit);
    int refused = 0;
    for (size_t size = 1 << 12; size <= 64 << 20; size *= 4)
        for (int i = 0; i < 100000; i++) {
            char *block = malloc(size);
            if (!block) { refused++; break; }
            memset(block, 1, size);
        }
    return refused ? 7 : 8;
}
"#;

#[test]
fn the_allocator_says_nothing_where_memory_ends() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "greedy", GREEDY, &[]) else { return };
    let report = report(&[&program]);
    assert_eq!(report["totals"]["ended"]["status"], 7, "{report:#}");
}
