#!/usr/bin/env python3
"""Tests of the bench's conclusions and readings; no root, no packages, seconds: python3 -m
unittest."""

import contextlib
import io
import json
import os
import pathlib
import re
import sys
import subprocess
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import case
import curve
import driver
import estimate
import machine
import protocol
import runner
import switch
import table
import tree
import verdicts
import ways


class Intervals(unittest.TestCase):
    def test_five_rounds_give_their_range(self):
        low, high, coverage = estimate.interval([3.0, 1.0, 2.0, 5.0, 4.0])
        self.assertEqual((low, high), (1.0, 5.0))
        self.assertAlmostEqual(coverage, 0.9375)

    def test_more_rounds_leave_the_outermost_out(self):
        low, high, coverage = estimate.interval(range(1, 10))
        self.assertEqual((low, high), (2, 8))
        self.assertAlmostEqual(coverage, 1 - 2 * 10 / 512)

    def test_one_round_covers_nothing(self):
        self.assertEqual(estimate.interval([2.0]), (2.0, 2.0, 0.0))

    def test_ratios_are_taken_within_rounds(self):
        # Each round is twice as slow as the one before: unpaired medians would show nothing.
        plain = {number: 2.0**number for number in range(5)}
        ratio = estimate.Ratio({number: 0.9 * value for number, value in plain.items()}, plain)
        self.assertAlmostEqual(ratio.low, 0.9)
        self.assertAlmostEqual(ratio.high, 0.9)

    def test_a_round_without_its_pair_does_not_count(self):
        self.assertEqual(estimate.Ratio({1: 2.0, 2: 9.0}, {1: 1.0, 3: 1.0}).median, 2.0)
        with self.assertRaises(ValueError):
            estimate.Ratio({1: 2.0}, {2: 1.0})

    def test_geometric_mean(self):
        self.assertAlmostEqual(estimate.geometric_mean([0.5, 2.0]), 1.0)


class Curve(unittest.TestCase):
    def results(self, ours):
        """Returns results of one program: it takes 2 s plain, 1.5 s in the best other way, and
        `ours` seconds under megapage."""
        seconds = {ways.BASELINE: 2.0, ways.BEST: 1.5, ways.OURS: ours}
        times = {way: {"cpu": value} for way, value in seconds.items()}
        runs = [{"case": "one", "way": way, "round": number, "failed": None, "steady": times[way], "whole": times[way],
                 "memory": {"end": {"huge_share": 0.9}}} for way in seconds for number in range(3)]
        return {"cases": [{"name": "one", "program": "One, a program", "best": "mimalloc"}], "runs": runs}

    def test_a_point_has_the_ratios_to_plain(self):
        [point] = curve.points_of(self.results(1.0), 64 << 20)
        self.assertEqual((point["size"], point[ways.OURS]["huge"]), (64 << 20, 0.9))
        self.assertEqual((point[ways.OURS]["steady"]["median"], point[ways.BEST]["whole"]["median"]), (0.5, 0.75))

    def test_a_mean_is_of_every_program(self):
        points = curve.points_of(self.results(1.0), 1) + curve.points_of(self.results(0.25), 2)
        points[1]["case"] = "two"
        points.append({**points[0], "case": "two"})
        # One program is missing at the larger size.
        self.assertEqual(curve.means(points, "steady", ways.OURS), {1: 0.5})


class Messages(unittest.TestCase):
    def test_pieces_make_lines(self):
        parser = protocol.Parser()
        self.assertEqual(parser.feed(b"phase ste"), [])
        self.assertEqual(parser.feed(b"ady\nans"), [("phase", "steady")])
        self.assertEqual(parser.feed(b"wer 4 2\nphase end\n"), [("answer", "4 2"), ("phase", "end")])
        parser.check_complete()
        self.assertEqual(parser.answer, "4 2")

    def refuses(self, text):
        with self.assertRaises(protocol.ProtocolError, msg=text):
            protocol.Parser().feed(text)

    def test_what_is_no_protocol_is_refused(self):
        for text in (b"phase middle\n", b"phase end\n", b"phase steady\nphase steady\n", b"phase steady\nphase setup\n",
                     b"answer\n", b"answer 1\nanswer 1\n", b"stall x\n", b"stall 1.0\nstall 1.0\n", b"hello\n", b"x" * 70_000):
            self.refuses(text)

    def test_a_run_that_stops_early_is_not_complete(self):
        for text in (b"", b"phase steady\n", b"answer 1\nphase steady\n", b"phase steady\nphase end\n"):
            parser = protocol.Parser()
            parser.feed(text)
            with self.assertRaises(protocol.ProtocolError, msg=text):
                parser.check_complete()


