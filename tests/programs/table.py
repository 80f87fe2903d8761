"""The table of docs/programs.md, from the driver's results and the launcher's own reports."""

import os
import platform

HEADER = """\
# Real programs under `megapage run`

Written by `tests/programs/driver.py --table docs/programs.md`; each line is one program by its own test suite, its own
benchmark with its data compared, or work whose output is compared with a plain run. The scripts are in
[tests/programs/cases](../tests/programs/cases).

Machine: {machine}.

*Asked* is the mode: `default` is `megapage run` without options; `preload-2m` and `preload-thp` force the preloaded
allocator and its backing; `tunable`, `runtime` and `outside` force that mechanism. The modes `default`, `preload-2m`
and `tunable` find a pool of {pool} MiB of 2 MiB pages, so that bigger programs also run it dry. *Mechanism*,
and what backed the program's anonymous memory when it was largest, are from the launcher's report, that is from the
kernel's figures; where a case runs several programs, it is the largest one's. A program that was too short to be
sampled has none.

| program | version | asked | mechanism | 2 MiB hugetlb | THP | base pages | huge | result |
|---|---|---|---|---|---|---|---|---|
"""


def markdown(results, pool_mib):
    """The whole document."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    libc = " ".join(platform.libc_ver())
    machine = f"Linux {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs, {memory} GiB, {libc}"
    return HEADER.format(machine=machine, pool=pool_mib) + "".join(row(result) + "\n" for result in results)


def row(result):
    """One line of the table."""
    largest = max(result.reports, key=size_at_peak, default=None)
    cells = [result.case.program, result.case.shown_version, result.mode]
    if largest is None:
        cells += ["", "", "", "", ""]
    else:
        mechanisms = " + ".join(largest["mechanisms"]) or "none applies"
        memory = (largest["peak"] or {}).get("anonymous")
        if memory is None:
            cells += [mechanisms, "", "", "", ""]
        else:
            kinds = ("hugetlb_2m_bytes", "thp_bytes", "base_bytes")
            percent = memory["huge_percent"]
            cells += [mechanisms, *(mebibytes(memory[kind]) for kind in kinds)]
            cells.append("" if percent is None else f"{percent:.0f} %")
    cells.append(result.outcome + (f": {result.why.splitlines()[0]}" if result.why else ""))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def size_at_peak(report):
    """Bytes of the whole program in its largest sample."""
    return report["peak"]["resident"]["total_bytes"] if report["peak"] else 0


def mebibytes(count):
    """For people, in MiB."""
    return f"{count / (1 << 20):.0f} MiB" if count else "0"
