"""The tables of docs/programs-bench.md."""

from ways import BASELINE, OURS

import verdicts

HEAD = """\
# Real programs: what megapage's default costs and gains

Written by `bench/programs/driver.py --table docs/programs-bench.md` from {rounds} rounds, recorded {recorded} with {megapage}.
Machine: {cpu}, {cpus} CPUs, {memory} GiB, Linux {kernel}, {libc}. THP: {thp}; hugetlb pool: {pool} pages of 2 MiB.
The bench, and how to add a program, are described in [bench/programs/README.md](../bench/programs/README.md).

Ways:

{ways}

## Verdicts

| gate | | measured | misses |
|---|---|---|---|
{verdicts}

## Processor time of the steady phase

Ratios to plain, paired by round: median and interval (order statistics of the median; 93.75 % with five rounds).
*Random*: touches more than 64 MiB at random. Bold: slower or faster beyond the noise.

| program | version | random | plain, s | {way_names} | best other |
|---|---|---|---|{way_rules}---|
{times}

## The default's other times, and memory

Ratios of ours to plain. Memory is what the kernel says of all processes of the program, the launcher among them
(proportional shares and hugetlb pages): at its peak, right at the end of the steady phase (*at once*), and a second and a
half later, while the program stands still (*settled*). *Huge*: share of anonymous, shared and hugetlb memory that is on huge pages at the end of the steady phase.

| program | steady, wall | whole, cpu | whole, wall | peak plain -> ours, MiB | settled plain -> ours, MiB | at once plain -> ours, MiB | huge plain | huge {way_names_huge} |
|---|---|---|---|---|---|---|---|{way_rules_huge}
{memory_rows}
"""


# Least coverage of an interval that counts as clear; five rounds have 0.9375.
ENOUGH = 0.9


def emphasised(ratio):
    """Returns the ratio as text: bold if the whole interval, of enough rounds, lies on one side of
    1."""
    if ratio is None:
        return "-"
    text = str(ratio)
    clear = ratio.coverage >= ENOUGH and (ratio.low > 1 or ratio.high < 1)
    return f"**{text}**" if clear else text


def mebibytes(value):
    return "-" if value is None else f"{value / (1 << 20):.0f}"


def time_row(figures, ways):
    case = figures.case
    plain = figures.median(BASELINE, "steady", "cpu")
    best = verdicts.against_best(figures)
    cells = [case["program"], case["version"], "yes" if case["random"] else "", "-" if plain is None else f"{plain:.2f}"]
    cells += ["fails" if way in figures.failed else emphasised(figures.ratio(way, "steady", "cpu")) for way in ways]
    cells.append(f"{best[0]}: {best[1].median:.2f}" if best else "-")
    return cells


def memory_row(figures, ways):
    cells = [figures.case["program"]]
    cells += [emphasised(figures.ratio(OURS, phase, what)) for phase, what in verdicts.TIMES[1:]]
    for _, keys in (verdicts.PEAK, verdicts.SETTLED, verdicts.END):
        plain, ours = figures.median(BASELINE, *keys), figures.median(OURS, *keys)
        cells.append(f"{mebibytes(plain)} -> {mebibytes(ours)}")
    for way in (BASELINE, *ways):
        share = figures.median(way, "memory", "end", "huge_share")
        cells.append("-" if share is None else f"{share:.0%}")
    return cells


def line(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def markdown(results, all_figures):
    """Returns the whole document."""
    machine = results["machine"]
    ways = [way["name"] for way in results["ways"] if way["name"] != BASELINE]
    lists = [
        f"- `{way['name']}`: {way['what']}" + (f" ({way['version']})" if way["version"] else "") for way in results["ways"]
    ]
    verdict_lines = [
        line([v["gate"], ("former gate, " if v["former"] else "") + ("met" if v["met"] else "**not met**"), v["measured"],
              "; ".join(f"{name} ({why})" for name, why in v["misses"].items())])
        for v in results["verdicts"]
    ]
    return HEAD.format(
        rounds=results["rounds"], recorded=results["recorded"], megapage=results["megapage"], cpu=machine["cpu"],
        cpus=machine["cpus"], memory=machine["memory_bytes"] >> 30, kernel=machine["kernel"], libc=machine["libc"],
        thp=machine["thp"]["enabled"], pool=machine["hugetlb_2m_pages"], ways="\n".join(lists),
        verdicts="\n".join(verdict_lines), way_names=" | ".join(ways), way_rules="---|" * len(ways),
        way_names_huge=" | huge ".join(ways), way_rules_huge="---|" * len(ways),
        times="\n".join(line(time_row(figures, ways)) for figures in all_figures),
        memory_rows="\n".join(line(memory_row(figures, ways)) for figures in all_figures),
    )
