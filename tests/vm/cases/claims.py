# title: what a report claims while promotion goes on, round after round, and of programs whose end was not seen
# kernels: x86-64 arm64
# seconds: 400
"""Reports on demand (SIGUSR1), against smaps of that moment; --require with a launcher that was
stopped meanwhile."""

import contextlib
import json
import os
import pathlib
import signal
import time

import truth
import vmcheck as vm

REPORT = pathlib.Path("/tmp/report.json")
FORKING = """
import mmap, os, sys, time
memory = mmap.mmap(-1, 96 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 4096): memory[at] = 1
print('ready', os.getpid(), flush=True)
for round in range(40):
    child = os.fork()
    if child == 0:
        time.sleep(0.3); os._exit(0)
    for at in range(0, len(memory), 4 << 20): memory[at] = memory[at] + 1 & 255
    os.waitpid(child, 0)
    time.sleep(0.5)
time.sleep(600)
"""


def reported(launcher):
    """Returns the report that a launcher makes on SIGUSR1; None if there is none after 30 s."""
    REPORT.unlink(missing_ok=True)
    os.kill(launcher.pid, signal.SIGUSR1)

    def there():
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(REPORT.read_text()))
        return False

    return json.loads(REPORT.read_text()) if vm.wait_until(there, 30) else None


ROW = "run --attach"
if truth.collapses():
    for program, what, settle in ((["/opt/megapage/holder", "--mib", "96", "--mmap", "--interactive"], "standing still", 12),
                                  (["python3", "-c", FORKING], "forking", 40)):
        with vm.Child(*program) as child:
            child.line()
            with vm.Child("megapage", "run", "--attach", child.pid, "--json", "--report", REPORT) as launcher:
                time.sleep(settle)
                true = vm.quiet(child.pid)
                report = reported(launcher)
                if not vm.check(ROW, f"{what}: SIGUSR1 makes a report", report is not None, launcher.process.poll(), "a report"):
                    continue
                promotion = report.get("promotion") or {}
                vm.check(ROW, f"{what}: obtained, asked for and what there is, after many rounds",
                         promotion.get("obtained_bytes", 0) <= promotion.get("asked_bytes", 0) <= true.total + 64 * vm.MIB,
                         promotion, f"{true.total} bytes resident, {true.thp} huge")
                vm.same(ROW, f"{what}: THP in the report", vm.value(report, "end", "resident", "thp_bytes"), true.thp, 6 * vm.MIB)
                vm.same(ROW, f"{what}: resident in the report", vm.value(report, "end", "resident", "total_bytes"), true.total,
                        6 * vm.MIB)
                launcher.signal(signal.SIGINT)
else:
    vm.skip(ROW, "no MADV_COLLAPSE on this kernel")

ROW = "run --require"
GROWS = """
import os, signal, time
open('/tmp/grows.ready', 'w').write('x')
while not os.path.exists('/tmp/grows.go'): time.sleep(0.1)
memory = bytearray(b'x') * (96 << 20)
os.kill(os.getpid(), signal.SIGKILL)
"""
for name in ("ready", "go"):
    pathlib.Path(f"/tmp/grows.{name}").unlink(missing_ok=True)
errors = open("/tmp/grows.err", "w+")
with vm.Child("megapage", "run", "--heap", "thp", "--require", "--", "python3", "-c", GROWS, stderr=errors) as launcher:
    vm.wait_until(lambda: pathlib.Path("/tmp/grows.ready").exists(), 60)
    time.sleep(2)
    os.kill(launcher.pid, signal.SIGSTOP)
    pathlib.Path("/tmp/grows.go").touch()
    time.sleep(10)
    os.kill(launcher.pid, signal.SIGCONT)
    vm.wait_until(lambda: launcher.process.poll() is not None, 60)
    status = launcher.process.poll()
    errors.seek(0)
    said = errors.read()
    vm.check(ROW, "growth that was not seen is not passed", status in (125, -9), f"{status}: {said}", 125)
errors.close()
# A short program: whatever the status, the report has the samples that were taken.
for number in range(6):
    REPORT.unlink(missing_ok=True)
    done = vm.megapage(ROW, "run", "--heap", "thp", "--require", "--json", "--report", REPORT, "--", "python3", "-c",
                       "x = bytearray(48 << 20)", allowed=(0, 125))
    report = json.loads(REPORT.read_text()) if REPORT.exists() else {}
    heap = vm.value(report, "end", "heap", "total_bytes") or vm.value(report, "peak", "heap", "total_bytes") or 0
    vm.check(ROW, f"a short program passes only when its heap was seen (run {number})", done.status == 125 or heap >= 40 * vm.MIB,
             vm.value(report, "peak"), "48 MiB of it")
    vm.check(ROW, f"status and report agree (run {number})", (done.status == 0) == (not report.get("not_obtained")),
             [done.status, report.get("not_obtained")], "the same")
