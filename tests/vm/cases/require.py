# title: --require: what it lets pass was huge, what it refuses says why; short, growing and forking programs
# kernels: x86-64 arm64
# seconds: 500
"""Programs that keep their own smaps just before their end; --require must not pass those that were
not huge."""

import json
import pathlib

import truth
import vmcheck as vm

ROW, SMAPS = "run --require", "/tmp/holder.smaps"
REASON_LINES = 6


def attempt(what, options, program, pool=0, heap=True):
    """Runs a program with --require; checks status 0 only with a heap on huge pages, and 125 only
    with a reason. A program's own success is 0."""
    vm.pool_pages(pool)
    pathlib.Path(SMAPS).unlink(missing_ok=True)
    done = vm.megapage(ROW, "run", "--require", *options, "--", *program, allowed=(0, 125))
    true = None
    if pathlib.Path(SMAPS).exists():
        true = truth.Backing(truth.parse_smaps(pathlib.Path(SMAPS).read_text()))
    huge = true.hugetlb_bytes + true.thp if true else 0
    share = 100 * huge / max(1, huge + true.anonymous_base) if true else 0
    if done.status == 0 and heap:
        # At most 8 MiB or a twentieth of the heap may be on plainer pages (docs/run-report.md); one
        # MiB more is stack and data.
        allowance = max(8 * vm.MIB, (huge + true.anonymous_base) / 20) + vm.MIB if true else 0
        vm.check(ROW, f"{what}: passes only on huge pages", true is not None and true.anonymous_base <= allowance, "status 0",
                 f"{share:.1f} % huge, {true and true.anonymous_base} bytes on base pages")
    elif done.status == 125:
        lines = done.err.strip().splitlines()
        vm.check(ROW, f"{what}: says why it fails", 0 < len(lines) <= REASON_LINES, done.err, "a few lines")
    return done.status, share


holder = "/opt/megapage/holder"
passed = 0
for linger in (0, 0, 20, 100, 400, 1500):
    status, share = attempt(f"24 MiB, {linger} ms before the end", ["--heap", "thp"],
                            [holder, "--mib", "24", "--smaps", SMAPS, "--linger", str(linger)])
    passed += status == 0
vm.check(ROW, "a program that lives on for a while passes", passed > 0, f"{passed} of 6 pass", "at least 1")
for mib in (1, 3, 8):
    attempt(f"{mib} MiB", ["--heap", "thp"], [holder, "--mib", str(mib), "--smaps", SMAPS])
attempt("from a pool", ["--heap", "2m"], [holder, "--mib", "24", "--smaps", SMAPS, "--linger", "600"], pool=40)
status, _ = attempt("from an empty pool", ["--heap", "2m"], [holder, "--mib", "24", "--smaps", SMAPS, "--linger", "600"])
vm.same(ROW, "2m from an empty pool fails", status, 125)
status, _ = attempt("1g without a page", ["--heap", "1g"], [holder, "--mib", "24", "--smaps", SMAPS, "--linger", "600"])
vm.same(ROW, "1g from an empty pool fails", status, 125)
attempt("a pool that runs dry", ["--heap", "2m"], [holder, "--mib", "40", "--smaps", SMAPS, "--linger", "600"], pool=8)
for children in (1, 3):
    attempt(f"{children} forks", ["--heap", "thp"], [holder, "--mib", "16", "--forks", str(children), "--smaps", SMAPS,
                                                     "--linger", "600"])
# THP switched off while --require wants it.
truth.writable(truth.THP / "enabled", "never")
status, _ = attempt("THP never", ["--heap", "thp"], [holder, "--mib", "24", "--smaps", SMAPS, "--linger", "600"])
vm.same(ROW, "THP never fails", status, 125)
truth.writable(truth.THP / "enabled", "madvise")
# Large memory that malloc never sees, on base pages, in a program that allocates little.
status, share = attempt("memory beside malloc", ["--heap", "thp"], [holder, "--mib", "48", "--mmap", "--smaps", SMAPS,
                                                                    "--linger", "800"], heap=False)
# The heap is small and may pass. The percentage of the whole process must not exceed the truth.
report = vm.megapage(ROW, "run", "--heap", "thp", "--json", "--", holder, "--mib", "48", "--mmap", "--linger", "1500").out
report = json.loads(report[report.index("{"):])
percent = vm.value(report, "end", "resident", "huge_percent", default=100)
vm.check(ROW, "memory beside malloc: the process's percentage counts it", percent < 30, vm.value(report, "end"),
         "48 MiB on base pages")
# The outside mechanism, where the kernel can and where it cannot.
status, share = attempt("outside", ["--mechanism", "outside"], [holder, "--mib", "48", "--mmap", "--smaps", SMAPS,
                                                                "--linger", "4000"])
if not truth.collapses():
    vm.unsupported(ROW, "outside cannot pass on this kernel", status == 125, status, 125)
vm.pool_pages(0)
