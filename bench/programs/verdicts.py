"""The gates that megapage's default has to pass on the programs of the bench."""

import statistics

import estimate
from ways import BASELINE, LEARNED, OURS

SLOWER = 1.01
MEMORY_RATIO, MEMORY_SLACK = 1.05, 16 << 20
AS_GOOD_SHARE = 0.9
RANDOM_MEAN = 0.80
# The four times that no program may lose in.
TIMES = (("steady", "cpu"), ("steady", "wall"), ("whole", "cpu"), ("whole", "wall"))


class Figures:
    """The counted runs of one program, by way."""

    def __init__(self, case, runs):
        """`case`: name, random ...; `runs`: those of this case, as in the results file."""
        self.case = case
        self.ways = {}
        # Ways in which a run failed.
        self.failed = {run["way"] for run in runs if run.get("failed") is not None}
        for run in runs:
            if run.get("failed") is None:
                self.ways.setdefault(run["way"], {})[run["round"]] = run

    def values(self, way, *keys):
        """One measurement by round."""
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
        """Paired; None where a round has not both."""
        try:
            return estimate.Ratio(self.values(way, phase, what), self.values(below, phase, what))
        except ValueError:
            return None


def slower(figures):
    """The times in which ours is slower than plain, beyond the noise; None where that cannot be said."""
    ratios = {f"{phase} {what}": figures.ratio(OURS, phase, what) for phase, what in TIMES}
    if any(ratio is None for ratio in ratios.values()):
        return None
    return [f"{name} {ratio}" for name, ratio in ratios.items() if ratio.low > SLOWER]


def bigger(figures):
    """Which of peak and final memory is too big; None where that cannot be said."""
    found = []
    for name, keys in (("peak", ("memory", "peak")), ("final", ("memory", "end", "bytes"))):
        plain, ours = figures.median(BASELINE, *keys), figures.median(OURS, *keys)
        if plain is None or ours is None:
            return None
        if ours > plain * MEMORY_RATIO + MEMORY_SLACK:
            found.append(f"{name} {ours >> 20 if isinstance(ours, int) else int(ours) >> 20} MiB,"
                         f" plain {int(plain) >> 20} MiB")
    return found


def against_best(figures):
    """(the best other way, ours against it): of the steady phase's processor time."""
    others = {way: figures.median(way, "steady", "cpu") for way in figures.ways if way not in (OURS, LEARNED)}
    if OURS not in figures.ways or not others:
        return None
    best = min(others, key=others.get)
    ratio = figures.ratio(OURS, "steady", "cpu", below=best)
    return (best, ratio) if ratio else None


def judge(all_figures):
    """Every gate: name, whether it is met, the measure, and the programs that miss it."""
    slow = {f.case["name"]: slower(f) for f in all_figures}
    big = {f.case["name"]: bigger(f) for f in all_figures}
    best = {f.case["name"]: against_best(f) for f in all_figures}
    told = {name: found for name, found in best.items() if found}
    worse = {name: f"{way}: {ratio}" for name, (way, ratio) in told.items() if ratio.low > 1.0}
    as_good = (len(told) - len(worse)) / len(told) if told else 0.0
    random = {f.case["name"]: f.ratio(OURS, "steady", "cpu") for f in all_figures if f.case["random"]}
    random = {name: ratio for name, ratio in random.items() if ratio}
    mean = estimate.geometric_mean([ratio.median for ratio in random.values()]) if random else None
    gates = [
        gate("no program slower than 1.01 of plain beyond its noise, steady phase and whole",
             not any(slow.values()) and None not in slow.values(), f"{sum(map(bool, slow.values()))} slower",
             {name: "; ".join(found) for name, found in slow.items() if found}),
        gate("peak and final memory at most 1.05 of plain and 16 MiB",
             not any(big.values()) and None not in big.values(), f"{sum(map(bool, big.values()))} bigger",
             {name: "; ".join(found) for name, found in big.items() if found}),
        gate("at least as good as the best other way on 9 of 10 programs",
             bool(told) and as_good >= AS_GOOD_SHARE, f"{len(told) - len(worse)} of {len(told)}", worse),
        gate("geometric mean of the programs that touch more than 64 MiB at random at most 0.80 of plain",
             mean is not None and mean <= RANDOM_MEAN, f"{mean:.3f} of {len(random)}" if random else "none ran",
             {name: str(ratio) for name, ratio in random.items() if ratio.median > RANDOM_MEAN}),
    ]
    unmeasured = [name for name, found in slow.items() if found is None]
    if unmeasured:
        gates[0]["misses"].update(dict.fromkeys(unmeasured, "not measured in both ways"))
    return gates


def gate(name, met, measured, misses):
    return {"gate": name, "met": met, "measured": measured, "misses": misses}
