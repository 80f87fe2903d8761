#!/usr/bin/env python3
"""Measures the cost of the daemon, `run --report`, `record` and `top` at scale, against bounds.

usage: bench/scale.py [--megapage PROGRAM] [--save FILE] [--only KIND,...] [--memory GIB]
                      [--seconds 60]

Each load is idle: touched memory, one process with many mappings, many processes, or many control
groups (each with a limit and one process). The daemon runs beside the load with its defaults, but
may only touch the load's processes. Then `record --once` and `top --once` run.

For `run --report`, a program on base pages maps and unmaps small pieces and fills a large mapping.
The bench measures the longest wait of this program for its mmap lock.

The last part times the policy on a synthetic snapshot; no process runs.

Skips points that need more than --memory, and prints their names. Needs root and a C compiler.
Exit status: 0 if all gates hold; 1 if one fails; 2 if the bench cannot run or skips every point.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "programs"), str(HERE.parent / "tests")]
import driving
import machine
import tree

SCHEMA = "megapage.scale/1"
GIB, MIB = 1 << 30, 1 << 20
# Each idle process maps this much of one memory file. The daemon skips smaller processes.
SHARED = 64 * MIB
# Other memory of an idle process: page tables, stack and kernel objects.
OF_PROCESS = 512 << 10
PIECE = 64 << 10
POINTS = {
    "nothing": (0,),
    "memory": (1, 4, 12),
    "mappings": (1000, 8000, 65000),
    "processes": (100, 300, 1000),
    "groups": (100, 500, 2000),
    "report": (1, 4, 12),
    "model": (1000, 10000),
}
# The unit of the count of each kind.
UNITS = {"nothing": "", "memory": " GiB", "mappings": " mappings", "processes": " processes", "groups": " groups",
         "report": " GiB with a report", "model": " processes"}
# Memory of all processes in the synthetic snapshot.
MODEL_BYTES = 1 << 40
# The bounds of the gates.
MOST_REST_PERCENT = 0.5
MOST_RESIDENT = 64 * MIB
MOST_PASS_MS = 100.0
MOST_LAUNCHER_PERCENT = 1.0
MOST_RECORD_SECONDS = MOST_TOP_SECONDS = 1.0
MOST_WAIT_MS = 10.0


def needed(kind, count):
    """Returns the bytes of memory that a point takes."""
    sizes = {"memory": GIB, "report": GIB * 5 // 4, "mappings": PIECE, "processes": OF_PROCESS, "groups": OF_PROCESS}
    return sizes.get(kind, 0) * count + SHARED


def peak_bytes(pid):
    return tree.kib_fields(f"/proc/{pid}/status", ["VmHWM"])["VmHWM"]


def cpu_seconds(pid, but=None):
    """Returns the CPU time of a process and of all its descendants, ended and running. Excludes the
    process `but` and its descendants."""
    excluded = tree.descendants([but]) if but else []
    return tree.processor_seconds([one for one in tree.descendants([pid]) if one not in excluded])


def read_metrics(path):
    """Returns the daemon's metrics by name, labels included."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(60)
        stream.connect(path)
        stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: stream.recv(65536), b"")).decode()
    return {name: float(value) for name, value in re.findall(r"^(megapage_\S+?(?:\{[^}]*\})?) (\S+)$", text, re.M)}


def pass_times(metrics):
    """Returns the number of passes, their mean time, and an upper bound of the longest part of a
    pass: the upper end of its histogram bucket."""
    passes = metrics["megapage_passes_total"]
    total = sum(value for name, value in metrics.items() if name.startswith("megapage_pass_seconds_sum"))
    worst = 0.0
    for part in ("observe", "decide", "act"):
        buckets = [(float(re.search(r'le="([^"]+)"', name)[1]), value) for name, value in metrics.items()
                   if name.startswith("megapage_pass_seconds_bucket") and f'part="{part}"' in name]
        most = max((value for _, value in buckets), default=0)
        worst = max(worst, min((bound for bound, value in buckets if value == most), default=0.0))
    cpu = metrics["megapage_pass_cpu_seconds_total"]
    return {"passes": int(passes), "pass_ms": round(1e3 * total / max(passes, 1), 3), "worst_pass_ms": 1e3 * worst,
            "pass_cpu_ms": round(1e3 * cpu / max(passes, 1), 3)}


