"""Programs of tests/harm in an environment of this machine, each plain and under `megapage run`,
and their differences."""

import collections
import contextlib
import functools
import itertools
import pathlib
import re
import sys

TESTS = pathlib.Path("/opt/megapage/tests")
sys.path += [str(TESTS), str(TESTS / "harm"), str(TESTS / "vm")]
import compare
import environments
import groups
import results
import running
import suite
import vmcheck as vm

ROW = "run --heap auto"
# On a disk: /tmp is memory.
TOP = pathlib.Path("/var/tmp/harm")
TRACING = pathlib.Path("/sys/kernel/tracing")
EVENTS = ("compaction/mm_compaction_begin", "vmscan/mm_vmscan_direct_reclaim_begin")
EVENT = re.compile(r"^\s*(?P<comm>.+)-\d+ +\[\d+\] .*: (?P<event>mm_\w+): ")
OVERCOMMIT = pathlib.Path("/proc/sys/vm/overcommit_memory")


class Tools:
    """Tools that launchers need: control groups, and a prefix with the command."""

    def __init__(self):
        self.groups, self.prefix = groups.find(), TOP / "prefix"
        (self.prefix / "bin").mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (self.prefix / "bin/megapage").symlink_to("/opt/megapage/megapage")


class Runner(running.Runner):
    """Runner of cases in this machine, which counts the stalls of traced cases."""

    def made(self, case):
        kept = TESTS / "made" / case.name
        return kept if kept.exists() else super().made(case)

    @functools.cache
    def needs(self, case):
        """Returns plain's needs without a limit, for all environments that this machine has."""
        return self.measured(case, count=3)

    def once(self, case, environment, *arguments, **options):
        traced = isinstance(environment, environments.Traced)
        if traced:
            trace()
        try:
            one, largest = super().once(case, environment, *arguments, **options)
        finally:
            OVERCOMMIT.write_text("0")
        return (one | {"stalls": stalls()} if traced else one), largest


def trace():
    """Forgets the events so far. Keeps those of processes that are named from now on, and of their
    children."""
    (TRACING / "options/event-fork").write_text("1")
    # With no process named all are traced. Process 1 only waits.
    (TRACING / "set_event_pid").write_text("1")
    for event in EVENTS:
        (TRACING / "events" / event / "enable").write_text("1")
    (TRACING / "trace").write_text("")


def stalls():
    """Returns how often the program's threads entered direct compaction and reclaim, by thread name
    and event. Leaves megapage's own processes out."""
    found = [EVENT.match(line) for line in (TRACING / "trace").read_text().splitlines()]
    return collections.Counter(f"{event['comm']} {event['event']}" for event in found
                               if event and not event["comm"].startswith("megapage"))


def say(words):
    """Writes to the console. Records are sent only at the end of a case; of a machine that dies
    only the console is left."""
    pathlib.Path("/dev/console").write_text(words + "\n")


def cell(runner, case, environment):
    """Runs one program in an environment; returns (outcome, why, the limit in words)."""
    limits = not isinstance(environment, environments.Traced) and type(environment) is not environments.Environment
    facts = runner.needs(case) if limits else runner.measured(case, environment)
    usual = facts["runs"][0]["status"]
    if usual in (77, None):
        return ("skipped", facts["runs"][0]["errors"][-200:], "") if usual else ("failed", "plain does not end", "")
    limit = running.PATIENCE + running.SLOWER * max(run["seconds"] for run in facts["runs"])
    plain = facts["runs"]
    for _ in range(running.MOST_GROWTH if limits else 0):
        plain = [runner.once(case, environment, facts, "plain", limit)[0] for _ in range(2)]
        if all(run["status"] == usual for run in plain) or not (grown := environment.grown(facts)):
            break
        facts = grown
    stated, within = environment.stated(facts), environment.limit(facts) or 0
    for run in plain:
        if run["status"] != usual:
            return "skipped", f"plain does not run there: status {compare.shown(run['status'])}", stated
    under = runner.once(case, environment, facts, "under", limit)[0]
    for _ in range(running.MORE_RUNS):
        if not compare.differences(plain, under, within):
            break
        plain.append(runner.once(case, environment, facts, "plain", limit)[0])
    found = compare.differences(plain, under, within)
    return "failed" if found else "passed", "\n".join(found), stated


def run(*names):
    """Runs all programs of tests/harm that machines run, in the named environments."""
    TOP.mkdir(parents=True, exist_ok=True)
    TOP.chmod(0o777)
    runner, known = Runner(Tools(), TOP), results.expected()
    # Runs once outside of all groups, so that its pages are in the page cache.
    vm.run(["megapage", "run", "--", "true"])
    cases = [case for case in map(running.Case, sorted((TESTS / "harm/cases").glob("*.sh"))) if "machine" in case.header]
    for case, name in itertools.product(cases, names):
        environment = environments.MACHINES_BY_NAME[name]
        version = case.version()
        if not version and not (TESTS / "made" / case.name).exists():
            vm.skip(ROW, f"{case.name}: {case.missing()}")
            continue
        outcome, why, stated = cell(runner, case, environment)
        say(f"{name} {case.name}: {outcome} {why}")
        expected = known.get((case.name, name))
        if expected and outcome != "skipped":
            outcome, why = ("passed", f"known: {expected}") if outcome == "failed" else ("failed", "a known difference is gone")
        row = {"program": case.name, "title": case.program, "version": version, "environment": name, "limit": stated,
               "outcome": outcome, "why": why}
        vm.check(ROW, f"{case.name} as plain, {environment.title}", outcome != "failed", why, "no difference", harm=row)
