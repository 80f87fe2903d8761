"""The table of docs/programs.md, from the driver's results and the launcher's own reports."""

import os
import platform

HEADER = """\
# Real programs under `megapage run`

Each row shows a program that was checked under `megapage run`: by its test suite, by its benchmark and a comparison of the data,
or by comparing its output with a plain run's. Every result was the same as without megapage{failed}.

<!-- manual skip tests/programs has its driver -->
```sh
tests/programs/driver.py --only redis --mode default --keep    # one program in one mode, its scratch directory kept
tests/programs/driver.py --table docs/programs.md              # this page; the cases are in tests/programs/cases
```

- *Mode*: `default` is `megapage run` without options. `preload-2m` and `preload-thp` force the preloaded allocator and its kind of
  page. The other modes force the mechanism that they name. In `default`, `preload-2m` and `tunable` the hugetlb pool has {pool} MiB
  of 2 MiB pages; larger programs use up the pool.
- The columns from *mechanism* on come from the report: *hugetlb*, *THP* and *base* show anonymous memory at its peak, in MiB. If a
  case runs several programs, its row shows the largest. For a program too short for a sample, memory columns are empty.

Machine: {machine}.

| program | version | mode | mechanism | hugetlb | THP | base | huge, % |
|---|---|---|---|---|---|---|---|
"""


def markdown(results, pool_mib):
    """Returns the whole document."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    libc = " ".join(platform.libc_ver())
    machine = f"Linux {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs, {memory} GiB, {libc}"
    failed = [result for result in results if result.outcome != "passed"]
    listed = f", but for {len(failed)} of {len(results)}, listed below" if failed else ""
    rows, program = [], None
    for result in results:
        rows.append(row(result, result.case.program == program) + "\n")
        program = result.case.program
    document = HEADER.format(machine=machine, pool=pool_mib, failed=listed) + "".join(rows)
    if failed:
        document += "\n" + "".join(failure(result) + "\n" for result in failed)
    return document


def row(result, continued):
    """Returns one line of the table; `continued` if the line above is of the same program."""
    largest = max(result.reports, key=size_at_peak, default=None)
    cells = ["", ""] if continued else [result.case.program, result.case.shown_version]
    cells.append(result.mode)
    memory = largest and (largest["peak"] or {}).get("anonymous")
    cells.append("" if largest is None else " + ".join(largest["mechanisms"]) or "none applies")
    if memory:
        cells += [mebibytes(memory[kind]) for kind in ("hugetlb_2m_bytes", "thp_bytes", "base_bytes")]
        cells.append("" if memory["huge_percent"] is None else f"{memory['huge_percent']:.0f}")
    else:
        cells += [""] * 4
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def failure(result):
    """Returns one line below the table, for a program that did not pass."""
    why = f": {result.why.splitlines()[0]}" if result.why else ""
    return f"- {result.case.program}, `{result.mode}`: **{result.outcome}**{why}"


def size_at_peak(report):
    """Returns the bytes of the whole program in its largest sample."""
    return report["peak"]["resident"]["total_bytes"] if report["peak"] else 0


def mebibytes(count):
    """Returns a number of bytes as text, in MiB."""
    return f"{count / (1 << 20):.0f}"
