# title: the broker: pool serve, pool stock and run --pool against the pool; what goes back at its end
# kernels: x86-64 arm64
# quick: 6.1
# seconds: 300
"""Pre-zeroed pages, handed out over a socket."""

import json
import pathlib
import signal

import truth
import vmcheck as vm

ROW = "pool serve"
MOMENTS = vm.Moments("/tmp/holder.smaps", 1500)


def stock():
    return vm.megapage("pool stock", "pool", "stock", "--json").json or {}


vm.megapage("pool stock", "pool", "stock", allowed=(2,))
vm.megapage(ROW, "pool", "serve", "--stock", "16", "--dry-run")
vm.same(ROW, "a dry run takes no page", truth.pool(), 0)
with vm.Child("megapage", "pool", "serve", "--stock", "32", "--grow", "32") as broker:
    came = vm.wait_until(lambda: vm.run(["megapage", "pool", "stock"]).status == 0, 30)
    if vm.check(ROW, "it answers", came, broker.process.poll(), "an answer"):
        vm.wait_until(lambda: stock().get("ready_pages") == 32, 40)
        document = stock()
        vm.same("pool stock", "ready pages are taken from the pool", document.get("ready_pages"),
                truth.pool() - truth.pool(name="free_hugepages"))
        vm.same("pool stock", "pages that it added", document.get("added_pages"), truth.pool())
        done = vm.megapage("run --pool", "run", "--pool=default", "--heap", "2m", "--json", "--report", "/tmp/report.json",
                           "--", "/opt/megapage/holder", "--mib", "24", "--smaps", MOMENTS.path, "--linger", "1500")
        vm.check("run --pool", "the program's output", done.out.startswith("ok "), done.words, "ok")
        report = json.loads(pathlib.Path("/tmp/report.json").read_text())
        vm.moment_matches("run --pool", "memory from the broker", report.get("end"), MOMENTS)
        after = MOMENTS.after
        plan = vm.value(report, "pool") or {}
        if truth.release() >= (5, 16):
            vm.check("run --pool", "it is on the broker's pages", after is not None and after.hugetlb_bytes >= 8 * vm.MIB,
                     plan, after and after.hugetlb)
        else:
            vm.unsupported("run --pool", "the kernel is named as what cannot, and nothing is used", plan.get("used") is False
                           and "5.16" in plan.get("reason", "") and not after.hugetlb_bytes, plan, "mremap, Linux 5.16")
        gone = vm.wait_until(lambda: not stock().get("holders"), 30)
        vm.check("pool stock", "a program that ended holds nothing", gone, stock().get("holders"), "no holder")
        with vm.Holder("--mib", "16", prefix=("megapage", "run", "--pool=default", "--heap", "2m", "--")) as holder:
            true = vm.quiet(holder.worker)
            holders = stock().get("holders", [])
            if truth.release() >= (5, 16):
                vm.check("pool stock", "who holds memory is named", str(holder.worker) in json.dumps(holders)
                         or any(other.get("uid") == 0 for other in holders), holders, holder.worker)
            holder.intact("run --pool", "on the broker's pages")
            # Ended while its programs run: their memory stays theirs.
            status = broker.signal(signal.SIGTERM)
            vm.same(ROW, "SIGTERM ends it", status, 0)
            holder.intact("run --pool", "after the broker's end")
            still = vm.quiet(holder.worker)
            vm.check("run --pool", "its memory stays on huge pages", still.hugetlb_bytes >= true.hugetlb_bytes, still.hugetlb,
                     true.hugetlb)
        empty = vm.wait_until(lambda: truth.pool() == 0, 20)
        vm.check(ROW, "the pages that it added go back", empty, truth.pool(), 0)
vm.megapage("run --pool", "run", "--pool=no-such-pool", "--", "true", allowed=(0, 125))
vm.pool_pages(0)