class Headers(unittest.TestCase):
    HEAD = "program: A\n{c} class: b\n{c} version: c --version\n"

    def test_comments_of_every_language(self):
        for comment in ("#", "//", "--"):
            text = f"{comment} " + self.HEAD.format(c=comment) + f"{comment} random: yes\n\nrest: of it\n"
            found = case.Case(pathlib.Path("a-b.py"), text)
            self.assertEqual((found.name, found.program, found.kind, found.random), ("a-b", "A", "b", True))

    def test_unknown_and_missing_fields_are_refused(self):
        for text in ("# program: A\n", "# " + self.HEAD.format(c="#") + "# randon: yes\n"):
            with self.assertRaises(case.BadCase):
                case.Case(pathlib.Path("a.py"), text)

    def test_what_cannot_be_run_is_refused(self):
        with self.assertRaises(case.BadCase):
            case.Case(pathlib.Path("a.xyz"), "# " + self.HEAD.format(c="#"))

    def test_the_cases_of_the_bench_are_well_formed(self):
        cases = case.discover()
        self.assertGreaterEqual(len(cases), 30)
        for one in cases:
            for name in one.data:
                self.assertTrue((case.HERE / "inputs" / f"{name}.input.py").exists(), f"{one.name}: {name}")

    def test_the_class_large_has_its_own_fields_sizes_and_variants(self):
        head = "# " + self.HEAD.format(c="#") + "# large: 2g\n# expect: 7\n# run: a {variant} {mib} ''\n# large-stop: QUIT\n"
        small = case.Case(pathlib.Path("a.py"), head)
        large = case.Case(pathlib.Path("a.py"), head, 1 << 30, ("b", "--b"))
        self.assertEqual((small.stop, small.expect, small.size, small.timeout), ("TERM", "7", 0, 120))
        self.assertEqual((large.stop, large.expect, large.size, large.timeout), ("QUIT", None, 1 << 30, 600))
        self.assertEqual((large.name, large.program), ("a-b", "A (--b)"))
        self.assertEqual(small.words(small.run, {"variant": "", "mib": 0}), ["a", "0", ""], "a place may be empty")

    def test_large_programs_are_those_of_the_issue_and_small_ones_stay(self):
        large = case.discover(large=True)
        self.assertGreaterEqual(len({one.path for one in large}), 18)
        self.assertTrue(all(1 << 30 <= one.size <= 12 << 30 for one in large))
        self.assertEqual([one.name for one in large if one.path.stem == "java-map"],
                         ["java-map-parallel", "java-map-g1", "java-map-zgc"])
        self.assertEqual(case.discover(["java-map-g1"], True, 1 << 29)[0].size, 1 << 29)
        self.assertEqual(len(case.discover()), 49)
        known = {way.name for way in ways.all_ways(pathlib.Path("x"), pathlib.Path("y"), large=True)}
        self.assertEqual({one.best for one in large} - known, set())

    def test_what_is_no_size_is_refused(self):
        self.assertEqual(case.bytes_of("512m"), 512 << 20)
        for text in ("", "4", "4k", "g", "0g", "1.5g"):
            with self.assertRaises(case.BadCase):
                case.bytes_of(text)


def made(name, way_times, peak=None, share=True, settled=None):
    """Returns the figures of a program whose ways took these times, round by round."""
    runs = []
    for way, times in way_times.items():
        for number, seconds in enumerate(times):
            size = (peak or {}).get(way, 100 << 20)
            measured = {"cpu": seconds, "wall": seconds}
            runs.append({"case": name, "way": way, "round": number, "failed": None, "steady": measured, "whole": measured,
                         "memory": {"peak": size, "end": {"bytes": size, "huge_share": 0.5},
                                    "settled": (settled or {}).get(way, size)}})
    return verdicts.Figures({"name": name, "program": name, "version": "1", "random": share}, runs)


