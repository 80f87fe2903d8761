"""Functions for cases: megapage's commands run within limits, and comparisons of their claims with
the kernel's data.

A case is a script that calls these. Each comparison is a record {command, what, ok, claimed, true};
`command` is the row of the matrix. A command that does not end in time, dies of a signal or panics
is a failed comparison by itself."""

import atexit
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import time

import truth

RECORDS = os.environ.get("VM_RECORDS")
# The line to the driver.
DEVICE = os.environ.get("VM_DEVICE", "")
KERNEL = os.environ.get("VM_KERNEL", "")
STAGE = int(os.environ.get("VM_STAGE", "1"))
# Keeps a trial's findings in one case from the next one.
os.environ.setdefault("MEGAPAGE_TRIALS", "none")
MIB = 1 << 20
# Limit in seconds for a command that never ends, on an emulated machine and a busy host.
LONGEST = 180


def record(**fields):
    line = json.dumps(fields)
    print("record", line, flush=True)
    if RECORDS:
        with open(RECORDS, "a") as out:
            out.write(line + "\n")


def check(command, what, ok, claimed=None, true=None, **more):
    """Records one comparison and returns `ok`, which is true if it holds. A failure keeps the claim
    and the truth."""
    fields = {"event": "check", "command": command, "what": what, "ok": bool(ok), **more}
    if not ok:
        fields |= {"claimed": shown(claimed), "true": shown(true)}
    record(**fields)
    return bool(ok)


def shown(value):
    """Returns a value as text, short enough for a report."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 600 else text[:600] + "..."


def same(command, what, claimed, true, within=0):
    """Checks that two values agree, within `within`."""
    ok = claimed is not None and true is not None and (
        abs(claimed - true) <= within if isinstance(true, (int, float)) else claimed == true
    )
    return check(command, what, ok, claimed, true)


def unsupported(command, what, ok, claimed=None, true=None):
    """Records a comparison, as `check` does, for a kernel that lacks something. Right is then a
    clear statement, and the matrix says so."""
    fields = {"event": "check", "command": command, "what": what, "ok": bool(ok), "lacking": True}
    if not ok:
        fields |= {"claimed": shown(claimed), "true": shown(true)}
    record(**fields)
    return bool(ok)


def skip(command, why):
    """Records a comparison that cannot be made on this machine."""
    record(event="check", command=command, what=why, ok=True, skipped=True)


def reboot(append):
    """Asks for another boot with these parameters, in which the case runs as its next stage."""
    record(event="reboot", append=append)


def note(text):
    """Records a text that is shown beside the case's result, also if all holds."""
    record(event="note", text=text)