class Load:
    """The processes of a point. On exit, ends them and removes their control groups."""

    def __init__(self, program, kind, count):
        self.program, self.kind, self.count = program, kind, count
        self.processes, self.groups = [], []

    def start(self, *words, **options):
        one = subprocess.Popen([self.program, *map(str, words)], stdin=self.end_of_load, stdout=subprocess.PIPE, **options)
        self.processes.append(one)
        return one

    def __enter__(self):
        self.end_of_load, self.alive = os.pipe()
        os.set_inheritable(self.alive, False)
        try:
            self.begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def begin(self):
        if self.kind == "memory":
            self.start("memory", self.count * GIB)
        elif self.kind == "mappings":
            self.start("mappings", self.count)
        elif self.kind in ("processes", "groups"):
            file = os.memfd_create("scale")
            os.posix_fallocate(file, 0, SHARED)
            for number in range(self.count):
                one = self.start("idle", file, SHARED, pass_fds=[file])
                if self.kind == "groups":
                    self.groups.append(group(number, one.pid))
            os.close(file)
        for one in self.processes:
            if one.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{self.kind} {self.count}: the load did not start")

    def __exit__(self, *_):
        os.close(self.alive)
        for one in self.processes:
            one.wait()
            one.stdout.close()
        os.close(self.end_of_load)
        for directory in self.groups:
            directory.rmdir()
        if self.groups:
            self.groups[0].parent.rmdir()


def groups_at():
    """Returns a directory for control groups with a memory limit, and the name of the limit's file.
    Returns None if this user cannot create such groups."""
    for top, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        there = pathlib.Path(top)
        controls = there / "cgroup.subtree_control"
        usable = (there / limit).exists() or (controls.exists() and "memory" in controls.read_text())
        if usable and os.access(there, os.W_OK):
            return there / "megapage-scale", limit
    return None


def group(number, pid):
    """Makes a control group with a limit that its process cannot reach; moves the process there."""
    top, limit = groups_at()
    if not top.exists():
        top.mkdir()
        if limit == "memory.max":
            (top / "cgroup.subtree_control").write_text("+memory")
    directory = top / str(number)
    directory.mkdir()
    (directory / limit).write_text(str(GIB))
    (directory / "cgroup.procs").write_text(str(pid))
    return directory


def daemon(megapage, directory, seconds):
    """Runs the daemon for twice `seconds`. Returns its CPU time in each half, and its metrics."""
    socket_path = f"{directory}/socket"
    config = directory / "daemon.toml"
    # The defaults, except for the paths of its files and the processes that it may touch.
    config.write_text(f"lock_file = '{directory}/lock'\nstate_file = ''\n[metrics]\nsocket = '{socket_path}'\n"
                      "[processes]\ninclude = ['^scale_load$']\n")
    log = directory / "log"
    with open(log, "w") as file:
        process = subprocess.Popen([megapage, "daemon", "--config", config], stderr=file)
    try:
        time.sleep(seconds)
        first = cpu_seconds(process.pid)
        time.sleep(seconds)
        rest = cpu_seconds(process.pid) - first
        found = read_metrics(socket_path)
        return {"first_cpu_seconds": first, "rest_percent": round(100 * rest / seconds, 3),
                "resident_bytes": peak_bytes(process.pid),
                "watched": int(found["megapage_watched_processes"]), "skipped": int(found["megapage_skipped_processes"]),
                **pass_times(found)}
    except OSError as error:
        raise RuntimeError(f"the daemon: {error}: {log.read_text()[-500:]}") from error
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)


def one_run(words):
    """Runs a command. Returns its wall time, its CPU time and its resident peak. Reads the peak
    every 20 ms."""
    begun, peak = time.monotonic(), 0
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while True:
        with contextlib.suppress(OSError):
            peak = max(peak, peak_bytes(process.pid))
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}: status {process.returncode}")
    return {"seconds": round(time.monotonic() - begun, 3), "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
            "resident_bytes": peak}