class Verdicts(unittest.TestCase):
    SLOWER, BIGGER, AT_ONCE, EVERY_WAY, BEST_WAY, RANDOM, FORMER_RANDOM = range(7)
    TOLD_SLOWER, TOLD_BIGGER, TOLD_WAYS, TOLD_RANDOM, SAVING, TOLD_PEAK = range(7, 13)

    def judged(self, *figures):
        return [verdict["met"] for verdict in verdicts.judge(list(figures), large=True)]

    def states(self, *figures):
        return [verdict["state"] for verdict in verdicts.judge(list(figures), large=True)]

    def test_all_gates_are_met(self):
        self.assertEqual(self.judged(made("a", {"plain": [1.0] * 5, "ours": [0.7] * 5, "tunable": [0.9] * 5})), [True] * 13)

    def test_former_gates_are_told_from_those_that_count(self):
        former = [verdict["former"] for verdict in verdicts.judge([made("a", {"plain": [1.0], "ours": [1.0]})])]
        self.assertEqual([at for at, is_former in enumerate(former) if is_former],
                         [self.SLOWER, self.BIGGER, self.AT_ONCE, self.EVERY_WAY, self.BEST_WAY, self.RANDOM, self.FORMER_RANDOM])

    def test_slower_beyond_the_noise_is_a_miss_and_within_is_none(self):
        slow = made("a", {"plain": [1.0] * 5, "ours": [1.02, 1.03, 1.02, 1.04, 1.02]})
        self.assertFalse(self.judged(slow)[self.SLOWER])
        noisy = made("a", {"plain": [1.0] * 5, "ours": [1.02, 0.99, 1.02, 1.04, 1.02]})
        self.assertTrue(self.judged(noisy)[self.SLOWER])

    def test_memory_has_a_ratio_and_a_slack(self):
        times = {"plain": [1.0] * 5, "ours": [0.7] * 5}
        self.assertTrue(self.judged(made("a", times, {"ours": 121 << 20}))[self.BIGGER])
        self.assertFalse(self.judged(made("a", times, {"ours": 122 << 20}))[self.BIGGER])

    def test_memory_may_settle_but_must_then_be_gone(self):
        times = {"plain": [1.0] * 5, "ours": [0.7] * 5}
        settling = made("a", times, settled={"plain": 50 << 20, "ours": 60 << 20})
        self.assertTrue(self.judged(settling)[self.BIGGER])
        held = made("a", times, settled={"plain": 50 << 20, "ours": 100 << 20})
        self.assertFalse(self.judged(held)[self.BIGGER])
        self.assertTrue(self.judged(held)[self.AT_ONCE])

    def test_each_other_way_counts_over_all_programs(self):
        losing = made("a", {"plain": [1.0] * 5, "ours": [0.9] * 5, "tunable": [0.8] * 5})
        winning = [made(str(n), {"plain": [1.0] * 5, "ours": [0.7] * 5, "tunable": [0.8] * 5}) for n in range(9)]
        for gate in (self.EVERY_WAY, self.BEST_WAY):
            self.assertFalse(self.judged(losing, *winning[:8])[gate])
            self.assertTrue(self.judged(losing, *winning)[gate])

    def test_losses_to_several_ways_are_not_added_up(self):
        def loses_to(way):
            others = dict.fromkeys(("mimalloc", "jemalloc", "tunable"), [0.9] * 5)
            return made(f"to-{way}", {"plain": [1.0] * 5, **others, "ours": [0.8] * 5, way: [0.7] * 5})
        figures = [loses_to(way) for way in ("mimalloc", "jemalloc", "tunable")]
        figures += [made(str(n), {"plain": [1.0] * 5, "mimalloc": [1.0] * 5, "jemalloc": [1.0] * 5, "tunable": [1.0] * 5,
                                  "ours": [0.8] * 5}) for n in range(8)]
        verdict = self.judged(*figures)
        self.assertTrue(verdict[self.EVERY_WAY])
        self.assertFalse(verdict[self.BEST_WAY])

    def test_only_random_programs_are_in_the_mean(self):
        slow = made("a", {"plain": [1.0] * 5, "ours": [1.0] * 5}, share=False)
        fast = made("b", {"plain": [1.0] * 5, "ours": [0.8] * 5})
        self.assertTrue(self.judged(slow, fast)[self.RANDOM])
        self.assertFalse(self.judged(slow)[self.RANDOM])
        between = made("c", {"plain": [1.0] * 5, "ours": [0.85] * 5})
        self.assertTrue(self.judged(between)[self.RANDOM])
        self.assertFalse(self.judged(between)[self.FORMER_RANDOM])

    def test_a_program_that_failed_in_ours_meets_nothing(self):
        self.assertEqual(self.judged(made("a", {"plain": [1.0] * 5})), [False] * 13)

    def test_an_interval_that_holds_the_rival_tells_nothing(self):
        noisy = made("a", {"plain": [1.0] * 5, "ours": [0.7, 0.7, 0.7, 0.7, 1.1], "tunable": [0.9] * 5})
        found = self.states(noisy)
        for gate in (self.TOLD_WAYS, self.TOLD_RANDOM, self.SAVING):
            self.assertEqual(found[gate], verdicts.UNTOLD)
        few = made("a", {"plain": [1.0] * 3, "ours": [0.7] * 3, "tunable": [0.9] * 3})
        self.assertTrue(all(state == verdicts.UNTOLD for state in self.states(few)[self.TOLD_SLOWER:]))

    def test_three_programs_may_stay_untold_and_none_may_lose(self):
        def program(name, ours):
            return made(name, {"plain": [1.0] * 5, "ours": ours, "tunable": [0.9] * 5})
        fast = [program(f"fast{n}", [0.5] * 5) for n in range(4)]
        untold = [program(f"untold{n}", [0.9, 0.9, 0.9, 0.9, 1.1]) for n in range(4)]
        lost = program("lost", [1.02] * 5)
        self.assertEqual(self.states(*fast, *untold[:3])[self.TOLD_SLOWER], verdicts.MET)
        self.assertEqual(self.states(*fast, *untold)[self.TOLD_SLOWER], verdicts.UNTOLD)
        self.assertEqual(self.states(*fast, lost)[self.TOLD_SLOWER], verdicts.MISSED)

    def test_nine_tenths_of_the_best_saving_are_wanted_where_it_is_worth_it(self):
        def saves(ours, best):
            times = {"plain": [1.0] * 5, "ours": [ours] * 5, "tunable": [best] * 5, "jemalloc": [1.0] * 5}
            return self.states(made("a", times))[self.SAVING]
        self.assertEqual(saves(0.82, 0.80), verdicts.MET)
        self.assertEqual(saves(0.83, 0.80), verdicts.MISSED)
        worth = made("b", {"plain": [1.0] * 5, "ours": [0.8] * 5, "tunable": [0.8] * 5})
        nothing = made("a", {"plain": [1.0] * 5, "ours": [1.0] * 5, "tunable": [0.96] * 5})
        self.assertEqual(self.states(worth, nothing)[self.SAVING], verdicts.MET)
        self.assertEqual(self.states(nothing)[self.SAVING], verdicts.MISSED, "nothing to save shows nothing")


