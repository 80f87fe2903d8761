//! Memory of many threads under `megapage run`: a huge page that no two threads share would be
//! mostly empty.

use crate::run_support;

use megapage_testing::{PoolGuard, skip};
use megapage_units::PageSize;
use run_support::*;
use serde_json::Value;

/// Program with argv[1] threads, each of which fills argv[2] KiB in blocks of 64 bytes. They stay
/// until the end of its input.
const THREADS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static long blocks;
static pthread_barrier_t filled;
static pthread_mutex_t end = PTHREAD_MUTEX_INITIALIZER;
static void *work(void *failed) {
    for (long i = 0; i < blocks; i++) {
        char *block = malloc(64);
        if (!block) return failed;
        memset(block, 1, 64);
    }
    pthread_barrier_wait(&filled);
    pthread_mutex_lock(&end);
    pthread_mutex_unlock(&end);
    return 0;
}
int main(int c, char **v) {
    int threads = atoi(v[1]);
    pthread_t ids[256];
    char b;
    blocks = atol(v[2]) * 16;
    pthread_barrier_init(&filled, 0, threads + 1);
    pthread_mutex_lock(&end);
    for (int i = 0; i < threads; i++) if (pthread_create(ids + i, 0, work, &b)) return 9;
    pthread_barrier_wait(&filled);
    write(1, "ready\n", 6);
    while (read(0, &b, 1) > 0) {}
    pthread_mutex_unlock(&end);
    for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
    return 3;
}
"#;

/// Asserts that with these options the heap of many threads has hardly more pages than they use.
fn wastes_little(options: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "threads", THREADS, &["-pthread"]) else { return };
    for (threads, kib) in [(64, 16), (200, 64), (64, 1024), (64, 2500)] {
        let used = (threads * kib) << 10;
        let heap = |report: &Value| report["end"]["kinds"]["heap"]["total_bytes"].as_u64().unwrap_or(0);
        let words = [program.as_str(), &threads.to_string(), &kib.to_string()];
        let (status, report, said) =
            held_report(options, &words, "all that threads have", |it| heap(it) >= used);
        assert_eq!(status, 3, "{said}");
        // Both moments of the last report, for at its end the program may have ended.
        let most = ["peak", "end"]
            .map(|moment| report[moment]["kinds"]["heap"]["total_bytes"].as_u64().unwrap_or(0));
        let most = most.into_iter().max().unwrap_or(0);
        let bound = used + used / 4 + (4 << 20);
        assert!(most <= bound, "{threads} threads of {kib} KiB: {most} bytes, not {bound}: {report:#}");
    }
}

#[test]
fn threads_waste_little_of_the_pool() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 128) else { return };
    wastes_little(&["--heap", "2m"]);
}

#[test]
fn threads_waste_little_on_transparent_huge_pages() {
    if !megapage_kernel::thp_is_possible() {
        return skip("THP are not possible here");
    }
    wastes_little(&["--heap", "thp"]);
}