def loop(words, seconds):
    """Runs the loop to its end. Returns its times, and the launcher's CPU time (with its helpers)
    and resident peak."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    found = json.loads(process.stdout.readline())
    program = found.pop("pid")
    # Without a report, the launcher executes the program in its own process.
    if program != process.pid:
        found["launcher_percent"] = round(100 * cpu_seconds(process.pid, but=program) / seconds, 3)
        found["launcher_bytes"] = peak_bytes(process.pid)
    process.stdin.close()
    process.stdout.close()
    process.wait()
    return found


def of_runs(without, with_report):
    """Combines the runs of a program: the maximum of each value, the median of the longest waits,
    and the minimum of the values that must not be zero."""
    worst = {f"{name}_{key}": max(one[key] for one in runs)
             for name, runs in (("without", without), ("with", with_report)) for key in runs[0]}
    # Other work on the machine can disturb one run: the median ignores it.
    worst["with_median_longest_wait_ms"] = statistics.median(one["longest_wait_ms"] for one in with_report)
    for key in ("waits", "samples", "filled_bytes"):
        worst[f"with_least_{key}"] = min(one[key] for one in with_report)
    return worst


def report(megapage, program, directory, gib, seconds):
    """Measures a program on base pages: alternates runs without and with a report."""
    path = directory / "report"
    runs = {"without": [], "with": []}
    for _ in range(3):
        for name, of in runs.items():
            options = ["--json", "--report", path] if name == "with" else []
            words = [megapage, "run", "--heap", "none", *options, "--", program, "loop", str(gib * GIB), str(seconds)]
            of.append(loop(words, seconds))
        runs["with"][-1]["samples"] = json.loads(path.read_text())["sampling"]["samples"]
    return of_runs(runs["without"], runs["with"])


def model(processes):
    """Times the policy on a synthetic snapshot with this many processes."""
    words = ["cargo", "bench", "--quiet", "--package", "megapage-daemon", "--bench", "decide", "--",
             str(processes), str(MODEL_BYTES)]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE.parent).stdout)


def measure(options, program, directory, kind, count):
    if kind == "report":
        return report(options.megapage, program, directory, count, options.seconds / 4)
    if kind == "model":
        return model(count)
    with Load(program, kind, count):
        found = {"daemon": daemon(options.megapage, directory, options.seconds)}
        recording = directory / "recording"
        recording.unlink(missing_ok=True)
        found["record"] = one_run([options.megapage, "record", "--once", "--every", "1", "--budget", "50", "--output", recording])
        found["top"] = one_run([options.megapage, "top", "--once", "--delay", "1"])
        return found


def longest_wait(point):
    """Returns the longest wait of a program, in ms. Returns infinity if a run has no wait, no
    sample or no new mapping: such a run proves nothing."""
    missing = any(point[f"with_least_{key}"] == 0 for key in ("waits", "samples", "filled_bytes"))
    return float("inf") if missing else point["with_median_longest_wait_ms"]


def gates(points):
    """Judges the points. A gate holds if every point of its kinds is within the bound."""
    judged = []

    def gate(kinds, demand, value, most, unit):
        over = [(value(point), point) for point in points if point["kind"] in kinds]
        if over:
            worst, at = max(over, key=lambda pair: pair[0])
            judged.append({"case": "scale", "demand": f"{demand}: at most {most:g} {unit}",
                           "found": f"{worst:.3g} {unit} ({name(at)})", "holds": worst <= most})

    watched = ("nothing", "memory", "mappings", "processes", "groups")
    gate(watched, "the daemon at rest", lambda point: point["daemon"]["rest_percent"], MOST_REST_PERCENT, "% of a processor")
    gate(watched, "the daemon's resident peak", lambda point: point["daemon"]["resident_bytes"] / MIB, MOST_RESIDENT / MIB, "MiB")
    gate(watched, "the longest part of a pass", lambda point: point["daemon"]["worst_pass_ms"], MOST_PASS_MS, "ms")
    for tool, most in (("record", MOST_RECORD_SECONDS), ("top", MOST_TOP_SECONDS)):
        gate(watched, f"one look of {tool}", lambda point, tool=tool: point[tool]["cpu_seconds"], most, "s of a processor")
    gate(("report",), "the launcher", lambda point: point["with_launcher_percent"], MOST_LAUNCHER_PERCENT, "% of a processor")
    gate(("report",), "the program's longest wait for its mmap lock", longest_wait, MOST_WAIT_MS, "ms")
    gate(("model",), "a step of the policy", lambda point: point["worst_ms"], MOST_PASS_MS, "ms")
    return judged


def document(options, points, left_out, judged):
    """Returns the result in the form of --save."""
    return {
        "schema": SCHEMA, "bench": "scale", "ended": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "build": {"version": machine.megapage_version(options.megapage), "source": os.environ.get("MEGAPAGE_BENCH_SOURCE", "")},
        "machine": machine.describe(), "seconds": options.seconds, "points": points, "left_out": left_out, "gates": judged,
    }


def name(point):
    return f"{point['count']:,}{UNITS[point['kind']]}" if point["count"] else "nothing"


def table(points):
    """Returns the points as Markdown tables."""
    lines = ["| load | daemon: first minute | at rest | peak | pass, mean | its CPU | worst | watched | `record`, one look | `top`, one look |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for point in points:
        if "daemon" in point:
            it = point["daemon"]
            cells = [name(point), f"{it['first_cpu_seconds']:.2f} s", f"{it['rest_percent']:.2f} %",
                     f"{it['resident_bytes'] / MIB:.0f} MiB", f"{it['pass_ms']:.1f} ms", f"{it['pass_cpu_ms']:.1f} ms", f"≤ {it['worst_pass_ms']:g} ms",
                     str(it["watched"]), *(f"{point[tool]['cpu_seconds']:.2f} s, {point[tool]['resident_bytes'] / MIB:.0f} MiB"
                                           for tool in ("record", "top"))]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| on base pages | p99.9 without, with `--report` | longest wait | launcher | its peak |", "|---|---|---|---|---|"]
    for point in points:
        if point["kind"] == "report":
            cells = [name(point), f"{point['without_p999_ms']:.3f}, {point['with_p999_ms']:.3f} ms",
                     f"{point['with_median_longest_wait_ms']:.1f} ms", f"{point['with_launcher_percent']:.2f} %",
                     f"{point['with_launcher_bytes'] / MIB:.0f} MiB"]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| modelled | regions | step, mean | worst | memory of the policy |", "|---|---|---|---|---|"]
    for point in points:
        if point["kind"] == "model":
            cells = [name(point), f"{point['regions']:,}", f"{point['mean_ms']:.0f} ms", f"{point['worst_ms']:.0f} ms",
                     f"{point['state_bytes'] / MIB:.0f} MiB"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", driving.REPOSITORY / "target"))
    parser.add_argument("--megapage", type=pathlib.Path, default=target / "release/megapage", help="default: %(default)s")
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="write every point and the gates, as JSON")
    parser.add_argument("--only", metavar="KIND,...", default=",".join(POINTS), help="default: %(default)s")
    parser.add_argument("--memory", type=float, metavar="GIB", help="skip points that need more; default: 3/4 of the available memory")
    parser.add_argument("--seconds", type=float, default=60, help="default: %(default)s")
    options = parser.parse_args(words)
    options.megapage = options.megapage.absolute()
    kinds = options.only.split(",")
    if unknown := set(kinds) - set(POINTS):
        parser.error(f"unknown kind {', '.join(sorted(unknown))}; the kinds are {', '.join(POINTS)}")
    if os.geteuid() != 0:
        parser.error("needs root, for other users' processes and for control groups")
    most = machine.available() * 3 // 4 if options.memory is None else options.memory * GIB
    wanted, left_out = [], []
    for kind in kinds:
        for count in POINTS[kind]:
            fits = needed(kind, count) <= most and (kind != "groups" or groups_at())
            (wanted if fits else left_out).append({"kind": kind, "count": count})
    left_out = [name(point) for point in left_out]
    if left_out:
        print(f"left out (too little memory, or no control groups): {'; '.join(left_out)}")
    if not wanted:
        return 2
    points = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="megapage-scale-") as scratch:
        directory = pathlib.Path(scratch)
        program = directory / "scale_load"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "scale_load.c"], check=True)
        for point in wanted:
            print(f"scale: {name(point)}", file=sys.stderr, flush=True)
            points.append(point | measure(options, program, directory, **point))
    judged = gates(points)
    if options.save:
        options.save.write_text(json.dumps(document(options, points, left_out, judged), indent=1) + "\n")
    print(table(points))
    for line in judged:
        print(f"{'holds' if line['holds'] else 'FAILS'}: {line['demand']}: {line['found']}")
    return 0 if all(line["holds"] for line in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
