#!/usr/bin/env python3
"""Driver that runs real programs in every way and compares their costs. README.md describes its
use, and how to add a program."""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import case as cases_module
import install
import machine
import runner
import table
import verdicts
import ways as ways_module

HERE = pathlib.Path(__file__).resolve().parent
import driving

SCHEMA = "megapage.programs/2"
# The order of ways within a round is drawn from this seed, the program and the round.
SEED = 17
THREADS = "2"
# Assumed peak memory of a program that was not measured yet, in bytes.
FIRST_PEAK = 1 << 30
WARM_UP = 0
# With this many rounds the range of the ratios covers the median at 93.75 % or more.
ENOUGH_ROUNDS = 5
# The value of --continue without a file.
RESUME = pathlib.Path()
SMALL, LARGE = "small", "large"
# The selection of --quick: programs of Debian's packages, each with a part of the available memory.
QUICK = {"only": "cpp-map,python-dict,redis-get", "ways": "plain,tunable,ours", "rounds": 3}
QUICK_PART, QUICK_MOST = 4, 2 << 30


def arguments_of(words):
    parser = argparse.ArgumentParser(description="Runs real programs in every way and compares what they cost.")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", driving.REPOSITORY / "target"))
    parser.add_argument("--megapage", type=pathlib.Path, default=target / "release/megapage", help="default: %(default)s")
    parser.add_argument("--other", type=pathlib.Path, metavar="FILE",
                        help="another build of megapage, which becomes the way `other`: what does a change bring?")
    parser.add_argument("--class", dest="kind", choices=(SMALL, LARGE), default=SMALL, help="default: %(default)s")
    parser.add_argument("--size", metavar="SIZE", help="with --class large: every program at this size, such as 512m")
    parser.add_argument("--quick", action="store_true",
                        help="three large programs sized by this machine, ten minutes; writes a file to send in")
    parser.add_argument("--rounds", type=int, metavar="N", help="default: 5")
    parser.add_argument("--only", metavar="CASE,...", help="only these programs")
    parser.add_argument("--ways", metavar="WAY,...", help="only these ways; plain is always among them")
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="write every run and the verdicts, as JSON")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE", help="write the tables, as Markdown")
    parser.add_argument("--opening", type=pathlib.Path, metavar="FILE",
                        help="begin the tables with the gains and losses of large programs, from the results in FILE")
    parser.add_argument("--from", dest="source", type=pathlib.Path, metavar="FILE",
                        help="run nothing: judge and tabulate the runs of an earlier --save")
    parser.add_argument("--continue", type=pathlib.Path, metavar="FILE", dest="earlier", nargs="?", const=RESUME,
                        help="add these rounds to those of an earlier --save of the same build, programs and ways; "
                             "without FILE: go on where an interrupted --save stopped, or afresh after a change")
    parser.add_argument("--list", action="store_true", help="name the programs and the ways, and run nothing")
    parser.add_argument("--check", action="store_true",
                        help="one round of plain and ours: does each program run and give its answer?")
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.kind = LARGE
        for name, value in QUICK.items():
            setattr(arguments, name, getattr(arguments, name) or value)
        arguments.save = arguments.save or pathlib.Path(f"megapage-quick-{now().partition('+')[0].replace(':', '')}.json")
        part = min(machine.available() // QUICK_PART, QUICK_MOST)
        arguments.size = arguments.size or f"{part >> 20}m"
    arguments.rounds = 5 if arguments.rounds is None else arguments.rounds
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if arguments.size and arguments.kind != LARGE:
        parser.error("--size needs --class large")
    if arguments.earlier == RESUME and not arguments.save:
        parser.error("--continue without FILE goes on with the file of --save")
    if arguments.opening and not arguments.table:
        parser.error("--opening needs --table")
    if arguments.check:
        arguments.rounds, arguments.ways = 1, f"{ways_module.BASELINE},{ways_module.OURS}"
    return arguments


def split(text):
    return [word for word in (text or "").split(",") if word]


def select_ways(names, known):
    """Returns the named ways and the baseline, in the order of the tables; all but `best`, which
    stands for one of the others, if none is named."""
    unknown = set(names) - {way.name for way in known}
    if unknown:
        sys.exit(f"driver: no way {', '.join(sorted(unknown))}; there are {', '.join(way.name for way in known)}")
    return [
        way for way in known
        if way.name in names or way.name == ways_module.BASELINE or (not names and way.name != ways_module.BEST)
    ]


@contextlib.contextmanager
def alone():
    """Takes the bench's lock, or exits if another bench runs. Two benches would measure each other,
    and each would restore THP while the other runs."""
    install.TARGET.mkdir(parents=True, exist_ok=True)
    with open(install.TARGET / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("driver: another bench of programs is running")
        yield


class Bench:
    """One call of the driver."""

    def __init__(self, arguments, scratch, settings, known=()):
        self.arguments, self.scratch, self.settings = arguments, scratch, settings
        self.known = {way.name: way for way in known}
        self.runs, self.answers, self.tally = [], {}, driving.Tally()
        # By program: the largest memory that was seen, and what megapage's report said.
        self.peaks, self.reports = {}, {}
        self.first_round = 1
        # Called after each run that counts.
        self.keep = lambda: None

    def begin_after(self, runs, further=True):
        """Puts these runs of an earlier call before its own. Its rounds follow theirs if they are
        `further` ones; otherwise it makes the runs that they lack."""
        self.runs = list(runs)
        if further:
            self.first_round = 1 + max((run["round"] for run in runs), default=0)
        for run in runs:
            if run.get("failed") is None and "memory" in run:
                self.answers.setdefault(run["case"], run["answer"])
                self.peaks[run["case"]] = max(self.peaks.get(run["case"], 0), run["memory"]["peak"])

    def environment(self, work, case, way=None):
        """Returns a run's environment variables: those of all runs, and those of the way."""
        own = {
            "PATH": f"{install.VENV}/bin:{os.environ['PATH']}",
            "HOME": str(work),
            "TMPDIR": str(work),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(HERE / "lib"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "BENCH_DATA": str(install.data_of(case)),
            "BENCH_SIZE": str(case.size),
            # A trial's verdict would change what a run does.
            "MEGAPAGE_TRIALS": "none",
        }
        # Spinning threads would count other load of the machine as their own processor time.
        own.update(OPENBLAS_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
        threads = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS", "GOMAXPROCS",
                   "TOKIO_WORKER_THREADS", "ARROW_IO_THREADS")
        own.update(dict.fromkeys(threads, THREADS))
        return {**own, **(way.environment() if way else {})}

    def run(self, case, way, number):
        """Runs a case once and records the result, also a failure; a warm-up run is not
        recorded."""
        work = runner.prepare_directory(self.scratch / "work")
        places = dict(install.places(case), work=str(work), socket=str(work / "socket"))
        report = work / "report.json"
        ours = way.name == ways_module.OURS
        taken = self.known[case.best] if way.name == ways_module.BEST else way
        # A report takes samples, which cost time. Only warm-up runs and single rounds write one.
        launch, reported = [], ours and (number == WARM_UP or self.arguments.rounds == 1)
        if way.build:
            command = self.scratch / way.name / "bin/megapage"
            launch = [str(command), "run", *way.options, *(("--json", "--report", str(report)) if reported else ()), "--"]
        noted = {"case": case.name, "way": way.name, "round": number, "failed": None}
        began = time.monotonic()
        size = max(self.peaks.get(case.name, FIRST_PEAK), case.size) * 3 // 2
        machine.back_free_memory(size)
        counters = machine.Counters()
        changes = taken.settings or taken.pool
        try:
            if taken is not way and taken.missing():
                raise ways_module.Refused(taken.missing())
            with (driving.machine_lock() if changes else contextlib.nullcontext(),
                  self.settings.set_to(taken.needs(size * 3 // 4))):
                environment = (self.environment(work, case, taken), self.environment(work, case))
                # Only these two ways settle: the gate on settled memory compares them, and settling
                # takes as long as half a run.
                settle = way.name in (ways_module.BASELINE, ways_module.OURS)
                one = runner.Run(case, launch, environment, places, work, settle)
                noted.update(one.go())
                self.check_answer(case, noted)
        except (runner.Failed, ways_module.Refused) as error:
            noted["failed"] = str(error)
            noted["refused"] = isinstance(error, ways_module.Refused)
        noted["machine"] = counters.since()
        if noted["failed"] is None:
            self.peaks[case.name] = max(self.peaks.get(case.name, 0), noted["memory"]["peak"])
        if reported:
            self.reports[case.name] = runner.report_of(report)
        if number == WARM_UP:
            return
        if ours:
            noted["report"] = self.reports.get(case.name)
            if noted["report"] is None and not noted["failed"]:
                noted["failed"] = "megapage run wrote no report"
        self.runs.append(noted)
        self.keep()
        self.say(case, way, number, noted, time.monotonic() - began)

    def check_answer(self, case, noted):
        """Checks that the answer is the header's, or else the same in every way and round."""
        expected = case.expect or self.answers.setdefault(case.name, noted["answer"])
        if noted["answer"] != expected:
            raise runner.Failed(f"answer {noted['answer']!r}, not {expected!r}")

    def say(self, case, way, number, noted, seconds):
        columns = f"{case.name:18} {way.name:10} {number}"
        if noted["failed"] is None:
            steady, whole, memory = noted["steady"], noted["whole"], noted["memory"]
            columns += (f"  steady {steady['cpu']:6.2f} s cpu {steady['wall']:6.2f} s wall"
                        f"  whole {whole['cpu']:6.2f} s  peak {memory['peak'] >> 20:5} MiB"
                        f"  end {memory['end']['bytes'] >> 20:5} MiB  huge {memory['end']['huge_share']:4.0%}")
        outcome = "failed" if noted["failed"] else "passed"
        own = way.name == ways_module.BASELINE or way.name != ways_module.OTHER and way.build
        if noted["failed"] and (not own or noted.get("refused")):
            # Another way's defect is no failure of ours; the table and the results name it.
            outcome, noted["failed"] = "skipped", f"fails in this way: {noted['failed']}"
        self.tally.add(columns, f"{case.name}, {way.name}", outcome, noted["failed"] or "", seconds)

    def all_runs(self, cases, ways):
        """Runs all cases round by round, so that slow changes of the machine affect every way. Runs
        large cases one after the other, so that an interrupted bench has complete programs."""
        done, warm = {(run["case"], run["way"], run["round"]) for run in self.runs}, set()
        rounds = range(self.first_round, self.first_round + self.arguments.rounds)
        turns = [(case, number) for number in rounds for case in cases]
        if self.arguments.kind == LARGE:
            turns = [(case, number) for case in cases for number in rounds]
        for case, number in turns:
            order = list(ways)
            random.Random(f"{SEED} {case.name} {number}").shuffle(order)
            order = [way for way in order if (case.name, way.name, number) not in done]
            if order and case.name not in warm and self.arguments.rounds > 1:
                warm.add(case.name)
                # The warm-up loads files into the page cache and collects megapage's report.
                # Failures show in the counted runs.
                for way in ways:
                    if way.name in (ways_module.BASELINE, ways_module.OURS):
                        self.run(case, way, WARM_UP)
            for way in order:
                self.run(case, way, number)


def available(bench, cases, ways):
    """Returns the available programs and their versions; removes missing ways from `ways`. Each
    missing program or way is a skip."""
    found, versions = [], {}
    for way in list(ways):
        why = way.missing()
        if why:
            bench.tally.add(f"way {way.name}", f"way {way.name}", "skipped", why, 0)
            ways.remove(way)
    for case in cases:
        why = install.prepare(case)
        version = "" if why else case.version(install.places(case))
        if version:
            found.append(case)
            versions[case.name] = version
        else:
            why = why or f"not installed (no answer from: {case.version_command}): bench/programs/install.py installs it"
            bench.tally.add(f"{case.name:18}", f"program {case.name}", "skipped", why, 0)
    return found, versions


def read_results(path):
    """Returns the results of an earlier --save; exits if they are unreadable or of another
    schema."""
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"driver: cannot read {path}: {error}")
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        sys.exit(f"driver: {path} is no result of this version ({SCHEMA}); run the bench again")
    return results


def other_part(results, earlier):
    """Returns the part that the earlier results do not share: their build, machine, ways or
    programs; None if they share all."""
    return next((name for name in ("build", "machine", "ways", "cases") if earlier[name] != results[name]), None)


def check_same(results, earlier, path):
    """Exits unless the earlier results have the same build, machine, ways and programs."""
    other = other_part(results, earlier)
    if other:
        sys.exit(f"driver: --continue: {path} has another {other}; start afresh without it")


def begin(bench, results, arguments):
    """Puts the runs of earlier results before those of `bench`, as --continue asks for."""
    resumed = arguments.earlier == RESUME
    if arguments.earlier is None or resumed and not arguments.save.exists():
        return
    path = arguments.save if resumed else arguments.earlier
    earlier = read_results(path)
    if resumed and other_part(results, earlier):
        print(f"driver: {path} has another {other_part(results, earlier)}: this bench starts afresh", file=sys.stderr)
        return
    check_same(results, earlier, path)
    runs = [run for run in earlier["runs"] if not resumed or run.get("failed") is None]
    bench.begin_after(runs, further=not resumed)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def document(bench, cases, versions, ways):
    """Returns everything that --save writes, except the runs."""
    return {
        "schema": SCHEMA,
        "recorded": now(),
        "machine": machine.describe(),
        "megapage": machine.megapage_version(bench.arguments.megapage),
        "build": machine.digest(bench.scratch / ways_module.OURS),
        "ways": [{"name": way.name, "what": way.what, "version": machine.library_version(way.library)} for way in ways],
        "cases": [
            {"name": case.name, "program": case.program, "class": case.kind, "random": case.random,
             "version": versions[case.name], **({"size": case.size, "best": case.best} if case.size else {})}
            for case in cases
        ],
    }


def save(results, path):
    """Writes the results, in one step."""
    if path.exists() and not path.is_file():
        path.write_text(json.dumps(results, indent=1) + "\n")
        return
    part = path.with_suffix(".part")
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(path)


def conclude(results, arguments):
    """Judges the runs, writes what is asked for, and prints the verdicts."""
    figures = verdicts.figures_of(results)
    results["verdicts"] = verdicts.judge(figures, large=any("size" in case for case in results["cases"]))
    if arguments.save:
        save(results, arguments.save)
    if arguments.table:
        opening = ""
        if arguments.opening:
            large = read_results(arguments.opening)
            losses = {case.name: case.loss for case in cases_module.discover([], True)}
            opening = table.opening(large, verdicts.figures_of(large), losses)
        arguments.table.write_text(table.markdown(results, figures, opening))
    if arguments.quick:
        # Three rounds of three programs judge nothing.
        print(table.brief(results, figures))
        print(f"Send {arguments.save} in: it names this machine's processor, memory and kernel, and every run.")
        return
    if results["rounds"] < ENOUGH_ROUNDS:
        print(f"fewer than {ENOUGH_ROUNDS} rounds: the intervals below cover little, and no verdict is worth much")
    for verdict in results["verdicts"]:
        words = {verdicts.MET: "met", verdicts.UNTOLD: "open", verdicts.MISSED: "MISSED"}
        outcome = "former" if verdict["former"] else words[verdict["state"]]
        print(f"{outcome:6} {verdict['gate']}: {verdict['measured']}")
        for name, why in verdict["misses"].items():
            print(f"       {name}: {why}")


def main(words=None):
    arguments = arguments_of(words)
    try:
        size = cases_module.bytes_of(arguments.size) if arguments.size else None
        cases = cases_module.discover(split(arguments.only), arguments.kind == LARGE, size)
    except cases_module.BadCase as error:
        sys.exit(f"driver: {error}")
    known = ways_module.all_ways(install.VENV, arguments.megapage, arguments.other, arguments.kind == LARGE)
    ways = select_ways(split(arguments.ways), known)
    if arguments.list:
        for case in cases:
            size = f"{case.size >> 20:5} MiB  " if case.size else ""
            print(f"{case.name:18} {case.kind:18} {size}{'random ' if case.random else '       '}{case.program}")
        for way in ways:
            print(f"way {way.name:14} {way.what}")
        return 0
    if arguments.source:
        conclude(read_results(arguments.source), arguments)
        return 0
    # A signal unwinds as an exception, so that THP is put back and no program stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with alone():
        return measure(arguments, cases, ways, known)


def measure(arguments, cases, ways, known):
    """Runs the bench; returns the exit status."""
    settings = ways_module.Settings(install.TARGET / "settings-before")
    recovered = settings.recover()
    if recovered:
        print(f"put back {recovered}: an earlier bench was killed", file=sys.stderr)
    runner.become_subreaper()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="megapage-bench-programs."))
    scratch.chmod(0o755)
    try:
        for way in ways:
            if way.build:
                driving.install(way.build.resolve(), scratch / way.name)
        bench = Bench(arguments, scratch, settings, known)
        cases, versions = available(bench, cases, ways)
        results = document(bench, cases, versions, ways)
        begin(bench, results, arguments)
        if arguments.save and not arguments.check:
            bench.keep = lambda: save({**results, "rounds": 0, "runs": bench.runs}, arguments.save)
        try:
            bench.all_runs(cases, ways)
        finally:
            # The runs of an interrupted bench are worth keeping, too.
            if not arguments.check:
                rounds = len({run["round"] for run in bench.runs})
                conclude({**results, "rounds": rounds, "runs": bench.runs}, arguments)
        return bench.tally.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
