"""Control groups with a limit and a peak of memory, of version 1 or 2
(lab/testing/src/memory_group.rs does the same)."""

import contextlib
import os
import pathlib
import signal
import time

# Seconds to wait for a group whose processes are ending.
LONGEST_END = 10


class Groups:
    """Control groups for the cases, below the caller's own."""

    def __init__(self, parent, version):
        self.parent, self.version = parent, version

    def make(self, name):
        """Makes a group whose children are the groups of a case's programs."""
        directory = self.parent / name
        directory.mkdir()
        # A case may start its programs as another user.
        directory.chmod(0o777)
        if self.version == 2:
            (directory / "cgroup.subtree_control").write_text("+memory")
        return directory

    def limit_lines(self, directory, limit):
        """Returns shell lines that set the limit; swap does not evade it."""
        if self.version == 2:
            return [f'echo {limit} >"{directory}/memory.max"',
                    f'[ ! -e "{directory}/memory.swap.max" ] || echo 0 >"{directory}/memory.swap.max"']
        return [f'echo {limit} >"{directory}/memory.limit_in_bytes"',
                f'[ ! -e "{directory}/memory.memsw.limit_in_bytes" ] || '
                f'echo {limit} >"{directory}/memory.memsw.limit_in_bytes"']

    def peak(self, case_group):
        """Returns the largest peak of a case's groups, in bytes, and the number of processes that
        the kernel killed in them."""
        peaks, kills = [0], 0
        name, events = ("memory.peak", "memory.events") if self.version == 2 else ("memory.max_usage_in_bytes", "memory.oom_control")
        for directory in children(case_group):
            peaks.append(int((directory / name).read_text()))
            for line in (directory / events).read_text().splitlines():
                if line.startswith("oom_kill "):
                    kills += int(line.split()[1])
        return max(peaks), kills

    def wait(self, case_group):
        """Waits until the groups of a case have no process."""
        until = time.monotonic() + LONGEST_END
        while time.monotonic() < until and any(map(pids, children(case_group))):
            time.sleep(0.05)

    def remove(self, case_group):
        """Ends what is left in a case's groups, and removes them."""
        until = time.monotonic() + LONGEST_END
        for directory in [*children(case_group), case_group]:
            while time.monotonic() < until:
                for pid in pids(directory):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                try:
                    directory.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.05)


def name(number):
    """Returns the name of a case's group, which has the driver's process number."""
    return f"megapage-harm-{os.getpid()}-{number}"


def remove_left_over(found):
    """Removes the groups of killed drivers, whose process numbers the names have."""
    for directory in found.parent.glob("megapage-harm-*-*"):
        if not pathlib.Path(f"/proc/{directory.name.split('-')[2]}").exists():
            found.remove(directory)


def children(directory):
    return [path for path in directory.iterdir() if path.is_dir()]


def pids(directory):
    with contextlib.suppress(OSError):
        return [int(line) for line in (directory / "cgroup.procs").read_text().split()]
    return []


def find():
    """Returns the groups of this machine; None if none can be made."""
    if os.getuid() != 0:
        return None
    own = dict(line.split(":", 2)[1:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines())
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            mine = pathlib.Path(point) / own.get("memory", "/").lstrip("/")
            return usable(Groups(mine if mine.exists() else pathlib.Path(point), 1))
        if kind == "cgroup2" and "memory" in (pathlib.Path(point) / "cgroup.controllers").read_text().split():
            mine = pathlib.Path(point) / own.get("", "/").lstrip("/")
            # A group that holds processes cannot have children with limits; then the root's
            # children can.
            for parent in (mine, pathlib.Path(point)):
                with contextlib.suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text("+memory")
                    return usable(Groups(parent, 2))
    return None


def usable(groups):
    try:
        directory = groups.make(f"megapage-harm-try-{os.getpid()}")
        directory.rmdir()
    except OSError:
        return None
    return groups
