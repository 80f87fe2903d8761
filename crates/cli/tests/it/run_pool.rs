//! `megapage run --pool`: a program's heap on pages of a broker, through forks, kills, and the
//! broker's end.

use crate::broker_support;
use crate::run_support;

use broker_support::{Broker, USERS, place};
use megapage_kernel::{KernelRoot, meminfo};
use megapage_testing::{PoolGuard, skip};
use megapage_units::{Bytes, PageSize};
use run_support::*;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SIZE: PageSize = PageSize::HUGE_2M;
const MIB: u64 = 1 << 20;

/// A program with argv[2] MiB in blocks of 1 MiB, each byte of which it knows, and a task. It exits
/// with 3 if all went well. `hold`: says "ready"; each "m" of its input adds a block and is
/// answered, and each "f" frees all blocks and is answered. At the end of its input it checks all
/// blocks. It repeats requests that may be refused for a moment, for at most a minute.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
enum { BLOCK = 1 << 20, MOST = 4096 };
static unsigned char *blocks[MOST];
static int count;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static unsigned char mark(int i) { return (unsigned char)(i * 7 + getuid() + 1) | 1; }
static int more(void) {
    unsigned char *block = calloc(1, BLOCK);
    if (!block || count == MOST) return 0;
    for (int i = 0; i < BLOCK; i++) if (block[i]) { write(1, "FOREIGN\n", 8); _exit(7); }
    memset(block, mark(count), BLOCK);
    blocks[count++] = block;
    return 1;
}
static int whole(int change) {
    for (int b = 0; b < count; b++) {
        const unsigned char expected = mark(b);
        for (int i = 0; i < BLOCK; i++) if (blocks[b][i] != expected) return 0;
        if (change) memset(blocks[b], 0, BLOCK);
    }
    return 1;
}
static void *idle(void *argument) {
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    return argument;
}
static int wait_for(pid_t child, int expected) {
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == expected;
}
static pid_t fork_soon(void) {
    pid_t child = fork();
    for (int left = 6000; child < 0 && errno == ENOMEM && left > 0; left--) {
        usleep(10000);
        child = fork();
    }
    return child;
}
static int forks(void) {
    pid_t child = fork_soon();
    if (child == 0) _exit(whole(1) && more() && more() ? 5 : 6);
    return wait_for(child, 5) && whole(0);
}
int main(int argc, char **argv) {
    const char *task = argv[1];
    for (int i = atoi(argv[2]); i > 0; i--) if (!more()) return 9;
    if (!strcmp(task, "hold")) {
        char byte;
        write(1, "ready\n", 6);
        while (read(0, &byte, 1) > 0) {
            if (byte == 'f') {
                if (!whole(0)) return 8;
                while (count > 0) free(blocks[--count]);
                malloc_trim(0);
                write(1, "freed\n", 6);
            } else {
                if (!more()) return 9;
                write(1, "more\n", 5);
            }
        }
    } else if (!strcmp(task, "fork")) {
        if (!forks() || !more() || !forks()) return 8;
    } else if (!strcmp(task, "daemon")) {
        int left = 6000;
        while (daemon(1, 1)) {
            if (errno != ENOMEM || left-- == 0) return 8;
            usleep(10000);
        }
        FILE *file = fopen(argv[3], "w");
        fputs(whole(0) && more() && whole(1) ? "whole\n" : "lost\n", file);
        fclose(file);
        return 3;
    } else if (!strcmp(task, "threads")) {
        pthread_t thread;
        pthread_mutex_lock(&gate);
        if (pthread_create(&thread, NULL, idle, NULL)) return 8;
        pid_t child = fork();
        if (child == 0) _exit(6);
        if (child > 0 || errno != ENOMEM || daemon(1, 1) != -1 || errno != ENOMEM) return 8;
        if (!whole(0) || !more()) return 8;
        write(1, "refused\n", 8);
        pthread_mutex_unlock(&gate);
        pthread_join(thread, NULL);
        /* The thread is counted until the kernel has done away with it. */
        child = fork_soon();
        if (child == 0) _exit(whole(1) ? 5 : 6);
        if (!wait_for(child, 5)) return 8;
    } else if (!strcmp(task, "spawn")) {
        pid_t child = vfork();
        if (child == 0) { execl("/bin/true", "true", NULL); _exit(1); }
        if (!wait_for(child, 0) || system("exit 4") != 4 << 8 || !more()) return 8;
    } else if (!strcmp(task, "become")) {
        execv(argv[0], (char *[]){argv[0], "hold", argv[2], NULL});
        return 8;
    }
    return whole(0) ? 3 : 8;
}
"#;

