# title: run with every --mechanism, on dynamic, static and Python programs
# kernels: x86-64 arm64
# seconds: 600
"""Each mechanism by itself: the program's bytes, and the report against its smaps."""

import json
import pathlib

import truth
import vmcheck as vm

REPORT = "/tmp/report.json"
MOMENTS = vm.Moments("/tmp/holder.smaps", 2500)
DYNAMIC = ["/opt/megapage/holder", "--mib", "32", "--smaps", MOMENTS.path, "--linger", "2500"]
STATIC = ["/opt/megapage/holder-static", *DYNAMIC[1:]]
# Python keeps its own smaps as well, read in one piece. It ends with all its memory: otherwise a
# sample of its last milliseconds would miss the freed memory.
PYTHON = ["python3", "-c", f"""
import os, time
x = [str(n) for n in range(400000)]
room = bytearray(1 << 20)
def keep(path):
    f, n = open('/proc/self/smaps', 'rb', 0), 0
    while got := f.readinto(memoryview(room)[n:]):
        n += got
    open(path, 'wb').write(memoryview(room)[:n])
keep('{MOMENTS.path}.before')
time.sleep(2.5)
keep('{MOMENTS.path}')
print('ok', len(x), flush=True)
os._exit(0)
"""]


def judge(row, what, arguments, program, pool=0, allowed=(0,)):
    vm.pool_pages(pool)
    MOMENTS.forget()
    pathlib.Path(REPORT).unlink(missing_ok=True)
    done = vm.megapage(row, "run", *arguments, "--json", "--report", REPORT, "--", *program, allowed=allowed)
    if done.status == 125:
        vm.check(row, f"{what}: one line says why not", 0 < len(done.err.strip().splitlines()) <= 2, done.err, "one line")
        return None
    vm.check(row, f"{what}: the program's output", done.out.startswith("ok "), done.words, "ok")
    if not pathlib.Path(REPORT).exists():
        vm.check(row, f"{what}: a report", False, done.words, "a report")
        return None
    report = json.loads(pathlib.Path(REPORT).read_text())
    true = MOMENTS.after
    vm.moment_matches(row, what, report.get("end") or report.get("peak"), MOMENTS, within=4 * vm.MIB)
    promotion = report.get("promotion")
    if promotion:
        vm.check(row, f"{what}: no more promoted than asked for, nor than there is",
                 promotion["obtained_bytes"] <= promotion["asked_bytes"] <= true.total + 8 * vm.MIB, promotion, true.total)
    return report


vm.still_khugepaged()
for pool in (0, 40):
    judge("run --mechanism preload", f"dynamic, pool of {pool}", ["--mechanism", "preload"], DYNAMIC, pool)
    judge("run --mechanism tunable", f"dynamic, pool of {pool}", ["--mechanism", "tunable"], DYNAMIC, pool, (0, 125))
judge("run --mechanism preload", "static", ["--mechanism", "preload"], STATIC, 0, (0, 125))
judge("run --mechanism tunable", "static", ["--mechanism", "tunable"], STATIC, 0, (0, 125))
judge("run --mechanism preload", "Python, whose own allocator stays", ["--mechanism", "preload"], PYTHON)
judge("run --mechanism runtime", "Python, which has no switch", ["--mechanism", "runtime"], PYTHON, 0, (0, 125))
judge("run --mechanism runtime", "a program without a runtime", ["--mechanism", "runtime"], DYNAMIC, 0, (0, 125))

for program, what in ((DYNAMIC + ["--mmap"], "one mapping"), (STATIC, "static")):
    report = judge("run --mechanism outside", what, ["--mechanism", "outside"], program, 0, (0, 125))
    if truth.collapses():
        vm.check("run --mechanism outside", f"{what}: memory was promoted",
                 (vm.value(report, "promotion", "obtained_bytes") or 0) > 0, vm.value(report, "promotion"), "> 0")
    else:
        words = json.dumps([report and report.get("not_obtained"), report and report.get("notes"),
                            report and report.get("considered")])
        said = report is None or "6.1" in words
        vm.unsupported("run --mechanism outside", f"{what}: the kernel is named as what cannot", said, words, "Linux 6.1")
judge("run --mechanism auto", "static", [], STATIC, 0)
judge("run --mechanism auto", "dynamic", [], DYNAMIC, 40)
vm.enough_samples("run --mechanism auto")
vm.pool_pages(0)