class Mutants(unittest.TestCase):
    """Fake results, made of the committed ones, that no gate may pass."""

    @classmethod
    def setUpClass(cls):
        cls.results = json.loads((driver.HERE.parent / "results/programs.json").read_text())

    def judged(self, change):
        """Returns the state of every gate, by name. `change` returns the run that takes the place
        of ours, from those of plain and of ours by round."""
        found = []
        for one in self.results["cases"]:
            runs = [run for run in self.results["runs"] if run["case"] == one["name"]]
            plain, ours = ({run["round"]: run for run in runs if run["way"] == way} for way in ("plain", "ours"))
            fake = [{**change(plain, number, ours[number]), "way": "ours", "round": number} for number in ours]
            found.append(verdicts.Figures(one, [run for run in runs if run["way"] != "ours"] + fake))
        verdict = verdicts.judge(found, large=True)
        return {gate["gate"]: gate["state"] for gate in verdict if not gate["former"]}

    def test_base_pages_pass_no_gate(self):
        # The same runs, and those of the next round: with the noise of this machine.
        same = self.judged(lambda plain, number, _: plain[number])
        following = self.judged(lambda plain, number, _: plain[number % len(plain) + 1])
        self.assertEqual(len(same), 6)
        for found in (same, following):
            self.assertEqual([gate for gate, state in found.items() if state == verdicts.MET], [])

    def gains(self, memory=1.0, time=0.5):
        """Returns every gate's state where ours takes these parts of plain's time and memory."""
        def change(plain, number, _):
            run = plain[number]
            times = {phase: {what: run[phase][what] * time for what in ("cpu", "wall")} for phase in ("steady", "whole")}
            sizes = {"peak": run["memory"]["peak"] * memory, "settled": run["memory"]["settled"] * memory,
                     "end": run["memory"]["end"]}
            return {**run, **times, "memory": sizes}
        return self.judged(change)

    def test_each_gate_passes_what_gains_and_fails_what_loses(self):
        gained = self.gains()
        self.assertEqual([gate for gate, state in gained.items() if state != verdicts.MET], [])
        fat = self.gains(memory=1.4)
        self.assertEqual([gate.split()[0] for gate, state in fat.items() if state == verdicts.MISSED], ["peak", "peak"])
        slow = self.gains(time=1.05)
        self.assertNotIn(verdicts.MET, slow.values())

    def test_one_round_is_never_bold(self):
        self.assertNotIn("**", table.emphasised(estimate.Ratio({1: 2.0}, {1: 1.0})))

    def test_a_miss_shows_the_measures_outside_the_gate_and_names_what_is_not_told_apart(self):
        unclear = "whole cpu 1.02 [0.98, 1.06], not told apart"
        misses = {"slow": f"steady cpu 1.05 [1.03, 1.10]; {unclear}", "one": unclear, "two": f"{unclear}; {unclear}"}
        self.assertEqual(table.missed(misses), "slow (steady cpu 1.05 [1.03, 1.10]); not told apart: one, two")
        self.assertEqual(table.missed({"slow": "1.05"}), "slow (1.05)")
        self.assertEqual(table.missed({}), "")

    def test_the_table_has_a_row_for_each_program(self):
        figures = [made("first", {"plain": [1.0] * 5, "ours": [0.7] * 5}), made("second", {"plain": [1.0] * 5})]
        results = {
            "rounds": 5, "recorded": "now", "megapage": "megapage 0", "verdicts": verdicts.judge(figures),
            "machine": {"cpu": "c", "cpus": 2, "memory_bytes": 1 << 30, "kernel": "6", "libc": "glibc",
                        "thp": {"enabled": "madvise"}, "hugetlb_2m_pages": 0},
            "ways": [{"name": name, "what": name, "version": None} for name in ("plain", "ours")],
        }
        brief = table.brief(results, figures).splitlines()
        self.assertEqual([line.split()[:2] for line in brief[2:]], [["first", "plain"], ["first", "ours"], ["second", "plain"]])
        text = table.markdown(results, figures)
        self.assertEqual(text.count("| first |"), 2)
        self.assertEqual(text.count("| second |"), 2)
        self.assertIn("**0.70 [0.70, 0.70]**", text)
        self.assertNotIn("What else it costs", text)
        for one in figures:
            one.case = {**one.case, "size": 2 << 30}
        text = table.markdown(results, figures)
        self.assertIn("| first | - -> - | - -> - | - -> - | - -> - |", text)
        self.assertIn("| first | 2048 | 1.0 | **0.70", text)

    def test_the_tables_begin_with_gains_then_losses_and_their_causes(self):
        figures = [made("first", {"plain": [1.0] * 5, "tunable": [0.9] * 5, "ours": [0.7] * 5}),
                   made("second", {"plain": [1.0] * 5, "tunable": [0.8] * 5, "ours": [1.1] * 5})]
        for one in figures:
            one.case = {**one.case, "size": 2 << 30}
        results = {"rounds": 5, "recorded": "now", "megapage": "megapage 0",
                   "machine": {"cpu": "c", "cpus": 2, "memory_bytes": 1 << 30, "kernel": "6"}}
        text = table.opening(results, figures, {"second": "It is sparse."})
        self.assertIn("| first | 2.0 | **0.90 [0.90, 0.90]** tunable | **0.70 [0.70, 0.70]** |", text)
        self.assertIn("| **geometric mean** |  | 0.85 | 0.88 |", text)
        [loss] = [line for line in text.splitlines() if line.startswith("- ")]
        self.assertTrue(loss.startswith("- second: steady cpu 1.10") and "steady 1.38 [1.38, 1.38] of tunable's" in loss, loss)
        self.assertTrue(loss.endswith("It is sparse."))


