"""Resources that a tree of processes has used: processor time, memory, and its share on huge
pages."""

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
    """Returns the fields of /proc/PID/stat after the name, which may contain blanks and
    brackets."""
    return text[text.rindex(")") + 2:].split()


def children_of(pid):
    """Returns the direct children of `pid`: each of its threads lists its own."""
    found = []
    with contextlib.suppress(*GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(*GONE), open(f"/proc/{pid}/task/{task}/children") as children:
                found += [int(child) for child in children.read().split()]
    return found


def descendants(roots):
    """Returns `roots` and their descendants, up to about 10,000 processes."""
    found, queue = [], list(roots)
    while queue and len(found) < 10_000:
        pid = queue.pop()
        if pid not in found:
            found.append(pid)
            queue += children_of(pid)
    return found


def compare_memory(one, other):
    """Returns 0 if both processes have the same memory, as after clone(2) with CLONE_VM (kcmp(2));
    -1 if that is unknown."""
    return LIBC.syscall(KCMP, one, other, KCMP_VM, 0, 0)


def address_spaces(pids):
    """Returns one process for each address space: each process that shares it would count it."""
    found = []
    for pid in pids:
        if not any(compare_memory(pid, other) == 0 for other in found):
            found.append(pid)
    return found


def cpu_clock(pid):
    """Returns a process's processor time in nanoseconds, ended threads included
    (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns(((~pid) << 3) | 2)


def processor_seconds(pids):
    """Returns the processor time of the processes, and of their children that ended and were waited
    for, in seconds."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            stat = fields_of(pathlib.Path(f"/proc/{pid}/stat").read_text())
            total += cpu_clock(pid) / 1e9 + (int(stat[13]) + int(stat[14])) / TICK
    return total


# Indices of the fields of /proc/PID/stat after the name: a process's own value, and that of its
# ended children.
FAULTS, USER, SYSTEM = (7, 8), (11, 13), (12, 14)


def count(pids, fields):
    """Returns the sum of these fields over the processes: page faults without I/O, or ticks."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            stat = fields_of(pathlib.Path(f"/proc/{pid}/stat").read_text())
            total += sum(int(stat[field]) for field in fields)
    return total


class Stall:
    """The longest time in which a tree of processes used no user time, as samples show it."""

    def __init__(self):
        self.worst, self.user, self.since = 0.0, None, 0.0

    def sample(self, pids, now):
        user = count(pids, USER)
        if user != self.user:
            self.user, self.since = user, now
        self.worst = max(self.worst, now - self.since)


def kib_fields(path, names):
    """Returns the named fields of a file like /proc/PID/status, in bytes; 0 for missing ones."""
    values = dict.fromkeys(names, 0)
    with open(path) as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in values:
                values[name] = int(value.split()[0]) << 10
    return values


RESIDENT = ("RssAnon", "RssFile", "RssShmem", "HugetlbPages")


def proportional(big):
    """Returns by how many bytes the proportional shares of these processes, (pid, size), exceed
    their sizes.

    One process after the other is read. Memory that moves between them meanwhile would be counted
    twice. The smaller of two readings counts it once. Shared memory moves all the time while it
    is collapsed: the processes together have no more of it than the machine (Shmem in
    /proc/meminfo). A process that has ended meanwhile has none.
    """
    more, shared = 0, 0
    for pid, size in big:
        more -= size
        with contextlib.suppress(*GONE):
            held = rollup(pid)
            more += held["pss"] + held["hugetlb"]
            shared += held["pss_shmem"]
    return more - counted_twice(shared)


def counted_twice(shared):
    """Returns by how many bytes the sum of proportional shares of shared memory exceeds the
    machine's shared memory."""
    return max(0, shared - kib_fields("/proc/meminfo", ("Shmem",))["Shmem"])


class Sampler:
    """The peak of a tree's memory. Hugetlb pages do not count as resident, and are added.

    Processes that share memory are counted by their proportional shares (Pss) if more than one of
    them is big.
    """

    BIG = 32 << 20
    # The kernel's time for shares grows with the memory. They are read seldom enough for it to be
    # one part in this many of the whole time.
    SELDOM = 20

    def __init__(self):
        self.peak = 0
        self.last = 0
        self.highest = {}
        self.next_shares = 0.0

    def sample(self, pids, now=True):
        """Takes one cheap sample, which reads one file for each process. Without `now` it may leave
        proportional shares out, if reading them took long before."""
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
            began = time.monotonic()
            if not now and began < self.next_shares:
                return
            total += min(proportional(big), proportional(big))
            ended = time.monotonic()
            self.next_shares = ended + (ended - began) * self.SELDOM
        elif total:
            # The kernel's own high-water mark catches what lies between two samples.
            self.peak = max(self.peak, *self.highest.values()) if self.highest else self.peak
        self.last = total or self.last
        self.peak = max(self.peak, total)


ROLLUP = (
    "Rss", "Pss", "Pss_Shmem", "Anonymous", "AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb",
    "Private_Hugetlb",
)


def rollup(pid):
    """Returns a process's memory from its page table, in bytes."""
    entry = kib_fields(f"/proc/{pid}/smaps_rollup", ROLLUP)
    status = kib_fields(f"/proc/{pid}/status", ("RssShmem", "VmPTE"))
    hugetlb = entry["Shared_Hugetlb"] + entry["Private_Hugetlb"]
    return {
        "pss": entry["Pss"],
        "pss_shmem": entry["Pss_Shmem"],
        "anonymous": entry["Anonymous"],
        "shmem": status["RssShmem"],
        "page_tables": status["VmPTE"],
        "hugetlb": hugetlb,
        "huge": entry["AnonHugePages"] + entry["ShmemPmdMapped"] + hugetlb,
        "file_huge": entry["FilePmdMapped"],
    }


def memory(pids):
    """Returns the tree's memory: `bytes` held (Pss and hugetlb), and `huge_share`, the share of its
    memory without files that is on huge pages. Its page tables are not in `bytes`."""
    total = dict.fromkeys(("pss", "pss_shmem", "anonymous", "shmem", "hugetlb", "huge", "file_huge", "page_tables"), 0)
    for pid in address_spaces(pids):
        with contextlib.suppress(*GONE):
            for name, value in rollup(pid).items():
                total[name] += value
    no_file = total["anonymous"] + total["shmem"] + total["hugetlb"]
    total["bytes"] = total["pss"] - counted_twice(total.pop("pss_shmem")) + total["hugetlb"]
    total["huge_share"] = total["huge"] / no_file if no_file else 0.0
    return total