/// Compiles the program, where any user may read it. Returns `None`, after a loud skip, if there is
/// no compiler.
fn program(directory: &Path) -> Option<String> {
    compile("gcc", directory, "pooled", PROGRAM, &["-pthread"])
}

/// Returns a pool of twice `pages`, a broker with `pages` in stock, in extents of 4, and the
/// program.
fn stage(pages: u64, more: &[&str]) -> Option<(PoolGuard, tempfile::TempDir, Broker, String)> {
    let pool = PoolGuard::reserve(SIZE, 2 * pages)?;
    let (tree, path) = place();
    let program = program(tree.path())?;
    let stock = pages.to_string();
    // The tests run as root, except those of several users.
    let mode = if more.contains(&"--mode") { &[][..] } else { &["--mode", "0600"] };
    let broker = Broker::start(&path, &[&["--stock", &stock, "--extent", "4"], mode, more].concat());
    broker.full();
    Some((pool, tree, broker, program))
}

/// Returns true if a heap of less than 256 MiB can be moved before a fork: that must leave a
/// twentieth of the machine's memory free. Otherwise skips the test, loudly.
fn room_to_fork() -> bool {
    let memory = meminfo(&KernelRoot::live()).unwrap();
    let (available, total) = (memory.available.unwrap_or(Bytes::ZERO), memory.total.unwrap_or(Bytes::ZERO));
    let enough = available.0 > total.0 / 20 + Bytes::gib(1).0;
    if !enough {
        skip(&format!("{available} of {total} are available: too little for a fork under --pool"));
    }
    enough
}

fn held(report: &Value, moment: &str) -> u64 {
    report["account"][moment]["broker-2m"].as_u64().unwrap_or_else(|| panic!("{moment} in {report:#}")) / MIB
}

/// Returns the MiB that fell back for this reason.
fn fallen(report: &Value, reason: &str) -> u64 {
    let all = report["account"]["fall_backs"].as_array();
    let bytes = all.into_iter().flatten().filter(|it| it["reason"] == reason).map(|it| &it["bytes"]);
    bytes.filter_map(Value::as_u64).sum::<u64>() / MIB
}

fn holders(status: &Value) -> &Vec<Value> {
    status["holders"].as_array().unwrap()
}

/// Returns the MiB that the one holder has; 0 if there is no holder.
fn out(status: &Value) -> u64 {
    holders(status).iter().filter_map(|it| it["bytes"].as_u64()).sum::<u64>() / MIB
}

/// Runs words with `--pool`, and returns the report.
fn pooled(broker: &Broker, more: &[&str], words: &[&str]) -> (i32, Value, String) {
    let pool = [&*broker.option()];
    heap_report(&[&pool[..], more].concat(), words)
}

/// Waits until no process holds pages of the broker, and its stock is full again.
fn all_is_back(broker: &Broker) {
    broker.wait("no process has a page", |status| holders(status).is_empty());
    broker.full();
}