class FurtherRounds(unittest.TestCase):
    RESULTS = {"build": "b", "machine": {"cpu": "c"}, "ways": ["plain"], "cases": ["a"]}

    def test_rounds_of_another_build_machine_way_or_program_are_refused(self):
        driver.check_same(self.RESULTS, dict(self.RESULTS), "x")
        for name in self.RESULTS:
            with self.assertRaisesRegex(SystemExit, f"another {name}"):
                driver.check_same(self.RESULTS, {**self.RESULTS, name: "other"}, "x")

    EARLIER = [{"case": "a", "way": "plain", "round": number, "failed": None, "answer": "7", "memory": {"peak": number}}
               for number in (1, 2)]

    def test_they_follow_the_earlier_ones(self):
        bench = driver.Bench(None, None, None)
        bench.begin_after(self.EARLIER)
        self.assertEqual((bench.first_round, len(bench.runs)), (3, 2))
        self.assertEqual((bench.answers, bench.peaks), ({"a": "7"}, {"a": 2}), "their answers and sizes hold")

    def test_an_interrupted_bench_makes_the_runs_that_it_lacks(self):
        class Made(driver.Bench):
            def run(self, case, way, number):
                made.append((case.name, way.name, number))

        made, one = [], case.Case(pathlib.Path("a.py"), "# " + Headers.HEAD.format(c="#"))
        bench = Made(driver.arguments_of(["--rounds", "2"]), None, None)
        bench.begin_after(self.EARLIER, further=False)
        bench.all_runs([one], [ways.Way("plain", ""), ways.Way("ours", "")])
        warm = driver.WARM_UP
        self.assertEqual(made, [("a", "plain", warm), ("a", "ours", warm), ("a", "ours", 1), ("a", "ours", 2)])

    def test_it_starts_afresh_after_a_change(self):
        bench, results = driver.Bench(None, None, None), {**self.RESULTS, "schema": driver.SCHEMA}
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "a.json")
            arguments = driver.arguments_of(["--continue", "--save", str(path)])
            driver.begin(bench, results, arguments)
            driver.save({**results, "runs": self.EARLIER}, path)
            with contextlib.redirect_stderr(io.StringIO()):
                driver.begin(bench, {**results, "build": "other"}, arguments)
            self.assertEqual(bench.runs, [])
            driver.begin(bench, results, arguments)
            self.assertEqual((len(bench.runs), bench.first_round), (2, 1))

    def test_what_is_no_result_is_refused_with_its_name(self):
        with tempfile.NamedTemporaryFile("w") as file:
            for text in ("", "[]", '{"schema": "megapage.programs/1"}'):
                pathlib.Path(file.name).write_text(text)
                with self.assertRaisesRegex(SystemExit, file.name):
                    driver.read_results(pathlib.Path(file.name))

    def test_a_build_is_told_by_the_content_and_names_of_its_files(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "bin")
            path.write_text("one")
            first = machine.digest(directory)
            self.assertEqual(machine.digest(directory), first)
            path.write_text("two")
            self.assertNotEqual(machine.digest(directory), first)


