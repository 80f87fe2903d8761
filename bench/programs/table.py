"""The tables of docs/programs-bench.md."""

from ways import BASELINE, BEST, OURS

import estimate
import verdicts

OPENING = """\
## What large programs gain

![Processor time by size of the program: the best other way, and megapage run](gain-by-size.svg)

Curves: eight programs of the class large at several sizes (`bench/programs/curve.py`, `bench/results/programs-curve.json`).

{count} programs of {sizes} GiB, {rounds} rounds, recorded {recorded} with {megapage} on {cpu}, {cpus} CPUs, {memory} GiB,
Linux {kernel}. Processor time as a ratio to plain: median and interval. *Best other way*: the fastest in the steady phase,
chosen after the runs. *Huge*: share of memory on huge pages. Bold: the whole interval lies on one side of 1.

| program | GiB | steady: best other way | steady: `megapage run` | whole: best other way | whole: `megapage run` | huge | peak, ratio to plain |
|---|---|---|---|---|---|---|---|
{rows}

{losses}

"""

HEAD = """\
# Real programs: what megapage's default costs and gains

{opening}## Every program and way

Written by `bench/programs/driver.py --table docs/programs-bench.md` from {rounds} rounds, recorded {recorded} with {megapage}.
Machine: {cpu}, {cpus} CPUs, {memory} GiB, Linux {kernel}, {libc}. THP: {thp}; hugetlb pool: {pool} pages of 2 MiB.
The bench, and how to add a program, are described in [bench/programs/README.md](../bench/programs/README.md).

Ways:

{ways}

### Verdicts

| gate | | measured | misses |
|---|---|---|---|
{verdicts}

### Processor time of the steady phase

Ratios to plain, paired by round: median and interval (order statistics of the median; 93.75 % with five rounds).
*Random*: touches more than 64 MiB at random. Bold: slower or faster beyond the noise.

| program | version | random | plain, s | {way_names} | best other |
|---|---|---|---|{way_rules}---|
{times}

### The default's other times, and memory

Ratios of ours to plain. Memory is what the kernel says of all processes of the program, the launcher among them
(proportional shares and hugetlb pages): at its peak, right at the end of the steady phase (*at once*), and a second and a
half later, while the program stands still (*settled*). *Huge*: share of anonymous, shared and hugetlb memory that is on huge pages at the end of the steady phase.

| program | steady, wall | whole, cpu | whole, wall | peak plain -> ours, MiB | settled plain -> ours, MiB | at once plain -> ours, MiB | huge plain | huge {way_names_huge} |
|---|---|---|---|---|---|---|---|{way_rules_huge}
{memory_rows}
"""


LARGE = """
### Processor time of the whole run

| program | size, MiB | plain, s | {way_names} |
|---|---|---|{way_rules}
{wholes}

### What else it costs

Medians of plain and ours. System time and page faults are those of the whole run. The worst stall is the longest step of a
server's client; of other programs the longest time without user time, in steps of 50 ms. Page tables are those at the end of
the steady phase.

| program | system plain -> ours, s | faults plain -> ours, thousands | worst stall plain -> ours, ms | page tables plain -> ours, MiB |
|---|---|---|---|---|
{costs}
"""
def emphasised(ratio):
    """Returns the ratio as text: bold if the whole interval, of enough rounds, lies on one side of
    1."""
    if ratio is None:
        return "-"
    text = str(ratio)
    clear = ratio.coverage >= verdicts.ENOUGH and (ratio.low > 1 or ratio.high < 1)
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


def whole_row(figures, ways):
    plain = figures.median(BASELINE, "whole", "cpu")
    cells = [figures.case["program"], figures.case["size"] >> 20, "-" if plain is None else f"{plain:.1f}"]
    return cells + [emphasised(figures.ratio(way, "whole", "cpu")) for way in ways]


# The measures of "What else it costs", each with its unit and the digits after the point.
COSTS = ((("whole", "system"), 1, 1), (("whole", "minflt"), 1e3, 0), (("steady", "stall"), 1e-3, 0),
         (("memory", "end", "page_tables"), 1 << 20, 1))


def cost_row(figures):
    def shown(way, keys, unit, digits):
        value = figures.median(way, *keys)
        return "-" if value is None else f"{value / unit:.{digits}f}"

    pairs = [" -> ".join(shown(way, *cost) for way in (BASELINE, OURS)) for cost in COSTS]
    return [figures.case["program"], *pairs]


def brief(results, all_figures):
    """Returns a short table for a terminal."""
    machine = results["machine"]
    lines = [f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_bytes'] >> 30} GiB, Linux {machine['kernel']}",
             f"{'program':16} {'way':12} {'steady, cpu':22} {'whole, cpu':22} {'peak':>8} {'huge':>5}"]
    for figures in all_figures:
        for way in (way["name"] for way in results["ways"]):
            peak, share = figures.median(way, "memory", "peak"), figures.median(way, "memory", "end", "huge_share")
            if peak is not None:
                steady, whole = (str(figures.ratio(way, phase, "cpu") or "-") for phase in ("steady", "whole"))
                lines.append(f"{figures.case['name']:16} {way:12} {steady:22} {whole:22} {mebibytes(peak):>4} MiB {share:5.0%}")
    return "\n".join(lines)


