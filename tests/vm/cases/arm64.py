# title: what is particular to arm64 with base pages of 4 KiB: pools of 64 KiB and 32 MiB, the walk of its page tables, promotion
# kernels: arm64
# quick: arm64-7.3
# seconds: 400
"""A process of known memory, of which every second region is read over and over: on base pages, on
64 KiB, on 2 MiB."""

import atexit
import pathlib
import sys

import truth
import vmcheck as vm

SIZES = {"64k": 64 << 10, "2m": truth.HUGE, "32m": 32 << 20}
REGIONS = 8
# A program that keeps three mappings of 16 MiB and prints their addresses. It reads each base page
# of every second region of them.
PROGRAM = f"""
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
HUGE, SIZE = {truth.HUGE}, {REGIONS * truth.HUGE}
def contiguous(setting):
    # Without advice there are no larger ones, neither now nor by khugepaged.
    try: open('/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled', 'w').write(setting)
    except OSError: pass # before Linux 6.8: base pages
starts = []
for kind in ('base', 'contiguous', 'thp'):
    start = (libc.mmap(None, SIZE + 2 * HUGE, 3, 0x22, -1, 0) + 2 * HUGE - 1) & -HUGE
    if kind == 'contiguous': contiguous('always')
    else: libc.madvise(start, SIZE, 14 if kind == 'thp' else 15)
    ctypes.memset(start, 7, SIZE)
    contiguous('never')
    starts.append(start)
print(*starts, flush=True)
views = [(ctypes.c_char * HUGE).from_address(start + at) for start in starts for at in range(0, SIZE, 2 * HUGE)]
while True:
    for view in views: view[::4096]
    time.sleep(0.02)
"""

vm.same("doctor", "base pages of this kernel", truth.PAGE, 4096)
vm.still_khugepaged()
for name, size in SIZES.items():
    done = vm.megapage("pool set", "pool", "set", f"{name}=3", "--json").json
    vm.same("pool set", f"3 pages of {name}", truth.pool(size), 3)
    vm.same("pool set", f"obtained of {name} is what is there", vm.value(done, "steps", 0, "obtained"), truth.pool(size))
listed = vm.megapage("pool list", "pool", "list", "--json").json
claimed = {pool["page_size"]: pool["machine"]["total"] for pool in vm.value(listed, "pools", default=[])}
vm.same("pool list", "the pools that are used, each with its pages", {name: claimed.get(name) for name in SIZES},
        {name: truth.pool(size) for name, size in SIZES.items()})
for name, size in SIZES.items():
    vm.megapage("pool set", "pool", "set", f"{name}=0")
    vm.same("pool set", f"no page of {name}", truth.pool(size), 0)

with vm.Child(sys.executable, "-c", PROGRAM) as child:
    words = child.line().split()
    starts = dict(zip(("base", "contiguous", "thp"), map(int, words)))
    if not vm.check("map", "the process is ready", len(words) == 3, words, "three addresses"):
        sys.exit(1)
    # The kernel's own monitor, which Debian's 7.3 starts at boot, clears the bits of whole folios.
    monitor = pathlib.Path("/sys/module/damon_stat/parameters/enabled")
    if monitor.exists():
        monitor.write_text("N")
        atexit.register(monitor.write_text, "Y")
    true = vm.quiet(child.pid)
    if truth.release() >= (6, 8):
        made = int((truth.THP / "hugepages-64kB/stats/anon_fault_alloc").read_text())
        vm.check("map", "the readings here are sane: pages of 64 KiB", made >= REGIONS * 32, made, REGIONS * 32)
    vm.check("map", "the readings here are sane", true.thp == REGIONS * truth.HUGE, true.thp, "one of three mappings on THP")
    done = vm.megapage("map", "map", child.pid, "--json", "--seconds", "6")
    document = done.json
    sampling = vm.value(document, "sampling", "tracker", default="none")
    regions = {int(region["start"], 16): region for region in vm.value(document, "process", "regions", default=[])}
    vm.same("map", "huge memory", vm.value(document, "totals", "huge_bytes"), true.huge)
    vm.same("map", "present memory", vm.value(document, "totals", "present_bytes"), true.total, 512 << 10)
    for kind, start in starts.items():
        mine = [regions.get(start + at * truth.HUGE, {}) for at in range(REGIONS)]
        vm.same("map", f"{kind}: all of it is present", [region.get("present") for region in mine], [512] * REGIONS)
        vm.same("map", f"{kind}: its entries", {region.get("leaf") for region in mine}, {"huge2m" if kind == "thp" else "base"})
    if truth.release() >= (6, 2):
        vm.same("map", "the page tables are read by BPF", sampling, "bpf")
        for kind, start in starts.items():
            mine = [vm.value(regions, start + at * truth.HUGE, "accessed", "coverage") for at in range(REGIONS)]
            vm.same("map", f"{kind}: the regions that are read are accessed, the others are not", mine,
                    [512, 0] * (REGIONS // 2))
    else:
        vm.unsupported("map", "without BPF's help another tracker is named", sampling != "bpf", sampling, "Linux 6.2")
    vm.megapage("advise", "advise", child.pid, "--seconds", "2", "--json", seconds=300, allowed=(0, 1))

with vm.Holder("--mib", "32", "--mmap") as holder:
    before = vm.quiet(holder.pid)
    done = vm.megapage("run --attach", "run", "--attach", holder.pid, "--once", "--json", allowed=(0, 1))
    after = vm.quiet(holder.pid)
    obtained = vm.value(done.json, "promotion", "obtained_bytes")
    vm.same("run --attach", "obtained is what became huge", obtained, after.thp - before.thp, 2 * vm.MIB)
    vm.check("run --attach", "all of it became huge", after.thp - before.thp >= 30 << 20, done.out[-800:], after.thp)
    holder.intact("run --attach", "after promotion")