class Machine(unittest.TestCase):
    def test_the_setting_is_put_back_whatever_happens(self):
        with tempfile.TemporaryDirectory() as directory:
            file, journal = pathlib.Path(directory, "enabled"), pathlib.Path(directory, "journal")
            file.write_text("always [madvise] never\n")
            settings = ways.Settings(journal, pathlib.Path(directory))
            with self.assertRaises(KeyboardInterrupt), settings.set_to({"enabled": "always"}):
                self.assertEqual((file.read_text(), json.loads(journal.read_text())), ("always", {"enabled": "madvise"}))
                raise KeyboardInterrupt
            self.assertEqual(file.read_text(), "madvise")
            self.assertFalse(journal.exists())

    def test_a_setting_that_the_kernel_does_not_take_is_refused_and_put_back(self):
        with tempfile.TemporaryDirectory() as directory:
            file, journal = pathlib.Path(directory, "pages"), pathlib.Path(directory, "journal")
            file.write_text("3\n")
            settings = ways.Settings(journal, pathlib.Path(directory))
            with mock.patch.object(settings, "now", lambda _: "5"), self.assertRaises(ways.Refused):
                with settings.set_to({"pages": "9"}):
                    self.fail("the pool is too small")
            self.assertEqual((file.read_text(), journal.exists()), ("5", False))

    def test_a_pool_holds_what_a_run_takes(self):
        large = {way.name: way for way in ways.all_ways(pathlib.Path("x"), pathlib.Path("y"), large=True)}
        name = "hugepages/hugepages-1048576kB/nr_hugepages"
        self.assertEqual(large["ours-1g"].needs((2 << 30) + 1)[name], "3")
        self.assertEqual(large["plain"].needs(1 << 30), ways.USUAL)

    def test_peers_are_set_as_the_laboratory_sets_them(self):
        # A test of the laboratory compares this page with its tables.
        page = (driver.driving.REPOSITORY / "docs/lab.md").read_text()
        rows = dict(re.findall(r"^\| ([\w-]+) \| (.+?) \| ", page, re.M))
        for large in (False, True):
            for way in ways.all_ways(pathlib.Path("x"), pathlib.Path("y"), large=large):
                if way.peer is None:
                    continue
                if way.settings:
                    own = {f"{pathlib.Path(name).name} {word}" for name, word in way.settings.items()}
                    self.assertEqual(set(rows[way.peer].split(", ")), own)
                    continue
                words = [f"{name}={value}" for name, value in way.variables.items()]
                words += [f"LD_PRELOAD={way.library.name}"] if way.library else []
                words += ["megapage", "run", *way.options, "--"] if way.build else []
                self.assertEqual(rows[way.peer].strip("`").split(), [*words, "PROGRAM"], way.name)

    def test_what_a_killed_driver_left_is_put_back(self):
        with tempfile.TemporaryDirectory() as directory:
            file, journal = pathlib.Path(directory, "enabled"), pathlib.Path(directory, "journal")
            file.write_text("[always] madvise never\n")
            journal.write_text('{"enabled": "madvise"}')
            settings = ways.Settings(journal, pathlib.Path(directory))
            self.assertEqual(settings.recover(), {"enabled": "madvise"})
            self.assertEqual(file.read_text(), "madvise")
            self.assertIsNone(settings.recover())

    def test_a_process_sees_its_own_processor_time_and_memory(self):
        own = [os.getpid()]
        before, began = tree.processor_seconds(own), time.process_time()
        while time.process_time() - began < 0.1:
            pass
        used = tree.processor_seconds(own) - before
        # The kernel rounds both of its parts down to ticks of 10 ms.
        self.assertGreater(used, 0.07)
        self.assertLess(used, 10)
        sampler = tree.Sampler()
        sampler.sample(own)
        held = tree.memory(own)
        self.assertGreater(sampler.peak, held["anonymous"])
        self.assertTrue(0 <= held["huge_share"] <= 1)

    def test_shared_memory_that_moves_between_readings_counts_once(self):
        moving = {"pss": 3 << 40, "pss_shmem": 2 << 40, "hugetlb": 0}
        with mock.patch.object(tree, "rollup", return_value=moving):
            more = tree.proportional([(1, 1 << 40), (2, 1 << 40)])
        machine = tree.kib_fields("/proc/meminfo", ("Shmem",))["Shmem"]
        self.assertLess(abs(more - machine), 1 << 30)

    def test_memory_of_a_process_that_has_ended_meanwhile_does_not_count(self):
        with mock.patch.object(tree, "rollup", side_effect=FileNotFoundError):
            self.assertEqual(tree.proportional([(1, 1 << 30), (2, 1 << 31)]), -(3 << 30))

    def test_memory_that_processes_share_counts_once(self):
        own = os.getpid()
        with subprocess.Popen(["sleep", "60"]) as other:
            self.assertEqual(tree.address_spaces([own, other.pid, own]), [own, other.pid])
            other.kill()
        self.assertEqual(tree.address_spaces([own, other.pid]), [own, other.pid], "one that is gone is no other's")

    def test_names_with_brackets_do_not_shift_the_fields(self):
        self.assertEqual(tree.fields_of("12 (a) b (c)) S 1 2")[:2], ["S", "1"])


