#!/usr/bin/env python3
"""Driver that runs programs plain and under `megapage run` in adverse environments
(environments.py), and reports every difference.

The programs are the cases of tests/programs and of cases/, in the same form. The header of those in
cases/:

    # program: the program, for the table
    # version: a command whose first line of output names the version; fails where the program is
    #          not installed
    # seconds: how long it may take on a quiet machine (default 120); the limit is five times that
    # quick:   yes, if it is part of `make test`
    # more:    yes, if it also runs in the environments of the full run
    # machine: yes, if it also runs in the virtual machines of tests/vm

A case prints the program's answer. Its scratch directory SCRATCH is the same for all its runs:
files that are costly to make are made there, once. RUN starts a program in the environment, and
under `megapage run` where MODE is `under`.

A run under megapage is compared with plain runs, as far as these agree: in standard output,
standard error, exit status, signals, and the peak of memory. The peak may be plain's x 1.05 +
4 MiB. A case whose plain runs differ from those without limits in status is skipped there.

Results are kept below driving.cache(), for each program, environment and build. A run goes on where
the last one stopped; --again runs everything again. Programs of tests/programs that need the pool
of 2 MiB pages are left out: they are about the pool.

Closes with "N passed, N failed, N skipped": programs, each in an environment. expected.txt names
the known differences, each with its reason. They count as passed, and a known difference that is
gone fails.
"""

import concurrent.futures
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import compare
import driving
import environments
import groups
import results
import running
import suite


class Program(suite.Case):
    """One script of tests/programs."""

    def __init__(self, path):
        super().__init__(path)
        self.sources = HERE.parent / "programs/src"


class Tools:
    """State that all runs share: files, groups, and the numbers of the system calls."""

    def __init__(self, scratch):
        self.directory, self.prefix = scratch / "tools", scratch / "prefix"
        self.directory.mkdir()
        self.groups = groups.find()
        if self.groups:
            groups.remove_left_over(self.groups)
        self.lock, self.made_strangers, self.root, self.why_no_old_root = threading.Lock(), None, None, ""

    @functools.cached_property
    def confine(self):
        """Compiles the program that installs a filter; returns its path."""
        compile_c(HERE / "src/confine.c", self.directory / "confine")
        return self.directory / "confine"

    @functools.cached_property
    def calls(self):
        """Returns the numbers of the system calls, by name."""
        named = subprocess.run(["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"],
                               capture_output=True, text=True, check=True).stdout
        words = [line.split() for line in named.splitlines() if line.startswith("#define __NR_")]
        return {word[1].removeprefix("__NR_"): int(word[2]) for word in words if len(word) == 3 and word[2].isdigit()}

    def strangers(self):
        """Compiles programs into which a library for this C library cannot be loaded. Returns none
        if they cannot be compiled."""
        with self.lock:
            if self.made_strangers is None:
                directory = self.directory / "strangers"
                directory.mkdir()
                directory.chmod(0o755)
                self.made_strangers = [directory / "hello-32"]
                try:
                    compile_c(HERE / "src/hello.c", directory / "hello-32", "-m32")
                    compile_c(HERE / "src/hello.c", directory / "hello-musl", compiler="musl-gcc")
                except (OSError, subprocess.CalledProcessError):
                    self.made_strangers = []
            return self.made_strangers

    def old_root(self):
        """Returns the root file system of Debian 11, made once for all runs; None if it cannot be
        made."""
        with self.lock:
            if self.root or self.why_no_old_root:
                return self.root
            kept = driving.cache() / f"harm-root-{OLD_SUITE}-{running.digest(OLD_PACKAGES)}"
            if not kept.exists():
                made = kept.with_suffix(f".{os.getpid()}")
                command = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={OLD_PACKAGES}", OLD_SUITE, made, mirror()]
                try:
                    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
                    why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["mmdebstrap failed"])[-1]
                except (OSError, subprocess.TimeoutExpired) as error:
                    why = str(error)
                if why:
                    shutil.rmtree(made, ignore_errors=True)
                    self.why_no_old_root = why
                    return None
                made.rename(kept)
            self.root = kept
            return kept


OLD_SUITE = "bullseye"
OLD_PACKAGES = "python3-minimal,perl,sqlite3,redis-server,xz-utils,gawk"


