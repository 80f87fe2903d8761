//! Faults that `megapage run --pool` must survive: cancelled threads, signals whose handlers fork,
//! brokers that hang, requests of processes that have given up, and forks that fail.

use crate::broker_support;
use crate::run_support;

use broker_support::{Broker, place};
use megapage_kernel::descriptors::peer;
use megapage_memory::stock::wire::{REQUEST, Request};
use megapage_memory::stock::{connect, take};
use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use run_support::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

const SIZE: PageSize = PageSize::HUGE_2M;

/// Program that exits with 3. A process beside it ends it if it hangs.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t forks, failed;
static void *cancelled(void *argument) {
    pthread_cancel(pthread_self());
    for (int i = 0; i < 20; i++) {
        char *block = malloc(8 << 20);
        if (block) block[0] = 1;
        free(block);
    }
    return argument;
}
static void handler(int number) {
    int kept = errno, status;
    pid_t child = fork();
    if (child == 0) _exit(0);
    if (child < 0 || waitpid(child, &status, 0) != child) failed = 1;
    else forks++;
    errno = kept;
}
static int grow(int blocks) {
    for (int i = 0; i < blocks; i++) {
        char *block = malloc(4 << 20);
        if (!block) return 0;
        memset(block, i + 1, 4 << 20);
    }
    return 1;
}
/* Ends the program after two minutes. */
static void beside(void) {
    pid_t parent = getpid();
    if (vfork() != 0) return;
    static char text[128];
    static char digits[16];
    int at = 15, rest = parent;
    do { digits[--at] = '0' + rest % 10; rest /= 10; } while (rest);
    execl("/bin/sh", "sh", "-c",
          "exec >/dev/null 2>&1; i=0; while kill -0 $0 2>/dev/null; do sleep 0.1; i=$((i+1)); [ $i -lt 1200 ] || kill -9 $0; done",
          digits + at, NULL);
    _exit(1);
}
int main(int argc, char **argv) {
    if (!strcmp(argv[1], "cancel")) {
        pthread_t thread;
        void *result;
        beside();
        if (pthread_create(&thread, NULL, cancelled, NULL) || pthread_join(thread, &result)) return 8;
        /* malloc is no cancellation point, and there is no other. */
        return result != PTHREAD_CANCELED && grow(10) ? 3 : 8;
    }
    if (!strcmp(argv[1], "signal")) {
        signal(SIGUSR1, handler);
        beside();
        if (!grow(8)) return 8;
        return failed ? 8 : 3;
    }
    /* A terminal that cannot be had. */
    struct rlimit former, none;
    int master;
    if (!grow(2)) return 8;
    getrlimit(RLIMIT_NOFILE, &former);
    none = former;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none);
    if (forkpty(&master, NULL, NULL, NULL) != -1) return 8;
    setrlimit(RLIMIT_NOFILE, &former);
    return grow(6) ? 3 : 8;
}
"#;

fn program(directory: &std::path::Path) -> Option<String> {
    compile("gcc", directory, "faults", PROGRAM, &["-pthread", "-lutil"])
}

#[test]
fn a_thread_that_is_cancelled_leaves_the_heap_in_order() {
    let (tree, path) = place();
    let Some(program) = program(tree.path()) else { return };
    // No process listens there: each attempt opens and closes a socket.
    let output = output(&["--heap", "thp", &format!("--pool={}", path.display()), "--", &program, "cancel"]);
    assert_eq!(status(&output), 3, "{output:?}");
}

#[test]
fn a_signal_that_forks_while_a_broker_hangs_does_not_hang_the_program() {
    let (tree, path) = place();
    let Some(program) = program(tree.path()) else { return };
    let listener = UnixListener::bind(&path).unwrap();
    // Sends a signal to the first process that requests pages, and never answers. Waits for no
    // request, for the program may make none.
    std::thread::spawn(move || {
        let (mut kept, mut signalled) = (Vec::new(), false);
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; REQUEST];
            let asked = stream.read_exact(&mut request).ok().and_then(|()| Request::decode(&request));
            // The launcher connects too, for the status.
            if !signalled && matches!(asked, Some(Request::Take { .. })) {
                signalled = true;
                signal(peer(&stream).unwrap().pid as u32, "USR1");
            }
            kept.push(stream);
        }
    });
    let mut command =
        run(&["--heap", "thp", &format!("--pool={}", path.display()), "--", &program, "signal"]);
    let output = command.env("MEGAPAGE_POOL_PATIENCE_MS", "3000").output().unwrap();
    assert_eq!(status(&output), 3, "{output:?}");
}

#[test]
fn a_fork_that_fails_before_it_begins_does_not_end_the_use_of_the_broker() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 48) else { return };
    let (tree, path) = place();
    let Some(program) = program(tree.path()) else { return };
    let broker = Broker::start(&path, &["--stock", "24", "--extent", "4", "--quota-per-uid", "none"]);
    broker.full();
    // If the broker was slower than the heap's patience, the report says so, and the next run may
    // do better.
    let start = Instant::now();
    loop {
        let (status, report, said) =
            heap_report(&[&format!("--pool={}", path.display())], &[&program, "terminal"]);
        assert_eq!(status, 3, "{said}\n{report:#}");
        let gone =
            report["account"]["fall_backs"].as_array().unwrap().iter().any(|it| {
                ["broker-gone", "broker-empty"].contains(&it["reason"].as_str().unwrap_or_default())
            });
        if !gone {
            // More than the two blocks from before the failing fork.
            assert!(mib(&report, "account.held_at_peak_bytes.broker-2m") >= 20, "{report:#}");
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(180), "{report:#}");
        broker.full();
    }
}

#[test]
fn a_request_of_one_that_has_given_up_ends_nothing() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 16) else { return };
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "8", "--extent", "4", "--quota-per-uid", "none"]);
    broker.full();
    let taken = std::iter::repeat_with(|| take(&path, SIZE, 4, false))
        .take(100)
        .find_map(Result::ok)
        .expect("an extent, though the machine is busy");
    let file = taken.extents[0].as_ref().unwrap();
    let bytes = || megapage_kernel::extent::present(file).unwrap();
    assert_eq!(bytes(), 4 * SIZE.bytes().0);
    // While the broker is stopped, a request arrives, and its sender disconnects. The request
    // claims a fresh process, whose earlier extents would end.
    signal(broker.child.id(), "STOP");
    let mut stream = connect(&path).unwrap();
    stream.write_all(&Request::Take { size: SIZE, pages: 4, fresh: true }.encode()).unwrap();
    drop(stream);
    signal(broker.child.id(), "CONT");
    // A status request is accepted after it, and so answered after it.
    broker.wait("it was dropped", |status| status["dropped"].as_u64() >= Some(1));
    assert_eq!(bytes(), 4 * SIZE.bytes().0, "the memory is still there");
    drop(taken);
}