def line(cells):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def name_of(way, figures):
    """Returns the name of a way: that which `best` stands for in this program."""
    return figures.case.get("best", way) if way == BEST else way


def gain_row(figures):
    """Returns a program's row of the table of large programs."""
    best = verdicts.against_best(figures)
    cells = [figures.case["program"], f"{figures.case['size'] / (1 << 30):.1f}"]
    for phase in ("steady", "whole"):
        ratio = figures.ratio(best[0], phase, "cpu") if best and best[0] != BASELINE else None
        cells += [f"{emphasised(ratio)} {name_of(best[0], figures)}" if ratio else "-", emphasised(figures.ratio(OURS, phase, "cpu"))]
    share = figures.median(OURS, "memory", "end", "huge_share")
    peaks = [figures.median(way, "memory", "peak") for way in (BASELINE, OURS)]
    return cells + ["-" if share is None else f"{share:.0%}", f"{peaks[1] / peaks[0]:.2f}" if all(peaks) else "-"]


def mean_row(all_figures):
    """Returns the row of the geometric means of the programs that ran."""
    cells = ["**geometric mean**", ""]
    for phase in ("steady", "whole"):
        found = []
        for figures in all_figures:
            best = verdicts.against_best(figures)
            ratios = [figures.ratio(way, phase, "cpu") for way in (best[0], OURS)] if best else [None]
            if None not in ratios:
                found.append([ratio.median for ratio in ratios])
        cells += [f"{estimate.geometric_mean(values):.2f}" for values in zip(*found)] if found else ["-", "-"]
    return [*cells, "", ""]


def opening(results, all_figures, causes):
    """Returns the section about large programs: the gains, then the losses and their causes.
    `causes` maps a program's name to a sentence about its losses."""
    machine = results["machine"]
    sizes = [figures.case["size"] >> 30 for figures in all_figures]
    losses = []
    for figures in all_figures:
        best = verdicts.against_best(figures)
        lost = [f"{phase} {what} {ratio}" for phase, what in verdicts.TIMES
                if (ratio := figures.ratio(OURS, phase, what)) and ratio.low > 1]
        if best and best[1].low > 1:
            lost.append(f"steady {best[1]} of {name_of(best[0], figures)}'s")
        if lost:
            losses.append(f"- {figures.case['program']}: {'; '.join(lost)}. {causes.get(figures.case['name']) or 'The cause is unknown.'}")
    return OPENING.format(
        count=len(all_figures), sizes=" to ".join(map(str, sorted({min(sizes), max(sizes)}))),
        rounds=results["rounds"], recorded=results["recorded"],
        megapage=results["megapage"], cpu=machine["cpu"], cpus=machine["cpus"], memory=machine["memory_bytes"] >> 30,
        kernel=machine["kernel"], rows="\n".join(line(row) for row in (*map(gain_row, all_figures), mean_row(all_figures))),
        losses="\n".join(["Losses beyond the noise and their causes:", "", *losses]) if losses
        else "No program loses beyond the noise.",
    )


def missed(misses):
    """Returns the programs that miss a gate: each with its measures outside the gate, then the
    names of those that are not told apart."""
    clear, unclear = [], []
    for name, why in misses.items():
        outside = [measure for measure in why.split("; ") if not measure.endswith(verdicts.UNTOLD)]
        clear += [f"{name} ({'; '.join(outside)})"] if outside else []
        unclear += [] if outside else [name]
    return "; ".join(clear + ([f"{verdicts.UNTOLD}: {', '.join(unclear)}"] if unclear else []))


def markdown(results, all_figures, opening=""):
    """Returns the whole document. It begins with the section `opening`."""
    machine = results["machine"]
    ways = [way["name"] for way in results["ways"] if way["name"] != BASELINE]
    lists = [
        f"- `{way['name']}`: {way['what']}" + (f" ({way['version']})" if way["version"] else "") for way in results["ways"]
    ]
    verdict_lines = [
        line([v["gate"], ("former gate, " if v["former"] else "") + (v["state"] if v["met"] else f"**{v['state']}**"), v["measured"],
              missed(v["misses"])])
        for v in results["verdicts"]
    ]
    text = HEAD.format(
        opening=opening,
        rounds=results["rounds"], recorded=results["recorded"], megapage=results["megapage"], cpu=machine["cpu"],
        cpus=machine["cpus"], memory=machine["memory_bytes"] >> 30, kernel=machine["kernel"], libc=machine["libc"],
        thp=machine["thp"]["enabled"], pool=machine["hugetlb_2m_pages"], ways="\n".join(lists),
        verdicts="\n".join(verdict_lines), way_names=" | ".join(ways), way_rules="---|" * len(ways),
        way_names_huge=" | huge ".join(ways), way_rules_huge="---|" * len(ways),
        times="\n".join(line(time_row(figures, ways)) for figures in all_figures),
        memory_rows="\n".join(line(memory_row(figures, ways)) for figures in all_figures),
    )
    if not all("size" in figures.case for figures in all_figures):
        return text
    return text + LARGE.format(
        way_names=" | ".join(ways), way_rules="---|" * len(ways),
        wholes="\n".join(line(whole_row(figures, ways)) for figures in all_figures),
        costs="\n".join(line(cost_row(figures)) for figures in all_figures),
    )