class Switches(unittest.TestCase):
    MAPS = ("400000-a00000 r-xp 00000000 08:01 7 /bin/a\n"
            "1000000-1a00000 rw-p 00000000 00:00 0 [heap]\n"
            "7f0000300000-7f0000b00000 rw-p 00000000 00:00 0 \n"
            "7f0001000000-7f0002000000 rw-s 00000000 00:01 9 /memfd:a (deleted)\n"
            "7f0003000000-7f0003100000 rw-p 00000000 00:00 0 [anon:a]\n"
            "7f0004000000-7f0005000000 rw-p 00000000 00:00 0 [stack]\n")

    def test_only_whole_huge_regions_of_own_memory_are_switched(self):
        self.assertEqual(switch.regions(self.MAPS), [(0x1000000, 0x1a00000), (0x7f0000400000, 0x7f0000a00000)])

    def test_the_first_block_does_not_count_and_each_pair_has_both_kinds(self):
        order = switch.drawn("a", 6)
        self.assertEqual((len(order), sum(order[1:])), (13, 6))
        self.assertTrue(all(sorted(order[at:at + 2]) == [False, True] for at in range(1, 13, 2)))
        self.assertGreater(len({tuple(switch.drawn(name, 6)) for name in "abc"}), 1)
        blocks = [99.0] + [0.8 if huge else 1.0 for huge in order[1:]]
        ratio = switch.ratio_of(order, blocks)
        self.assertAlmostEqual(ratio.low, 0.8)
        self.assertAlmostEqual(ratio.high, 0.8)

    def test_refused_ranges_are_passed_over(self):
        calls = []

        class Libc:
            def syscall(self, number, descriptor, vector, count, advice, flags):
                sizes = [vector[at].size for at in range(count)]
                calls.append([vector[at].begin for at in range(count)])
                # The kernel stops before the first range that it refuses.
                taken = sizes[:sizes.index(13)] if 13 in sizes else sizes
                return sum(taken) or -1

        with mock.patch.object(tree, "LIBC", Libc()):
            switch.advise(os.getpid(), [(1, 4), (2, 13), (3, 13), (4, 4)], switch.MADV_COLD)
        self.assertEqual(calls, [[1, 2, 3, 4], [3, 4], [4]])


