//! `megapage run --fork`: programs that fork to start others, and to save their memory.

use crate::run_support;

use megapage_testing::{MachineLock, is_root, skip};
use run_support::*;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A program with a heap of argv[1] MiB in blocks of 64 KiB, each filled with 1.
///
/// `save`: forks a child that keeps the memory, writes 2 to the start of each block, and says
/// "ready". At a byte of input, it makes the child check that it has the contents of the time of
/// the fork, and waits for the child's end. At the end of its input it checks its blocks, says
/// "whole" and exits with 3.
/// `leave`: the parent ends at once with 3. The child does the same as above, without a child.
/// `start`: forks and executes /bin/true 300 times while two threads write to the blocks; then as
/// above.
const FORKS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static char **p;
static size_t n, block = 64 << 10;
static volatile int stop;
static void *writes(void *half) {
    for (size_t i = (size_t)half; !stop; i = (i + 2) % n) {
        p[i][0] = 2;
        free(malloc(100 + i % 5000));
    }
    return 0;
}
int main(int c, char **v) {
    char b = 0;
    int hold[2], status = 0, pid;
    n = ((size_t)atol(v[1]) << 20) / block;
    p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) memset(p[i] = malloc(block), 1, block);
    if (!strcmp(v[2], "start")) {
        pthread_t threads[2];
        for (size_t i = 0; i < 2; i++) pthread_create(&threads[i], 0, writes, (void *)i);
        for (int i = 0; i < 300; i++) {
            if (!(pid = fork())) { execl("/bin/true", "true", (char *)0); _exit(9); }
            if (pid < 0 || waitpid(pid, &status, 0) != pid || status) return 7;
        }
        stop = 1;
        for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
        for (size_t i = 0; i < n; i++) p[i][0] = 2;
    } else {
        pipe(hold);
        pid = fork();
        if (!strcmp(v[2], "leave")) {
            if (pid) _exit(pid < 0 ? 7 : 3);
        } else if (!pid) {
            close(hold[1]);
            read(hold[0], &b, 1);
            for (size_t i = 0; i < n; i++) if (p[i][0] != 1 || p[i][block - 1] != 1) _exit(6);
            _exit(0);
        }
        for (size_t i = 0; i < n; i++) p[i][0] = 2;
    }
    free(malloc(100));
    write(1, "ready\n", 6);
    dprintf(1, "%d\n", getpid());
    if (!strcmp(v[2], "save")) {
        read(0, &b, 1);
        close(hold[1]);
        if (waitpid(pid, &status, 0) != pid || status) return 6;
    }
    while (read(0, &b, 1) > 0) {}
    for (size_t i = 0; i < n; i++) if (p[i][0] != 2 || p[i][block - 1] != 1) return 8;
    write(1, "whole\n", 6);
    return 3;
}
"#;
/// Its heap, in MiB: more than the size from which the library starts its thread.
const HEAP: &str = "96";
/// The part of it that has to be huge in the end: all but the first chunks, and parts of regions.
const HUGE_MIB: u64 = 84;

fn forking(directory: &Path) -> Option<String> {
    compile("gcc", directory, "forking", FORKS, &["-pthread"])
}

/// Returns huge memory of the latest sample of a report, in MiB; `None` before there is a sample.
fn huge(report: &Value) -> Option<u64> {
    let end = &report["end"];
    let memory = if end["heap"].is_null() { &end["anonymous"] } else { &end["heap"] };
    memory["thp_bytes"].as_u64().map(|bytes| bytes >> 20)
}

/// Starts a run of the program that says "ready", with its report in `file`.
fn started(file: &Path, arguments: &[&str], program: &str, how: &str) -> Child {
    let all =
        [&["--json", "--report", file.to_str().unwrap()], arguments, &["--", program, HEAP, how]].concat();
    start(run(&all))
}

fn ways() -> Vec<Vec<&'static str>> {
    let mut ways = vec![vec!["--fork", "snapshot"], vec!["--fork", "cheap"]];
    if is_root() {
        ways.push(vec!["--fork", "snapshot", "--mechanism", "outside"]);
        ways.push(vec!["--fork", "cheap", "--mechanism", "outside"]);
    } else {
        skip("needs CAP_SYS_NICE to promote from outside");
    }
    ways
}

