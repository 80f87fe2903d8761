#!/usr/bin/env python3
"""Boots small virtual machines with other kernels, and compares what each command claims there with what is.

A case is a script in cases/ whose first lines are a header; it runs in the machine as root:

    # title:   what it is about
    # kernels: the series it runs on, or `x86-64` and `arm64` for all of those (default: x86-64; packages.py, SERIES)
    # quick:   the series on which it is part of `make test`
    # seconds: how long it may take (default 300): emulated machines are slow
    # needs:   package: the Debian package of what was built (scripts/packages deb); damo: DAMON's tool, from PyPI; without
    #          it the case is skipped
    # memory, cpus, numa, swap, data, cgroup, thp, append, init: what the machine has (machine.py, Spec)
    # backing: what the host puts the guest's memory on: base (no huge page), thp (qemu asks for them by madvise) or hugetlb
    #          (the pool of 2 MiB pages, which gets that many by `megapage pool set`, and loses them at the end); needs root.
    #          The case may ask the host for its side of the guest's pages then (guest/vmcheck.py, ask_host)

Cases with equal machines share a boot; one that brings the machine down costs the others another boot. What a case may call
is in guest/vmcheck.py, and the readings that claims are compared with in guest/truth.py. The cases harm_* run programs of
tests/harm (guest/harm.py); what differs is in that suite's table.

Every machine is a snapshot: nothing of a run stays but the cache (`vm` below driving.cache()): kernels, disks, and a result for each
case and kernel, which --resume uses again while neither the case nor what was built changed. Kernels and the root come from
Debian's packages (packages.py, roots.py). KVM is used where a kernel really boots with it, else qemu emulates.

Machines of another architecture than the host's (architecture.py) run what `make build-arm64` has built. Where that is not
there, or not of these sources, their cases are skipped, each named; --quick leaves them out then, and before the first run
that makes their root disk, which takes ten to twenty minutes.

Closes with "N passed, N failed, N skipped": cases, each on a kernel; the line before counts the single claims.
"""

import dataclasses
import concurrent.futures
import json
import pathlib
import signal
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "harm")]
import driving
import host
import machine
import matrix
import packages
import results as harm_results
import roots
from architecture import ARCHITECTURES

MACHINE_KEYS = {field.name for field in dataclasses.fields(machine.Spec)} - {"kernel"}
OTHER_KEYS = {"title", "kernels", "quick", "seconds", "needs"}
# Characters of a wrong claim's sides that are printed; the result's file has all of them.
MOST_WORDS = 400
# Most boots of a case, which may ask for boots with its own parameters.
MOST_STAGES = 4


class Case:
    """One script of cases/, with its header."""

    def __init__(self, path):
        self.path, self.name = path, path.stem
        header = {}
        for line in path.read_text().splitlines():
            if not line.startswith("# ") or ":" not in line:
                break
            key, _, value = line[2:].partition(":")
            header[key.strip()] = value.strip()
        unknown = set(header) - MACHINE_KEYS - OTHER_KEYS
        if unknown or "title" not in header:
            sys.exit(f"driver: {path}: header has unknown {sorted(unknown)}, or no title")
        self.title = header["title"]
        self.kernels = [name for word in header.get("kernels", "x86-64").split() for name in packages.GROUPS.get(word, [word])]
        self.quick = header.get("quick", "").split()
        self.seconds = int(header.get("seconds", "300"))
        self.needs = header.get("needs")
        if self.needs not in (None, "package", "damo"):
            sys.exit(f"driver: {path}: needs is package or damo, not {self.needs}")
        self.machine = {key: value for key, value in header.items() if key in MACHINE_KEYS}
        if self.machine.get("backing") not in (None, *host.BACKINGS):
            sys.exit(f"driver: {path}: backing is {', '.join(host.BACKINGS)}, not {self.machine['backing']}")
        for key in ("cpus", "numa"):
            if key in self.machine:
                self.machine[key] = int(self.machine[key])
        for name in self.kernels + self.quick:
            if name not in packages.SERIES:
                sys.exit(f"driver: {path}: unknown kernel '{name}'; there are {', '.join(packages.SERIES)}")

    def spec(self, kernel):
        return machine.Spec(kernel, **self.machine)


