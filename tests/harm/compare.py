"""Differences between plain runs and one under `megapage run`. Lines that differ between plain runs
vary by themselves."""

import re

import environments

NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d[\d.,:]*")
# bash reports the end of a script's programs: their status says the same.
END = (r"(Done|Exit \d+|Killed|Aborted|Bad system call|Bus error|Hangup|Illegal instruction|Quit|Segmentation fault|Terminated"
       r"|Trace/breakpoint trap)")
REPORT = re.compile(rf"^\S+\.sh: line \d+: +(\d+ )?{END} .*$|^ +(\d+ )?{END} .*$|^ +\| .*$")
# Characters of a difference that are shown.
MOST = 240


def differences(plains, under, within=0):
    """Returns the differences in words; empty if nothing differs. Each run is {status, out, errors,
    peak, kills, seconds}, and `stalls` if they are counted. A peak `within` the limit of the group
    is no difference."""
    found = []
    statuses = sorted({run["status"] for run in plains}, key=str)
    if under["status"] is None:
        found.append(f"no end after {under['seconds']:.0f} s (plain: {plains[0]['seconds']:.1f} s)")
    elif under["status"] not in statuses:
        found.append(f"status {shown(under['status'])}, plain {', '.join(map(shown, statuses))}")
    if under["kills"] > min(run["kills"] for run in plains):
        found.append("killed for lack of memory in its group")
    if stalls(under) > (most := max(map(stalls, plains))):
        counts = ", ".join(f"{what} {count}" for what, count in sorted(under["stalls"].items()))
        found.append(f"entered direct compaction or reclaim {stalls(under)} times ({counts}), plain {most}")
    for stream, name in (("out", "stdout"), ("errors", "stderr")):
        if line := text([run[stream] for run in plains], under[stream]):
            found.append(f"{name}: {line}")
    most = max(run["peak"] for run in plains)
    if under["peak"] > max(environments.allowed_peak(most), within):
        share = under["peak"] / most if most else 0
        found.append(f"peak {under['peak'] / environments.MIB:.1f} MiB, plain {most / environments.MIB:.1f} ({share:.2f}x)")
    return found


def stalls(run):
    """Returns how often the program entered direct compaction or reclaim; 0 if nothing counted
    it."""
    return sum(run.get("stalls", {}).values())


def shown(status):
    """Returns a status as shells count it."""
    return f"{status} (signal {status - 128})" if status is not None and status > 128 else str(status)


def text(plains, under):
    """Returns the first difference of a text; empty if there is none."""
    plains, under = [lines(plain) for plain in plains], lines(under)
    if under in plains:
        return ""
    if len({len(plain) for plain in plains}) == 1 and len(under) == len(plains[0]):
        # Compares line by line: numbers may vary in lines that vary.
        for some, line in zip(zip(*plains), under):
            if line in some:
                continue
            masked = {NUMBER.sub("N", one) for one in some}
            if len(set(some)) == 1 or (len(masked) == 1 and NUMBER.sub("N", line) not in masked):
                return f"'{line}', plain '{some[0]}'"[:MOST]
        return ""
    if len({tuple(plain) for plain in plains}) == 1:
        return first(plains[0], under)
    # The number of lines varies: compares which lines there are, in any order.
    sets = [{NUMBER.sub("N", line) for line in plain} for plain in plains]
    own = {NUMBER.sub("N", line) for line in under}
    if new := own - set.union(*sets):
        return f"'{min(new)}', not in plain"[:MOST]
    if gone := set.intersection(*sets) - own:
        return f"without '{min(gone)}'"[:MOST]
    return ""


def lines(text):
    return [line for line in text.splitlines() if not REPORT.match(line)]


def first(plain, under):
    """Returns the first line in which two lists differ, in words."""
    for one, other in zip(plain, under):
        if one != other:
            return f"'{other}', plain '{one}'"[:MOST]
    if len(under) > len(plain):
        return f"'{under[len(plain)]}', not in plain"[:MOST]
    return f"ends before '{plain[len(under)]}'"[:MOST]
