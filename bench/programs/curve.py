#!/usr/bin/env python3
"""Measures the gain of huge pages against program size. Runs programs of the class large at several
sizes: plain, in the best other way, and under `megapage run`. README.md describes its use.

Each size is one run of the driver. After an interruption, the same command continues that run.
"""

import argparse
import json
import pathlib
import subprocess
import sys

import case as cases_module
import driver
import estimate
import install
import verdicts
from ways import BASELINE, BEST, OURS

SCHEMA = "megapage.programs-curve/1"
SIZES = "64m,256m,1g,4g,12g"
PROGRAMS = "cpp-map,rust-maps,go-map,java-map-g1,python-dict,sqlite-lookup,redis-get,memcached-get"
# Fields of the driver's results that must be equal at all sizes.
SHARED = ("machine", "megapage", "build", "ways")
MEAN = "mean"


def measured(arguments, size):
    """Runs the driver at one size; returns its results."""
    path = install.TARGET / f"curve/{size}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Within this process: a signal unwinds the driver, which restores the machine's settings. Failed
    # runs and failed gates do not stop the other sizes.
    driver.main(["--megapage", str(arguments.megapage), "--class", "large", "--size", size, "--only", arguments.only,
                 "--ways", f"{BASELINE},{BEST},{OURS}", "--rounds", str(arguments.rounds), "--continue", "--save", str(path)])
    return driver.read_results(path)


def points_of(results, size):
    """Returns one point for each program at one size: the ratios to plain of the steady phase and
    of the whole run, and the share of memory on huge pages."""
    found = []
    for figures in verdicts.figures_of(results):
        case = figures.case
        point = {"case": case["name"], "program": case["program"], "size": size, "best": case["best"]}
        for way in (BEST, OURS):
            ratios = {phase: figures.ratio(way, phase, "cpu") for phase in ("steady", "whole")}
            if None not in ratios.values():
                point[way] = {phase: ratio.as_json() for phase, ratio in ratios.items()}
                point[way]["huge"] = figures.median(way, "memory", "end", "huge_share")
        found.append(point)
    return found


def means(points, phase, way):
    """Returns the geometric mean for each size at which every program was measured."""
    cases = {point["case"] for point in points}
    by_size = {}
    for point in points:
        if way in point:
            by_size.setdefault(point["size"], []).append(point[way][phase]["median"])
    return {size: estimate.geometric_mean(values) for size, values in sorted(by_size.items()) if len(values) == len(cases)}


def draw(results, path, phase="steady"):
    """Draws an SVG with a panel for the mean and a panel for each program."""
    # Only the picture needs this package of the bench's venv.
    import matplotlib
    matplotlib.use("svg")
    # Makes the file reproducible.
    matplotlib.rcParams.update({"svg.hashsalt": "megapage", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    points = results["points"]
    names = {point["case"]: point["program"].split(",")[0] for point in points}
    figure, axes = pyplot.subplots(3, 3, figsize=(9, 7.5), sharex=True, sharey=True)
    for panel, name in zip(axes.flat, [MEAN, *names]):
        panel.axhline(1, color="#777777", linewidth=0.8)
        for way, colour, label in ((BEST, "#d55e00", "best other way"), (OURS, "#0072b2", "megapage run")):
            if name == MEAN:
                line = means(points, phase, way)
            else:
                own = {point["size"]: point[way][phase] for point in points if point["case"] == name and way in point}
                line = {size: ratio["median"] for size, ratio in sorted(own.items())}
                panel.fill_between(list(line), [own[size]["low"] for size in line], [own[size]["high"] for size in line],
                                   color=colour, alpha=0.15, linewidth=0)
            panel.plot(list(line), list(line.values()), color=colour, marker="o", markersize=3, label=label,
                       linewidth=2.2 if name == MEAN else 1.3)
        panel.set_title(f"mean of {len(names)} programs" if name == MEAN else names[name], fontsize=9,
                        fontweight="bold" if name == MEAN else "normal")
    first = axes.flat[0]
    sizes = sorted({point["size"] for point in points})
    first.set_xscale("log", base=2)
    first.set_xticks(sizes, [f"{size >> 30} GiB" if size >> 30 else f"{size >> 20} MiB" for size in sizes])
    first.set_ylim(0.3, 1.25)
    first.legend(loc="lower left", frameon=False)
    for panel in axes.flat:
        panel.minorticks_off()
        panel.tick_params(axis="x", rotation=45)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supylabel("processor time, ratio to plain")
    figure.supxlabel("memory of the program")
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    path.write_text("".join(f"{line.rstrip()}\n" for line in path.read_text().splitlines()))


def main():
    parser = argparse.ArgumentParser(description="Measures the gain of huge pages against program size.")
    parser.add_argument("--megapage", type=pathlib.Path, default=install.TARGET.parent / "release/megapage",
                        help="default: %(default)s")
    parser.add_argument("--sizes", default=SIZES, metavar="SIZE,...", help="default: %(default)s")
    parser.add_argument("--only", default=PROGRAMS, metavar="CASE,...", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="write the points, as JSON")
    parser.add_argument("--from", type=pathlib.Path, dest="source", metavar="FILE",
                        help="run nothing: draw the points of an earlier --save")
    parser.add_argument("--picture", type=pathlib.Path, metavar="FILE", help="draw the points, as SVG")
    arguments = parser.parse_args()
    if arguments.picture and not (arguments.save or arguments.source):
        parser.error("--picture draws the points of --save or --from")
    if arguments.source:
        results = json.loads(arguments.source.read_text())
    else:
        results = {"schema": SCHEMA, "rounds": arguments.rounds, "points": []}
        for size in driver.split(arguments.sizes):
            one = measured(arguments, size)
            other = next((field for field in SHARED if results.get(field, one[field]) != one[field]), None)
            if other:
                sys.exit(f"curve: size {size} was measured with another {other}; measure all sizes again")
            results.update({field: one[field] for field in ("recorded", *SHARED)})
            results["points"] += points_of(one, cases_module.bytes_of(size))
            if arguments.save:
                driver.save(results, arguments.save)
    if arguments.picture and arguments.source:
        draw(results, arguments.picture)
    elif arguments.picture:
        # The interpreter of the venv has matplotlib.
        subprocess.run([install.python(), __file__, "--from", arguments.save, "--picture", arguments.picture], check=True)
        return 0
    for phase in ("steady", "whole"):
        shown = {way: means(results["points"], phase, way) for way in (BEST, OURS)}
        for size in sorted({point["size"] for point in results["points"]}):
            line = ", ".join(f"{way} {shown[way][size]:.3f}" for way in shown if size in shown[way])
            print(f"{phase}, {size >> 20} MiB: {line or 'not every program was measured'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
