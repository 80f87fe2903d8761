"""One run of one program in one way: starts it, follows its phases, measures it, and ends every
process that it leaves."""

import contextlib
import ctypes
import hashlib
import json
import os
import pathlib
import pwd
import re
import select
import shutil
import signal
import subprocess
import time

import protocol
import tree

# Seconds between two samples of memory.
INTERVAL = 0.05
# Seconds between two readings of the page tables, for a program that does not say when it ends.
ROLLUP_INTERVAL = 0.5
PR_SET_CHILD_SUBREAPER = 36
# Seconds for memory to settle after the work, while the program stands still. Allocators that
# return memory do so by then.
SETTLED = 1.5
# Seconds for a server to end after its signal.
GRACE = 20.0


class Failed(Exception):
    """A run that gives no measurement, and why."""


def become_subreaper():
    """Makes the programs' orphans children of the driver, which so sees their processor time."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Mark:
    """The clocks at the moment of a phase: `now` is when the program stood still."""

    def __init__(self, run, now):
        pids = run.tree()
        self.wall = now - run.paused
        self.cpu = tree.processor_seconds(pids) + run.reaped["cpu"]
        self.faults = tree.count(pids, tree.FAULTS)
        self.system = tree.count(pids, tree.SYSTEM) / tree.TICK + run.reaped["system"]


class Run:
    """One run. `places` fills in the header's command lines; `launch` is put before the program's
    own words. With `settle` memory is measured again `SETTLED` seconds after the work, while the
    program stands still."""

    def __init__(self, case, launch, environment, places, work, settle=False):
        self.settle = settle
        self.case, self.launch, self.environment, self.places = case, launch, environment, places
        self.work = work
        self.parser = protocol.Parser()
        self.sampler = tree.Sampler()
        self.program = self.client = None
        self.usage = {}
        self.descriptors = []
        self.watched = {}
        # Use of the program's ended processes.
        self.reaped = {"cpu": 0.0, "system": 0.0, "minflt": 0}
        self.stall = tree.Stall()
        self.paused = 0.0
        self.marks = {}
        self.memory = self.settled = None

    def tree(self):
        """Returns the program's processes, orphans included, without the client."""
        if self.program is None:
            return []
        roots = {self.program.pid, *tree.children_of(os.getpid())}
        if self.client:
            roots.discard(self.client.pid)
        return tree.descendants(root for root in roots if root not in self.usage)

    def owner(self):
        """Returns Popen's options to run as the header's user, and gives that user the directory.
        Returns none if the header names no user, or if the driver is not root."""
        if self.case.user is None or os.getuid() != 0:
            return {}
        entry = pwd.getpwnam(self.case.user)
        os.chown(self.work, entry.pw_uid, entry.pw_gid)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def prepare(self):
        """Runs the header's `before` command; not measured."""
        if self.case.before is None:
            return
        words = self.case.words(self.case.before, self.places)
        done = subprocess.run(words, cwd=self.work, env=self.environment[1], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **self.owner())
        if done.returncode != 0:
            raise Failed(f"{words[0]} ended with status {done.returncode}: {done.stdout.strip()[-500:]}")

    def start(self, words, name, environment, owner=None):
        """Starts a child in its own session, its output in files."""
        with open(self.work / f"{name}.out", "wb") as out, open(self.work / f"{name}.err", "wb") as err:
            child = subprocess.Popen(words, cwd=self.work, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=err, start_new_session=True, **(owner or {}))
        self.watched[child.pid] = os.pidfd_open(child.pid)
        return child

    def pipes(self):
        """Makes the two pipes of the protocol. Both stay open for both directions, so that neither
        side waits to open them."""
        for name in ("phases", "go"):
            os.mkfifo(self.work / name)
            self.descriptors.append(os.open(self.work / name, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        return {"BENCH_PHASES": str(self.work / "phases"), "BENCH_GO": str(self.work / "go")}

    def reap(self):
        """Records every child that has ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, used = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    break
                self.usage[pid] = (os.waitstatus_to_exitcode(status), used)
                for child in (self.program, self.client):
                    if child and child.pid == pid:
                        child.returncode = self.usage[pid][0]
                if not self.client or pid != self.client.pid:
                    self.reaped["cpu"] += used.ru_utime + used.ru_stime
                    self.reaped["system"] += used.ru_stime
                    self.reaped["minflt"] += used.ru_minflt

    def pause(self, phase):
        """Measures while the program waits for its line."""
        began = time.monotonic()
        self.reap()
        self.marks[phase] = Mark(self, began)
        if phase == "end":
            pids = self.tree()
            self.sampler.sample(pids)
            self.memory = tree.memory(pids)
            if self.settle:
                time.sleep(SETTLED)
                self.settled = tree.memory(self.tree())["bytes"]
        os.write(self.descriptors[1], self.reply(phase))
        self.paused += time.monotonic() - began

    def reply(self, phase):
        """Returns the line that lets the program go on."""
        return b"go\n"

    def follow(self, until):
        """Samples memory and answers messages until `until()` is true; raises Failed after the
        case's time."""
        deadline = time.monotonic() + self.case.timeout
        next_rollup = time.monotonic() + ROLLUP_INTERVAL
        while True:
            running = [descriptor for pid, descriptor in self.watched.items() if pid not in self.usage]
            readable, _, _ = select.select([self.descriptors[0], *running], [], [], INTERVAL)
            if self.descriptors[0] in readable:
                for kind, text in self.parser.feed(os.read(self.descriptors[0], 1 << 16)):
                    if kind == "phase":
                        self.pause(text)
            self.reap()
            if until():
                return
            pids = self.tree()
            self.sampler.sample(pids, now=False)
            if self.parser.reached == "steady" or not self.case.phased:
                self.stall.sample(pids, time.monotonic())
            if not self.case.phased and time.monotonic() > next_rollup:
                looked = tree.memory(pids)
                if self.memory is None or looked["bytes"] > self.memory["bytes"]:
                    self.memory = looked
                next_rollup = time.monotonic() + ROLLUP_INTERVAL
            if time.monotonic() > deadline:
                raise Failed(f"no end after {self.case.timeout:.0f} s")

    def ended(self, child):
        return child.pid in self.usage

    def go(self):
        """Runs everything and returns the measurements, or raises Failed."""
        case = self.case
        protocol_environment = self.pipes()
        try:
            self.prepare()
            began = time.monotonic()
            words = case.words(case.server or case.run, self.places)
            self.program = self.start([*self.launch, *words], "program", {**self.environment[0], **protocol_environment},
                                      self.owner())
            if case.server:
                self.serve(protocol_environment)
            else:
                self.follow(lambda: self.ended(self.program))
            ended = time.monotonic()
            return self.result(ended - began - self.paused)
        except OSError as error:
            raise Failed(f"cannot be run: {error}") from error
        except protocol.ProtocolError as error:
            raise Failed(f"protocol: {error}{self.last_words()}") from error
        finally:
            self.clear()

    def serve(self, protocol_environment):
        """Runs the client as it is, beside the server, and then stops the server."""
        self.client = self.start(self.case.words(self.case.run, self.places), "client",
                                 {**self.environment[1], **protocol_environment})
        self.follow(lambda: self.ended(self.client) or self.ended(self.program))
        if self.ended(self.program) and not self.ended(self.client):
            raise Failed(f"the server ended with status {self.program.returncode}{self.last_words()}")
        if self.client.returncode != 0:
            raise Failed(f"the client ended with status {self.client.returncode}{self.last_words()}")
        if not self.ended(self.program):
            # Not by Popen, which would wait for an ended child itself and lose its usage.
            os.kill(self.program.pid, getattr(signal, f"SIG{self.case.stop}"))
        deadline = time.monotonic() + GRACE
        while not self.ended(self.program):
            if time.monotonic() > deadline:
                raise Failed(f"the server did not end within {GRACE:.0f} s of SIG{self.case.stop}")
            select.select([self.watched[self.program.pid]], [], [], INTERVAL)
            self.reap()

    def last_words(self):
        said = [(self.work / f"{name}.err") for name in ("client", "program")]
        text = "\n".join(path.read_text(errors="replace").strip() for path in said if path.exists()).strip()
        return "".join(f"\n    {line}" for line in text.splitlines()[-8:])

    def result(self, wall):
        """Returns the measurements of one run, for the results file."""
        case, status = self.case, self.program.returncode
        stopped = {-getattr(signal, f"SIG{case.stop}"), 128 + getattr(signal, f"SIG{case.stop}"), 0}
        if status != 0 and not (case.server and status in stopped):
            raise Failed(f"exit status {status}{self.last_words()}")
        if case.phased:
            self.parser.check_complete()
            steady, end = self.marks["steady"], self.marks["end"]
            phase = {"cpu": end.cpu - steady.cpu, "wall": end.wall - steady.wall, "minflt": end.faults - steady.faults,
                     "system": end.system - steady.system}
        else:
            phase = {**self.reaped, "wall": wall}
        phase["stall"] = self.stall.worst if self.parser.stall is None else self.parser.stall
        if self.memory is None:
            raise Failed("ended before its memory was looked at")
        # A program without phases does not stand still, so its memory cannot settle.
        settled = self.settled if case.phased else self.memory["bytes"]
        return {
            "answer": self.find_answer(),
            "steady": phase,
            "whole": {**self.reaped, "wall": wall},
            "memory": {"peak": self.sampler.peak, "end": self.memory, "settled": settled},
        }

    def find_answer(self):
        """Returns the answer as the header's `answer` asks for it: the protocol's, the matches in
        the output, or the digest of a file."""
        how, _, argument = self.case.answer.partition(" ")
        if how == "protocol":
            return self.parser.answer
        path = self.work / (argument if how == "file" else "program.out")
        if how == "match":
            found = re.findall(argument, path.read_text(errors="replace"))
            return " ".join(found) or "no match"
        digest = hashlib.sha256()
        with open(path, "rb") as content:
            while piece := content.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()[:16]

    def clear(self):
        """Ends every process of the run and closes the pipes."""
        for _ in range(50):
            left = [pid for pid in tree.descendants(tree.children_of(os.getpid())) if pid not in self.usage]
            if not left:
                break
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            self.reap()
        for descriptor in (*self.descriptors, *self.watched.values()):
            os.close(descriptor)


def report_of(path):
    """Returns the kept parts of the launcher's report; None if it wrote none, or was killed while
    writing."""
    try:
        report = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return {name: report.get(name) for name in ("mechanisms", "heap")}


def prepare_directory(path):
    """Makes an empty directory for one run."""
    shutil.rmtree(path, ignore_errors=True)
    pathlib.Path(path).mkdir(parents=True)
    return path
