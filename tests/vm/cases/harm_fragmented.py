# title: programs of tests/harm where no block of 2 MiB is free and pinned pages keep compaction from making one
# kernels: 6.1
# memory: 1G
# seconds: 3600
"""Adverse environment `fragmented` (tests/harm/environments.py)."""

import atexit
import pathlib
import sys

import harm
import vmcheck as vm

# Order of 2 MiB, in base pages of 4 KiB.
ORDER = 9


def free_blocks():
    """Returns the number of free blocks of 2 MiB and more, in all zones."""
    lines = pathlib.Path("/proc/buddyinfo").read_text().splitlines()
    return sum(int(count) for line in lines for count in line.split()[4 + ORDER:])


pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
# Otherwise blocks of the lowest zone would stay free, which no program gets.
reserve = pathlib.Path("/proc/sys/vm/lowmem_reserve_ratio")
atexit.register(reserve.write_text, reserve.read_text())
reserve.write_text("0 0 0 0")
with vm.Child("/opt/megapage/fragment") as fragment:
    said = fragment.line()
    if free_blocks() or not said.startswith("ready "):
        sys.exit(f"memory is not fragmented: '{said}', {free_blocks()} free blocks")
    harm.run("fragmented")
    vm.note(f"{said} blocks pinned and taken; free blocks at the end: {free_blocks()}")
