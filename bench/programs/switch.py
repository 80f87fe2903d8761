#!/usr/bin/env python3
"""Measures a program's steady work on huge and on base pages, within one plain process and in
random order. README.md says what that shows, and what it does not."""

import argparse
import ctypes
import os
import pathlib
import random
import shutil
import sys
import tempfile

import case as cases_module
import driver
import estimate
import install
import machine
import runner
import tree
import ways

SCHEMA = "megapage.programs-switch/1"
PROCESS_MADVISE, MADV_COLD, MADV_COLLAPSE = 440, 20, 25
PAGE = os.sysconf("SC_PAGE_SIZE")
# Ranges that one call takes (IOV_MAX).
MOST_RANGES = 1024


class Range(ctypes.Structure):
    """An iovec of readv(2)."""

    _fields_ = [("begin", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def regions(maps):
    """Returns the whole huge regions of private anonymous memory, as (begin, end), in the text of
    /proc/PID/maps."""
    found = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in fields[0].split("-"))
        begin, end = -(-begin // machine.HUGE) * machine.HUGE, end // machine.HUGE * machine.HUGE
        name = fields[5] if len(fields) > 5 else ""
        own = fields[1].startswith("rw") and fields[1].endswith("p") and fields[4] == "0"
        if own and begin < end and (name in ("", "[heap]") or name.startswith("[anon:")):
            found.append((begin, end))
    return found


def advise(pid, ranges, advice):
    """Gives advice on ranges of another process; passes over those that the kernel refuses."""
    descriptor = os.pidfd_open(pid)
    try:
        while ranges:
            some = ranges[:MOST_RANGES]
            vector = (Range * len(some))(*some)
            done = tree.LIBC.syscall(PROCESS_MADVISE, descriptor, vector, len(some), advice, 0)
            size, passed = 0, 0
            while passed < len(some) and size < done:
                size += some[passed][1]
                passed += 1
            ranges = ranges[passed + (passed < len(some)):]
    finally:
        os.close(descriptor)


def split(pid, found):
    """Splits huge pages: advice on a part of one does."""
    advise(pid, [(at, PAGE) for begin, end in found for at in range(begin, end, machine.HUGE)], MADV_COLD)


def collapse(pid, found):
    for begin, end in found:
        advise(pid, [(begin, end - begin)], MADV_COLLAPSE)


def switch(pids, huge):
    """Copies all memory to huge pages, and then splits them unless `huge` is wanted. So both kinds
    of blocks begin with memory that was just copied."""
    for pid in tree.address_spaces(pids):
        found = regions(pathlib.Path(f"/proc/{pid}/maps").read_text())
        split(pid, found)
        collapse(pid, found)
        if not huge:
            split(pid, found)


class Switched(runner.Run):
    """A run whose blocks are on huge pages where `order` says so."""

    def __init__(self, order, *arguments):
        super().__init__(*arguments)
        self.order, self.blocks, self.shares = order, [], []
        self.began = 0.0

    def reply(self, phase):
        if phase == "block":
            self.blocks.append(self.marks[phase].cpu - self.began)
        if phase not in ("steady", "block"):
            return b"go\n"
        if len(self.blocks) == len(self.order):
            return b"end\n"
        pids = self.tree()
        switch(pids, self.order[len(self.blocks)])
        self.shares.append(tree.memory(pids)["huge_share"])
        self.began = runner.Mark(self, 0.0).cpu
        return b"go\n"


def drawn(name, pairs):
    """Returns the order of the blocks: first one that does not count, then pairs. A coin says which
    is first in each pair."""
    draw = random.Random(f"{driver.SEED} {name}")
    return [False] + [kind for _ in range(pairs) for kind in draw.sample([True, False], 2)]


def ratio_of(order, blocks):
    """Returns the ratio of huge to base blocks, paired, with its interval."""
    pairs = [dict(zip(order[at:at + 2], blocks[at:at + 2])) for at in range(1, len(blocks), 2)]
    return estimate.Ratio.of([pair[True] / pair[False] for pair in pairs])


def measure(case, bench, pairs):
    """Returns what one program's blocks took."""
    work = runner.prepare_directory(bench.scratch / "work")
    places = dict(install.places(case), work=str(work), socket=str(work / "socket"))
    machine.back_free_memory(case.size * 2)
    environment = {**bench.environment(work, case), "BENCH_BLOCKS": "1"}
    order = drawn(case.name, pairs)
    one = Switched(order, case, [], (environment, environment), places, work)
    with bench.settings.set_to(ways.USUAL):
        found = one.go()
    ratio = ratio_of(order, one.blocks)
    shares = {kind: [share for share, huge in zip(one.shares, order) if huge == kind] for kind in (True, False)}
    return {"case": case.name, "size": case.size, "answer": found["answer"], "ratio": ratio.as_json(),
            "huge_share": {"huge": min(shares[True]), "base": max(shares[False])},
            "blocks": [{"huge": huge, "cpu": seconds} for huge, seconds in zip(order, one.blocks)]}


def main():
    parser = argparse.ArgumentParser(description="Measures steady work on huge and base pages, within one process.")
    parser.add_argument("--only", metavar="CASE,...", help="only these programs")
    parser.add_argument("--size", metavar="SIZE", help="every program at this size, such as 512m")
    parser.add_argument("--pairs", type=int, default=12, metavar="N", help="pairs of blocks; default: %(default)s")
    parser.add_argument("--save", type=pathlib.Path, metavar="FILE", help="write every block, as JSON")
    arguments = parser.parse_args()
    if os.getuid() != 0:
        sys.exit("switch: advice for other processes' memory is root's")
    size = cases_module.bytes_of(arguments.size) if arguments.size else None
    cases = [case for case in cases_module.discover(driver.split(arguments.only), True, size) if case.blocks]
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="megapage-bench-switch."))
    scratch.chmod(0o755)
    results = {"schema": SCHEMA, "recorded": driver.now(), "machine": machine.describe(), "programs": []}
    failed = 0
    try:
        with driver.alone():
            runner.become_subreaper()
            settings = ways.Settings(install.TARGET / "settings-before")
            settings.recover()
            bench = driver.Bench(None, scratch, settings)
            for case in driver.available(bench, cases, [])[0]:
                try:
                    found = measure(case, bench, arguments.pairs)
                except runner.Failed as error:
                    failed += 1
                    print(f"{case.name:18} failed: {error}", flush=True)
                    continue
                results["programs"].append(found)
                ratio, share = found["ratio"], found["huge_share"]
                print(f"{case.name:18} huge takes {ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}] of base; "
                      f"huge {share['huge']:.0%} and {share['base']:.0%}", flush=True)
                if arguments.save:
                    driver.save(results, arguments.save)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if failed or not results["programs"] else 0


if __name__ == "__main__":
    sys.exit(main())
