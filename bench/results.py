#!/usr/bin/env python3
"""Measures results of bench/results afresh, on one machine and of one build: those of `make results`.

With --large it measures the others, those of `make results-large`.

usage: bench/results.py [--large] [--list] [--only NAME,...] [--force] [--megapage DIRECTORY]

Steps run one after the other, in the order of --list, which shows how long each takes. A step that was recorded with the same
build on the same machine is skipped, unless --force: so the command can be stopped (Ctrl-C) and started again. After a failure
it goes on with the next step; the last lines name what failed, and the status is 1. A gate that does not hold is no failure.
What is done with which build is in target/results/state.json. Run it as root, on a machine that does nothing else.
"""

import argparse
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
STATE = TARGET / "results/state.json"
# Programs that decide a result, besides the drivers that are scripts.
PROGRAMS = ("megapage", "megapage-lab", "megapage-lab-workload", "libmegapage.so", "libmegapage_text.so")
# Fields in which the schemas name the build.
BUILD_FIELDS = ("build", "megapage")


@dataclasses.dataclass(frozen=True)
class Step:
    """One result: its command, and about how many minutes that takes on two processors."""

    name: str
    minutes: int
    command: tuple
    # A status that is a finding, and no failure of the step.
    finding: int = 0
    # True for a step that does not fit into the three hours.
    large: bool = False

    @property
    def path(self):
        return RESULTS / f"{self.name}.json"


def lab(name, minutes, *arguments, large=False):
    return Step(name, minutes, ("{lab}", *arguments, "--save", "{save}"), large=large)


def programs(name, minutes, *arguments, large=False):
    driver = ("bench/programs/driver.py", "--megapage", "{megapage}", CONTINUE, "--save", "{save}")
    return Step(name, minutes, (*driver, *arguments), finding=1, large=large)


# The option that makes a driver resume an interrupted run; --force leaves it out.
CONTINUE = "--continue"
# Minutes that `make results` may take.
MOST = 180
# First the steps that change no setting of the machine, roughly from short to long. Then come the
# daemon's, and last those that take hours.
STEPS = (
    lab("idle", 3, "idle"),
    lab("startup", 1, "startup"),
    lab("fault", 3, "fault"),
    lab("interference", 3, "interference"),
    lab("malloc", 15, "malloc", "--install", large=True),
    lab("restart", 22, "restart", "--install", large=True),
    lab("fork", 15, "fork", "--install"),
    lab("snapshot", 12, "snapshot", "--install", large=True),
    lab("access", 35, "access"),
    lab("release", 20, "release", large=True),
    lab("retrieval", 40, "retrieval", large=True),
    lab("text-generated", 6, "text", "generated", "--install"),
    lab("text", 25, "text", "--install", "cc1plus", "mariadb", "node", "postgres", large=True),
    lab("observe", 16, "observe", "--install"),
    lab("plan", 12, "plan", "--seconds", "6", large=True),
    lab("trial", 60, "trial", large=True),
    lab("cost", 38, "cost", "--runs", "5", large=True),
    lab("promote", 21, "promote"),
    lab("fair", 48, "fair", large=True),
    lab("bloat-recovery", 4, "bloat", "recovery"),
    lab("bloat", 57, "bloat", "--install", "--runs", "5", large=True),
    Step("soak-services", 62, ("scripts/soak-services", "--megapage", "{megapage}", "--save", "{save}"), finding=1,
         large=True),
    Step("scale", 40, ("bench/scale.py", "--megapage", "{megapage}", "--save", "{save}"), finding=1, large=True),
    # At their full sizes they would take over an hour and a half.
    programs("programs-six", 45, "--class", "large", "--size", "2g", "--ways", "plain,best,ours", "--only",
             "cpp-map,duckdb-join,java-map-g1,postgres-lookup,python-dict,redis-get"),
    Step("programs-curve", 150, ("bench/programs/curve.py", "--megapage", "{megapage}", "--save", "{save}",
                                 "--picture", "docs/gain-by-size.svg"), large=True),
    programs("programs", 150, "--table", "docs/programs-bench.md", large=True),
    programs("programs-large", 1100, "--class", "large", "--table", "docs/programs-large.md", large=True),
)


def digest(directory):
    """Returns a digest of the measured programs and libraries, which identifies a build."""
    found = hashlib.sha256()
    for name in PROGRAMS:
        path = directory / name
        if not path.exists():
            raise SystemExit(f"results: {path} is missing: make lab builds it")
        found.update(f"{name}\n".encode())
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:16]


def machine():
    """Returns the processor, memory and kernel, which identify a machine."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{len(models)} x {models[0] if models else platform.machine()}, {memory} GiB, {platform.release()}"


def source():
    """Returns the commit, with `+` if files that git tracks differ from it; empty outside a
    repository."""
    def git(*arguments):
        done = subprocess.run(("git", "-C", str(ROOT), *arguments), capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
    commit = git("rev-parse", "--short=12", "HEAD")
    # The results come from this run, and are no part of the build.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results", ":!docs")
    return commit + ("+" if commit and changed else "")


def file_digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else None


def read_state(path):
    """Returns the recorded steps; empty if the file is missing or damaged."""
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(path, state):
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1) + "\n")
    part.replace(path)


def is_done(step, state, build, host):
    """Returns true if the present result is the one recorded with this build on this machine."""
    entry = state.get(step.name)
    if not isinstance(entry, dict):
        return False
    same = entry.get("build") == build and entry.get("machine") == host
    return same and entry.get("result") is not None and entry["result"] == file_digest(step.path)


def lacks(path):
    """Returns the reason if a result is unreadable, or lacks its schema, machine or build; else
    None."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return f"{path.name} holds no result: {error}"
    if "schema" not in report or not report.get("machine"):
        return f"{path.name} does not name its schema and machine"
    if not any(report.get(field) for field in BUILD_FIELDS):
        return f"{path.name} does not name its build"
    return None


