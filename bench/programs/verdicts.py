"""The gates that megapage's default has to pass on the programs of the bench."""

import statistics

import estimate
from ways import BASELINE, OURS

SLOWER = 1.01
MEMORY_RATIO, MEMORY_SLACK = 1.05, 16 << 20
AS_GOOD_SHARE = 0.9
RANDOM_MEAN = 0.90
# The former bound. The results also show the mean that the best of all ways reaches, chosen for
# each program afterwards.
FORMER_RANDOM_MEAN = 0.80
# The four times in which no program may be slower.
TIMES = (("steady", "cpu"), ("steady", "wall"), ("whole", "cpu"), ("whole", "wall"))

PEAK = ("peak", ("memory", "peak"))
# Memory that a program still holds after it stood still. A library that returns freed memory within
# a second has returned it by then.
SETTLED = ("settled", ("memory", "settled"))
END = ("end", ("memory", "end", "bytes"))


class Figures:
    """The counted runs of one program, by way."""

    def __init__(self, case, runs):
        """Takes `case` (name, random ...) and `runs`, the runs of this case as in the results
        file."""
        self.case = case
        self.ways = {}
        # Ways in which a run failed.
        self.failed = {run["way"] for run in runs if run.get("failed") is not None}
        for run in runs:
            if run.get("failed") is None:
                self.ways.setdefault(run["way"], {})[run["round"]] = run

    def values(self, way, *keys):
        """Returns one measurement by round."""
        found = {}
        for number, run in self.ways.get(way, {}).items():
            value = run
            for key in keys:
                value = value[key]
            found[number] = value
        return found

    def median(self, way, *keys):
        values = self.values(way, *keys)
        return statistics.median(values.values()) if values else None

    def ratio(self, way, phase, what, below=BASELINE):
        """Returns the ratio paired by round; None if no round has both."""
        try:
            return estimate.Ratio(self.values(way, phase, what), self.values(below, phase, what))
        except ValueError:
            return None


def slower(figures):
    """Returns the times in which ours is slower than plain beyond the noise; None if one is
    unknown."""
    ratios = {f"{phase} {what}": figures.ratio(OURS, phase, what) for phase, what in TIMES}
    if any(ratio is None for ratio in ratios.values()):
        return None
    return [f"{name} {ratio}" for name, ratio in ratios.items() if ratio.low > SLOWER]


def bigger(figures, *measures):
    """Returns the measures of memory that are too big; None if one is unknown."""
    found = []
    for name, keys in measures:
        plain, ours = figures.median(BASELINE, *keys), figures.median(OURS, *keys)
        if plain is None or ours is None:
            return None
        if ours > plain * MEMORY_RATIO + MEMORY_SLACK:
            found.append(f"{name} {int(ours) >> 20} MiB, plain {int(plain) >> 20} MiB")
    return found


def against(figures, way):
    """Returns ours against another way, in the steady phase's processor time; None if not
    measured."""
    return figures.ratio(OURS, "steady", "cpu", below=way)


def against_best(figures):
    """Returns (the best other way, ours against it), in the steady phase's processor time; None if
    not measured."""
    others = {way: figures.median(way, "steady", "cpu") for way in figures.ways if way != OURS}
    if OURS not in figures.ways or not others:
        return None
    best = min(others, key=others.get)
    ratio = against(figures, best)
    return (best, ratio) if ratio else None


def judge(all_figures):
    """Returns every gate: its name, if it is met, the measure, the programs that miss it, and if a
    later gate replaced it."""
    return [
        gate("no program slower than 1.01 of plain beyond its noise, steady phase and whole",
             *each(all_figures, slower, "slower")),
        gate("peak and settled memory at most 1.05 of plain and 16 MiB",
             *each(all_figures, lambda f: bigger(f, PEAK, SETTLED), "bigger")),
        gate("peak memory and what is held right at the end of the work at most 1.05 of plain and 16 MiB",
             *each(all_figures, lambda f: bigger(f, PEAK, END), "bigger"), former=True),
        gate("at least as good as each other way on 9 of 10 programs", *every_way(all_figures)),
        gate("at least as good as the best other way, chosen afterwards, on 9 of 10 programs",
             *best_way(all_figures), former=True),
        gate("geometric mean of the programs that touch more than 64 MiB at random at most 0.90 of plain",
             *random_mean(all_figures, RANDOM_MEAN)),
        gate("geometric mean of the programs that touch more than 64 MiB at random at most 0.80 of plain",
             *random_mean(all_figures, FORMER_RANDOM_MEAN), former=True),
    ]


def gate(name, met, measured, misses, former=False):
    return {"gate": name, "met": met, "measured": measured, "misses": misses, "former": former}


def each(all_figures, missed, what):
    """Judges a gate that every program has to pass. `missed` returns a program's misses, or None if
    they are unknown."""
    found = {f.case["name"]: missed(f) for f in all_figures}
    misses = {name: "not measured in both ways" if why is None else "; ".join(why)
              for name, why in found.items() if why is None or why}
    return not misses, f"{sum(map(bool, found.values()))} {what}", misses


def share(ratios):
    """Returns for how many ratios ours is as good, and the other ratios; noise excuses."""
    worse = {name: ratio for name, ratio in ratios.items() if ratio.low > 1.0}
    return len(ratios) - len(worse), worse


def every_way(all_figures):
    """Compares ours with each other way over all programs: a fleet has one way for all its
    programs."""
    met, measured, misses = True, [], {}
    for way in sorted({way for f in all_figures for way in f.ways} - {OURS}):
        ratios = {f.case["name"]: against(f, way) for f in all_figures}
        ratios = {name: ratio for name, ratio in ratios.items() if ratio}
        good, worse = share(ratios)
        reached = bool(ratios) and good >= AS_GOOD_SHARE * len(ratios)
        met = met and reached
        mean = f", mean {estimate.geometric_mean([ratio.median for ratio in ratios.values()]):.2f}" if ratios else ""
        measured.append(f"{way} {good} of {len(ratios)}{mean}")
        if not reached:
            misses[way] = "; ".join(f"{name} {ratio}" for name, ratio in worse.items()) or "not measured"
    return met and bool(measured) and any(OURS in f.ways for f in all_figures), "; ".join(measured), misses


def best_way(all_figures):
    found = {f.case["name"]: against_best(f) for f in all_figures}
    found = {name: pair for name, pair in found.items() if pair}
    good, worse = share({name: ratio for name, (_, ratio) in found.items()})
    misses = {name: f"{found[name][0]}: {ratio}" for name, ratio in worse.items()}
    return bool(found) and good >= AS_GOOD_SHARE * len(found), f"{good} of {len(found)}", misses


def random_mean(all_figures, bound):
    found = [f for f in all_figures if f.case["random"]]
    ratios = {f.case["name"]: f.ratio(OURS, "steady", "cpu") for f in found}
    ratios = {name: ratio for name, ratio in ratios.items() if ratio}
    if not ratios:
        return False, "none ran", {}
    mean = estimate.geometric_mean([ratio.median for ratio in ratios.values()])
    best = [least_ratio(f) for f in found if f.case["name"] in ratios]
    measured = f"{mean:.3f} of {len(ratios)}; the best of all ways for each, chosen afterwards: {estimate.geometric_mean(best):.3f}"
    return mean <= bound, measured, {
        name: str(ratio) for name, ratio in ratios.items() if mean > bound and ratio.median > bound}


def least_ratio(figures):
    """Returns the ratio to plain of the best way; plain and ours count as ways, too."""
    ratios = (figures.ratio(way, "steady", "cpu") for way in figures.ways)
    return min(ratio.median for ratio in ratios if ratio)