class Job:
    """A case on a kernel: its plan and its outcome."""

    def __init__(self, case, kernel, disk=None):
        self.case, self.kernel, self.disk = case, kernel, disk
        self.key = key_of(case, kernel, disk) if disk else ""
        self.stage, self.append = 1, ""
        self.checks, self.faults, self.transcript, self.notes = [], [], [], []
        self.seconds, self.release = 0.0, ""
        self.started = self.ended = False

    @property
    def name(self):
        return f"{self.case.name}@{self.kernel}"

    @property
    def architecture(self):
        return ARCHITECTURES[packages.SERIES[self.kernel].architecture]

    def spec(self):
        spec = self.case.spec(self.kernel)
        if not self.append:
            return spec
        return dataclasses.replace(spec, append=f"{spec.append} {self.append}".strip())

    def plan(self):
        return {"name": self.case.name, "seconds": self.case.seconds, "kernel": self.kernel, "stage": self.stage,
                "path": str(self.case.path), "needs": self.case.needs}

    def result(self):
        """Returns the job's entry in the file of results."""
        wrong = [check for check in self.checks if not check["ok"]]
        return {
            "case": self.case.name, "kernel": self.kernel, "release": self.release, "key": self.key,
            "seconds": round(self.seconds, 1), "faults": self.faults, "checks": self.checks,
            "outcome": "failed" if wrong or self.faults or not self.checks else "passed",
            **({"transcript": self.transcript} if self.transcript else {}),
            **({"notes": self.notes} if self.notes else {}),
        }


def result_file(name):
    return packages.cache() / "results" / f"{name}.json"


class Suite:
    """The run of all jobs: boots, in threads, and the results as they come."""

    def __init__(self, tally, megapage):
        self.tally, self.megapage = tally, megapage
        self.lock = threading.Lock()
        self.results = []

    def run(self, jobs):
        """Runs all jobs: those with equal machines in one boot, `machine.jobs()` boots at a
        time."""
        groups = {}
        for job in jobs:
            groups.setdefault(job.spec(), []).append(job)
        with concurrent.futures.ThreadPoolExecutor(machine.jobs()) as pool:
            for future in [pool.submit(self.group, spec, some) for spec, some in groups.items()]:
                future.result()

    def group(self, spec, jobs):
        """Runs the jobs of one machine. Boots it again for the rest when a case brought it down, or
        asked for a boot."""
        waiting = list(jobs)
        while waiting and not machine.ENDING.is_set():
            booted = waiting
            again = self.boot(spec, booted)
            if machine.ENDING.is_set():
                return
            waiting = [job for job in booted if not job.ended and not job.faults and job not in again]
            for job in again:
                self.group(job.spec(), [job])
            if len(waiting) == len(booted):
                for job in waiting:
                    self.finish(job, "the machine ended before the case began")
                waiting = []

    def boot(self, spec, jobs):
        """Boots once; returns the jobs that asked for another boot with their own parameters."""
        by_name = {job.case.name: job for job in jobs}
        current, again, wants = [None], [], {}
        try:
            architecture = jobs[0].architecture
            root = roots.root(architecture.debian, packages.kernel(spec.kernel))
            guest = machine.Machine(spec, root, jobs[0].disk, self.megapage)
        except packages.Unavailable as reason:
            return self.skip_all(jobs, reason)
        release = [""]

        def on_record(record):
            event = record["event"]
            if event == "up":
                release[0] = record["release"]
            elif event == "start":
                current[0] = by_name[record["case"]]
                current[0].started, current[0].release = True, release[0]
            elif event == "check":
                current[0].checks.append({key: value for key, value in record.items() if key != "event"})
            elif event == "transcript":
                current[0].transcript.append(record["text"])
            elif event == "note":
                current[0].notes.append(record["text"])
            elif event == "reboot":
                wants[current[0]] = record["append"]
            elif event == "end":
                job = current[0]
                job.seconds += record["seconds"]
                job.faults += faults(record, job.case)
                job.ended = True
                if job in wants and not job.faults and job.stage < MOST_STAGES:
                    job.stage, job.append, job.ended = job.stage + 1, wants[job], False
                    again.append(job)
                else:
                    self.finish(job)
                current[0] = None

        try:
            ended = guest.run([job.plan() for job in jobs], on_record)
        except packages.Unavailable as reason:
            return self.skip_all([job for job in jobs if not job.ended], reason)
        if machine.ENDING.is_set():
            return []
        if ended != "done" and current[0] is not None:
            last = guest.console.replace("\n", "\n    ")
            self.finish(current[0], f"the machine {ended} in this case; the kernel's last words:\n    {last}")
        elif ended == "silent":
            for job in jobs:
                self.finish(job, f"the machine did not come up; the kernel's last words:\n{guest.console}")
        return again

    def skip_all(self, jobs, reason):
        """Skips the jobs that no machine is available for; no boot can help."""
        for job in jobs:
            self.skip(job, str(reason))
        return []

    def skip(self, job, why):
        with self.lock:
            job.ended = True
            self.tally.add(f"{job.case.name:16} {job.kernel:13}", f"machine {job.name}", "skipped", why, 0.0)

    def finish(self, job, fault=None):
        """Reports the outcome of a job, and keeps it."""
        job.ended = True
        if fault:
            job.faults.append(fault)
        result = job.result()
        with self.lock:
            self.results.append(result)
            result_file(job.name).write_text(json.dumps(result, indent=1) + "\n")
            self.tell(result)

    def tell(self, result, note=""):
        """Prints one line, and one for each wrong claim."""
        wrong = [check for check in result["checks"] if not check["ok"]]
        passed = len(result["checks"]) - len(wrong)
        why = "; ".join([*filter(None, [note]), *result.get("notes", [])])
        if result["outcome"] != "passed":
            why = f"{len(wrong)} of {len(wrong) + passed} claims wrong"
        if not result["checks"]:
            why = "the case compared nothing"
        if result["faults"]:
            why += "; " + "; ".join(result["faults"])
        columns = f"{result['case']:16} {result['kernel']:13} {passed:4} claims"
        self.tally.add(columns, f"machine {result['case']}@{result['kernel']}", result["outcome"], why, result["seconds"])
        for check in wrong:
            claimed, true = (" ".join(str(check.get(side)).split())[:MOST_WORDS] for side in ("claimed", "true"))
            print(f"        {check['command']}: {check['what']}\n          claimed: {claimed}\n          true:    {true}",
                  flush=True)


