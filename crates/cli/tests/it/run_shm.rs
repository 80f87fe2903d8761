//! The effect of `megapage run --shm` on a program's shared memory.

use crate::run_support;

use megapage_kernel::hugetlb::{PoolScope, counts};
use megapage_kernel::{KernelRoot, thp_is_possible};
use megapage_testing::{MachineLock, PoolGuard, is_root, skip};
use megapage_units::PageSize;
use run_support::*;
use serde_json::Value;
use std::process::{Command, Stdio};

/// Program that touches all of a segment, of shared anonymous memory or of a memory file, of
/// argv[1] KiB. argv[2] is `sysv`, `odd` (5 bytes more), `mmap`, `memfd`, or `child`: shared
/// anonymous memory that a child touches. It checks that each is as requested; its status is 4 or
/// more if not.
const SHARED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
static char *at;
static size_t len;
static int by_child;
static int touch(void) {
    if (by_child) {
        pid_t child = fork();
        if (!child) { for (size_t i = 0; i < len; i += 4096) at[i] = 7; _exit(0); }
        int status;
        return waitpid(child, &status, 0) == child && !status ? 0 : 22;
    }
    for (size_t i = 0; i < len; i += 4096) at[i] = 7;
    at[len - 1] = 8;
    pid_t child = fork();
    if (!child) { at[0] = 9; _exit(at[len - 1] != 8); }
    int status;
    if (waitpid(child, &status, 0) != child || status) return 20;
    return at[0] == 9 ? 0 : 21;
}
static void hold(void) { char b; write(1, "ready\n", 6); while (read(0, &b, 1) > 0) {} }
static int sysv(void) {
    struct shmid_ds ds;
    key_t key = 0x6d700000 + getpid() % 65536;
    int id = shmget(key, len, IPC_CREAT | IPC_EXCL | 0600);
    if (id < 0) { perror("shmget"); return 4; }
    int done = 5;
    at = shmat(id, 0, 0);
    if (at == (void *)-1 || shmctl(id, IPC_STAT, &ds) || ds.shm_segsz != len || (ds.shm_perm.mode & 0777) != 0600) goto out;
    done = 6;
    if (shmget(key, len, IPC_CREAT | IPC_EXCL | 0600) != -1 || errno != EEXIST) goto out;
    if (shmget(key, len + 1, IPC_CREAT | 0600) != -1 || errno != EINVAL) goto out;
    if (shmget(key, len / 2, 0) != id || shmget(key, len, IPC_CREAT | 0600) != id) goto out;
    if (shmat(id, 0, SHM_REMAP) != (void *)-1 || errno != EINVAL) goto out;
    done = 7;
    char *second = shmat(id, 0, SHM_RDONLY);
    if (second == (void *)-1) goto out;
    if ((done = touch())) goto out;
    done = 8;
    if (second[len - 1] != 8 || shmdt(second)) goto out;
    if (shmctl(id, IPC_STAT, &ds) || ds.shm_nattch != 1) goto out;
    hold();
    done = 9;
    if (shmdt(at)) goto out;
    // At an unmapped address, a multiple of 2 MiB: as by address.
    if (shmat(id, at, 0) != at || at[len - 1] != 8 || shmdt(at) != 0 || shmdt(at) != -1 || errno != EINVAL) goto out;
    done = 3;
out:
    shmctl(id, IPC_RMID, 0);
    if (done == 3 && (shmget(key, len, 0) != -1 || errno != ENOENT)) done = 10;
    return done;
}
static int shared(int fd) {
    at = mmap(0, len, PROT_READ | PROT_WRITE, fd < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return 11;
    int done = touch();
    if (done) return done;
    hold();
    char *next = at;
    size_t page = sysconf(_SC_PAGESIZE), whole = (len + page - 1) / page * page;
    if (munmap(at, len)) return 12;
    unsigned char vec[1];
    // All of it is gone, and nothing else.
    if (mincore(next, page, vec) != -1 || mincore(next + whole - page, page, vec) != -1) return 13;
    return 3;
}
int main(int c, char **v) {
    len = (size_t)atol(v[1]) << 10;
    if (!strcmp(v[2], "odd")) { len += 5; v[2] = "sysv"; }
    if (!strcmp(v[2], "sysv")) return sysv();
    by_child = !strcmp(v[2], "child");
    if (by_child || !strcmp(v[2], "mmap")) return shared(-1);
    int fd = memfd_create("x", 0);
    if (fd < 0 || ftruncate(fd, len) || write(fd, "abc", 3) != 3) return 14;
    return shared(fd);
}
"#;

fn program(directory: &std::path::Path) -> Option<String> {
    compile("gcc", directory, "shared", SHARED, &[])
}

/// Returns a field of shared memory in the fullest sample. At its end the program has given the
/// memory back.
fn shared(report: &Value, field: &str) -> u64 {
    report["peak"]["kinds"]["shared"][field].as_u64().unwrap_or(0)
}

/// Returns the bytes of shared memory on pages of the pool in the newest sample.
fn held(report: &Value) -> u64 {
    value(report, "end.kinds.shared.hugetlb_2m_bytes")
}

fn value(report: &Value, path: &str) -> u64 {
    path.split('.').fold(report, |at, name| &at[name]).as_u64().unwrap_or(0)
}

#[test]
fn shared_memory_is_on_pages_of_the_pool() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    if !is_root() {
        return skip("needs root: SysV segments on hugetlb pages take CAP_IPC_LOCK");
    }
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    // 16 MiB; 9 MiB and 5 bytes, which is five pages; 9 MiB, of which 8 come from the pool.
    for (kib, kind, hugetlb) in
        [("16384", "sysv", 16), ("9216", "odd", 10), ("16384", "mmap", 16), ("9216", "mmap", 8)]
    {
        let words = [program.as_str(), kib, kind];
        let huge = |report: &Value| held(report) == hugetlb << 20;
        let (status, report, said) = held_report(&["--shm", "2m"], &words, "shared memory on hugetlb", huge);
        assert_eq!(status, 3, "{kind} {kib}: {said} {report:#}");
        // A sample may see the segment attached twice.
        let fullest = shared(&report, "hugetlb_2m_bytes") >> 20;
        assert!([hugetlb, 2 * hugetlb].contains(&fullest), "{kind} {kib}: {report:#}");
        assert_eq!(value(&report, "shm.mapped_bytes.hugetlb-2m") >> 20, hugetlb, "{kind} {kib}: {report:#}");
        assert_eq!(report["shm"]["fall_backs"], serde_json::json!([]), "{report:#}");
    }
    let huge = |report: &Value| held(report) == 16 << 20;
    let all = [&program, "16384", "sysv"];
    let (status, report, said) = held_report(&["--shm", "2m", "--require"], &all, "all of it", huge);
    assert_eq!(status, 3, "{said} {report:#}");
}

