# title: 1 GiB pages from boot: pool list, doctor, run --heap 1g, and what is said against smaps
# kernels: x86-64 arm64
# memory: 3G
# append: hugepagesz=1G hugepages=1
# seconds: 300
"""A page of 1 GiB."""

import json
import pathlib

import truth
import vmcheck as vm

GIB = 1 << 30
MOMENTS = vm.Moments("/tmp/holder.smaps", 1500)
vm.same("pool list", "there is a page (the reading here is sane)", truth.pool(GIB), 1)
document = vm.megapage("pool list", "pool", "list", "--json").json
totals = {pool["page_size"]: pool["machine"]["free"] for pool in vm.value(document, "pools", default=[])}
vm.same("pool list", "free pages of 1 GiB", totals.get("1g"), truth.pool(GIB, name="free_hugepages"))
doctor = vm.megapage("doctor", "doctor", "--json", allowed=(0, 1)).json
verdict = next((v for v in vm.value(doctor, "verdicts", default=[]) if v["way"] == "mmap(MAP_HUGETLB) of 1g"), {})
vm.check("doctor", "mmap(MAP_HUGETLB) of 1g", (verdict.get("outcome") == "works") == (truth.try_hugetlb(GIB) == 0), verdict,
         truth.try_hugetlb(GIB))
for mib in (24, 700):
    MOMENTS.forget()
    done = vm.megapage("run --heap 1g", "run", "--heap", "1g", "--json", "--report", "/tmp/report.json", "--",
                       "/opt/megapage/holder", "--mib", mib, "--smaps", MOMENTS.path, "--linger", "1500")
    vm.check("run --heap 1g", f"{mib} MiB: the program's output", done.out.startswith("ok "), done.words, "ok")
    report = json.loads(pathlib.Path("/tmp/report.json").read_text())
    vm.moment_matches("run --heap 1g", f"{mib} MiB", report.get("end"), MOMENTS)
    after = MOMENTS.after
    held = after.hugetlb.get(GIB, 0) if after else 0
    claimed = vm.value(report, "account", "held_at_peak_bytes", "hugetlb-1g") or 0
    vm.check("run --heap 1g", f"{mib} MiB: its own account is so", claimed in (held, 0) if not held else claimed >= held,
             vm.value(report, "account"), held)
required = vm.megapage("run --require", "run", "--heap", "1g", "--require", "--", "/opt/megapage/holder", "--mib", "700",
                       "--smaps", MOMENTS.path, "--linger", "1500", allowed=(0, 125))
if required.status == 0 and MOMENTS.after:
    vm.check("run --require", "1g passes only on a page of 1 GiB", MOMENTS.after.hugetlb.get(GIB, 0) == GIB, required.words,
             MOMENTS.after.hugetlb)
vm.same("run --heap 1g", "the page is back", truth.pool(GIB, name="free_hugepages"), truth.pool(GIB))
