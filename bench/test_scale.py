#!/usr/bin/env python3
"""Tests bench/scale.py without a load: python3 bench/test_scale.py."""

import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import results
import scale

RUN = {"seconds": 2.0, "cpu_seconds": 0.2, "resident_bytes": 12 << 20}
WATCHED = {
    "kind": "processes", "count": 1000, "record": RUN, "top": RUN,
    "daemon": {"first_cpu_seconds": 1.0, "rest_percent": 0.4, "resident_bytes": 29 << 20, "watched": 256, "skipped": 744,
               "passes": 20, "pass_ms": 30.0, "pass_cpu_ms": 20.0, "worst_pass_ms": 100.0},
}
REPORTED = {
    "kind": "report", "count": 12, "without_p999_ms": 0.02, "with_p999_ms": 0.03, "with_median_longest_wait_ms": 1.5,
    "with_least_waits": 3, "with_least_samples": 20, "with_least_filled_bytes": 3 << 30,
    "with_launcher_percent": 0.5, "with_launcher_bytes": 8 << 20,
}
MODELLED = {"kind": "model", "count": 10000, "regions": 520000, "mean_ms": 40.0, "worst_ms": 60.0, "state_bytes": 9 << 20}
POINTS = [WATCHED, WATCHED | {"kind": "memory", "count": 12}, REPORTED, MODELLED]


class Gates(unittest.TestCase):
    def test_a_result_within_the_bounds_holds_and_is_accepted(self):
        judged = scale.gates(POINTS)
        self.assertEqual([line for line in judged if not line["holds"]], [])
        self.assertEqual(len(judged), 8)
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "scale.json"
            options = argparse.Namespace(megapage="true", seconds=60)
            path.write_text(json.dumps(scale.document(options, POINTS, [], judged)))
            self.assertIsNone(results.lacks(path))

    def test_each_bound_fails_alone_if_one_point_is_beyond_it(self):
        beyond = (
            ("at rest", 1, ("daemon", "rest_percent"), 0.51),
            ("resident peak", 0, ("daemon", "resident_bytes"), 65 << 20),
            ("part of a pass", 0, ("daemon", "worst_pass_ms"), 250.0),
            ("look of record", 1, ("record", "cpu_seconds"), 1.1),
            ("look of top", 0, ("top", "cpu_seconds"), 1.1),
            ("the launcher", 2, ("with_launcher_percent",), 1.01),
            ("longest wait", 2, ("with_median_longest_wait_ms",), 80.0),
            ("longest wait", 2, ("with_least_waits",), 0),
            ("longest wait", 2, ("with_least_samples",), 0),
            ("longest wait", 2, ("with_least_filled_bytes",), 0),
            ("step of the policy", 3, ("worst_ms",), 101.0),
        )
        for demand, at, keys, value in beyond:
            points = json.loads(json.dumps(POINTS))
            place = points[at]
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = value
            failed = [line["demand"] for line in scale.gates(points) if not line["holds"]]
            self.assertEqual(len(failed), 1, (demand, failed))
            self.assertIn(demand, failed[0])

    def test_what_was_not_measured_holds_nothing(self):
        self.assertEqual(scale.gates([]), [])

    def test_the_median_of_the_longest_waits_counts_and_the_least_of_what_must_be_there(self):
        without = [{"pairs": 9, "p999_ms": 0.1}] * 3
        runs = [{"pairs": 9, "waits": waits, "samples": 5, "filled_bytes": 1, "longest_wait_ms": wait}
                for waits, wait in ((4, 2.0), (0, 30.0), (7, 3.0))]
        found = scale.of_runs(without, runs)
        self.assertEqual((found["with_median_longest_wait_ms"], found["with_longest_wait_ms"]), (3.0, 30.0))
        self.assertEqual((found["with_least_waits"], found["with_least_samples"], found["without_p999_ms"]), (0, 5, 0.1))

    def test_a_run_that_leaves_everything_out_fails(self):
        said = io.StringIO()
        with unittest.mock.patch("os.geteuid", return_value=0), contextlib.redirect_stdout(said):
            self.assertEqual(scale.main(["--only", "memory,report", "--memory", "0"]), 2)
        self.assertIn("left out", said.getvalue())
        self.assertIn("12 GiB", said.getvalue())

    def test_the_tables_have_a_row_for_each_point(self):
        rows = [line for line in scale.table(POINTS).splitlines() if line.startswith("| 1")]
        self.assertEqual(len(rows), len(POINTS))
        self.assertTrue(rows[0].startswith("| 1,000 processes | 1.00 s | 0.40 % | 29 MiB |"), rows[0])


class ProcessorTime(unittest.TestCase):
    def test_the_time_of_helpers_of_any_thread_counts_without_the_program(self):
        # A thread starts the helper, and the helper forks. Both use CPU time.
        helper = "import os, time; os.fork(); end = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n" \
                 "os.write(1, b'x'); os.read(0, 1)"
        parent = "import subprocess, sys, threading\n" \
                 "threads = [threading.Thread(target=lambda: subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait())]\n" \
                 "threads[0].start(); threads[0].join()"
        with subprocess.Popen([sys.executable, "-c", parent, helper], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
            self.assertEqual(one.stdout.read(2), b"xx")
            self.assertGreaterEqual(scale.cpu_seconds(one.pid), 0.35)
            children = pathlib.Path(f"/proc/{one.pid}/task").glob("*/children")
            program = int("".join(file.read_text() for file in children).split()[0])
            self.assertLess(scale.cpu_seconds(one.pid, but=program), 0.35)
            one.stdin.close()


class Metrics(unittest.TestCase):
    def test_the_longest_part_is_the_end_of_its_class(self):
        metrics = {"megapage_passes_total": 4.0, "megapage_pass_cpu_seconds_total": 0.02,
                   'megapage_pass_seconds_sum{part="observe"}': 0.1, 'megapage_pass_seconds_sum{part="act"}': 0.02}
        for part, counts in (("observe", (3, 4, 4)), ("decide", (4, 4, 4)), ("act", (4, 4, 4))):
            for bound, count in zip(("0.01", "0.05", "+Inf"), counts):
                metrics[f'megapage_pass_seconds_bucket{{part="{part}",le="{bound}"}}'] = float(count)
        found = scale.pass_times(metrics)
        self.assertEqual(found, {"passes": 4, "pass_ms": 30.0, "worst_pass_ms": 50.0, "pass_cpu_ms": 5.0})
        # Beyond the last bucket, no bound is known.
        metrics['megapage_pass_seconds_bucket{part="act",le="+Inf"}'] = 5.0
        self.assertEqual(scale.pass_times(metrics)["worst_pass_ms"], float("inf"))

    def test_points_need_the_memory_that_they_touch(self):
        self.assertEqual(scale.needed("memory", 4), (4 << 30) + scale.SHARED)
        self.assertEqual(scale.needed("report", 4), (5 << 30) + scale.SHARED)
        self.assertEqual(scale.needed("mappings", 65000), 65000 * (64 << 10) + scale.SHARED)
        self.assertLess(scale.needed("processes", 1000), 1 << 30)


if __name__ == "__main__":
    unittest.main()
