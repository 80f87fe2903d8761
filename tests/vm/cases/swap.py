# title: swap: every byte under promotion, recovery and pressure; what is said of memory that is swapped out
# memory: 1G
# swap: 1G
# seconds: 600
"""Promotion and the daemon while memory goes out to disk and comes back."""

import pathlib
import signal
import time

import truth
import vmcheck as vm

group = pathlib.Path("/sys/fs/cgroup/small")
group.mkdir(exist_ok=True)
vm.check("run --attach", "there is swap", truth.meminfo()["SwapTotal"] > 0, truth.meminfo()["SwapTotal"], "1 GiB")
INSIDE = ("sh", "-c", 'echo $$ > /sys/fs/cgroup/small/cgroup.procs && exec "$@"', "sh")

(group / "memory.high").write_text(str(90 << 20))
with vm.Holder("--mib", "160", "--mmap", prefix=INSIDE) as holder:
    time.sleep(1)
    before = vm.quiet(holder.pid)
    vm.check("run --attach", "part of it is swapped out", before.swapped > 16 * vm.MIB, before.swapped, "> 16 MiB")
    (group / "memory.high").write_text("max")
    done = vm.megapage("run --attach", "run", "--attach", holder.pid, "--once", "--json", allowed=(0, 1, 2))
    after = vm.quiet(holder.pid)
    if truth.collapses():
        report = done.json
        # Schema 1 has it beside the sums, schema 2 among them.
        swapped = vm.value(report, "end", "swapped_bytes", default=vm.value(report, "end", "resident", "swapped_bytes"))
        vm.same("run --attach", "swapped out", swapped, after.swapped, 4 * vm.MIB)
        vm.same("run --attach", "THP, in the report", vm.value(report, "end", "resident", "thp_bytes"), after.thp, 4 * vm.MIB)
        if after.swapped > 16 * vm.MIB:
            human = vm.megapage("run --attach", "run", "--attach", holder.pid, "--once", "--report", "-", allowed=(0, 1)).out
            vm.check("run --attach", "a percentage of what is resident says that more is swapped out", "swap" in human.lower(),
                     human[:900], f"{after.swapped} bytes swapped out")
    top = vm.megapage("top", "top", "--once", "--no-sample", "--json", holder.pid).json
    row = next(iter(vm.value(top, "processes", default=[])), {})
    vm.same("top", "swapped out", row.get("swap_bytes"), vm.quiet(holder.pid).swapped, 4 * vm.MIB)
    holder.intact("run --attach", "after promotion of memory that was swapped out")
    holder.ask("write")
    holder.intact("run --attach", "after being written again")

# Under pressure: a heap of ours, a program promoted again and again, the daemon, and more memory
# wanted than there is.
log = open("/tmp/daemon.log", "w")
with (
    vm.Holder("--mib", "120", "--block", "3000", "--busy", prefix=("megapage", "run", "--heap", "thp", "--")) as ours,
    vm.Holder("--mib", "160", "--mmap", "--busy") as theirs,
    vm.Child("megapage", "daemon", stderr=log) as daemon,
):
    for round_ in range(2):
        with vm.Holder("--mib", "500", "--mmap") as press:
            press.intact("daemon", f"under pressure, round {round_}")
            if truth.collapses():
                vm.megapage("run --attach", "run", "--attach", theirs.pid, "--once", allowed=(0, 1))
        ours.ask("half") if round_ == 1 else None
        for holder, row in ((ours, "run --heap thp"), (theirs, "daemon")):
            holder.intact(row, f"with swap, round {round_}")
    vm.check("daemon", "memory was swapped out meanwhile", truth.vmstat("pswpout") > 1000, truth.vmstat("pswpout"), "> 1000 pages")
    running = daemon.process.poll() is None
    vm.check("daemon", "it lives through it", running, pathlib.Path("/tmp/daemon.log").read_text()[-600:], "running")
    if running:
        vm.same("daemon", "SIGTERM ends it", daemon.signal(signal.SIGTERM, 60), 0)
log.close()