#[test]
fn without_pages_the_program_runs_and_the_reason_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    let _lock = MachineLock::take();
    let pool = counts(&KernelRoot::live(), PageSize::HUGE_2M, PoolScope::Machine).unwrap();
    if pool.available() != Some(0) || pool.overcommit != Some(0) {
        return skip("needs a pool of 2m pages without available ones");
    }
    for kind in ["sysv", "mmap", "memfd"] {
        let words = [program.as_str(), "16384", kind];
        let seen = |report: &Value| shared(report, "total_bytes") >= 16 << 20;
        let (status, report, said) = held_report(&["--shm", "2m", "--require"], &words, "16 MiB", seen);
        assert_eq!(report["totals"]["ended"]["status"], 3, "the program itself: {said} {report:#}");
        assert_eq!(status, 125, "{kind}: {report:#}");
        assert!(said.contains("were not on the huge pages that --shm asks for"), "{said}");
        // Memory files are not put on pages of the pool: a hugetlb file has other rules.
        if kind != "memfd" {
            // Without the right to make such segments, the missing right is the reason.
            let reason = if is_root() || kind == "mmap" { "pool-short-2m" } else { "shm-not-permitted" };
            assert!(said.contains(reason), "{kind}: {said}");
            assert_eq!(report["shm"]["fall_backs"][0]["reason"], reason, "{report:#}");
            let why = report["peak"]["kinds"]["shared"]["why_not_more"].to_string();
            assert!(why.contains(reason), "{why}");
            let (status, _, said) = heap_report(&["--shm", "2m"], &words);
            assert_eq!((status, said.as_str()), (3, ""));
        }
    }
}

#[test]
fn shared_memory_is_collapsed_from_inside() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    let root = KernelRoot::live();
    let denied = megapage_kernel::thp::settings(&root)
        .unwrap()
        .is_none_or(|thp| thp.shmem == Some(megapage_kernel::thp::ThpShmem::Deny));
    if denied || !thp_is_possible() || !megapage_kernel::ability::PAGEMAP_SCAN.is_there(&root) {
        return skip("needs transparent huge pages for shared memory, and Linux 6.7");
    }
    // Also without any option.
    for options in [&["--shm", "thp", "--heap", "thp"][..], &[]] {
        for kind in ["sysv", "mmap", "memfd", "child"] {
            // From 64 MiB on the library runs a thread. The address lets all of the memory be huge.
            let words = [program.as_str(), "98304", kind];
            let huge = |report: &Value| shared(report, "shmem_pmd_bytes") >= 94 << 20;
            let (status, report, said) = held_report(options, &words, "it to be huge", huge);
            assert_eq!(status, 3, "{options:?}, {kind}: {said} {report:#}");
            assert!(value(&report, "shm.mapped_bytes.thp") >= 96 << 20, "{options:?}, {kind}: {report:#}");
        }
    }
    // Smaller memory is not touched, nor is any with `--shm none`.
    for (options, kib) in [(&[][..], "32768"), (&["--shm", "none"], "98304")] {
        let (status, report, said) = heap_report(options, &[&program, kib, "mmap"]);
        assert_eq!((status, &report["shm"]), (3, &Value::Null), "{options:?}: {said} {report:#}");
        assert_eq!(shared(&report, "shmem_pmd_bytes"), 0, "{options:?}: {report:#}");
    }
}