class Runs(unittest.TestCase):
    """Runs of a shell script that speaks the protocol."""

    SAY = 'say() { printf "%s\\n" "$@" >"$BENCH_PHASES"; [ "$1" = "answer 1" ] || read -r _ <"$BENCH_GO"; }\n'

    @classmethod
    def setUpClass(cls):
        runner.become_subreaper()

    def run_script(self, script, header="", settle=False):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "script.sh")
            path.write_text(self.SAY + script)
            one = case.Case(path, "# program: A\n# class: b\n# version: c\n# run: bash {case}\n" + header)
            environment = {"PATH": os.environ["PATH"]}
            work = runner.prepare_directory(pathlib.Path(directory, "work"))
            return runner.Run(one, [], (environment, environment), {"case": str(path)}, work, settle).go()

    def test_phases_and_answer(self):
        spin = "for ((i = 0; i < 100000; i++)); do :; done\n"
        found = self.run_script(f'{spin}say "phase steady"\nsleep 0.2\n{spin}say "answer 1"\nsay "phase end"\n')
        self.assertEqual(found["answer"], "1")
        self.assertGreater(found["steady"]["wall"], 0.2)
        self.assertGreater(found["steady"]["stall"], 0.1, "it slept")
        self.assertGreater(found["memory"]["end"]["page_tables"], 0)
        self.assertGreater(found["whole"]["minflt"], 100)
        self.assertGreater(found["steady"]["cpu"], 0.01)
        self.assertGreater(found["whole"]["cpu"], found["steady"]["cpu"])
        self.assertGreater(found["whole"]["wall"], found["steady"]["wall"])
        self.assertGreater(found["memory"]["peak"], 1 << 20)
        self.assertGreater(found["memory"]["end"]["bytes"], 0)

    def test_memory_settles_while_the_program_stands_still(self):
        # The background process ends by itself within the time that memory has to settle.
        script = ('python3 -c "import time; memory = bytearray(64 << 20); print(1, flush=True); time.sleep(0.6)" >ready &\n'
                  'until [ -s ready ]; do sleep 0.02; done\n'
                  'say "phase steady"\nsay "answer 1"\nsay "phase end"\nwait\n')
        memory = self.run_script(script, settle=True)["memory"]
        self.assertGreater(memory["end"]["bytes"], 64 << 20)
        self.assertLess(memory["settled"], 32 << 20)

    def test_work_is_done_in_blocks_while_the_driver_wants_them(self):
        script = ('say "phase steady"\nfor ((block = 1; ; block++)); do printf "phase block\\n" >"$BENCH_PHASES"\n'
                  '  read -r line <"$BENCH_GO"; [ "$line" = go ] || break; done\n'
                  'say "answer 1"\nsay "phase end"\necho "$block" >&2; exit 9\n')
        with mock.patch.object(runner.Run, "reply", lambda run, phase: b"end\n" if run.marks.get("seen") else
                               (run.marks.update(seen=phase == "block"), b"go\n")[1]):
            self.fails("exit status 9\n +2", script)

    def test_commands_without_phases_do_not_settle(self):
        memory = self.run_script("sleep 0.7\n", "# phases: no\n# answer: match x*\n", settle=True)["memory"]
        self.assertEqual(memory["settled"], memory["end"]["bytes"])

    def fails(self, why, script, header=""):
        with self.assertRaisesRegex(runner.Failed, why):
            self.run_script(script, header)

    def test_failures_have_their_reason(self):
        self.fails("exit status 3\n +out of order", "echo out of order >&2; exit 3\n")
        self.fails("ended after phase steady", 'say "phase steady"\n')
        self.fails("gave no answer", 'say "phase steady"\nsay "phase end"\n')
        self.fails("no end after 0", "sleep 60\n", "# timeout: 0.2\n")

    def test_what_is_left_behind_is_ended_and_counted(self):
        mark = f"1234{os.getpid()}"
        script = f'(setsid sleep {mark} &)\nsay "phase steady"\nsay "answer 1"\nsay "phase end"\n'
        self.run_script(script)
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                self.assertNotIn(mark.encode(), path.read_bytes())

    def test_a_command_without_phases_answers_by_its_output(self):
        header = "# phases: no\n# answer: match found \\d+\n"
        found = self.run_script("echo found 17 in 3 s; sleep 0.7\n", header)
        self.assertEqual(found["answer"], "found 17")
        self.assertEqual(found["steady"]["cpu"], found["whole"]["cpu"])


if __name__ == "__main__":
    unittest.main()
