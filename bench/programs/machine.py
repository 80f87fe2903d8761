"""Description of the machine that the bench ran on, and the kernel's counters."""

import contextlib
import hashlib
import mmap
import os
import pathlib
import platform
import subprocess

THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
HUGE = 2 << 20
MADV_POPULATE_WRITE = 23
# Bytes of available memory that stay untouched for other programs.
SPARE = 2 << 30
VMSTAT = ("thp_fault_alloc", "thp_fault_fallback", "thp_collapse_alloc", "pgmajfault")


def first_line(words):
    """Returns the first line that a command prints; empty if it cannot be run or fails."""
    try:
        shown = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = (shown.stdout or shown.stderr).strip().splitlines()
    return lines[0].strip() if shown.returncode == 0 and lines else ""


def setting(name):
    path = THP / name
    return path.read_text().strip() if path.exists() else None


def available():
    """Returns how many bytes programs may take without pushing others out."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def describe():
    """Returns the processor, memory, kernel and settings of huge pages."""
    cpu = [line for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    pool = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    return {
        "cpu": cpu[0].partition(":")[2].strip() if cpu else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "thp": {name: setting(name) for name in ("enabled", "defrag", "shmem_enabled", "khugepaged/max_ptes_none")},
        "hugetlb_2m_pages": int(pool.read_text()) if pool.exists() else 0,
        "compilers": {name: first_line([name, "--version"]) for name in ("gcc", "rustc")}
        | {"go": first_line(["go", "version"])},
    }


def back_free_memory(size):
    """Touches `size` bytes on huge pages and frees them, so that memory backs the program's next
    pages.

    A virtual machine may have given free huge pages back to its host (free page reporting). The
    host supplies them again at their first touch, which takes longer than zeroing them. Base pages
    mostly come from smaller blocks, which stay.
    """
    # Old files in the page cache make room here, and not in the run.
    free = available()
    size = min(size, max(free // 2, free - SPARE)) // HUGE * HUGE
    if not size:
        return
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        try:
            # Touches all of the memory, even where no huge page was free.
            memory.madvise(MADV_POPULATE_WRITE)
        except OSError:
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 1


def megapage_version(command):
    return first_line([str(command), "--version"])


def digest(directory):
    """Returns a digest of all files below `directory`, which identifies a build."""
    found = hashlib.sha256()
    for path in sorted(pathlib.Path(directory).rglob("*")):
        if path.is_file():
            found.update(f"{path.relative_to(directory)}\n".encode())
            with open(path, "rb") as content:
                found.update(hashlib.file_digest(content, "sha256").digest())
    return found.hexdigest()[:16]


def library_version(path):
    """Returns the version of a preloaded library: of its Debian package, else of its Python
    distribution. If it has neither, returns the name of the file behind its links."""
    if path is None or not path.exists():
        return None
    package = first_line(["dpkg-query", "--search", str(path.resolve())]).partition(":")[0]
    if package:
        return f"{package} {first_line(['dpkg-query', '-W', '-f', '${Version}', package])}"
    distributions = path.parent.parent.parent.glob("*mimalloc-*.dist-info")
    return next((item.name.removesuffix(".dist-info").replace("-", " ") for item in distributions), path.resolve().name)


def khugepaged():
    """Returns khugepaged's process id, or None if it does not run."""
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "comm").read_text() == "khugepaged\n":
                    return int(entry.name)
            except OSError:
                continue
    return None


class Counters:
    """Kernel counters of the whole machine since creation: the kernel's own work is charged to no
    process."""

    thread = None

    def __init__(self):
        Counters.thread = Counters.thread or khugepaged()
        self.before = self.now()

    def now(self):
        values = dict.fromkeys(VMSTAT, 0)
        for line in pathlib.Path("/proc/vmstat").read_text().splitlines():
            name, value = line.split()
            if name in values:
                values[name] = int(value)
        values["khugepaged_ticks"] = 0
        # The kernel ends the thread while THP is `never`, and starts another one later.
        with contextlib.suppress(OSError):
            fields = pathlib.Path(f"/proc/{self.thread}/stat").read_text().rpartition(")")[2].split()
            values["khugepaged_ticks"] = int(fields[11]) + int(fields[12])
        values["load"] = os.getloadavg()[0]
        return values

    def since(self):
        now = self.now()
        return {name: value if name == "load" else value - self.before[name] for name, value in now.items()}