def ask_host(pages, seconds=LONGEST):
    """Returns the host's answer (tests/vm/host.py, answer) for the guest-physical addresses of huge
    pages; the case's header needs `backing`."""
    # As the controlling terminal the line would hang up at the end of the case.
    with open(os.open(DEVICE, os.O_RDWR | os.O_NOCTTY), "r+b", buffering=0) as device:
        device.write(b"@@ " + json.dumps({"event": "ask", "pages": sorted(pages)}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            if not select.select([device], [], [], seconds)[0]:
                return {"error": f"no answer within {seconds} s"}
            answer += device.read(4096)
    return json.loads(answer)


class Done:
    """Outcome of a command."""

    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    @property
    def json(self):
        """Returns the document on the standard output; None if there is none."""
        try:
            return json.loads(self.out)
        except ValueError:
            return None

    @property
    def words(self):
        return (self.err.strip() or self.out.strip())[-500:]


def run(command, seconds=LONGEST, **options):
    """Runs any command to its end; the status is None if it had to be killed."""
    began = time.monotonic()
    options.setdefault("stdin", subprocess.DEVNULL)
    process = subprocess.Popen(
        command, shell=isinstance(command, str), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, text=True, errors="replace", **options,
    )
    try:
        out, err = process.communicate(timeout=seconds)
        status = process.returncode
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            out, err = "", "not even SIGKILL ended it"
        status = None
    return Done(status, out, err, time.monotonic() - began)


def orderly(command, title, done, allowed):
    """Checks how a command of megapage ended: in time, without panic or signal, with a status that
    it may have."""
    if done.status is None:
        return check(command, f"{title} ends", False, f"no end after {done.seconds:.0f} s: {done.words}", "it ends")
    if done.status < 0 or "panicked at" in done.err:
        return check(command, f"{title} does not crash", False, f"status {done.status}: {done.words}", "no crash")
    # One clear line for a refusal: never a bare errno, nor an empty standard error.
    if done.status == 2 and 2 in allowed and not done.err.strip():
        return check(command, f"{title} says why it refuses", False, done.words, "a line on standard error")
    return check(command, f"{title} ends with {allowed}", done.status in allowed, f"{done.status}: {done.words}", allowed)


def megapage(row, *arguments, allowed=(0,), seconds=LONGEST, **options):
    """Runs a command of megapage; `row` is its row of the matrix."""
    done = run(["megapage", *map(str, arguments)], seconds, **options)
    orderly(row, f"megapage {' '.join(map(str, arguments))}", done, allowed)
    return done


def value(document, *path, default=None):
    """Returns a value deep in a document; the default if anything on the way is missing."""
    for step in path:
        try:
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return default
    return document


class Child:
    """A process of a case that goes on; killed when the block ends."""

    def __init__(self, *command, **options):
        options.setdefault("stderr", subprocess.DEVNULL)
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace", bufsize=1,
            start_new_session=True, **options,
        )
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def line(self, seconds=LONGEST):
        """Returns the next line of output; empty at its end or when the time is over."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline().strip() if ready else ""

    def ask(self, word, seconds=LONGEST):
        """Sends a line and returns the answer."""
        try:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()
        except OSError:
            return ""
        return self.line(seconds)

    def signal(self, number, seconds=30):
        """Sends a signal and waits for the end; returns the status, None if the process goes on."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Kills the process if it still runs; returns its status."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        return self.process.returncode


class Holder(Child):
    """A process of holder.c, with its memory in place. `worker` is its process number, which is not
    `pid` below a launcher."""

    def __init__(self, *arguments, prefix=(), program="holder", **options):
        super().__init__(*prefix, f"/opt/megapage/{program}", *arguments, "--interactive", **options)
        # Filling memory that is being swapped out takes long.
        words = self.line(3 * LONGEST).split()
        self.worker = int(words[1]) if len(words) == 2 and words[0] == "ready" else None

    def intact(self, row, what):
        """Checks that every byte has its value."""
        answer = self.ask("check")
        return check(row, f"every byte is intact {what}", answer.startswith("ok "), answer or "no answer", "ok")


def quiet(pid):
    """Waits until two readings of a process's memory agree (khugepaged and faults have ended);
    returns its backing."""
    last = None
    for _ in range(20):
        now = truth.backing(pid)
        if last and (now.huge, now.total) == (last.huge, last.total):
            return now
        last = now
        time.sleep(0.3)
    return last


def pool_pages(pages, size=truth.HUGE):
    """Sizes a pool without megapage; returns the size obtained."""
    path = truth.HUGEPAGES / f"hugepages-{size // 1024}kB/nr_hugepages"
    path.write_text(str(pages))
    return int(path.read_text())


COMPARED = {"young": 0, "old": 0}


class Moments:
    """Smaps that a program of ours kept of itself, before and after it stood still for
    `linger_ms`."""

    def __init__(self, path, linger_ms):
        self.path, self.linger_ms = path, linger_ms

    def forget(self):
        for ending in ("", ".before"):
            pathlib.Path(self.path + ending).unlink(missing_ok=True)

    @property
    def before(self):
        return self._read(".before")

    @property
    def after(self):
        return self._read("")

    def _read(self, ending):
        path = pathlib.Path(self.path + ending)
        return truth.Backing(truth.parse_smaps(path.read_text())) if path.exists() else None


def moment_matches(row, what, moment, moments, within=3 * MIB):
    """Compares a moment of a report, kind by kind, with the program's own smaps. These are from
    both ends of the time that it stood still, and the sample lies between. A sample whose age says
    that it is older claims nothing of that time; `enough_samples` bounds how often that may be."""
    resident = value(moment, "resident")
    before, after = moments.before, moments.after
    if resident is None:
        return check(row, f"{what}: the report has a sample", False, moment, "a sample")
    if before is None or after is None:
        return skip(row, f"{what}: the program did not get as far as to keep its smaps")
    if moment.get("age_ms", 0) > moments.linger_ms - 100:
        COMPARED["old"] += 1
        return skip(row, f"{what}: the last sample is {moment['age_ms']} ms old, from before the program's own")
    COMPARED["young"] += 1

    def kinds(backing):
        return {"hugetlb_2m_bytes": backing.hugetlb.get(truth.HUGE, 0),
                "hugetlb_1g_bytes": backing.hugetlb.get(1 << 30, 0),
                "thp_bytes": backing.thp, "total_bytes": backing.total}

    one, other = kinds(before), kinds(after)
    claimed = {key: resident.get(key) for key in one}
    # The base pages move a little with the stack, the libraries and the copy of smaps.
    ok = all(min(one[key], other[key]) - within <= claimed[key] <= max(one[key], other[key]) + within for key in one)
    return check(row, f"{what}: memory by page size", ok, claimed | {"age_ms": moment.get("age_ms")}, (one, other))


def enough_samples(row):
    """Checks that at least one of four programs that stood still was sampled meanwhile; more are on
    a quiet host."""
    total = COMPARED["young"] + COMPARED["old"]
    check(row, "programs are sampled while they stand still", 4 * COMPARED["young"] >= total, COMPARED, "one of four")


def still_khugepaged():
    """Keeps khugepaged, which scans on its own time, from changing compared memory for the rest of
    this case."""
    sleep = truth.THP / "khugepaged/scan_sleep_millisecs"
    atexit.register(sleep.write_text, sleep.read_text())
    sleep.write_text("3600000")


def wait_until(condition, seconds=60, step=0.3):
    """Returns true if a condition came true in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(step)
    return bool(condition())
