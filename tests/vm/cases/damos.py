# title: DAMOS by damo beside the daemon: which memory each makes huge, of a program with dense, sparse and cold memory
# kernels: 7.3
# thp: madvise
# memory: 3G
# seconds: 1200
# needs: damo
"""Decisions of the kernel's own schemes (DAMOS) on the same memory. Machines are emulated: their
times say nothing.

The file of results has the findings (`transcript`)."""

import contextlib
import os
import pathlib
import struct
import sys

import truth
import vmcheck as vm

ROW = "daemon beside DAMOS"
PART = 32 * truth.MIB
# Only one of SPARSE pages is ever touched in the sparse part.
SPARSE = 16
KINDS = ("dense", "sparse", "cold")
# Seconds for hot memory to be found and made huge, where a second of work takes ten.
PATIENCE = 300
# A separate process: it fills each part once, then reads the first two over and over.
PROGRAM = f"""
import ctypes, mmap
PART, HUGE = {PART}, {truth.HUGE}
memory = mmap.mmap(-1, 3 * PART + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
first = -address % HUGE
dense, sparse, cold = (range(first + part * PART, first + (part + 1) * PART, step)
                       for part, step in ((0, 4096), (1, {SPARSE} * 4096), (2, 4096)))
for part in (dense, sparse, cold):
    for at in part:
        memory[at] = 1
print(address + first, flush=True)
while True:
    for part in (dense, sparse):
        for at in part:
            memory[at]
"""
DAMO = (sys.executable, "-m", "damo.damo")
# Memory used at least half of the time, in regions of 2 MiB or more. `damo help
# damon_param_options` explains the words.
SCHEME = ("--damos_access_rate", "50%", "100%", "--damos_sz_region", "2MiB", "max", "--damos_age", "0", "max")
KHUGEPAGED = {"scan_sleep_millisecs": 100, "alloc_sleep_millisecs": 100, "pages_to_scan": 65536}


def damo(*words, seconds=vm.LONGEST):
    return vm.run([*DAMO, *words], seconds, env=dict(os.environ, PYTHONPATH="/vm/damo"))


def huge(pid, start):
    """Returns the bytes of each part on huge pages, by the flags of the frames that its regions
    begin with."""
    found = dict.fromkeys(KINDS, 0)
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap, open("/proc/kpageflags", "rb") as flags:
        for number, kind in enumerate(KINDS):
            for address in range(start + number * PART, start + (number + 1) * PART, truth.HUGE):
                pagemap.seek(address // truth.PAGE * 8)
                (entry,) = struct.unpack("Q", pagemap.read(8))
                frame = entry & ((1 << 55) - 1)
                flags.seek(frame * 8)
                if entry >> 63 and frame and frame % 512 == 0 and struct.unpack("Q", flags.read(8))[0] >> 22 & 1:  # KPF_THP
                    found[kind] += truth.HUGE
    return found


def program(words):
    """Starts a fresh program and then `words(pid)`, a context. Returns the huge bytes of its parts
    with the growth of its memory, and the context's value."""
    with vm.Child(sys.executable, "-c", PROGRAM) as child:
        start = int(child.line(3 * vm.LONGEST) or 0)
        before = truth.status(child.pid, "VmRSS")
        with words(child.pid) as said:
            vm.wait_until(lambda: huge(child.pid, start)["dense"] == PART, PATIENCE, 2)
            # Leaves time for huge pages of the sparse part, too.
            vm.wait_until(lambda: huge(child.pid, start)["sparse"] == PART, PATIENCE / 10, 2)
            found = huge(child.pid, start)
            grown = truth.status(child.pid, "VmRSS") - before
    found["grown"] = max(0, grown)
    return found, said


@contextlib.contextmanager
def scheme(action, pid):
    """Runs a DAMOS scheme on a process."""
    done = damo("start", "--ops", "vaddr", "--target_pid", str(pid), "--damos_action", action, *SCHEME)
    try:
        yield done
    finally:
        damo("stop")


@contextlib.contextmanager
def daemon(pid):
    """Runs the daemon with its own policy on a process."""
    config = pathlib.Path("/tmp/damos-daemon.toml")
    # No bounds on the daemon's own cost: on an emulated machine a look takes so long that passes
    # would be minutes apart.
    config.write_text(f"policy = 'megapage'\nlock_file = '/tmp/damos-lock'\nstate_file = ''\n[processes]\n"
                      f"include = ['^no-such-name$']\npids = [{pid}]\n[metrics]\nsocket = ''\n[observe]\n"
                      "budget_percent = 100\nown_percent = 100\nown_percent_busy = 100\n[act]\ntime = '10s'\n"
                      "latency_guard = '10s'\npause = '1ms'\npause_most = '1ms'\n")
    log = open("/tmp/damos-log", "w", encoding="utf-8")
    with vm.Child("megapage", "daemon", "--config", config, stderr=log) as child:
        yield vm.Done(None, "", "", 0)
        said = pathlib.Path("/tmp/damos-log").read_text()
        vm.check(ROW, "megapage: it runs to the end", child.process.poll() is None, said[-500:], "running")
        vm.record(event="transcript", text=f"the daemon's last words: {''.join(said.splitlines(True)[-2:])}")
    log.close()


def shown(found):
    return ", ".join(f"{kind} {found[kind] >> 20} of {PART >> 20}" for kind in KINDS) + f"; grown by {found['grown'] >> 20}"


# Kernel modules that use DAMON themselves, and keep others from it.
for module in ("damon_stat", "damon_reclaim", "damon_lru_sort"):
    truth.writable(f"/sys/module/{module}/parameters/enabled", "N")
version = damo("version").out.strip()
for name, value in KHUGEPAGED.items():
    # Not restored: the machine ends with its cases.
    (truth.THP / "khugepaged" / name).write_text(str(value))
vm.record(event="transcript", text=f"damo {version}, Linux {os.uname().release}; MiB on huge pages:\n")
for name, words in (
    ("DAMOS collapse", lambda pid: scheme("collapse", pid)),
    ("megapage", daemon),
    ("DAMOS hugepage, khugepaged tuned hard", lambda pid: scheme("hugepage", pid)),
):
    found, said = program(words)
    if not vm.check(ROW, f"{name}: it starts", said.status in (None, 0), said.words, "a status of 0"):
        continue
    vm.record(event="transcript", text=f"{name}: {shown(found)}\n")
    # All three see memory that is read all the time.
    vm.check(ROW, f"{name}: dense memory that is hot becomes huge", found["dense"] >= PART // 2, shown(found), "half at least")
    vm.check(ROW, f"{name}: cold memory stays on base pages", found["cold"] <= PART // 8, shown(found), "an eighth at most")