#[test]
fn what_a_snapshot_has_split_is_huge_again_when_its_child_is_gone() {
    // The pool tests take the memory that huge pages would be made of.
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = forking(directory.path()) else { return };
    for arguments in ways() {
        let file = directory.path().join("report.json");
        fs::remove_file(&file).ok();
        let mut child = started(&file, &arguments, &program, "save");
        // Every huge page was written to, and the child shares the rest of each: none becomes huge
        // again.
        for _ in 0..10 {
            until_reported(&child, &file, "memory", |report| huge(report).is_some());
            let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert!(huge(&report).unwrap() <= 24, "{arguments:?} {report:#}");
        }
        child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
        until_reported(&child, &file, "huge pages again", |report| huge(report) >= Some(HUGE_MIB));
        let output = finish(child);
        assert_eq!(status(&output), 3, "{arguments:?} {}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        if arguments.len() == 2 {
            assert!(mib(&report, "account.repaired_bytes") >= HUGE_MIB, "{report:#}");
            assert_eq!(
                (report["account"]["forks"].as_u64(), &report["asked"]["fork"]),
                (Some(1), &arguments[1].into())
            );
        }
    }
}

#[test]
fn without_the_option_nothing_brings_them_back() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = forking(directory.path()) else { return };
    let file = directory.path().join("report.json");
    let mut child = started(&file, &[], &program, "save");
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    until_reported(&child, &file, "memory", |report| huge(report).is_some());
    // Eight times the interval at which the thread looks.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(status(&finish(child)), 3);
    let report: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["account"]["repaired_bytes"], 0, "{report:#}");
}

#[test]
fn a_program_that_starts_others_all_the_time_keeps_its_huge_pages() {
    // The pool tests take the memory that huge pages would be made of.
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = forking(directory.path()) else { return };
    for arguments in ways() {
        let file = directory.path().join("report.json");
        fs::remove_file(&file).ok();
        let child = started(&file, &arguments, &program, "start");
        until_reported(&child, &file, "huge pages again", |report| huge(report) >= Some(HUGE_MIB));
        let output = finish(child);
        assert_eq!(status(&output), 3, "{arguments:?} {}", text(&output.stderr));
    }
}

#[test]
fn a_child_that_outlives_its_parent_repairs_its_own_heap() {
    // The pool tests take the memory that huge pages would be made of.
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = forking(directory.path()) else { return };
    let file = directory.path().join("report.json");
    let mut child = started(&file, &["--fork", "snapshot"], &program, "leave");
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let left: i32 = line.trim().parse().expect("the process's number");
    // Not by wait(), which closes its input.
    let mut ended = None;
    wait_for("the launcher's end", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(3));
    let root = megapage_kernel::KernelRoot::live();
    wait_for("huge pages of the child that is left", || {
        let mappings = megapage_kernel::smaps::read_smaps(&root, megapage_units::Pid(left)).unwrap();
        let huge: u64 = mappings.iter().map(|mapping| mapping.anon_huge.0 >> 20).sum();
        huge >= HUGE_MIB
    });
    drop(child.stdin.take());
    let mut verdict = String::new();
    said.read_to_string(&mut verdict).unwrap();
    assert_eq!(verdict, "whole\n", "its blocks are what it wrote");
}

#[test]
fn pages_that_forks_make_expensive_are_refused() {
    for (heap, fork) in [("2m", "snapshot"), ("1g", "cheap")] {
        let output = output(&["--heap", heap, "--fork", fork, "--", "true"]);
        assert_refused(
            &output,
            125,
            &format!("--fork {fork} and --heap {heap}: a hugetlb page is copied whole"),
        );
    }
    let output = output(&["--fork", "often", "--", "true"]);
    assert!(text(&output.stderr).contains("'often' is none of auto, cheap, snapshot"));
}

/// redis-server under `megapage run` with `arguments`; it ends when this is dropped.
struct Redis {
    launcher: Child,
    socket: String,
}