def mirror():
    """Returns apt's mirror of Debian."""
    shown = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
                           capture_output=True, text=True).stdout.split()
    return next((line for line in shown if "security" not in line and "debian" in line), "http://deb.debian.org/debian")


def compile_c(source, target, *options, compiler="cc"):
    subprocess.run([compiler, "-O1", "-w", "-o", str(target), str(source), *options], check=True, capture_output=True)


class Bench(running.Runner):
    """Runner of the cases, which keeps their results."""

    def __init__(self, arguments, scratch, tally):
        super().__init__(Tools(scratch), scratch)
        self.arguments, self.tally = arguments, tally
        release = arguments.megapage.resolve().parent
        self.build = running.digest(*[release / name for name in ("megapage", "libmegapage.so", "libmegapage_text.so")])
        self.kept = driving.cache() / "harm"
        self.rows, self.ending = [], False
        # The files of results that this run of the driver has made.
        self.fresh = set()
        self.expected = results.expected()
        self.lacking = {environment.name: environment.lacks(self.tools) for environment in arguments.environments}

    def file(self, case, what, *more):
        text = case.path.read_text()
        named = [path for path in sorted(case.sources.iterdir()) if path.name in text]
        key = running.digest(case.path, *named, HERE / "src/confine.c", os.uname().release, what, *more)
        return self.kept / f"{case.name}.{what}.{key}.json"

    def remembered(self, file, make):
        """Returns the content of the file; without a file keeps and returns the result of
        `make`."""
        if file.exists() and not self.arguments.again:
            return json.loads(file.read_text())
        made = make()
        # A signal has ended the run: files that a program needs may be gone.
        if self.ending:
            raise RuntimeError("the run was ended")
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        part.write_text(json.dumps(made))
        part.rename(file)
        self.fresh.add(file)
        return made

    def facts(self, case):
        """Returns plain's needs: the peaks of its memory, its address space and its data; and two
        runs."""
        return self.remembered(self.file(case, "plain-open"), lambda: self.measured(case))

    def called(self, case):
        """Returns the system calls of a plain run, by strace."""
        directory = self.scratch / f"calls-{case.name}"
        directory.mkdir(exist_ok=True)
        directory.chmod(0o777)
        self.once(case, environments.BY_NAME["open"], {}, "plain", suite.SLOWEST * case.seconds, calls=directory)
        names = {line.split()[-1] for file in directory.iterdir() for line in file.read_text().splitlines() if line.split()}
        return sorted(name for name in names if name in self.tools.calls)

    def plain(self, case, environment, facts):
        """Runs plain twice in an environment, within the smallest of its limits that plain runs
        in."""
        if environment.name == "open":
            return {"runs": facts["runs"], "facts": facts}

        def make():
            there, status = {key: value for key, value in facts.items() if key != "runs"}, facts["runs"][0]["status"]
            if environment.name == "seccomp":
                there["calls"] = self.called(case)
            limit = running.PATIENCE + running.SLOWER * max(run["seconds"] for run in facts["runs"])
            for _ in range(running.MOST_GROWTH):
                runs = [self.once(case, environment, there, "plain", limit)[0] for _ in range(2)]
                if all(run["status"] == status for run in runs):
                    break
                # Calls that depend on timing are seen by another run of strace.
                more = there.get("calls") and dict(there, calls=sorted({*there["calls"], *self.called(case)}))
                grown = more or environment.grown(there)
                if not grown:
                    break
                there = grown
            return {"runs": runs, "facts": there}

        return self.remembered(self.plain_file(case, environment, facts), make)

    def plain_file(self, case, environment, facts):
        if environment.name == "open":
            return self.file(case, "plain-open")
        return self.file(case, f"plain-{environment.name}", environments.source(environment), facts["peak"])

    def cell(self, case, environment):
        """Runs one program in one environment; returns (outcome, why, the limit in words)."""
        if self.lacking[environment.name]:
            return "skipped", self.lacking[environment.name], ""
        facts = self.facts(case)
        if facts["runs"][0]["status"] == 77:
            return "skipped", (facts["runs"][0]["errors"].strip().splitlines() or ["no reason given"])[-1], ""
        if facts["runs"][0]["status"] is None:
            return "failed", "plain does not end", ""
        plain = self.plain(case, environment, facts)
        stated, usual = environment.stated(plain["facts"]), facts["runs"][0]["status"]
        within = environment.limit(plain["facts"]) or 0
        for run in plain["runs"]:
            if run["status"] != usual:
                said = (run["errors"].strip().splitlines() or [""])[-1][:120]
                return "skipped", f"plain does not run there: status {compare.shown(run['status'])}, {said}", stated

        def make():
            slowest = max(run["seconds"] for run in plain["runs"])
            there, runs = plain["facts"], list(plain["runs"])
            if self.plain_file(case, environment, facts) not in self.fresh:
                # Loads programs and inputs into the page cache, as the kept runs did.
                self.once(case, environment, there, "plain", suite.SLOWEST * case.seconds)
            under = self.once(case, environment, there, "under", running.PATIENCE + running.SLOWER * slowest)[0]
            for _ in range(running.MORE_RUNS):
                if not compare.differences(runs, under, within):
                    break
                # One more plain run shows more of what varies by itself.
                runs.append(self.once(case, environment, there, "plain", suite.SLOWEST * case.seconds)[0])
            return {"plain": runs, "under": under}

        file = self.file(case, f"under-{environment.name}", environments.source(environment), facts["peak"], self.build)
        both = self.remembered(file, make)
        found = compare.differences(both["plain"], both["under"], within)
        known = self.expected.get((case.name, environment.name))
        if found and known:
            return "passed", f"known: {known}", stated
        if known:
            return "failed", f"a known difference is gone; remove it from tests/harm/expected.txt: {known}", stated
        return ("failed", "\n".join(found), stated) if found else ("passed", "", stated)

    def program(self, case):
        """Runs one program in all its environments."""
        version = case.version()
        for environment in self.arguments.environments:
            if environment.few and case.header.get("more") != "yes":
                continue
            began = time.monotonic()
            outcome, why, stated = self.cell(case, environment) if version else ("skipped", case.missing(), "")
            with self.lock:
                outcome, why = self.tally.add(f"{case.name:16} {environment.name:9}", f"harm {case.name}, {environment.name}",
                                              outcome, why, time.monotonic() - began)
                self.rows.append({"program": case.name, "title": case.program, "version": version,
                                  "environment": environment.name, "limit": stated, "outcome": outcome, "why": why})


