#!/usr/bin/env python3
"""Tests of what `make results` runs, skips and reports: python3 bench/test_results.py."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import results

WRITE = """
import json, os, sys
value = {"schema": "megapage.bench/1", "machine": {"kernel": "x"}, "build": {"source": os.environ["MEGAPAGE_BENCH_SOURCE"]}}
with open(sys.argv[1], "a") as calls:
    calls.write("x")
if len(sys.argv) > 3:
    del value[sys.argv[3]]
json.dump(value, open(sys.argv[2], "w"))
"""


class Steps(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)
        self.programs = self.scratch / "programs"
        self.programs.mkdir()
        for name in results.PROGRAMS:
            (self.programs / name).write_text(name)
        self.state = self.scratch / "target/state.json"
        for name, value in (("RESULTS", self.scratch), ("source", lambda: "abc")):
            patched = mock.patch.object(results, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        self.said = []

    def step(self, name, *more, code=WRITE):
        calls = self.scratch / f"{name}.calls"
        return results.Step(name, 1, (sys.executable, "-c", code, str(calls), "{save}", *more))

    def run_all(self, steps, force=False):
        return results.run(steps, self.programs, force, self.state, self.said.append)

    def calls(self, name):
        path = self.scratch / f"{name}.calls"
        return len(path.read_text()) if path.exists() else 0

    def test_what_is_there_of_the_same_build_is_skipped(self):
        steps = [self.step("one"), self.step("two")]
        self.assertEqual(self.run_all(steps), [])
        self.assertEqual(self.run_all(steps), [])
        self.assertEqual((self.calls("one"), self.calls("two")), (1, 1))
        self.run_all(steps, force=True)
        self.assertEqual(self.calls("one"), 2)
        # A result that was changed or removed since is not the one that was recorded.
        (self.scratch / "two.json").write_text("{}")
        self.run_all(steps)
        self.assertEqual((self.calls("one"), self.calls("two")), (2, 3))
        (self.programs / "libmegapage.so").write_text("another build")
        self.run_all(steps)
        self.assertEqual((self.calls("one"), self.calls("two")), (3, 4))

    def test_what_is_forced_does_not_go_on_with_earlier_runs(self):
        # The step fails where it is given the word.
        step = self.step("one", results.CONTINUE)
        self.assertNotEqual(self.run_all([step]), [])
        self.assertEqual(self.run_all([step], force=True), [])

    def test_another_machine_is_measured_anew(self):
        steps = [self.step("one")]
        self.run_all(steps)
        with mock.patch.object(results, "machine", lambda: "another"):
            self.run_all(steps)
        self.assertEqual(self.calls("one"), 2)

    def test_a_failure_is_reported_at_the_end_and_tried_again(self):
        failing = self.step("bad", code="import sys; sys.exit(3)")
        silent = self.step("silent", code="")
        steps = [failing, silent, self.step("good")]
        self.assertEqual(self.run_all(steps), [("bad", "status 3"), ("silent", "status 0, and no new silent.json")])
        self.assertEqual(self.calls("good"), 1)
        self.assertTrue(any("bad FAILED: status 3" in line for line in self.said), self.said)
        self.assertEqual([name for name, _ in self.run_all(steps)], ["bad", "silent"])
        self.assertEqual(self.calls("good"), 1, "what went well is not run again")

    def test_a_result_names_its_build_and_machine(self):
        for field, said in (("build", "does not name its build"), ("machine", "schema and machine")):
            [(_, why)] = self.run_all([self.step("one", field)])
            self.assertIn(said, why)

    def test_what_was_interrupted_goes_on(self):
        code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)"
        steps = [self.step("one"), self.step("stopped", code=code)]
        with self.assertRaises(KeyboardInterrupt):
            self.run_all(steps)
        self.assertEqual(list(results.read_state(self.state)), ["one"])

    def test_what_is_interrupted_puts_back_what_it_has_set(self):
        # The step ends this process, as Ctrl-C does, and takes 0.6 s to end when the signal is
        # passed on.
        code = (
            "import os, pathlib, signal, sys, time\n"
            "def stop(*_):\n"
            "    time.sleep(0.6)\n"
            "    pathlib.Path(sys.argv[1]).write_text('x')\n"
            "    os._exit(130)\n"
            "signal.signal(signal.SIGINT, stop)\n"
            "os.kill(os.getppid(), getattr(signal, sys.argv[3]))\n"
            "while True:\n"
            # Not pause(2): a signal that comes right before it would be waited for without end.
            "    time.sleep(0.01)\n"
        )
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            with self.assertRaises(KeyboardInterrupt):
                self.run_all([self.step(name, name, code=code), self.step("later")])
            self.assertEqual((self.calls(name), self.calls("later")), (1, 0))

    def test_a_damaged_state_is_none(self):
        self.assertEqual(results.read_state(self.state), {})
        self.state.parent.mkdir()
        for text in ("", "[1]", "{"):
            self.state.write_text(text)
            self.assertEqual(results.read_state(self.state), {})


class Table(unittest.TestCase):
    def test_every_result_that_is_committed_has_a_step(self):
        there = {path.stem for path in results.RESULTS.glob("*.json")}
        self.assertEqual(there - {step.name for step in results.STEPS}, set())
        names = [step.name for step in results.STEPS]
        self.assertEqual(len(names), len(set(names)))
        for step in results.STEPS:
            self.assertIn("{save}", step.command)
            self.assertGreater(step.minutes, 0)

    def test_one_command_takes_three_hours_and_the_other_has_the_rest(self):
        first, rest = results.select([]), results.select([], large=True)
        self.assertEqual(len(first) + len(rest), len(results.STEPS))
        self.assertLessEqual(sum(step.minutes for step in first), results.MOST)
        self.assertEqual([step.name for step in results.select(["programs", "idle"])], ["idle", "programs"])

    def test_an_unknown_step_is_refused(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            results.main(["--only", "acces"])
        self.assertEqual(ended.exception.code, 2)
        self.assertTrue(said.getvalue().startswith("results: 'acces' is no result; known: idle, "), said.getvalue())

    def test_the_list_shows_what_each_takes(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            self.assertEqual(results.main(["--list", "--only", "idle,access"]), 0)
        lines = said.getvalue().splitlines()
        self.assertEqual(len(lines), 3)
        self.assertTrue(lines[1].startswith("access") and " 35 min " in lines[1], lines)

    def test_without_root_nothing_is_run(self):
        said = io.StringIO()
        with mock.patch.object(os, "geteuid", lambda: 1000), contextlib.redirect_stderr(said):
            self.assertEqual(results.main(["--only", "idle"]), 2)
        self.assertIn("run this as root", said.getvalue())


if __name__ == "__main__":
    unittest.main()
