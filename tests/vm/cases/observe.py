# title: map, top and advise: resident and huge memory against smaps, by each tracker; nothing of the process is harmed
# kernels: x86-64 arm64-7.3
# seconds: 900
"""Claims of the observing commands about a process whose memory stands still."""

import truth
import vmcheck as vm

TRACKERS = ("bpf", "idle-pages", "pagemap")

# The first command calibrates the machine, which takes long on an emulated one.
with vm.Holder("--mib", "48", "--mmap", "--advise") as huge, vm.Holder("--mib", "40", "--mmap") as plain:
    true = {holder.pid: vm.quiet(holder.pid) for holder in (huge, plain)}
    vm.check("top", "the readings here are sane", true[huge.pid].thp >= 40 * vm.MIB and true[plain.pid].thp == 0,
             [b.thp for b in true.values()], "one on THP, one not")
    done = vm.megapage("top", "top", "--once", "--json", "--least", "16m", seconds=300)
    document = done.json
    rows = {row["pid"]: row for row in vm.value(document, "processes", default=[])}
    for holder, what in ((huge, "on THP"), (plain, "on base pages")):
        row = rows.get(holder.pid, {})
        vm.same("top", f"resident of a process {what}", row.get("resident_bytes"), true[holder.pid].total, 512 << 10)
        vm.same("top", f"huge memory of a process {what}", row.get("huge_bytes"), true[holder.pid].huge)
    memory = vm.value(document, "machine", "memory", default={})
    meminfo = truth.meminfo()
    vm.same("top", "memory of the machine", memory.get("total_bytes"), meminfo["MemTotal"])
    vm.same("top", "huge memory of the machine", memory.get("anon_huge_bytes"), meminfo["AnonHugePages"], 8 * vm.MIB)
    for holder, what in ((huge, "on THP"), (plain, "on base pages")):
        document = vm.megapage("map", "map", holder.pid, "--json").json
        vm.same("map", f"present of a process {what}", vm.value(document, "totals", "present_bytes"),
                true[holder.pid].total, 512 << 10)
        vm.same("map", f"huge of a process {what}", vm.value(document, "totals", "huge_bytes"), true[holder.pid].huge)
        holder.intact("map", "after sampling")
    for tracker in TRACKERS:
        done = vm.megapage("map --tracker", "map", plain.pid, "--json", "--tracker", tracker, allowed=(0, 1, 2))
        if done.status == 0:
            totals = vm.value(done.json, "totals", default={})
            # The process stands still: nearly nothing of it is accessed.
            vm.check("map --tracker", f"{tracker}: an idle process is not called hot",
                     (totals.get("accessed_bytes") or 0) <= 12 * vm.MIB, totals, "idle")
        else:
            vm.unsupported("map --tracker", f"{tracker}: says why not", bool(done.err.strip()), done.words, "a reason")
        plain.intact("map --tracker", f"after sampling by {tracker}")
    vm.megapage("map", "map", plain.pid)
    vm.megapage("map", "map", "999999", allowed=(2,))
    vm.megapage("top", "top", "--once", "--no-sample")

# A busy process is called hot by the best tracker.
with vm.Holder("--mib", "32", "--mmap", "--busy") as busy:
    document = vm.megapage("map", "map", busy.pid, "--json", "--seconds", "6").json
    totals = vm.value(document, "totals", default={})
    if (totals.get("sampled_bytes") or 0) > 16 * vm.MIB:
        vm.check("map", "a busy process is called hot", (totals.get("accessed_bytes") or 0) > totals["sampled_bytes"] / 3, totals,
                 "all of 32 MiB is rewritten over and over")
    else:
        vm.skip("map", "no tracker samples here")
    done = vm.megapage("advise", "advise", busy.pid, "--seconds", "4", "--json", seconds=300, allowed=(0, 1))
    for holder in (busy,):
        holder.intact("advise", "after it was observed")
    human = vm.megapage("advise", "advise", busy.pid, "--seconds", "3", seconds=300, allowed=(0, 1)).out
    vm.check("advise", "root is not told to run it as root", "as root" not in human, human[-600:], "it runs as root")
    if not truth.collapses():
        vm.unsupported("advise", "recommends nothing that this kernel cannot", "--attach" not in human, human[-800:],
                       "no MADV_COLLAPSE before Linux 6.1")
vm.megapage("advise", "advise", "no-such-program-here", allowed=(2,))
done = vm.megapage("advise", "advise", "--seconds", "2", "--stop", "--", "/opt/megapage/holder", "--mib", "24", "--linger",
                   "20000", allowed=(0, 1), seconds=300)
