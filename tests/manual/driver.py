#!/usr/bin/env python3
"""Driver that runs the shell lines of the manual (README.md, docs/*.md) as they are written. The
pages of docs/recipes/ have another driver.

A block ```sh is run as root in a separate directory, line by line. Each line has to end with status
0 within a minute. Comments before the block, which a reader does not see, say that it is run, and
what it takes: one `<!-- manual KEY VALUE -->` for each. A block without any is an error: nothing
runs on a machine without a decision.

    run as it is         no other comment is needed
    skip WHY             the block is not run here; shown with its reason
    rest WHY             neither is any other to the end of the page
    omit TEXT: WHY       nor is the line that begins with TEXT
    needs A B            commands that must be there, else the block is skipped
    with redis|daemon    a redis-server with some data ($REDIS is its number), or the daemon beside
                         it, is running
    put TEXT=OTHER       a place for the reader's own: each TEXT in the block is OTHER
    before COMMAND       is run before, and `after COMMAND` in the end, whatever came of the block
    status N ...         these are good ends, too
    ends N               lines that still run after N seconds are interrupted (SIGINT), and that is
                         a good end
    pause N              seconds between two lines

Blocks whose commands change nothing of the machine run at once. The others hold its lock, and pools
and settings of THP are restored after each. Closes with "N passed, N failed, N skipped".
"""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import driving

THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
SOCKET = pathlib.Path("/run/megapage/daemon.sock")
LONGEST_S = 60
KEYS = ("run", "skip", "rest", "omit", "needs", "with", "put", "before", "after", "status", "ends", "pause")
STAGES = ("redis", "daemon")
STAGE_LOCK = threading.Lock()
# Blocks that run at once; most wait for what they observe.
AT_ONCE = 4
# Commands that change nothing of the machine.
OBSERVING = {"advise", "bench", "doctor", "map", "plan", "record", "run", "status", "top"}


class Bad(Exception):
    """A page that cannot be run as it stands."""


class Block:
    """One block, with the settings from the comments before it."""

    def __init__(self, page, line, text, marks):
        self.page, self.line, self.text, self.marks = page, line, text, marks
        self.name = f"{page}:{line}"

    def all(self, key):
        return [value for known, value in self.marks if known == key]

    def one(self, key, default=""):
        return (self.all(key) or [default])[-1]

    def lines(self):
        """Returns the block's lines as a shell takes them: a command over several lines is one."""
        text = self.text
        for put in self.all("put"):
            what, _, other = put.partition("=")
            if what not in text:
                raise Bad(f"{self.name}: there is no '{what}' to put something for")
            text = text.replace(what, other)
        found, so_far = [], ""
        for line in text.splitlines():
            so_far += line + "\n"
            whole = subprocess.run(["bash", "-n"], input=so_far, text=True, capture_output=True)
            if whole.returncode == 0 and not line.endswith("\\"):
                if so_far.strip() and not so_far.lstrip().startswith("#"):
                    found.append(so_far.strip())
                so_far = ""
        if so_far:
            raise Bad(f"{self.name}: a line that does not end: {so_far}")
        return found


def blocks(path):
    """Returns the blocks of a page."""
    name = str(path.relative_to(driving.REPOSITORY))
    found, marks, rest = [], [], ""
    lines = path.read_text().splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        mark = re.fullmatch(r"<!-- manual (\S+) (.*\S) -->", line)
        if mark:
            if mark[1] not in KEYS:
                raise Bad(f"{name}:{index}: '{mark[1]}' is not known")
            if mark[1] == "rest":
                rest = mark[2]
            else:
                marks.append((mark[1], mark[2]))
        elif line.startswith("```sh"):
            end = lines.index("```", index)
            if not marks and not rest:
                raise Bad(f"{name}:{index}: no comment says whether this block is to be run")
            marks = [("rest", rest)] if rest else marks
            found.append(Block(name, index, "\n".join(lines[index:end]), marks))
            marks, index = [], end + 1
        elif line and marks:
            raise Bad(f"{name}:{index}: what the comments before it are for is no block ```sh")
    if marks:
        raise Bad(f"{name}: a comment at its end, and no block")
    return found


