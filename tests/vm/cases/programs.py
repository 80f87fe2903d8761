# title: redis, python3, sqlite3 and others under run: the same output as without, and no crash, with a pool and without
# kernels: x86-64 arm64-7.3
# seconds: 900
"""Programs that were not made for this test, compared with a plain run of the same."""

import hashlib
import pathlib

import truth
import vmcheck as vm

SQL = """create table t(a integer primary key, b text); with recursive n(i) as (select 1 union all select i + 1 from n where
i < 60000) insert into t select i, hex(i * 7919) || 'xxxxxxxxxxxxxxxx' from n; create index u on t(b);
select count(*), sum(length(b)), max(b) from t; select a from t order by b limit 5;"""
PYTHON = """
import hashlib, subprocess, threading, os
d = {str(n): 'v' * (n % 97) for n in range(150000)}
def work(): d2 = sorted(d); assert d2[0] == '0'
threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
print(hashlib.sha256(repr(sorted(d.items())).encode()).hexdigest())
pid = os.fork()
if pid == 0:
    d['x'] = 'y'; os._exit(0 if len(d) == 150001 else 9)
print(os.waitpid(pid, 0)[1], len(d), subprocess.run(['echo', 'child'], capture_output=True).stdout)
"""
LOG = pathlib.Path("/tmp/redis.log")
PROGRAMS = {
    "python3": ["python3", "-c", PYTHON],
    "sqlite3": ["sqlite3", ":memory:", SQL],
    "sort": ["sh", "-c", "seq 400000 | sort -rn -S 64M | sha256sum"],
    "workload": ["megapage-lab-workload", "release", "random", "--scale", "0.05", "--wait", "200"],
}


def plain(program):
    return vm.run(program, 240)


def digest(name, text):
    # The workload prints times, which differ; only its good end counts.
    return "" if name == "workload" else hashlib.sha256(text.encode()).hexdigest()


def redis(prefix, row, what):
    """Fills a server, saves by a fork, and reads everything back. With threads and a heap that was
    asked to be on hugetlb pages, a fork is refused (ENOMEM) if the pool has no second copy of the
    heap. Otherwise the child would be killed: docs/run.md."""
    LOG.unlink(missing_ok=True)
    with vm.Child(*prefix, "redis-server", "--port", "7001", "--save", "", "--dir", "/tmp", "--loglevel", "warning",
                  "--logfile", LOG, "--enable-debug-command", "yes") as server:
        cli = ["redis-cli", "-p", "7001"]
        up = vm.wait_until(lambda: vm.run([*cli, "ping"], 10).out.strip() == "PONG", 90)
        if not vm.check(row, f"redis {what}: the server comes up", up, server.process.poll(), "PONG"):
            return
        vm.run([*cli, "debug", "populate", "60000", "key", "200"], 120)
        before = vm.run([*cli, "debug", "digest"], 120).out.strip()
        vm.run([*cli, "bgsave"])
        saved = vm.wait_until(lambda: "rdb_bgsave_in_progress:0" in vm.run([*cli, "info", "persistence"]).out, 90)
        info = vm.run([*cli, "info", "persistence"]).out
        told = [line for line in info.splitlines() if line.startswith("rdb_")]
        refused = "2m" in row and "fork: Cannot allocate memory" in LOG.read_text()
        vm.check(row, f"redis {what}: a save by fork succeeds, or is refused", saved and
                 ("rdb_last_bgsave_status:ok" in info or refused), f"{told} {LOG.read_text()[-300:]}", "ok")
        vm.run([*cli, "del", *[f"key:{n}" for n in range(0, 2000)]])
        after = vm.run([*cli, "debug", "digest"], 120).out.strip()
        vm.run([*cli, "debug", "reload"], 120)
        again = vm.run([*cli, "debug", "digest"], 120).out.strip()
        vm.check(row, f"redis {what}: the data is the same after a reload", before != after and after == again, again, after)
        vm.run([*cli, "shutdown", "nosave"])
        vm.check(row, f"redis {what}: it ends by itself", vm.wait_until(lambda: server.process.poll() is not None, 60),
                 "runs on", "an end")
        vm.same(row, f"redis {what}: its status", server.process.poll(), 0)


expected = {name: plain(program) for name, program in PROGRAMS.items()}
for options, pool in (([], 80), (["--heap", "2m"], 80), (["--heap", "2m"], 10), (["--heap", "thp"], 0), (["--text", "thp"], 0)):
    row = "run --text thp" if "--text" in options else f"run --heap {options[1] if options else 'auto'}"
    what = f"with a pool of {pool}"
    for name, program in PROGRAMS.items():
        vm.pool_pages(pool)
        if expected[name].status != 0:
            vm.skip(row, f"{name} does not run here: {expected[name].words}")
            continue
        done = vm.megapage(row, "run", *options, "--", *program, seconds=300)
        vm.same(row, f"{name} {what}: the output of a plain run", digest(name, done.out), digest(name, expected[name].out))
        vm.same(row, f"{name} {what}: nothing beside on standard error", done.err.strip(), expected[name].err.strip())
    vm.pool_pages(pool)
    redis(["megapage", "run", *options, "--"], row, what)
    vm.same(row, f"{what}: all pages are back", truth.pool(name="free_hugepages"), truth.pool())
redis(["megapage", "run", "--fork", "snapshot", "--"], "run --fork snapshot", "")
vm.pool_pages(0)