/// Returns the directory of programs of Debian's newest PostgreSQL with a server.
fn postgresql() -> Option<std::path::PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|it| Some(it.ok()?.path().join("bin")));
    programs.filter(|it| it.join("postgres").is_file() && it.join("initdb").is_file()).max()
}

/// Returns a command that runs as the user postgres, with the right to make segments on hugetlb
/// pages.
fn as_postgres(words: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--inh-caps=+ipc_lock"]);
    command.args(["--ambient-caps=+ipc_lock", "--"]).args(words).env("MEGAPAGE_LIBRARY", library());
    command
}

fn ran(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn postgresql_has_its_buffers_on_pages_of_the_pool() {
    let Some(programs) = postgresql() else { return skip("needs PostgreSQL's server") };
    if !is_root() {
        return skip("needs root: PostgreSQL is run as the user postgres");
    }
    let launcher = env!("CARGO_BIN_EXE_megapage");
    let is_reached = |mut command: Command| command.output().is_ok_and(|output| output.status.success());
    if !is_reached(as_postgres(&[launcher, "run", "--", "true"])) {
        return skip("needs setpriv, the user postgres, and a build that this user can run");
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    assert!(Command::new("chown").args(["postgres", place]).status().unwrap().success());
    let [data, report] = ["data", "report.json"].map(|name| format!("{place}/{name}"));
    let program = |name: &str| programs.join(name).to_str().unwrap().to_string();
    ran(as_postgres(&[&program("initdb"), "-A", "trust", "-U", "postgres", "-D", &data]));
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 48) else { return };
    for kind in ["sysv", "mmap"] {
        let memory = format!("shared_memory_type={kind}");
        let sockets = format!("unix_socket_directories={place}");
        let words = [
            launcher,
            "run",
            "--shm",
            "2m",
            "--json",
            "--report",
            &report,
            "--",
            &program("postgres"),
            "-D",
            &data,
        ];
        let settings = ["shared_buffers=64MB", "huge_pages=off", "listen_addresses=", &memory, &sockets];
        let mut command = as_postgres(&words);
        command.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let log = std::fs::File::create(format!("{place}/log")).unwrap();
        let mut server =
            command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let ask = |question: &str| {
            as_postgres(&[
                &program("psql"),
                "-qAt",
                "-h",
                place,
                "-U",
                "postgres",
                "-c",
                question,
                "postgres",
            ])
        };
        wait_for("the server", || is_reached(ask("select 1")));
        let sum =
            "create temp table t as select generate_series(1, 200000) g; select sum(g), count(*) from t";
        assert_eq!(ran(ask(sum)).trim(), "20000100000|200000", "{kind}");
        signal(child_of(server.id()), "INT");
        assert!(server.wait().unwrap().success(), "{kind}");
        let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
        assert!(value(&report, "shm.mapped_bytes.hugetlb-2m") >= 64 << 20, "{kind}: {report:#}");
        assert_eq!(report["shm"]["fall_backs"], serde_json::json!([]), "{kind}: {report:#}");
        assert!(value(&report, "hugetlb_peak_bytes") >= 4 << 20, "the kernel's word, {kind}: {report:#}");
    }
}

#[test]
fn own_requests_for_hugetlb_pages_are_told_where_they_fail() {
    const SOURCE: &str = "#define _GNU_SOURCE\n#include <errno.h>\n#include <sys/mman.h>\n#include <sys/shm.h>\n\
        int main() { int a = mmap(0, 1L << 42, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 21 << 26, -1, 0) == MAP_FAILED \
        && errno == ENOMEM; int b = shmget(IPC_PRIVATE, 64 << 20, 0600 | SHM_HUGETLB | 21 << 26); \
        if (b >= 0) shmctl(b, IPC_RMID, 0); return a ? 3 : 4; }\n";
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compile("gcc", directory.path(), "asks", SOURCE, &[]) else { return };
    let (status, report, _) = heap_report(&[], &[&program]);
    assert_eq!(status, 3, "the answer is the kernel's: {report:#}");
    let refused = &report["hugetlb_requests_refused"][0];
    let known = ["pool-short-2m", "cgroup-limit", "refused-unexplained", "shm-not-permitted"];
    assert!(known.iter().any(|reason| refused["reason"] == **reason), "{report:#}");
    assert!(refused["bytes"].as_u64() >= Some(64 << 20), "{report:#}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    assert_refused(&output(&["--shm", "4m", "--", "true"]), 125, "is none of 2m, thp, auto, none");
    assert_refused(
        &output(&["--shm", "2m", "--heap", "none", "--", "true"]),
        125,
        "takes the preloaded library",
    );
    let directory = tempfile::tempdir().unwrap();
    let Some(fixed) = heap_program(directory.path(), "fixed", &["-static"]) else { return };
    let refused = output(&["--shm", "2m", "--require", "--", &fixed, "1", "1"]);
    assert_refused(&refused, 125, "--shm 2m takes the preloaded library: ");
}