def faults(record, case):
    """Returns the faults of a case besides its comparisons, from its end's record."""
    found = []
    if record["status"] is None:
        found.append(f"no end after {case.seconds} s: {'; '.join(record['stuck'])} {' / '.join(record['tail'][-8:])}")
    elif record["status"] != 0:
        found.append(f"the script failed: {' / '.join(record['tail'][-8:])}")
    found += [f"kernel: {line}" for line in record["kernel"]]
    if record["left"]:
        found.append(f"left running: {', '.join(record['left'])}")
    if record["pools"]:
        found.append(f"left in pools: {record['pools']}")
    return found


def key_of(case, kernel, disk):
    """Returns a digest of everything that a result depends on: kept results of the same key are
    used again."""
    shared = sorted((HERE / "guest").iterdir())
    kept = packages.kernel(kernel) / "manifest.json"
    return packages.digest(disk.name, case.path, kept, *(path for path in shared if path.is_file()))


def wanted(arguments, cases):
    """Yields (case, kernel) of all that is to be run."""
    for case in cases:
        for kernel in case.quick if arguments.quick else case.kernels:
            if arguments.kernel and kernel not in arguments.kernel:
                continue
            if arguments.only and case.name not in arguments.only:
                continue
            yield case, kernel


def main():
    parser = driving.parser(__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="CASE", help="only this case; may be repeated")
    parser.add_argument("--kernel", action="append", metavar="SERIES", help="only on this kernel; may be repeated")
    parser.add_argument("--quick", action="store_true", help="only what is part of `make test`")
    parser.add_argument("--resume", action="store_true", help="leave out what passed before with the same build")
    parser.add_argument("--refresh", action="store_true", help="look for newer kernels of each series first")
    parser.add_argument("--list", action="store_true", help="show the cases, and run none")
    parser.add_argument("--results", type=pathlib.Path, metavar="FILE", help="write all results here, as JSON")
    parser.add_argument("--matrix", action="store_true", help="write the tables of docs/machines.md from the results")
    arguments = parser.parse_args()
    cases = [Case(path) for path in sorted((HERE / "cases").glob("*.py"))]
    for name in set(arguments.only or []) - {case.name for case in cases}:
        sys.exit(f"driver: no case {name}; there are {', '.join(case.name for case in cases)}")
    for name in set(arguments.kernel or []) - set(packages.SERIES):
        sys.exit(f"driver: no kernel {name}; there are {', '.join(packages.SERIES)}")
    pairs = list(wanted(arguments, cases))
    if arguments.list:
        for case, kernel in pairs:
            print(f"{case.name:16} {case.spec(kernel).title()}: {case.title}")
        return 0
    tally = driving.Tally()
    began = time.monotonic()

    def stopped(number, _):
        machine.end_all()
        sys.exit(128 + number)

    # Machines end with the run. A shell starts background jobs with SIGINT ignored, so that signal
    # is handled, too.
    signal.signal(signal.SIGTERM, stopped)
    signal.signal(signal.SIGINT, stopped)
    suite = Suite(tally, arguments.megapage.resolve())
    result_file("x").parent.mkdir(exist_ok=True)
    if arguments.quick:
        stale = matrix.stale()
        tally.add("matrix of docs/machines.md", "matrix", "failed" if stale else "passed", stale, 0.0)
    try:
        run_all(arguments, suite, pairs)
    except packages.Unavailable as reason:
        print(f"*** SKIPPED: no virtual machine was booted: {reason}", flush=True)
        tally.add("machines", "virtual machines", "skipped", str(reason), 0.0)
    claims = sum(len(result["checks"]) for result in suite.results)
    wrong = sum(not check["ok"] for result in suite.results for check in result["checks"])
    print(f"{claims} claims compared, {wrong} wrong, in {time.monotonic() - began:.0f} s")
    if arguments.results:
        arguments.results.write_text(matrix.compact(suite.results))
    if arguments.matrix:
        matrix.write(suite.results)
        if rows := [check["harm"] for result in suite.results for check in result["checks"] if "harm" in check]:
            harm_results.write(rows)
    return tally.close()


