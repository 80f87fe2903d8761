"""The host's side of a machine: the backing of the guest's memory, and the host kernel's data on it
while the guest runs.

A case declares it (`backing:`), and asks by `ask_host` of guest/vmcheck.py. The driver reads smaps
and page frames of qemu by guest/truth.py, as cases do in the guest."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE / "guest")]
import driving
import packages
import truth

BACKINGS = ("base", "thp", "hugetlb")
# Starts a program that gets no transparent huge pages, although qemu asks for them:
# PR_SET_THP_DISABLE stays over exec.
WITHOUT_THP = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) and sys.exit(1); os.execvp(sys.argv[1], sys.argv[1:])"
SETTINGS_LOCK = pathlib.Path("/run/megapage/thp.lock")
# Seconds that qemu's monitor, a change of the pool and the lock may take.
LONGEST = 120
# Seconds that programs of other tests may keep pages of the pool.
LONGEST_RELEASE = 300


def require(backing):
    """Raises Unavailable if the host cannot be asked, or lacks the kind of page."""
    if os.geteuid() != 0 or not os.access("/proc/kpageflags", os.R_OK):
        raise packages.Unavailable("page frames of the host are read as root, from /proc/kpageflags")
    if backing == "thp" and not truth.THP.exists() or backing == "hugetlb" and not driving.POOL.exists():
        raise packages.Unavailable(f"the host's kernel has no {backing} pages of 2 MiB")


def launcher(backing):
    """Returns the words before qemu's command."""
    return [sys.executable, "-c", WITHOUT_THP] if backing == "base" else []


def memory_object(backing, name, size):
    """Returns qemu's object for `size` bytes of the guest's memory."""
    if backing == "hugetlb":
        return f"memory-backend-memfd,id={name},size={size},hugetlb=on,hugetlbsize=2M,prealloc=on"
    return f"memory-backend-ram,id={name},size={size}"


@contextlib.contextmanager
def prepared(backing, memory, megapage):
    """Prepares the host's pages or settings for `memory` bytes of a guest, for as long as it
    runs."""
    if backing not in ("thp", "hugetlb"):
        yield
        return
    # Others' tests change the same pool and settings.
    with driving.machine_lock(), thp_allowed() if backing == "thp" else pool_pages(memory, megapage):
        yield


def forbidding():
    """Returns the host's settings that each refuse transparent huge pages to all memory."""
    paths = (truth.THP / "enabled", truth.THP / "hugepages-2048kB/enabled")
    return [path for path in paths if path.exists() and "[never]" in path.read_text()]


@contextlib.contextmanager
def thp_allowed():
    """Lets madvise(2) obtain transparent huge pages if settings refuse them all; restores the
    settings."""
    if not forbidding():
        yield
        return
    with settings_lock():
        # Under the lock, temporary changes by other processes are undone by now.
        changed = forbidding()
        try:
            for path in changed:
                path.write_text("madvise")
            yield
        finally:
            for path in changed:
                path.write_text("never")


@contextlib.contextmanager
def settings_lock():
    """Holds the lock of processes that change the settings for a while
    (lab/testing/src/thp_change.rs)."""
    SETTINGS_LOCK.parent.mkdir(mode=0o755, exist_ok=True)
    with open(os.open(SETTINGS_LOCK, os.O_RDWR | os.O_CREAT, 0o600), "w") as lock:
        until = time.monotonic() + LONGEST
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise packages.Unavailable(f"another process keeps THP at never, and holds {SETTINGS_LOCK}") from None
            time.sleep(0.2)
        yield


@contextlib.contextmanager
def pool_pages(memory, megapage):
    """Adds `memory` bytes to the host's pool; releases them at the end."""
    if driving.memory_available_kib() < (memory >> 10) + driving.LEAST_AVAILABLE_KIB:
        raise packages.Unavailable(f"{memory >> 20} MiB of the host's memory are not available for its pool")
    pages = memory // truth.HUGE

    def refused(change, *options):
        done = subprocess.run([megapage, "pool", "set", f"2m:{change:+}", *options], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=LONGEST, check=False)
        words = done.stderr.strip() or done.stdout.strip()
        return f"megapage pool set 2m:{change:+}: status {done.returncode}: {words}" if done.returncode else ""

    if why := refused(pages, "--rollback-on-shortfall"):
        raise packages.Unavailable(why)
    try:
        yield
    finally:
        # Programs of other tests may have taken pages that the guest gave back, and keep them until
        # they end.
        until = time.monotonic() + LONGEST_RELEASE
        while (why := refused(-pages)) and time.monotonic() < until:
            time.sleep(1)
        # A skip would hide that pages stay in the pool.
        if why:
            raise RuntimeError(f"the host's pool still has the guest's pages: {why}")


class Monitor:
    """qemu's monitor, on a socket (QMP)."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LONGEST)
        self.socket.connect(str(path))
        self.stream = self.socket.makefile("rw")
        self.stream.readline()
        self.call("qmp_capabilities")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()
        self.socket.close()

    def call(self, command, **arguments):
        """Returns a command's answer; skips events before it."""
        self.stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.stream.flush()
        while line := self.stream.readline():
            answer = json.loads(line)
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise ValueError(answer["error"]["desc"])
        raise ValueError("qemu closed its monitor")

    def host_address(self, physical):
        """Returns the address in qemu's own memory of a guest-physical address."""
        said = self.call("human-monitor-command", **{"command-line": f"gpa2hva {physical:#x}"})
        found = re.search(r" is 0x([0-9a-f]+)", said)
        if not found:
            raise ValueError(f"gpa2hva {physical:#x}: {said.strip()}")
        return int(found[1], 16)


def answer(pid, monitor, memory, pages):
    """Returns the host's data on a guest of `memory` bytes, and on its huge pages at these
    guest-physical addresses. Counts those that lie at a huge page's boundary of qemu's memory, and
    those that lie on a huge page of the host. Sizes are in bytes."""
    with Monitor(monitor) as qemu:
        addresses = [qemu.host_address(page) for page in pages]
    huge = truth.huge_pages(pid)
    # Read after the frames: memory that the guest touches meanwhile is then in smaps, too.
    now = truth.backing(pid)
    return {
        "memory": memory,
        "aligned": sum(address % truth.HUGE == 0 for address in addresses),
        "on_huge": sum(address in huge for address in addresses),
        "huge_by_frames": len(huge) * truth.HUGE,
        "thp": now.thp,
        "hugetlb": now.hugetlb_bytes,
        "hugetlb_of_status": truth.status(pid, "HugetlbPages"),
    }


def answer_line(*question):
    """Returns the answer as a line for the guest, or an error in its place."""
    try:
        found = answer(*question)
    except (OSError, ValueError) as reason:
        found = {"error": str(reason)}
    return json.dumps(found) + "\n"
