# title: segments: a C program finds its table after a restart; list, verify, show and remove against the pool and the files
# kernels: x86-64 arm64
# quick: 6.12
# seconds: 300
"""Named memory that outlives its program, on hugetlbfs, by examples/restart.c and
megapage-lab-workload."""

import pathlib

import truth
import vmcheck as vm

RESTART = "/opt/megapage/restart"


def used():
    return truth.pool() - truth.pool(name="free_hugepages")


def listed(row="segments list"):
    document = vm.megapage(row, "segments", "list", "--json").json
    return {segment.get("name") or segment.get("path"): segment for segment in vm.value(document, "segments", default=[])}


vm.pool_pages(0)
short = vm.run([RESTART])
vm.check("segments (C)", "an empty pool is a refusal that names the command",
         short.status == 2 and "pool" in short.err, short.words, "status 2, and what to do")
vm.same("segments (C)", "a refusal takes no page", used(), 0)
left = list(listed().values())
vm.check("segments list", "what a refusal leaves is listed as no whole segment", all(segment.get("because") for segment in left),
         left, "why it is not one")
vm.pool_pages(24)
built = vm.run([RESTART])
vm.check("segments (C)", "the first run builds", built.out.startswith("built"), built.words, "built")
held = used()
vm.check("segments (C)", "its memory is in the pool's pages", held >= 4, held, "at least 4 pages")
found = vm.run([RESTART])
vm.check("segments (C)", "the second run finds the same", found.out.startswith("found")
         and found.out.split(":")[1] == built.out.split(":")[1], found.words, built.out)
segments = listed()
vm.same("segments list", "one segment", len(segments), 1)
segment = next(iter(segments.values()), {})
text = vm.megapage("segments list", "segments", "list").out
vm.check("segments list", "it is named", "divisors" in text, text, "divisors")
sizes = [number for key, number in segment.items() if isinstance(number, int) and number == held * truth.HUGE]
vm.check("segments list", "the memory it holds is what the pool lacks", bool(sizes), segment, held * truth.HUGE)
verified = vm.megapage("segments verify", "segments", "verify", allowed=(0, 1))
vm.same("segments verify", "a sound segment is sound", verified.status, 0)
vm.megapage("segments show", "segments", "show", "example-c/divisors")
vm.megapage("segments remove", "segments", "remove", "example-c/divisors", "--dry-run")
vm.same("segments remove", "a dry run removes nothing", used(), held)

# The memory of another application, after a plain start: listed beside the first, and sound as
# well.
kept = vm.run(["megapage-lab-workload", "keep", "start", "--directory", "/dev/hugepages", "--size", "16m"])
vm.check("segments (Rust)", "a start ends well", kept.status == 0, kept.words, "status 0")
vm.same("segments list", "both applications are listed", sorted(listed()), ["divisors", "kept"])
vm.check("segments (Rust)", "its memory is in the pool's pages, too", used() > held, used(), f"more than {held}")
verified = vm.megapage("segments verify", "segments", "verify", "--json", allowed=(0, 1))
vm.same("segments verify", "what was never changed is sound", verified.status, 0)
vm.megapage("segments remove", "segments", "remove", "bench/kept")
vm.same("segments remove", "only its pages are free again", used(), held)

# Removal: the segment is listed no longer, and its files are gone.
files = [path for path in pathlib.Path("/dev/hugepages").rglob("*") if path.is_file() and "divisors" in str(path)]
vm.megapage("segments remove", "segments", "remove", "example-c/divisors")
remaining = [name for name in listed() if "divisors" in str(name)]
vm.same("segments remove", "it is gone", remaining, [])
vm.check("segments remove", "its files are gone", not any(path.exists() for path in files), files, "no file")
vm.megapage("segments remove", "segments", "remove", "example-c/divisors", allowed=(2,))
for name in list(listed()):
    vm.megapage("segments remove", "segments", "remove", name)
vm.same("segments remove", "all pages are free again", used(), 0)
# A directory that is on no hugetlbfs.
pathlib.Path("/root/pool").mkdir(mode=0o700)
there = vm.run([RESTART, "/root/pool"])
again = vm.run([RESTART, "/root/pool"])
vm.check("segments (C)", "in a directory, too", again.out.startswith("found"), again.words, "found")
vm.megapage("segments verify", "segments", "verify", "--directory", "/root/pool")
vm.pool_pages(0)
