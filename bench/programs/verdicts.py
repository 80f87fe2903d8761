"""The gates that megapage's default has to pass on the programs of the bench.

A gate holds only where the interval of what it compares excludes the rival. A program whose interval
holds the bound is not told apart, which is no pass. A gate against losses holds only while the mean
gains: base pages, which lose nothing, pass none.
"""

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
# Least saving of the best other way that ours has to match, and the part of it that ours has to
# bring.
WORTH, SAVING_SHARE = 0.05, 0.9
# Slack of a large program's peak.
LARGE_SLACK = 4 << 20
# Programs that a guard against losses may leave untold.
UNTOLD_MOST = 3
# Least coverage of an interval that counts; five rounds have 0.9375.
ENOUGH = 0.9
MET, MISSED, UNTOLD = "met", "not met", "not told apart"
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
                value = value.get(key) if value else None
            if value is not None:
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


def figures_of(results):
    """Returns the figures of each program of a results file."""
    return [Figures(case, [run for run in results["runs"] if run["case"] == case["name"]]) for case in results["cases"]]


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
    found = {way: figures.median(way, "steady", "cpu") for way in others([figures])}
    if OURS not in figures.ways or not found:
        return None
    best = min(found, key=found.get)
    ratio = against(figures, best)
    return (best, ratio) if ratio else None


def judge(all_figures, large=False):
    """Returns every gate: its name, if it is met, the measure, the programs that miss it, and if a
    later gate replaced it. The class large has further gates."""
    return [
        gate("no program slower than 1.01 of plain beyond its noise, steady phase and whole",
             *each(all_figures, slower, "slower"), former=True),
        gate("peak and settled memory at most 1.05 of plain and 16 MiB",
             *each(all_figures, lambda f: bigger(f, PEAK, SETTLED), "bigger"), former=True),
        gate("peak memory and what is held right at the end of the work at most 1.05 of plain and 16 MiB",
             *each(all_figures, lambda f: bigger(f, PEAK, END), "bigger"), former=True),
        gate("at least as good as each other way on 9 of 10 programs", *every_way(all_figures), former=True),
        gate("at least as good as the best other way, chosen afterwards, on 9 of 10 programs",
             *best_way(all_figures), former=True),
        gate("geometric mean of the programs that touch more than 64 MiB at random at most 0.90 of plain",
             *random_mean(all_figures, RANDOM_MEAN), former=True),
        gate("geometric mean of the programs that touch more than 64 MiB at random at most 0.80 of plain",
             *random_mean(all_figures, FORMER_RANDOM_MEAN), former=True),
        told("every time at most 1.01 of plain, told apart but for three programs, while the mean gains",
             all_figures, lambda f: [Bound(name, ratio, SLOWER) for name, ratio in times(f)], UNTOLD_MOST, guard=True),
        told("peak and settled memory at most 1.05 of plain and 16 MiB, told apart, while the mean gains",
             all_figures, lambda f: memory(f, MEMORY_SLACK, PEAK, SETTLED), guard=True),
        means("geometric mean below that of each other way, told apart", all_figures, others(all_figures), 1.0),
        means("geometric mean of the programs that touch more than 64 MiB at random below 0.90 of plain, told apart",
              [f for f in all_figures if f.case["random"]], [BASELINE], RANDOM_MEAN),
        *(large_gates(all_figures) if large else ()),
    ]


def large_gates(all_figures):
    return [
        told("at least 90 % of the best other way's saving where that is 5 % or more, told apart", all_figures, saving),
        told("peak memory at most 1.05 of plain and 4 MiB, told apart, while the mean gains",
             all_figures, lambda f: memory(f, LARGE_SLACK, PEAK), guard=True),
    ]


def gate(name, met, measured, misses, former=False, state=None):
    return {"gate": name, "met": met, "measured": measured, "misses": misses, "former": former,
            "state": state or (MET if met else MISSED)}


