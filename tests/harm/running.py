"""Runs of one program in an environment, for driver.py and for the virtual machines of tests/vm."""

import contextlib
import hashlib
import pathlib
import shutil
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import driving
import environments
import groups
import suite

# Characters of an output that are kept; the rest counts by its digest.
MOST_TEXT = 200_000
# A run counts as hanging after SLOWER times plain's time and PATIENCE seconds more.
SLOWER, PATIENCE = 10, 20
# Tries to find a limit that plain runs within.
MOST_GROWTH = 6
SAMPLE_S = 0.004
# The most plain runs that are added for a difference: they show more of what varies by itself.
MORE_RUNS = 4


class Case(suite.Case):
    """One script of cases/."""

    required, optional = {"program", "version"}, {"seconds", "needs", "quick", "more", "machine"}

    def __init__(self, path):
        super().__init__(path)
        self.sources = HERE / "src"


def digest(*parts):
    """Returns a digest of files' contents and of words."""
    whole = hashlib.sha256()
    for part in parts:
        for path in sorted(part.rglob("*")) if isinstance(part, pathlib.Path) and part.is_dir() else [part]:
            if isinstance(path, pathlib.Path):
                if path.is_file():
                    whole.update(path.name.encode() + path.read_bytes())
            else:
                whole.update(str(path).encode() + b"\0")
    return whole.hexdigest()[:20]


class Sampler(threading.Thread):
    """The largest VmPeak and VmData of the processes of a case's groups, and the machine's
    Committed_AS, while they run."""

    def __init__(self, directory):
        super().__init__(daemon=True)
        self.directory, self.ended = directory, threading.Event()
        self.largest = {"VmPeak": 0, "VmData": 0, "Committed_AS": 0}

    def run(self):
        while not self.ended.wait(SAMPLE_S):
            self.read("/proc/meminfo")
            with contextlib.suppress(OSError):
                for directory in groups.children(self.directory):
                    for pid in groups.pids(directory):
                        self.read(f"/proc/{pid}/status")

    def read(self, file):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(file).read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self.largest:
                    self.largest[name] = max(self.largest[name], int(value.split()[0]) << 10)


class Runner:
    """Runner of cases. The tools have the control groups, and the prefix with megapage."""

    def __init__(self, tools, scratch):
        self.tools, self.scratch = tools, scratch
        self.number, self.lock = 0, threading.Lock()

    def made(self, case):
        """Returns the directory of the files that a case makes once for all its runs."""
        directory = self.scratch / "shared" / case.name
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o777)
        return directory

    def once(self, case, environment, facts, mode, limit, sample=False, calls=None):
        """Runs a case once; returns {status, out, errors, peak, kills, seconds}, and the sampled
        facts."""
        with self.lock:
            self.number += 1
            number = self.number
        home = self.scratch / f"run-{number:05}"
        work = home / "work"
        work.mkdir(parents=True)
        work.chmod(0o777)
        group = self.tools.groups and self.tools.groups.make(groups.name(number))
        launcher = home / "run"
        launcher.write_text(environments.launcher(environment, case, facts, self.tools, mode, calls))
        launcher.chmod(0o755)
        variables = suite.environment(launcher, mode, case.sources, work, self.made(case), driving.REPOSITORY,
                                      HARM_GROUP=str(group), PREFIX=str(self.tools.prefix), LC_ALL="C.UTF-8")
        sampler = Sampler(group) if sample and group else None
        if sampler:
            sampler.start()
        try:
            with driving.machine_lock(shared=True):
                ended = suite.session(case.path, work, variables, limit)
        finally:
            if sampler:
                sampler.ended.set()
                sampler.join()
            peak, kills = self.tools.groups.peak(group) if group else (0, 0)
            if group and calls:
                # strace writes its list when the program has ended.
                self.tools.groups.wait(group)
            if group:
                self.tools.groups.remove(group)
        one = {"status": ended.status, "out": self.kept_text(ended.out, home), "errors": self.kept_text(ended.errors, home),
               "peak": peak, "kills": kills, "seconds": ended.seconds}
        shutil.rmtree(home, ignore_errors=True)
        return one, sampler.largest if sampler else {}

    def kept_text(self, text, home):
        """Returns an output without the names of this run's directories."""
        for directory, name in ((f"{driving.REPOSITORY}/", ""), (str(home), "HOME"), (str(self.scratch), "TOP")):
            text = text.replace(directory, name)
        return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n... {digest(text)}"

    def measured(self, case, there=environments.BY_NAME["open"], count=2):
        """Returns plain's needs: the peaks of its memory, its address space and its data, and the
        memory that the machine had committed. Also returns its runs in an environment without a
        limit."""
        limit = suite.SLOWEST * case.seconds
        # The first run loads programs and inputs into the page cache; its peak does not count.
        first, largest = self.once(case, there, {}, "plain", limit, sample=True)
        runs = [self.once(case, there, {}, "plain", limit)[0] for _ in range(count)]
        return {"runs": runs, "peak": max(run["peak"] for run in runs), "vm_peak": largest.get("VmPeak", 0),
                "vm_data": largest.get("VmData", 0), "committed": largest.get("Committed_AS", 0)}
