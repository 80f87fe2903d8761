"""Medians, paired ratios and their intervals.

A ratio is taken within a round, of two runs that followed each other closely. So slow changes of
the machine cancel out. Its interval is that of the median by order statistics, which assumes
nothing about the distribution. The interval is the narrowest symmetric pair of ranks whose coverage
reaches 95 %. With fewer than six rounds no pair reaches it. The interval then goes from the
smallest to the greatest value (five rounds: 93.75 %).
"""

import math
import statistics

WANTED = 0.95


def coverage(count, rank):
    """Returns the probability that the median lies between the values of rank `rank` and `count` +
    1 - `rank`, counted from 1."""
    outside = sum(math.comb(count, below) for below in range(rank)) / 2**count
    return 1 - 2 * outside


def interval(values):
    """Returns (low, high, coverage) of the median of `values`."""
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        raise ValueError("no values")
    ranks = [rank for rank in range(1, count // 2 + 1) if coverage(count, rank) >= WANTED]
    rank = max(ranks, default=1)
    return ordered[rank - 1], ordered[count - rank], max(0.0, coverage(count, rank)) if count > 1 else 0.0


class Ratio:
    """The ratio of two ways, over the rounds in which both ran."""

    def __init__(self, above, below):
        """Takes `above` and `below`, the values of both ways by round."""
        rounds = sorted(set(above) & set(below))
        values = [above[number] / below[number] for number in rounds if below[number] > 0]
        if not values:
            raise ValueError("no round in which both ran")
        self.take(values)

    def take(self, values):
        self.median = statistics.median(values)
        self.low, self.high, self.coverage = interval(values)

    @classmethod
    def of(cls, values):
        """Returns the median of values that were paired already, and its interval."""
        ratio = cls.__new__(cls)
        ratio.take(values)
        return ratio

    def as_json(self):
        return {"median": self.median, "low": self.low, "high": self.high, "coverage": self.coverage}

    def __str__(self):
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(value) for value in values))