def main():
    parser = driving.parser("Runs programs in adverse environments, plain and under megapage run, and reports differences.")
    parser.add_argument("--only", action="append", metavar="CASE", help="only this case; may be repeated")
    parser.add_argument("--environment", action="append", metavar="NAME", choices=list(environments.BY_NAME),
                        help="only this environment; may be repeated")
    parser.add_argument("--quick", action="store_true", help="the part of make test: some programs, about a minute")
    parser.add_argument("--again", action="store_true", help="use no kept result")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="programs at once (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="name the cases and environments, and run nothing")
    parser.add_argument("--matrix", action="store_true", help="write results/matrix.json and the table of docs/machines.md")
    arguments = parser.parse_args()
    programs = [Program(path) for path in suite.read(HERE.parent / "programs")]
    # The longest last.
    everything = [running.Case(path) for path in suite.read(HERE)] + [case for case in programs if "pool" not in case.needs]
    chosen = suite.chosen(everything, arguments.only)
    if arguments.quick:
        chosen = [case for case in chosen if case.header.get("quick") == "yes"]
    arguments.environments = [environment for environment in environments.ENVIRONMENTS
                              if environment.name in (arguments.environment or environments.BY_NAME)
                              and not (arguments.quick and environment.few)]
    if arguments.list:
        for listed in [*chosen, *arguments.environments]:
            print(f"{listed.name:16} {getattr(listed, 'title', None) or listed.program}")
        return 0
    tally = driving.Tally()
    if os.getuid() != 0:
        tally.add("all", "harm", "skipped", "needs root: control groups, name spaces and limits", 0)
        return tally.close()
    if stale := results.stale(everything):
        tally.add("table", "harm table", "failed", stale, 0)
    with driving.scratch("harm", arguments) as scratch:
        bench = Bench(arguments, scratch, tally)
        # Runs once outside of all groups, so that its pages are in the page cache.
        subprocess.run([str(scratch / "prefix/bin/megapage"), "run", "--", "true"], capture_output=True)
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as threads:
            try:
                for future in [threads.submit(bench.program, case) for case in chosen]:
                    future.result()
            except BaseException:
                bench.ending = True
                threads.shutdown(wait=False, cancel_futures=True)
                raise
    if arguments.matrix:
        results.write(bench.rows)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
