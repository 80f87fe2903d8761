"""What a tree of processes has used: processor time, memory, and the share of it on huge pages."""

import contextlib
import ctypes
import os
import pathlib
import time

PROC = pathlib.Path("/proc")
TICK = os.sysconf("SC_CLK_TCK")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
LIBC = ctypes.CDLL(None)
# The number of kcmp(2), which the C library does not wrap.
KCMP = {"x86_64": 312}.get(os.uname().machine, 272)
KCMP_VM = 1


def fields_of(text):
    """The fields of /proc/PID/stat after the name, which may hold blanks and brackets."""
    return text[text.rindex(")") + 2:].split()


def children_of(pid):
    """The direct children of `pid`: each of its threads lists its own."""
    found = []
    with contextlib.suppress(*GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(*GONE), open(f"/proc/{pid}/task/{task}/children") as children:
                found += [int(child) for child in children.read().split()]
    return found


def descendants(roots):
    """`roots` and whatever descends from them, as far as it runs."""
    found, queue = [], list(roots)
    while queue and len(found) < 10_000:
        pid = queue.pop()
        if pid not in found:
            found.append(pid)
            queue += children_of(pid)
    return found


def compare_memory(one, other):
    """0 where both processes have the same memory, as after clone(2) with CLONE_VM; see kcmp(2). -1: it cannot be told."""
    return LIBC.syscall(KCMP, one, other, KCMP_VM, 0, 0)


def address_spaces(pids):
    """Of processes that share all their memory only one: each would count it."""
    found = []
    for pid in pids:
        if not any(compare_memory(pid, other) == 0 for other in found):
            found.append(pid)
    return found


def cpu_clock(pid):
    """Nanoseconds of processor time of a process, ended threads included (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns(((~pid) << 3) | 2)


def processor_seconds(pids):
    """Processor time of the processes, and of their children that have ended and were waited for."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            stat = fields_of(pathlib.Path(f"/proc/{pid}/stat").read_text())
            total += cpu_clock(pid) / 1e9 + (int(stat[13]) + int(stat[14])) / TICK
    return total


def minor_faults(pids):
    """Page faults without I/O, of the processes and their children that have ended."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            stat = fields_of(pathlib.Path(f"/proc/{pid}/stat").read_text())
            total += int(stat[7]) + int(stat[8])
    return total


def kib_fields(path, names):
    """The named fields of a file like /proc/PID/status, in bytes; 0 for those that are not there."""
    values = dict.fromkeys(names, 0)
    with open(path) as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in values:
                values[name] = int(value.split()[0]) << 10
    return values


RESIDENT = ("RssAnon", "RssFile", "RssShmem", "HugetlbPages")


def proportional(big):
    """What the proportional shares of these processes, (pid, size), are more than their sizes.

    One process after the other is read: what moves from one to the next meanwhile, as shared memory that is collapsed does,
    would be counted twice. Whoever takes the smaller of two readings counts it once.
    """
    more = 0
    for pid, size in big:
        with contextlib.suppress(*GONE):
            memory = rollup(pid)
            more += memory["pss"] + memory["hugetlb"] - size
    return more


class Sampler:
    """The peak of a tree's memory. Hugetlb pages do not count as resident, and are added.

    Processes that share memory are counted by their proportional shares (Pss) wherever more than one of them is big.
    """

    BIG = 32 << 20

    def __init__(self):
        self.peak = 0
        self.last = 0
        self.highest = {}

    def sample(self, pids):
        """One look, cheap: a file for each process."""
        total, big = 0, []
        for pid in address_spaces(pids):
            with contextlib.suppress(*GONE):
                status = kib_fields(f"/proc/{pid}/status", RESIDENT + ("VmHWM",))
                size = sum(status[name] for name in RESIDENT)
                total += size
                self.highest[pid] = status["VmHWM"]
                if size > self.BIG:
                    big.append((pid, size))
        if len(big) > 1:
            self.highest.clear()
            total += min(proportional(big), proportional(big))
        elif total:
            # The kernel's own high-water mark catches what lies between two samples.
            self.peak = max(self.peak, *self.highest.values()) if self.highest else self.peak
        self.last = total or self.last
        self.peak = max(self.peak, total)


ROLLUP = (
    "Rss", "Pss", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb",
    "Private_Hugetlb",
)


def rollup(pid):
    """A process's memory from its page table, in bytes."""
    entry = kib_fields(f"/proc/{pid}/smaps_rollup", ROLLUP)
    shmem = kib_fields(f"/proc/{pid}/status", ("RssShmem",))["RssShmem"]
    hugetlb = entry["Shared_Hugetlb"] + entry["Private_Hugetlb"]
    return {
        "pss": entry["Pss"],
        "anonymous": entry["Anonymous"],
        "shmem": shmem,
        "hugetlb": hugetlb,
        "huge": entry["AnonHugePages"] + entry["ShmemPmdMapped"] + hugetlb,
        "file_huge": entry["FilePmdMapped"],
    }


def memory(pids):
    """The tree's memory: `bytes` held (Pss and hugetlb), and the share of what is no file that is on huge pages."""
    total = dict.fromkeys(("pss", "anonymous", "shmem", "hugetlb", "huge", "file_huge"), 0)
    for pid in address_spaces(pids):
        with contextlib.suppress(*GONE):
            for name, value in rollup(pid).items():
                total[name] += value
    no_file = total["anonymous"] + total["shmem"] + total["hugetlb"]
    total["bytes"] = total["pss"] + total["hugetlb"]
    total["huge_share"] = total["huge"] / no_file if no_file else 0.0
    return total
