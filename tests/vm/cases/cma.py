# title: hugetlb_cma as pool persist --cma writes it: 1 GiB pages made at run time
# kernels: x86-64 arm64
# memory: 3G
# seconds: 120
"""Memory set aside at boot, for pages of 1 GiB at run time."""

import pathlib

import persisted
import truth
import vmcheck as vm

GIB = 1 << 30

if vm.STAGE == 1 and "CmaTotal" not in truth.meminfo():
    done, parameters = persisted.command_line("--cma", "1g", "2m=4", allowed=(2,))
    vm.unsupported("pool persist", "a kernel without CMA is refused by name", "CONFIG_CMA" in done.err and not parameters,
                   [done.err, parameters], "a refusal, and nothing written")
    lacking = {row["id"]: row["present"] for row in vm.value(vm.megapage("doctor", "doctor", "--json", allowed=(0, 1)).json,
                                                             "abilities", default=[])}
    vm.same("doctor", "hugetlb_cma is not said to be there", lacking.get("hugetlb-cma"), False)
elif vm.STAGE == 1:
    done, parameters = persisted.command_line("--cma", "1g", "2m=4")
    vm.check("pool persist", "the command line has hugetlb_cma", "hugetlb_cma=1" in parameters, parameters, "hugetlb_cma=1G")
    vm.reboot(parameters)
elif truth.meminfo().get("CmaTotal", 0) < GIB:
    vm.skip("pool set", f"this kernel sets nothing aside ({pathlib.Path('/proc/cmdline').read_text().strip()[-80:]})")
else:
    done = vm.megapage("pool set", "pool", "set", "1g=1", "--json", allowed=(0, 1, 2))
    vm.same("pool set", "obtained is what is there", vm.value(done.json, "steps", 0, "obtained"), truth.pool(GIB))
    vm.check("pool set", "status 0 only with the page", (done.status == 0) == (truth.pool(GIB) == 1), done.words,
             truth.pool(GIB))
    vm.megapage("pool set", "pool", "set", "1g=0")
    vm.same("pool set", "given back", truth.pool(GIB), 0)