def settings():
    """Returns the settings' files of THP and of the pool, with their values as they are written
    back."""
    found = {driving.POOL / "nr_hugepages": str(driving.persistent_pages())} if driving.POOL.exists() else {}
    for path in sorted(THP.rglob("*")) + [driving.POOL / "nr_overcommit_hugepages"]:
        # Counters cannot be written, and need not be put back.
        if not path.is_file() or not os.stat(path).st_mode & 0o200:
            continue
        with contextlib.suppress(OSError):
            text = path.read_text().strip()
            chosen = re.search(r"\[([^]]*)\]", text)
            found[path] = chosen[1] if chosen else text
    return found


@contextlib.contextmanager
def machine():
    """Holds the machine's lock, and restores its settings."""
    with driving.machine_lock():
        before = settings()
        try:
            yield
        finally:
            after = settings()
            for path, value in before.items():
                if after.get(path) != value:
                    path.write_text(value)


def changes_the_machine(block):
    """Returns true if a block may change settings, pools or services, or names a server. Other
    tests may start the same server. Such a block holds the machine's lock."""
    commands = re.findall(r"megapage ([a-z]+)", "\n".join([*block.lines(), *block.all("before"), *block.all("after")]))
    return bool(block.one("with")) or not commands or not OBSERVING.issuperset(commands)


