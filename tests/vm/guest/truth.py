"""Readings of the kernel's own data, without megapage: the other side of each comparison.

These readings are kept apart from megapage's on purpose: no code and no value of its parsers is
used here."""

import contextlib
import ctypes
import os
import pathlib
import re
import struct

MIB = 1 << 20
HUGE = 2 * MIB
PAGE = os.sysconf("SC_PAGE_SIZE")
HUGEPAGES = pathlib.Path("/sys/kernel/mm/hugepages")
THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")


def release():
    """Returns (major, minor) of the running kernel."""
    return tuple(int(part) for part in os.uname().release.split("-")[0].split("+")[0].split(".")[:2])


class Mapping:
    """One mapping of smaps: its head, and each field in bytes."""

    def __init__(self, head):
        self.start, self.end = (int(part, 16) for part in head[0].split("-"))
        self.permissions, self.offset, self.inode = head[1], int(head[2], 16), int(head[4])
        self.name = head[5].strip() if len(head) > 5 else ""
        self.fields, self.flags = {}, set()

    def __getitem__(self, field):
        return self.fields.get(field, 0)

    @property
    def hugetlb(self):
        """Returns true if the kernel flags the mapping as memory of a pool."""
        return "ht" in self.flags

    @property
    def anonymous(self):
        return not self.hugetlb and self["Anonymous"] > 0


HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")


def parse_smaps(text):
    """Returns the mappings of a text of /proc/PID/smaps."""
    found = []
    for line in text.splitlines():
        if HEAD.match(line):
            found.append(Mapping(line.split(None, 5)))
        elif found:
            key, _, value = line.partition(":")
            if key == "VmFlags":
                found[-1].flags = set(value.split())
            elif value.strip().endswith("kB"):
                found[-1].fields[key] = int(value.split()[0]) * 1024
    return found


