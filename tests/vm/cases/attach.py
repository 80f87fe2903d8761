# title: run --attach: what was promoted against smaps before and after; a process that ends, that is not there, that is busy
# kernels: x86-64 arm64
# quick: 5.10
# seconds: 400
"""Promotion of running processes from outside."""

import signal

import truth
import vmcheck as vm

ROW = "run --attach"


def once(what, holder, *options, allowed=(0, 1)):
    before = vm.quiet(holder.pid)
    done = vm.megapage(ROW, "run", "--attach", holder.pid, "--once", "--json", *options, allowed=(*allowed, 2))
    after = vm.quiet(holder.pid)
    holder.intact(ROW, f"after promotion ({what})")
    gained = after.thp - before.thp
    if not truth.collapses():
        words = done.err + done.out
        vm.unsupported(ROW, f"{what}: the kernel is named as what cannot", "6.1" in words and done.status != 0,
                       f"status {done.status}: {words[-500:]}", "no MADV_COLLAPSE before Linux 6.1")
        return None
    report = done.json
    promotion = vm.value(report, "promotion", default={}) or {}
    vm.check(ROW, f"{what}: obtained is what became huge", abs(promotion.get("obtained_bytes", -1) - gained) <= 2 * vm.MIB,
             promotion, f"{gained} bytes became huge")
    vm.check(ROW, f"{what}: asked for is no more than there is",
             promotion.get("obtained_bytes", 0) <= promotion.get("asked_bytes", 0) <= after.total + 4 * vm.MIB,
             promotion, f"{after.total} bytes resident")
    vm.same(ROW, f"{what}: THP in the report", vm.value(report, "end", "resident", "thp_bytes"), after.thp, 2 * vm.MIB)
    vm.same(ROW, f"{what}: resident in the report", vm.value(report, "end", "resident", "total_bytes"), after.total, 4 * vm.MIB)
    percent = vm.value(report, "end", "resident", "huge_percent")
    vm.same(ROW, f"{what}: the percentage is of all that is resident", percent, 100 * after.huge / max(1, after.total), 5)
    vm.check(ROW, f"{what}: status 0 only when all was obtained",
             done.status != 0 or promotion.get("obtained_bytes", 0) >= promotion.get("asked_bytes", 0), done.status, promotion)
    return after


vm.still_khugepaged()
with vm.Holder("--mib", "40", "--mmap") as holder:
    once("40 MiB", holder)
    once("again", holder)
with vm.Holder("--mib", "16", "--block", "5000") as holder:
    once("small blocks", holder)
with vm.Holder("--mib", "24", "--mmap", "--busy") as holder:
    once("busy", holder)
    holder.intact(ROW, "while it writes")
with vm.Holder("--mib", "32", "--mmap", program="holder-static") as holder:
    once("static", holder)

# Without --once it runs until the process ends, or SIGINT comes.
with vm.Holder("--mib", "24", "--mmap") as holder:
    with vm.Child("megapage", "run", "--attach", holder.pid, "--json") as attached:
        if truth.collapses():
            came = vm.wait_until(lambda: truth.backing(holder.pid).thp >= 16 * vm.MIB, 60)
            vm.check(ROW, "without --once it promotes as well", came, truth.backing(holder.pid).thp, ">= 16 MiB")
            status = attached.signal(signal.SIGINT)
            vm.check(ROW, "SIGINT ends it", status in (0, 1), status, 0)
        else:
            vm.unsupported(ROW, "without --once it ends, and does not wait without end",
                           vm.wait_until(lambda: attached.process.poll() not in (None, 0), 30), attached.process.poll(), 2)
    holder.intact(ROW, "afterwards")
if truth.collapses():
    holder = vm.Holder("--mib", "24", "--mmap")
    with vm.Child("megapage", "run", "--attach", holder.pid) as attached:
        vm.wait_until(lambda: truth.backing(holder.pid).thp > 0, 60)
        holder.end()
        vm.check(ROW, "it ends with its process", vm.wait_until(lambda: attached.process.poll() is not None, 30), "runs", "ends")
        vm.check(ROW, "with another status", attached.process.poll() in (0, 1), attached.process.poll(), "0 or 1")
vm.megapage(ROW, "run", "--attach", "999999", "--once", allowed=(2, 125))
vm.megapage(ROW, "run", "--attach", "1", "--once", "--heap", "2m", allowed=(2, 125))