impl Redis {
    fn start(directory: &Path, name: &str, arguments: &[&str]) -> Redis {
        let socket = directory.join(name).to_str().unwrap().to_string();
        let settings = ["--port", "0", "--save", "", "--appendonly", "no", "--disable-thp", "no"];
        let place = ["--unixsocket", &socket, "--dir", directory.to_str().unwrap()];
        let all = [arguments, &["--", "redis-server"], &settings, &place].concat();
        let launcher = run(&all).stdout(Stdio::null()).spawn().unwrap();
        let redis = Redis { launcher, socket };
        wait_for("redis-server", || redis.query(&["PING"]) == "PONG");
        redis
    }

    fn query(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli").arg("-s").arg(&self.socket).args(words).output().unwrap();
        text(&output.stdout).trim().to_string()
    }

    /// Runs Lua.
    fn script(&self, script: &str) -> String {
        self.query(&["EVAL", script, "0"])
    }

    /// Returns true if a field of INFO has this value.
    fn has(&self, section: &str, field: &str, value: &str) -> bool {
        let wanted = format!("{field}:{value}");
        self.query(&["INFO", section]).lines().any(|line| line.trim() == wanted)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.query(&["SHUTDOWN", "NOSAVE"]);
        self.launcher.wait().ok();
    }
}

#[test]
fn a_dump_of_redis_is_what_it_was_at_the_fork_and_huge_pages_come_back() {
    let _lock = MachineLock::take();
    if ["redis-server", "redis-cli"].iter().any(|name| Command::new(name).arg("--version").output().is_err())
    {
        return skip("needs redis-server and redis-cli");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.json");
    let arguments = ["--json", "--report", file.to_str().unwrap(), "--fork", "snapshot"];
    let redis = Redis::start(directory.path(), "saving", &arguments);
    // 120,000 values of 1,000 bytes. Half of them are written again while the child saves the old
    // ones, slowly.
    const SET: &str = "for i = 1, 120000, STEP do \
                       redis.call('set', 'key:' .. i, string.rep('LETTER', 1000)) end return 'OK'";
    // The child sleeps after every second value. If the second writes came too late, it sleeps
    // longer, after each value.
    let saves = |delay: &&str| {
        assert_eq!(redis.script(&SET.replace("STEP", "1").replace("LETTER", "a")), "OK");
        assert_eq!(redis.query(&["CONFIG", "SET", "rdb-key-save-delay", delay]), "OK");
        assert_eq!(redis.query(&["BGSAVE"]), "Background saving started");
        assert_eq!(redis.script(&SET.replace("STEP", "2").replace("LETTER", "b")), "OK");
        redis.has("persistence", "rdb_bgsave_in_progress", "1")
    };
    if !["-2", "20", "200"].iter().any(saves) {
        return skip("each dump was complete before the values were written again");
    }
    wait_for("the end of the save", || redis.has("persistence", "rdb_bgsave_in_progress", "0"));
    assert!(
        redis.has("persistence", "rdb_last_bgsave_status", "ok"),
        "{}",
        redis.query(&["INFO", "persistence"])
    );
    until_reported(&redis.launcher, &file, "huge pages again", |report| {
        let end = &report["end"]["heap"];
        let number = |name: &str| end[name].as_u64().unwrap_or(0);
        number("thp_bytes") > 0 && number("thp_bytes") * 10 >= number("total_bytes") * 7
    });
    let count = "local a, b = 0, 0 for i = 1, 120000 do local v = redis.call('get', 'key:' .. i) \
                 if v == string.rep('a', 1000) then a = a + 1 elseif v == string.rep('b', 1000) then b = b + 1 end \
                 end return a .. ' ' .. b";
    assert_eq!(redis.script(count), "60000 60000");
    drop(redis);
    // Another server reads the dump.
    let loaded = Redis::start(directory.path(), "loaded", &[]);
    wait_for("the dump to be loaded", || loaded.has("persistence", "loading", "0"));
    assert_eq!((loaded.query(&["DBSIZE"]), loaded.script(count)), ("120000".into(), "120000 0".into()));
}
