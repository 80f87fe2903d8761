# title: programs of tests/harm on a machine of 256 MiB, and the peaks of the commands that look and promote there
# kernels: 6.1
# memory: 256M
# seconds: 3600
"""Adverse environment `small` (tests/harm/environments.py)."""

import contextlib
import pathlib
import re
import signal
import subprocess
import time

import harm
import truth
import vmcheck as vm

# Limit of a command's memory, and of its control group.
MOST = 32 * vm.MIB
GROUPS = pathlib.Path("/sys/fs/cgroup")
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.M)


class Watched:
    """A command of megapage's in its own control group, with its peaks."""

    def __init__(self, row, *arguments):
        self.row, self.group, self.peak = row, GROUPS / f"harm-{row}", 0
        self.group.mkdir(exist_ok=True)
        enter = f'echo $$ >{self.group}/cgroup.procs && exec megapage "$@"'
        self.words = open(f"/var/tmp/{row}.words", "w+")
        self.process = subprocess.Popen(["sh", "-c", enter, "sh", *map(str, arguments)], stdin=subprocess.DEVNULL,
                                        stdout=self.words, stderr=self.words)

    def look(self, seconds):
        """Samples the command's peak until it ends, for `seconds` at most."""
        until = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                if found := PEAK.search(pathlib.Path(f"/proc/{self.process.pid}/status").read_text()):
                    self.peak = max(self.peak, int(found[1]) << 10)
            time.sleep(0.01)

    def end(self, allowed):
        """Checks the command's end and its peaks."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.words.seek(0)
        said = self.words.read()[-300:]
        vm.check(self.row, "it ends well", self.process.returncode in allowed, f"{self.process.returncode}: {said}", allowed)
        charged = int((self.group / "memory.peak").read_text())
        for what, peak in (("its memory", self.peak), ("its control group", charged)):
            vm.check(self.row, f"the peak of {what} is at most 32 MiB", 0 < peak <= MOST, f"{peak / vm.MIB:.1f} MiB", "32 MiB")
        peaks = f"{self.row}: {self.peak / vm.MIB:.1f} MiB, group {charged / vm.MIB:.1f} MiB"
        vm.note(peaks)
        harm.say(peaks)


killed = truth.vmstat("oom_kill")
# Programs that touch their memory all the time: with the heap of megapage's and without.
with (
    vm.Holder("--mib", "40", "--mmap", "--busy") as plain,
    vm.Holder("--mib", "40", "--block", "3000", "--busy", prefix=("megapage", "run", "--")) as ours,
):
    # Runs once outside of all groups, so that its pages are in the page cache.
    vm.run(["megapage", "top", "--once"])
    daemon = Watched("daemon", "daemon")
    daemon.look(20)
    for row, *arguments in (
        ("top", "top", "--once"), ("map", "map", plain.pid), ("advise", "advise", "--seconds", "5", plain.pid),
        ("record", "record", "--seconds", "20", "--every", "2", "--budget", "50", "-o", "/var/tmp/recording"),
    ):
        command = Watched(row, *arguments)
        command.look(vm.LONGEST)
        command.end((0, 1))
        daemon.look(0.1)
    daemon.look(60)
    daemon.end((0,))
    for holder in (plain, ours):
        holder.intact("daemon", "beside the commands")
vm.same("daemon", "processes that the kernel killed beside the commands", truth.vmstat("oom_kill"), killed)
harm.run("small")
vm.same(harm.ROW, "processes that the kernel killed", truth.vmstat("oom_kill"), killed)