/// A program that holds memory, of any user, without a report.
struct Holder {
    child: Child,
    /// Separate from `child`, for waiting for the launcher would close it.
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Holder {
    fn start(mut command: Command) -> Holder {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        let mut holder = Holder { child, input, lines };
        assert_eq!(holder.line(), "ready");
        holder
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    /// Makes it take one block more.
    fn more(&mut self) {
        self.told(b"m", "more");
    }

    fn told(&mut self, order: &[u8], answer: &str) {
        self.input.as_mut().unwrap().write_all(order).unwrap();
        assert_eq!(self.line(), answer);
    }

    /// Ends its input, upon which it checks all its memory. Returns its exit status.
    fn end(mut self) -> Option<i32> {
        drop(self.input.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hold(broker: &Broker, program: &str, report: Option<&Path>) -> Command {
    let pool = broker.option();
    let mut arguments = vec![&*pool];
    let report = report.map(|path| path.to_str().unwrap());
    if let Some(report) = report {
        arguments.extend(["--json", "--report", report]);
    }
    arguments.extend(["--", program, "hold", "24"]);
    run(&arguments)
}

#[test]
fn the_heap_is_the_brokers_and_goes_back_at_the_end() {
    let Some((_pool, _tree, broker, program)) = stage(32, &[]) else { return };
    let pool = [&*broker.option(), "--require"];
    // The kernel's view, while the program lives: a delayed launcher may miss the end.
    let (status, report, said) =
        held_report(&pool, &[&program, "hold", "44"], "a heap on hugetlb pages", |report| {
            report["end"]["heap"]["hugetlb_2m_bytes"].as_u64() >= Some(40 * MIB)
        });
    assert_eq!(status, 3, "{said}\n{report:#}");
    // All but the first two chunks, which every heap has on base pages.
    assert!((40..=44 + 8).contains(&held(&report, "held_at_peak_bytes")), "{report:#}");
    assert_eq!(report["pool"]["used"], true);
    assert_eq!(report["pool"]["ready_bytes"].as_u64(), Some(64 * MIB));
    assert_eq!(report["asked"]["pool"].as_str(), broker.path.to_str());
    assert_eq!(fallen(&report, "broker-gone"), 0, "{report:#}");
    all_is_back(&broker);
}

#[test]
fn what_the_broker_does_not_give_comes_from_elsewhere_and_the_report_says_why() {
    // A quota of one extent.
    let Some((_pool, _tree, broker, program)) = stage(16, &["--quota-per-uid", "8m"]) else { return };
    let (status, report, said) = pooled(&broker, &[], &[&program, "hold", "32"]);
    assert_eq!(status, 3, "{said}\n{report:#}");
    assert!((2..=8).contains(&held(&report, "held_at_peak_bytes")), "{report:#}");
    assert!(fallen(&report, "broker-quota") > 0, "{report:#}");
    let missing = report["not_obtained"].as_array().unwrap();
    assert!(missing.iter().any(|it| it.as_str().unwrap().contains("broker-quota")), "{report:#}");
    let (status, _, said) = pooled(&broker, &["--require"], &[&program, "hold", "32"]);
    assert_eq!(status, 125);
    assert!(said.contains("--require") && said.contains("broker-quota"), "{said}");
    all_is_back(&broker);
}

#[test]
fn a_program_of_one_thread_forks_with_all_of_its_memory() {
    let Some((_pool, tree, broker, program)) = stage(24, &[]) else { return };
    if !room_to_fork() {
        return;
    }
    let (status, report, said) = pooled(&broker, &[], &[&program, "fork", "24"]);
    assert_eq!(status, 3, "{said}\n{report:#}");
    assert_eq!(held(&report, "held_bytes"), 0, "it has left the broker's pages: {report:#}");
    assert!(fallen(&report, "fork") >= 16, "what was on them: {report:#}");
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("at its first fork")), "{report:#}");
    all_is_back(&broker);

    let file = tree.path().join("said");
    let (status, _, said) = pooled(&broker, &[], &[&program, "daemon", "24", file.to_str().unwrap()]);
    assert_eq!(status, 0, "the parent ends in daemon(3): {said}");
    wait_for("the daemon has looked", || fs::read(&file).is_ok_and(|text| text.ends_with(b"\n")));
    assert_eq!(fs::read_to_string(&file).unwrap(), "whole\n");
    all_is_back(&broker);
}

#[test]
fn a_fork_of_several_threads_is_refused_and_harms_nothing() {
    let Some((_pool, _tree, broker, program)) = stage(24, &[]) else { return };
    if !room_to_fork() {
        return;
    }
    let (status, report, said) = pooled(&broker, &[], &[&program, "threads", "24"]);
    assert_eq!(status, 3, "{said}\n{report:#}");
    assert!(report["account"]["forks_refused"].as_u64() >= Some(2), "{report:#}");
    all_is_back(&broker);
}

#[test]
fn children_that_are_another_program_change_nothing() {
    let Some((_pool, _tree, broker, program)) = stage(24, &[]) else { return };
    let (status, report, said) = pooled(&broker, &[], &[&program, "spawn", "24"]);
    assert_eq!(status, 3, "{said}\n{report:#}");
    assert!(held(&report, "held_bytes") >= 16, "{report:#}");
    all_is_back(&broker);
    // The process itself becomes another program. Its pages go back, and it takes others.
    let (status, report, said) = pooled(&broker, &[], &[&program, "become", "24"]);
    assert_eq!(status, 3, "{said}\n{report:#}");
    all_is_back(&broker);
}

#[test]
fn memory_that_is_freed_goes_back_while_the_program_lives() {
    let Some((_pool, _tree, broker, program)) = stage(24, &["--quota-per-uid", "none"]) else { return };
    let pool = broker.option();
    let mut holder = Holder::start(run(&[&pool, "--return-after", "0s", "--", &program, "hold", "24"]));
    let before = out(&broker.wait("it has memory", |status| out(status) >= 16));
    holder.told(b"f", "freed");
    broker.wait("most of it is back", |status| out(status) <= before / 2);
    // The program checks that new blocks are zero, and that old bytes are as it wrote them.
    (0..24).for_each(|_| holder.more());
    assert_eq!(holder.end(), Some(3));
    all_is_back(&broker);
}

#[test]
fn a_killed_program_leaves_nothing_taken_and_a_killed_launcher_takes_nothing_away() {
    let Some((_pool, tree, broker, program)) = stage(24, &[]) else { return };
    let report = tree.path().join("report.json");
    let holder = Holder::start(hold(&broker, &program, Some(&report)));
    broker.wait("it has memory", |status| !holders(status).is_empty());
    signal(child_of(holder.child.id()), "KILL");
    all_is_back(&broker);
    drop(holder);

    let mut holder = Holder::start(hold(&broker, &program, Some(&report)));
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    // The program goes on, and still has its memory.
    holder.more();
    broker.wait("it has its memory", |status| holders(status).len() == 1 && out(status) >= 16);
    drop(holder.input.take());
    assert_eq!(holder.line(), "", "it looks at its memory, and ends");
    all_is_back(&broker);
}

#[test]
fn a_broker_that_is_killed_takes_nothing_along_and_a_new_one_serves() {
    let Some((pool, tree, mut broker, program)) = stage(24, &[]) else { return };
    let report = tree.path().join("report.json");
    let mut holder = Holder::start(hold(&broker, &program, Some(&report)));
    broker.kill();
    // More blocks than are left of an extent.
    (0..12).for_each(|_| holder.more());
    until_reported(&holder.child, &report, "that it is gone", |told| fallen(told, "broker-gone") > 0);
    let path = broker.path.clone();
    drop(broker);
    // The kernel removes the broker's files only some time after its end.
    wait_for("its stock is back in the pool", || pool.counts().available() >= Some(4));
    let broker = Broker::start(&path, &["--stock", "4", "--extent", "4", "--mode", "0600"]);
    broker.full();
    // The program asks the broker again after a second, after two, and so on up to a minute. At
    // most 600 MiB are needed for that.
    let mut last = None;
    for _ in 0..600 {
        holder.more();
        std::thread::sleep(std::time::Duration::from_millis(300));
        last = broker.status();
        if last.as_ref().is_some_and(|status| !holders(status).is_empty()) {
            break;
        }
    }
    assert!(last.as_ref().is_some_and(|status| !holders(status).is_empty()), "it gives nothing: {last:?}");
    assert_eq!(holder.end(), Some(3), "all of its memory is as it was");
}

#[test]
fn users_have_each_their_own() {
    let Some((_pool, tree, broker, program)) = stage(32, &["--quota-per-uid", "32m", "--mode", "0666"])
    else {
        return;
    };
    // Copied to where the users may read it: the build's directory may be closed to them.
    let own = |file: &Path, name: &str| {
        let copy = tree.path().join(name);
        // Copied by another process. A child of a parallel test could keep a file open that this
        // process opens for writing (ETXTBSY).
        let installed = Command::new("install").args(["-m", "755"]).arg(file).arg(&copy).status().unwrap();
        assert!(installed.success());
        copy
    };
    let command = own(Path::new(env!("CARGO_BIN_EXE_megapage")), "megapage");
    let library = own(library(), "libmegapage.so");
    let start = |uid: u32| {
        let mut command = Command::new(&command);
        command.args(["run", &broker.option(), "--", &program, "hold", "24"]);
        command.env("MEGAPAGE_LIBRARY", &library).env(PATIENCE.0, PATIENCE.1);
        command.current_dir("/").gid(uid).uid(uid);
        Holder::start(command)
    };
    // A program that finds a byte that it did not write ends at once.
    let (one, two) = (start(USERS[0]), start(USERS[1]));
    let status = broker.wait("both have memory", |status| holders(status).len() == 2);
    let uids: Vec<u64> = holders(&status).iter().map(|it| it["uid"].as_u64().unwrap()).collect();
    assert!(USERS.iter().all(|uid| uids.contains(&u64::from(*uid))), "{status}");
    drop(one);
    broker.wait("one has it", |status| holders(status).len() == 1);
    broker.full();
    let again = start(USERS[1]);
    assert_eq!((two.end(), again.end()), (Some(3), Some(3)));
    all_is_back(&broker);
}

#[test]
fn python_runs_on_it() {
    let Some((_pool, _tree, broker, _)) = stage(24, &[]) else { return };
    if !room_to_fork() {
        return;
    }
    let script = "
import errno, os, time
rows = [{'number': n, 'text': str(n) * 9} for n in range(100_000)]
blocks = [b'x' * 40_000 for n in range(500)]
for left in reversed(range(6000)):
    try:
        pid = os.fork()
        break
    except OSError as error:
        if error.errno != errno.ENOMEM or left == 0:
            raise
        time.sleep(0.01)
if pid == 0:
    os._exit(5 if sum(row['number'] for row in rows) == 4999950000 else 6)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
del rows[::2]
assert sum(len(row['text']) for row in rows) == 9 * sum(len(str(n)) for n in range(1, 100_000, 2))
";
    let (status, report, said) = pooled(&broker, &[], &["python3", "-c", script]);
    assert_eq!(status, 0, "{said}\n{report:#}");
    assert!(fallen(&report, "fork") >= 16, "what was on the broker's pages at its fork: {report:#}");
    all_is_back(&broker);
}

#[test]
fn where_it_cannot_be_the_run_says_so() {
    let (_tree, path) = place();
    let socket = path.to_str().unwrap();
    let option = format!("--pool={socket}");
    let pool = [&*option];
    let all = |more: &[&'static str]| [&pool[..], more].concat();
    // Without a broker, the program runs as without --pool, and the report says so.
    let (status, report, _) = heap_report(&pool, &["true"]);
    assert_eq!((status, &report["pool"]["used"]), (0, &Value::Bool(true)));
    assert!(report["pool"]["reason"].as_str().unwrap().contains("nothing can be had"), "{report:#}");
    assert!(report["pool"]["ready_bytes"].is_null());
    assert_refused(&output(&all(&["--require", "--", "true"])), 125, "--require: --pool");
    assert_refused(&output(&all(&["--heap", "none", "--", "true"])), 125, "leave one out");
    assert_refused(&output(&["--pool=", "--", "true"]), 125, "the name is empty");
    let dry = output(&all(&["--dry-run", "--", "true"]));
    let text = text(&dry.stdout);
    assert!(text.contains(&format!("# pool {socket} used: ")), "{text}");
    assert!(text.contains(&format!("MEGAPAGE_POOL={socket} ")), "{text}");
    // Only the preloaded library uses a broker.
    let (status, report, _) = heap_report(&all(&["--mechanism", "tunable"]), &["true"]);
    assert_eq!((status, &report["pool"]["used"]), (0, &Value::Bool(false)));
    let missing = report["not_obtained"].as_array().unwrap();
    assert!(missing.iter().any(|it| it.as_str().unwrap().starts_with("--pool: ")), "{report:#}");
    let default = text_of_default();
    assert!(default.contains("MEGAPAGE_POOL=/run/megapage/pool-default.sock "), "{default}");
}

fn text_of_default() -> String {
    // The program's name is not taken for the broker's.
    text(&output(&["--dry-run", "--pool", "true"]).stdout)
}