def smaps(pid):
    """Returns the mappings of a process; empty if it is gone."""
    try:
        return parse_smaps(pathlib.Path(f"/proc/{pid}/smaps").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return []


class Backing:
    """Backing of a process's memory, in bytes, from smaps."""

    def __init__(self, mappings):
        self.hugetlb = {}
        self.thp = self.shmem = self.file = self.base = self.swapped = self.anonymous_base = 0
        for mapping in mappings:
            if mapping.hugetlb:
                page = mapping["KernelPageSize"]
                held = mapping["Private_Hugetlb"] + mapping["Shared_Hugetlb"]
                self.hugetlb[page] = self.hugetlb.get(page, 0) + held
                continue
            huge = mapping["AnonHugePages"] + mapping["ShmemPmdMapped"] + mapping["FilePmdMapped"]
            self.thp += mapping["AnonHugePages"]
            self.shmem += mapping["ShmemPmdMapped"]
            self.file += mapping["FilePmdMapped"]
            self.base += max(0, mapping["Rss"] - huge)
            self.anonymous_base += max(0, mapping["Anonymous"] - mapping["AnonHugePages"])
            self.swapped += mapping["Swap"]

    @property
    def hugetlb_bytes(self):
        return sum(self.hugetlb.values())

    @property
    def huge(self):
        return self.hugetlb_bytes + self.thp + self.shmem + self.file

    @property
    def total(self):
        return self.huge + self.base


def backing(pid):
    """Returns the backing of a running process's memory."""
    return Backing(smaps(pid))


def meminfo():
    """Returns /proc/meminfo in bytes; counts of pages as they are."""
    found = {}
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        found[key] = int(words[0]) * (1024 if len(words) > 1 else 1)
    return found


def vmstat(name):
    """Returns one counter of /proc/vmstat; 0 if it is not there."""
    for line in pathlib.Path("/proc/vmstat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def status(pid, field):
    """Returns one field of /proc/PID/status: bytes for sizes, else the number; 0 if it is not
    there."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == field:
            words = value.split()
            return int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return 0


def nodes():
    """Returns the NUMA nodes that have memory."""
    text = pathlib.Path("/sys/devices/system/node/has_memory").read_text().strip()
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def pool(size=HUGE, node=None, name="nr_hugepages"):
    """Returns a count of a pool: of the machine, or of a node."""
    where = HUGEPAGES if node is None else pathlib.Path(f"/sys/devices/system/node/node{node}/hugepages")
    return int((where / f"hugepages-{size // 1024}kB" / name).read_text())


def numa_pages(pid):
    """Returns {node: bytes} of a process's anonymous and hugetlb memory, from numa_maps."""
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        size = re.search(r"kernelpagesize_kB=(\d+)", line)
        if not size or ("anon=" not in line and " huge" not in line):
            continue
        for node, pages in re.findall(r"\bN(\d+)=(\d+)", line):
            found[int(node)] = found.get(int(node), 0) + int(pages) * int(size[1]) * 1024
    return found


KPF_HUGE, KPF_THP = 17, 22


def huge_pages(pid):
    """Returns {virtual address: physical address} of a process's 2 MiB pages, anonymous THP or of a
    pool, by the flags of each page's frame. Needs root."""
    found = {}
    with open(f"/proc/{pid}/pagemap", "rb") as pagemap, open("/proc/kpageflags", "rb") as flags:
        for mapping in smaps(pid):
            if mapping["AnonHugePages"] == 0 and not (mapping.hugetlb and mapping["KernelPageSize"] == HUGE):
                continue
            for address in range((mapping.start + HUGE - 1) // HUGE * HUGE, mapping.end - HUGE + 1, HUGE):
                pagemap.seek(address // PAGE * 8)
                (entry,) = struct.unpack("Q", pagemap.read(8))
                frame = entry & ((1 << 55) - 1)
                if not entry >> 63 or not frame or frame % (HUGE // PAGE):
                    continue
                flags.seek(frame * 8)
                (bits,) = struct.unpack("Q", flags.read(8))
                if bits >> (KPF_HUGE if mapping.hugetlb else KPF_THP) & 1:
                    found[address] = frame * PAGE
    return found


def huge_by_node(pid):
    """Returns {node: bytes} of a process's huge pages, by the flags of each page's frame. Needs
    root."""
    edges = node_edges()
    found = {}
    for physical in huge_pages(pid).values():
        node = next((n for n, low, high in edges if low <= physical // PAGE < high), None)
        found[node] = found.get(node, 0) + HUGE
    return found


def node_edges():
    """Returns (node, first frame, one after the last) of each piece of memory, from
    /proc/zoneinfo."""
    found, node, start = [], None, None
    spanned = 0
    for line in pathlib.Path("/proc/zoneinfo").read_text().splitlines():
        if zone := re.match(r"Node (\d+), zone", line):
            node = int(zone[1])
        elif word := re.match(r"\s+spanned\s+(\d+)", line):
            spanned = int(word[1])
        elif word := re.match(r"\s+start_pfn:\s+(\d+)", line):
            start = int(word[1])
            if spanned:
                found.append((node, start, start + spanned))
            spanned = 0
    return found


LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MAP_PRIVATE, MAP_ANONYMOUS, MAP_HUGETLB = 0x02, 0x20, 0x40000


def try_hugetlb(size=HUGE):
    """Returns 0 if mmap(MAP_HUGETLB) gives a page of this size, else its errno."""
    flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (size.bit_length() - 1) << 26
    address = LIBC.mmap(None, size, 3, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        return ctypes.get_errno()
    LIBC.munmap(address, size)
    return 0


def try_advice(advice, touch=False):
    """Gives an advice on 2 MiB of fresh anonymous memory; returns 0 or the errno of madvise(2), and
    the huge bytes obtained."""
    length = 4 * MIB
    address = LIBC.mmap(None, length, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    aligned = (address + HUGE - 1) // HUGE * HUGE
    try:
        if touch:
            ctypes.memset(aligned, 1, HUGE)
        failed = ctypes.get_errno() if LIBC.madvise(aligned, HUGE, advice) else 0
        if not touch:
            ctypes.memset(aligned, 1, HUGE)
        huge = sum(m["AnonHugePages"] for m in smaps(os.getpid()) if m.start < aligned + HUGE and m.end > aligned)
        return failed, huge
    finally:
        LIBC.munmap(address, length)


MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25


def collapses():
    """Returns true if this kernel has MADV_COLLAPSE (Linux 6.1)."""
    return try_advice(MADV_COLLAPSE, touch=True)[0] == 0


def writable(path, value):
    """Writes to a kernel file; returns False if that is refused."""
    with contextlib.suppress(OSError):
        pathlib.Path(path).write_text(str(value))
        return True
    return False
