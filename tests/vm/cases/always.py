# title: Debian's own setting of THP (always): heaps, attach, doctor and the daemon under it
# kernels: x86-64 arm64
# thp: kernel
# seconds: 400
"""THP as Debian's kernels are built (always)."""

import json
import pathlib

import truth
import vmcheck as vm

MOMENTS = vm.Moments("/tmp/holder.smaps", 1500)
setting = (truth.THP / "enabled").read_text()
vm.check("doctor", "the machine has Debian's setting", "[always]" in setting, setting, "[always]")
doctor = vm.megapage("doctor", "doctor", "--json", allowed=(0, 1)).json
verdict = next((v for v in vm.value(doctor, "verdicts", default=[]) if v["way"] == "memory without asking"), {})
vm.check("doctor", "memory without asking is huge", verdict.get("outcome") != "base-pages", verdict, setting)
for heap in ("auto", "thp", "none", "2m"):
    vm.pool_pages(30 if heap == "2m" else 0)
    MOMENTS.forget()
    done = vm.megapage(f"run --heap {heap}", "run", "--heap", heap, "--json", "--report", "/tmp/report.json", "--",
                       "/opt/megapage/holder", "--mib", "24", "--smaps", MOMENTS.path, "--linger", "1500")
    vm.check(f"run --heap {heap}", "THP always: the program's output", done.out.startswith("ok "), done.words, "ok")
    report = json.loads(pathlib.Path("/tmp/report.json").read_text())
    vm.moment_matches(f"run --heap {heap}", "THP always", report.get("end"), MOMENTS)
    if heap == "none":
        # Huge pages that the kernel gives by itself are reported; nothing is claimed to have been
        # asked for.
        vm.same("run --heap none", "THP always: nothing is asked for", vm.value(report, "asked", "heap"), "none")
vm.pool_pages(0)
with vm.Holder("--mib", "48", "--mmap") as holder:
    before = vm.quiet(holder.pid)
    vm.check("run --attach", "it is huge by itself (the reading here is sane)", before.thp >= 40 * vm.MIB, before.thp, 48 << 20)
    done = vm.megapage("run --attach", "run", "--attach", holder.pid, "--once", "--json", allowed=(0, 1, 2))
    if done.json:
        vm.check("run --attach", "nothing is claimed that was there before",
                 (vm.value(done.json, "promotion", "obtained_bytes") or 0) <= 2 * vm.MIB, vm.value(done.json, "promotion"), 0)
    why = vm.megapage("doctor --why", "doctor", "--why", holder.pid, "--json", allowed=(0, 1)).json
    vm.same("doctor --why", "THP of the process", vm.value(why, "backing", "thp_bytes"), vm.quiet(holder.pid).thp)
    vm.megapage("daemon --once", "daemon", "--once", "--json", holder.pid, allowed=(0, 1))
    holder.intact("daemon --once", "after a pass")