# Signals that ask this process to end.
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def to_its_end(command, environment):
    """Runs the command to its end and returns its status. A signal to end is passed on, once, and
    the command is waited for: it has settings and pages to restore. subprocess.run would kill it
    after a quarter of a second."""
    process, ended_by = None, []

    def end(number, _frame):
        if process is not None and not ended_by:
            print("results: waiting until what runs has put back its settings", file=sys.stderr, flush=True)
            process.send_signal(signal.SIGINT)
        ended_by.append(number)

    former = {number: signal.signal(number, end) for number in ENDS}
    try:
        if not ended_by:
            # Its own session: the terminal's Ctrl-C reaches it through this process alone.
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
            if ended_by:
                process.send_signal(signal.SIGINT)
            status = process.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if ended_by:
        raise KeyboardInterrupt
    return status


def run_step(step, directory, environment, force=False):
    """Runs the step; returns the reason if it failed, else None."""
    places = {"{megapage}": str(directory / "megapage"), "{lab}": str(directory / "megapage-lab"), "{save}": str(step.path)}
    command = [places.get(word, word) for word in step.command if not (force and word == CONTINUE)]
    before = step.path.stat().st_mtime_ns if step.path.exists() else None
    try:
        status = to_its_end(command, environment)
    except OSError as error:
        return f"{command[0]} did not start: {error}"
    if status == -signal.SIGINT or status == 128 + signal.SIGINT:
        raise KeyboardInterrupt
    if status not in (0, step.finding):
        return f"status {status}"
    if not step.path.exists() or step.path.stat().st_mtime_ns == before:
        return f"status {status}, and no new {step.path.name}"
    return lacks(step.path)


def run(steps, directory, force, state_path, say=print):
    """Runs the steps that are not done; returns the failures, each as (name, why)."""
    build, host = digest(directory), machine()
    environment = os.environ | {"MEGAPAGE_BENCH_SOURCE": source()}
    failures = []
    state = read_state(state_path)
    to_do = [step for step in steps if force or not is_done(step, state, build, host)]
    say(f"results: build {build}, {host}; {len(to_do)} of {len(steps)} to do, about {total(to_do)}")
    for number, step in enumerate(to_do, 1):
        remaining = total(to_do[number - 1:])
        say(f"results: {number}/{len(to_do)} {step.name}: about {step.minutes} min, with all that follows {remaining}")
        begun = time.monotonic()
        why = run_step(step, directory, environment, force)
        if why is not None:
            failures.append((step.name, why))
            say(f"results: {step.name} FAILED: {why}")
            continue
        state[step.name] = {
            "build": build, "machine": host, "result": file_digest(step.path),
            "minutes": round((time.monotonic() - begun) / 60, 1),
            "ended": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        write_state(state_path, state)
    return failures


def total(steps):
    minutes = sum(step.minutes for step in steps)
    return f"{minutes // 60} h {minutes % 60:02} min"


def select(names, large=False):
    """Returns the named steps, in the order of the table. If none is named, returns those of `make
    results`, or with `large` the others."""
    known = [step.name for step in STEPS]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"results: '{unknown[0]}' is no result; known: {', '.join(known)}", file=sys.stderr)
        sys.exit(2)
    return [step for step in STEPS if step.name in names or not names and step.large == large]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show the steps and how long each takes, and what is done")
    parser.add_argument("--large", action="store_true", help="those that take longer than the three hours, together a day")
    parser.add_argument("--only", default="", help="these steps, separated by commas")
    parser.add_argument("--force", action="store_true", help="also what was recorded with the same build")
    parser.add_argument("--megapage", type=pathlib.Path, default=TARGET / "release", help="where the programs are")
    options = parser.parse_args(arguments)
    steps = select([name for name in options.only.split(",") if name], options.large)
    if options.list:
        for step in steps:
            print(f"{step.name:16} {step.minutes:4} min  {' '.join(step.command)}")
        print(f"{'all':16} {total(steps)}")
        return 0
    if os.geteuid() != 0:
        print("results: pools, settings and other processes are root's: run this as root", file=sys.stderr)
        return 2
    try:
        failures = run(steps, options.megapage, options.force, STATE)
    except KeyboardInterrupt:
        print("results: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if subprocess.run(("cargo", "xtask", "results"), cwd=ROOT, check=False).returncode != 0:
        failures.append(("bench/results/README.md", "cargo xtask results failed"))
    for name, why in failures:
        print(f"results: failed: {name}: {why}")
    print(f"results: {len(steps) - len(failures)} there, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
