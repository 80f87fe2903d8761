# title: run with every --heap, with pages and without, dynamic, threaded and forking: output, status, report against smaps
# kernels: x86-64 arm64
# quick: 5.10
# seconds: 600
"""A program that checks each byte and keeps its own smaps for the comparison with the report."""

import itertools
import json
import pathlib

import truth
import vmcheck as vm

REPORT = "/tmp/report.json"
MOMENTS = vm.Moments("/tmp/holder.smaps", 1200)
PROGRAM = ["/opt/megapage/holder", "--mib", "24", "--smaps", MOMENTS.path, "--linger", "1200"]


def judge(row, what, arguments, program, options=(), pool=0):
    """Runs a program; returns its report, and its memory by its own smaps."""
    vm.pool_pages(pool)
    MOMENTS.forget()
    pathlib.Path(REPORT).unlink(missing_ok=True)
    done = vm.megapage(row, "run", *arguments, "--json", "--report", REPORT, *options, "--", *program)
    vm.check(row, f"{what}: the program's output", done.out.startswith("ok "), done.out + done.err, "ok")
    vm.check(row, f"{what}: nothing is printed beside", done.err.strip() == "", done.err, "nothing on standard error")
    try:
        report = json.loads(pathlib.Path(REPORT).read_text())
    except (OSError, ValueError) as error:
        vm.check(row, f"{what}: a report is written", False, str(error), "a report")
        return None, None
    vm.moment_matches(row, what, report.get("end") or report.get("peak"), MOMENTS)
    vm.same(row, f"{what}: the pool is as before", truth.pool(name="free_hugepages"), pool)
    return report, MOMENTS.after


vm.still_khugepaged()
for heap, pool in itertools.product(("auto", "2m", "thp", "none", "1g"), (0, 40)):
    row = f"run --heap {heap}"
    report, true = judge(row, f"pool of {pool}", ["--heap", heap], PROGRAM, pool=pool)
    if true is None:
        continue
    if heap == "none":
        vm.check(row, f"pool of {pool}: no huge page", true.huge == 0, report["heap"], f"{true.huge} bytes huge")
    elif heap in ("2m", "thp"):
        total = vm.value(report, "end", "heap", "huge_percent")
        share = 100 * (true.hugetlb_bytes + true.thp) / max(1, true.hugetlb_bytes + true.thp + true.anonymous_base)
        vm.check(row, f"pool of {pool}: the heap's share of huge pages is so",
                 total is not None and (total < 50 or share > 50), total, f"{share:.1f} % of anonymous memory")

# A pool too small for all of it: the rest falls back, and is counted.
report, true = judge("run --heap 2m", "pool of 6", ["--heap", "2m"], PROGRAM, pool=6)
if true:
    vm.check("run --heap 2m", "pool of 6: no more hugetlb than there is", true.hugetlb_bytes <= 6 * truth.HUGE,
             vm.value(report, "end", "resident"), true.hugetlb)
    vm.check("run --heap 2m", "pool of 6: a reason for each fall-back", bool(vm.value(report, "account", "fall_backs")),
             vm.value(report, "account"), "fall-backs")

threaded = [*PROGRAM, "--threads", "4", "--rounds", "2", "--block", "3000"]
forking = [*PROGRAM, "--forks", "2", "--block", "20000"]
for heap, pool in (("auto", 40), ("2m", 80), ("thp", 0)):
    judge(f"run --heap {heap}", f"threads, pool of {pool}", ["--heap", heap], threaded, pool=pool)
    judge(f"run --heap {heap}", f"forks, pool of {pool}", ["--heap", heap], forking, pool=pool)
vm.pool_pages(0)
vm.enough_samples("run --heap auto")
vm.megapage("run --heap none", "run", "--heap", "3m", "--", "true", allowed=(125,))
vm.megapage("run --heap auto", "run", "--", "/no/such/program", allowed=(127,))
vm.megapage("run --heap auto", "run", "--", "/etc/passwd", allowed=(126,))
vm.megapage("run --heap auto", "run", "--", "sh", "-c", "exit 7", allowed=(7,))
