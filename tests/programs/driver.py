#!/usr/bin/env python3
"""Driver that runs real programs under `megapage run`, one line for each program and mechanism.

A case is a shell script in cases/ whose first lines are a header:

    # program: the program, for the table
    # version: a command whose first line of output names the version
    # modes:   the modes (below) that apply to it
    # seconds: how long it may take on a quiet machine (default 120); the limit is five times that
    # needs:   root, pool (hugetlb pages)

It is run by `bash -euo pipefail` in an empty directory, and passes when it exits 0. 77 is a skip,
with the reason as the last line on standard error. Its environment:

    RUN         a command that starts its arguments under megapage, with the mode's options and
                $RUN_OPTIONS
    MODE        the mode; `plain` where RUN starts its arguments as they are
    SRC         sources of the programs, src/
    WORK        the directory that it runs in
    SCRATCH     a directory that all cases of this run share, for files that are costly to build
    REPOSITORY  the root of the repository
"""

import contextlib
import json
import os
import pathlib
import shutil
import sys

import table

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import suite
import driving

# Options of `megapage run` for each mode, and true if hugetlb pages are available in it.
MODES = {
    "default": ([], True),
    "preload-2m": (["--mechanism", "preload", "--heap", "2m"], True),
    "preload-thp": (["--mechanism", "preload", "--heap", "thp"], False),
    "tunable": (["--mechanism", "tunable"], True),
    # PHP's switch takes hugetlb pages if there are any, which `run` refuses without --heap 2m.
    "runtime": (["--mechanism", "runtime"], False),
    "outside": (["--mechanism", "outside"], False),
}
# Enough for a program to gain from; fewer than the programs that exhaust the pool ask for.
POOL_PAGES = 256
POOL_FILE = driving.POOL / "nr_hugepages"


class Case(suite.Case):
    """One script of cases/, whose modes are those above."""

    def __init__(self, path):
        super().__init__(path)
        for mode in self.modes:
            if mode not in MODES:
                sys.exit(f"driver: {path}: unknown mode '{mode}'; there are {', '.join(MODES)}")


class Result:
    """Outcome of one case in one mode."""

    def __init__(self, case, mode, outcome, why="", seconds=0.0, reports=()):
        self.case, self.mode, self.outcome, self.why = case, mode, outcome, why
        self.seconds, self.reports = seconds, list(reports)


@contextlib.contextmanager
def pool(pages):
    """Adds `pages` 2 MiB pages to the pool, under the machine's lock, and removes them at the end.
    Yields the number of pages obtained."""
    if pages == 0 or os.getuid() != 0 or not POOL_FILE.exists():
        yield 0
        return
    with driving.machine_lock():
        got = 0
        try:
            if driving.memory_available_kib() - pages * 2048 >= driving.LEAST_AVAILABLE_KIB:
                before = driving.persistent_pages()
                for attempt in range(5):
                    if got >= pages:
                        break
                    if attempt > 0:
                        # The page cache that builds leave may be scattered over all memory.
                        for file, word in (("drop_caches", "3"), ("compact_memory", "1")):
                            with contextlib.suppress(OSError):
                                pathlib.Path("/proc/sys/vm", file).write_text(word)
                    POOL_FILE.write_text(str(before + pages))
                    got = driving.persistent_pages() - before
            yield got
        finally:
            # Removes only the added pages: another process may have changed the pool meanwhile.
            POOL_FILE.write_text(str(max(0, driving.persistent_pages() - got)))


def write_launcher(path, prefix, mode, reports):
    """Writes the command that a case starts its programs with."""
    if mode == "plain":
        lines = 'exec "$@"'
    else:
        options = " ".join(MODES[mode][0])
        lines = (
            f"exec {prefix}/bin/megapage run {options} ${{RUN_OPTIONS:-}} "
            f'--json --report "{reports}/$$.json" -- "$@"'
        )
    path.write_text(f"#!/bin/bash\n{lines}\n")
    path.chmod(0o755)


def run(case, mode, scratch):
    """Runs one case in one mode."""
    if os.getuid() != 0 and ("root" in case.needs or mode == "outside"):
        return Result(case, mode, "skipped", "needs root")
    work = scratch / f"{case.name}.{mode}"
    reports = scratch / f"{case.name}.{mode}.reports"
    for directory in (work, reports):
        directory.mkdir()
        directory.chmod(0o777)
    launcher = scratch / f"run.{case.name}.{mode}"
    write_launcher(launcher, scratch / "prefix", mode, reports)
    environment = suite.environment(
        launcher, mode, scratch / "src", work, scratch, driving.REPOSITORY
    )
    wants_pool = "pool" in case.needs or (mode != "plain" and MODES[mode][1])
    with driving.without_pool() if mode == "runtime" else pool(POOL_PAGES if wants_pool else 0) as got:
        if "pool" in case.needs and got < POOL_PAGES:
            return Result(case, mode, "skipped", f"needs {POOL_PAGES} hugetlb pages, got {got}")
        ended = suite.session(case.path, work, environment, suite.SLOWEST * case.seconds)
    status, seconds = ended.status, ended.seconds
    last = "\n".join(ended.errors.strip().splitlines()[-12:])
    if status is None:
        result = Result(case, mode, "failed", f"no end after {suite.SLOWEST * case.seconds} s", seconds)
    elif status == 77:
        result = Result(case, mode, "skipped", last.splitlines()[-1] if last else "no reason given", seconds)
    elif status != 0:
        result = Result(case, mode, "failed", f"exit status {status}: {last}", seconds)
    else:
        result = Result(case, mode, "passed", "", seconds)
    for report in sorted(reports.iterdir()):
        try:
            result.reports.append(json.loads(report.read_text()))
        except ValueError as error:
            if result.outcome == "passed":
                result.outcome, result.why = "failed", f"{report.name} is no JSON report: {error}"
    if result.outcome == "passed" and mode != "plain" and not result.reports:
        result.outcome, result.why = "failed", "megapage run wrote no report"
    if result.outcome == "passed":
        shutil.rmtree(work, ignore_errors=True)
    return result


def main():
    parser = driving.parser("Runs real programs under megapage run.")
    parser.add_argument("--only", action="append", metavar="CASE", help="only this case; may be repeated")
    parser.add_argument("--mode", action="append", metavar="MODE", help="only this mode, or `plain`; may be repeated")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="write the table of results, as Markdown")
    arguments = parser.parse_args()

    chosen = suite.chosen([Case(path) for path in suite.read(HERE)], arguments.only)

    results, tally = [], driving.Tally()
    with driving.scratch("programs", arguments) as scratch:
        # The copy is also readable by the user that a case runs its program as.
        shutil.copytree(HERE / "src", scratch / "src")
        for case in chosen:
            case.shown_version = case.version()
            modes = [m for m in arguments.mode or case.modes if m == "plain" or m in case.modes]
            for mode in modes:
                if case.shown_version:
                    result = run(case, mode, scratch)
                else:
                    result = Result(case, mode, "skipped", case.missing())
                columns, what = f"{case.name:14} {mode:12}", f"program {case.name}, {mode}"
                result.outcome, result.why = tally.add(columns, what, result.outcome, result.why, result.seconds)
                results.append(result)
        if arguments.table:
            arguments.table.write_text(table.markdown(results, POOL_PAGES * 2))
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