class Stage:
    """Programs that run beside a block."""

    def __init__(self, scratch, environment):
        self.scratch, self.environment, self.started, self.sessions = scratch, environment, [], []

    def start(self, words, log):
        with open(self.scratch / log, "w") as out:
            process = subprocess.Popen(
                words, cwd=self.scratch, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.started.append(process)
        return process

    def redis(self):
        socket = self.scratch / "redis.sock"
        options = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--enable-debug-command", "local"]
        process = self.start(["redis-server", *options], "redis.log")
        self.environment["REDIS"] = str(process.pid)
        cli = ["redis-cli", "-s", str(socket)]
        wait("redis-server", lambda: subprocess.run([*cli, "ping"], capture_output=True).stdout == b"PONG\n", self.scratch / "redis.log")
        subprocess.run([*cli, "debug", "populate", "300000", "key", "100"], check=True, capture_output=True)

    def daemon(self):
        """Starts the daemon for redis-server alone."""
        self.redis()
        if SOCKET.exists():
            raise Bad(f"{SOCKET} is another daemon's")
        config = self.scratch / "daemon.toml"
        config.write_text(
            f"interval = '1s'\nlock_file = '{self.scratch}/lock'\nstate_file = '{self.scratch}/state.json'\n"
            f"[processes]\ninclude = ['^no-such-name$']\npids = [{self.environment['REDIS']}]\n[metrics]\nsocket = '{SOCKET}'\n"
        )
        self.start(["megapage", "daemon", "--config", str(config)], "daemon.log")
        wait("the daemon", SOCKET.exists, self.scratch / "daemon.log")

    def end(self):
        for process in reversed(self.started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for session in self.sessions:
            end_session(session)


def wait(what, there, log):
    for _ in range(1800):
        if there():
            return
        time.sleep(0.1)
    raise Bad(f"{what} did not come: {log.read_text(errors='replace')[-500:]}")


def end_session(leader):
    """Ends the background processes of a line, and waits for them: brokers give pages back."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for _ in range(50):
            there = [pid for pid in pids() if session_of(pid) == leader]
            if not there:
                return
            for pid in there:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            time.sleep(0.1)


def pids():
    return [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()]


def session_of(pid):
    with contextlib.suppress(OSError):
        # Behind the name, which may hold anything: state, parent, group, session.
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    return None


def shell(line, stage, log, ends=None):
    """Runs a line; returns its status, and true if it was interrupted as `ends` asks. The status is
    None if the line outlives a signal by 20 s."""
    with open(log, "a") as out:
        out.write(f"$ {line}\n")
        out.flush()
        process = subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail\n{line}"],
            cwd=stage.scratch / "work",
            env=stage.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    stage.sessions.append(process.pid)
    try:
        return process.wait(ends or LONGEST_S), False
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGINT if ends else signal.SIGKILL)
    try:
        process.wait(20)
        return process.returncode, bool(ends)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None, False


def absent(block):
    """Returns the reason if the block cannot be run here; else an empty string."""
    lacking = [name for name in block.one("needs").split() if not shutil.which(name)]
    if "redis" in block.one("with") + block.one("needs") or block.one("with") == "daemon":
        lacking += [name for name in ("redis-server", "redis-cli") if not shutil.which(name)]
    return f"not installed: {', '.join(dict.fromkeys(lacking))}" if lacking else ""


def run(block, prefix, scratch):
    """Runs one block; returns (outcome, why, lines left out)."""
    (scratch / "work").mkdir(parents=True)
    log = scratch / "log"
    log.touch()
    environment = {
        "PATH": f"{prefix}/bin:{scratch.parent}/shim:{os.environ['PATH']}:/usr/sbin:/sbin",
        "HOME": str(scratch / "work"),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        # Keeps a trial's findings in one block from the next one, and from the machine.
        "MEGAPAGE_TRIALS": str(scratch / "trials"),
    }
    allowed = {0, *map(int, block.one("status").split())}
    ends = float(block.one("ends")) if block.one("ends") else None
    omitted = [omit.partition(": ") for omit in block.all("omit")]
    left_out = []
    why = ""
    stage = Stage(scratch, environment)
    # Lines name a stage's programs, so only one stage runs at a time.
    with (
        STAGE_LOCK if block.one("with") else contextlib.nullcontext(),
        machine() if changes_the_machine(block) else contextlib.nullcontext(),
    ):
        try:
            if block.one("with"):
                if block.one("with") not in STAGES:
                    raise Bad(f"{block.name}: there is no stage '{block.one('with')}'")
                getattr(stage, block.one("with"))()
            for line in block.all("before"):
                if shell(line, stage, log) != (0, False):
                    raise Bad(f"before it: {line}")
            for number, line in enumerate(block.lines()):
                if number and block.one("pause"):
                    time.sleep(float(block.one("pause")))
                reason = [reason for text, _, reason in omitted if line.startswith(text)]
                if reason:
                    left_out.append(f"{line}: {reason[0]}")
                    continue
                status, interrupted = shell(line, stage, log, ends)
                if status not in allowed and not interrupted:
                    why = f"'{line}' {'did not end' if status is None else f'ended with status {status}'}"
                    break
            unused = [text for text, _, _ in omitted if not any(out.startswith(text) for out in left_out)]
            if unused and not why:
                raise Bad(f"{block.name}: there is no line '{unused[0]}' to omit")
        except Bad as error:
            why = str(error)
        finally:
            for line in block.all("after"):
                shell(line, stage, log)
            stage.end()
    if why:
        why += "\n" + log.read_text(errors="replace")[-1500:]
    return ("failed" if why else "passed"), why, left_out


def shim(directory):
    """Writes a sudo for a user who is root already."""
    directory.mkdir()
    sudo = directory / "sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)


def main():
    parser = driving.parser("Runs the shell lines of the manual as they are written.")
    parser.add_argument("--only", action="append", metavar="PAGE", help="only this page, such as docs/run.md; may be repeated")
    arguments = parser.parse_args()
    pages = [driving.REPOSITORY / "README.md", *sorted((driving.REPOSITORY / "docs").glob("*.md"))]
    try:
        all_blocks = [block for page in pages for block in blocks(page) if not arguments.only or block.page in arguments.only]
    except (Bad, ValueError) as error:
        sys.exit(f"driver: {error}")
    tally = driving.Tally()
    with driving.scratch("manual", arguments) as scratch:
        shim(scratch / "shim")
        rest_of = None

        def result(number, block):
            """Returns run()'s answer, and the seconds that it took; None for a block that is not to
            be run."""
            if block.one("skip") or block.one("rest"):
                return None
            reason = absent(block) or ("" if os.geteuid() == 0 else "needs root")
            if reason:
                return "skipped", reason, [], 0.0
            started = time.monotonic()
            return *run(block, scratch / "prefix", scratch / str(number)), time.monotonic() - started

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as executor:
            results = executor.map(result, range(len(all_blocks)), all_blocks)
            for block, found in zip(all_blocks, results):
                if block.one("skip"):
                    print(f"not run {block.name:22}  {block.one('skip')}", flush=True)
                elif found is None:
                    # Printed once for all blocks that follow on the page.
                    if block.page != rest_of:
                        print(f"not run {block.name:22}  and what follows: {block.one('rest')}", flush=True)
                    rest_of = block.page
                else:
                    outcome, why, left_out, seconds = found
                    for line in left_out:
                        print(f"not run {block.name:22}  {line}", flush=True)
                    tally.add(f"{block.name:22}", f"manual {block.name}", outcome, why, seconds)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