def usable(pairs, what, check, suite):
    """Returns the pairs whose kernel passes `check`. Skips the pairs for which `check` raises
    Unavailable."""
    reasons = {}
    for kernel in dict.fromkeys(kernel for _, kernel in pairs):
        try:
            check(kernel)
        except packages.Unavailable as reason:
            print(f"*** {what} {kernel}: {reason}", flush=True)
            reasons[kernel] = str(reason)
    for case, kernel in pairs:
        if kernel in reasons:
            suite.skip(Job(case, kernel), reasons[kernel])
    return [pair for pair in pairs if pair[1] not in reasons]


def run_all(arguments, suite, pairs):
    """Makes the disks, then boots."""
    machine.clear()
    host_release = arguments.megapage.resolve().parent
    architecture_of = {name: ARCHITECTURES[series.architecture] for name, series in packages.SERIES.items()}
    disks = {}

    def tools(kernel):
        packages.require_tools(architecture_of[kernel].debian)

    def built(kernel):
        architecture = architecture_of[kernel]
        if architecture.debian not in disks:
            release = architecture.release(host_release)
            require_built(architecture, release)
            disks[architecture.debian] = machine.binaries_disk(release, architecture)

    def fetched(kernel):
        print(f"Linux {kernel}: {packages.taken(packages.kernel(kernel, arguments.refresh))}", flush=True)

    if arguments.quick:
        pairs = [(case, kernel) for case, kernel in pairs if at_hand(architecture_of[kernel], host_release)]
    for what, check in (("machines of", tools), ("what runs on", built), ("Linux", fetched)):
        pairs = usable(pairs, what, check, suite)
    pairs = [pair for pair in pairs if has_needed(*pair, architecture_of[pair[1]], host_release, suite)]
    if not pairs:
        return
    for architecture in dict.fromkeys(architecture_of[kernel] for _, kernel in pairs):
        kernel = next(kernel for _, kernel in pairs if architecture_of[kernel] == architecture)
        accelerator = machine.accelerator(packages.kernel(kernel), architecture)
        print(f"accelerator of {architecture.debian}: {accelerator}; at most {machine.jobs()} machines at once", flush=True)
    jobs = []
    for case, kernel in pairs:
        job = Job(case, kernel, disks[architecture_of[kernel].debian])
        kept = result_file(job.name)
        if arguments.resume and kept.exists():
            result = json.loads(kept.read_text())
            if result["key"] == job.key and result["outcome"] == "passed":
                suite.results.append(result)
                suite.tell(result, "as before")
                continue
        jobs.append(job)
    suite.run(jobs)


def has_needed(case, kernel, architecture, host_release, suite):
    """Returns true if the case's other needs are available; else skips the case."""
    try:
        if case.needs == "package" and not machine.packages_of(architecture.release(host_release), architecture):
            raise packages.Unavailable("no Debian package of this build: scripts/packages deb makes it")
        if case.needs == "damo":
            packages.damo()
        if case.machine.get("backing"):
            host.require(case.machine["backing"])
    except packages.Unavailable as reason:
        suite.skip(Job(case, kernel), str(reason))
        return False
    return True


def require_built(architecture, release):
    """Checks that cargo has built what a machine runs. Exits if files of the host's build are
    missing. Raises Unavailable if those of another architecture are missing or older than the
    sources."""
    missing = machine.missing_binaries(release)
    if missing and architecture.is_host:
        sys.exit(f"driver: {', '.join(missing)} missing in {release}: run `cargo build --release`")
    if missing:
        raise packages.Unavailable(f"nothing built for {architecture.debian} ({release} lacks {missing[0]}): "
                                   f"run `make build-{architecture.debian}`")
    if not architecture.is_host and machine.outdated_binaries(release):
        raise packages.Unavailable(f"what was built for {architecture.debian} is older than the sources: "
                                   f"run `make build-{architecture.debian}`")


def at_hand(architecture, host_release):
    """Returns true if the machines of an architecture cost `make test` no build, neither of
    megapage nor of their root disk."""
    if architecture.is_host:
        return True
    release = architecture.release(host_release)
    built = not machine.missing_binaries(release) and not machine.outdated_binaries(release)
    return built and roots.image_of(architecture.debian).exists()


if __name__ == "__main__":
    sys.exit(main())