class Bound:
    """A measure of one program, and the bound that it may not exceed, or has to be below."""

    def __init__(self, name, ratio, most, below=False):
        self.name, self.ratio, self.most, self.below = name, ratio, most, below

    def state(self):
        """Returns the outcome; an interval of too few rounds tells nothing."""
        if self.ratio is None or self.ratio.low > self.most:
            return MISSED
        reached = self.ratio.high < self.most if self.below else self.ratio.high <= self.most
        return MET if reached and self.ratio.coverage >= ENOUGH else UNTOLD

    def __str__(self):
        return f"{self.name} {self.ratio or 'not measured'}" + (", not told apart" if self.state() == UNTOLD else "")


def times(figures):
    return [(f"{phase} {what}", figures.ratio(OURS, phase, what)) for phase, what in TIMES]


def memory(figures, slack, *measures):
    """Returns the bounds of memory: ours without the slack, as a ratio to plain."""
    found = []
    for name, keys in measures:
        plain, ours = figures.values(BASELINE, *keys), figures.values(OURS, *keys)
        values = [(ours[number] - slack) / plain[number] for number in ours if plain.get(number)]
        found.append(Bound(f"{name} less {slack >> 20} MiB", estimate.Ratio.of(values) if values else None, MEMORY_RATIO))
    return found


def saving(figures):
    """Returns the bound of what ours fails to save of nine tenths of the best other way's saving;
    none where that is not worth it."""
    found = {way: figures.ratio(way, "steady", "cpu") for way in others([figures]) if way != BASELINE}
    found = {way: ratio for way, ratio in found.items() if ratio}
    if not found:
        return [Bound("no other way", None, 0.0)]
    best = min(found, key=lambda way: found[way].median)
    if found[best].median > 1 - WORTH:
        return []
    plain, ours, other = (figures.values(way, "steady", "cpu") for way in (BASELINE, OURS, best))
    values = [
        SAVING_SHARE * (1 - other[number] / plain[number]) - (1 - ours[number] / plain[number])
        for number in ours if number in plain and number in other
    ]
    return [Bound(f"short of {best}'s saving by", estimate.Ratio.of(values) if values else None, 0.0)]


def told(name, all_figures, bounds_of, untold_most=0, guard=False):
    """Judges a gate that every program has to pass with its whole interval."""
    bounds = {f.case["name"]: bounds_of(f) for f in all_figures}
    missed = {case for case, found in bounds.items() if any(bound.state() == MISSED for bound in found)}
    untold = {case for case, found in bounds.items() if any(bound.state() == UNTOLD for bound in found)} - missed
    mean = means("", all_figures, [BASELINE], 1.0)
    state = MISSED if missed or not any(bounds.values()) else UNTOLD if len(untold) > untold_most else MET
    good = sum(map(bool, bounds.values())) - len(missed) - len(untold)
    measured = f"{good} told, {len(missed)} missed, {len(untold)} not told apart"
    if guard:
        measured += f"; mean {mean['measured']}"
        state = mean["state"] if state == MET else state
    misses = {case: "; ".join(str(bound) for bound in bounds[case] if bound.state() != MET)
              for case in bounds if case in missed | untold}
    return gate(name, state == MET, measured, misses, state=state)


def others(all_figures):
    """Returns the ways that ours is compared with: all but its own, with pools."""
    return sorted({way for f in all_figures for way in f.ways if not way.startswith(OURS)})


def means(name, all_figures, ways, most):
    """Judges the geometric mean of ours against each way's: taken within each round, so that its
    interval is that of the median over the rounds."""
    bounds = []
    for way in ways:
        pairs = [(f.values(OURS, "steady", "cpu"), f.values(way, "steady", "cpu")) for f in all_figures]
        pairs = [(ours, other) for ours, other in pairs if set(ours) & set(other)]
        rounds = set.intersection(*(set(ours) & set(other) for ours, other in pairs)) if pairs else ()
        values = [estimate.geometric_mean([ours[number] / other[number] for ours, other in pairs]) for number in rounds]
        bounds.append(Bound(way, estimate.Ratio.of(values) if values else None, most, below=True))
    states = {bound.state() for bound in bounds}
    state = MISSED if MISSED in states or not bounds else UNTOLD if UNTOLD in states else MET
    return gate(name, state == MET, "; ".join(f"{bound.name} {bound.ratio or '-'}" for bound in bounds),
                {bound.name: str(bound) for bound in bounds if bound.state() != MET}, state=state)


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
    for way in others(all_figures):
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
