# title: pool persist --boot: a second boot with what it has written has the pool, with 1 GiB pages beside
# kernels: x86-64 arm64
# memory: 3G
# seconds: 120
"""The command line of the second boot is the one that persist has put into GRUB's files."""

import persisted
import truth
import vmcheck as vm

ROW = "pool persist"

if vm.STAGE == 1:
    done, parameters = persisted.command_line("--boot", "2m=48", "1g=1")
    vm.check(ROW, "the command line names both sizes", "hugepages=48" in parameters and "hugepages=1" in parameters.split(),
             parameters, "hugepagesz=2M hugepages=48 hugepagesz=1G hugepages=1")
    vm.reboot(parameters)
else:
    vm.same(ROW, "the pool of 2 MiB pages after the boot", 48, truth.pool())
    vm.same(ROW, "the pool of 1 GiB pages after the boot", 1, truth.pool(1 << 30))
    document = vm.megapage("pool list", "pool", "list", "--json").json
    totals = {pool["page_size"]: pool["machine"]["total"] for pool in vm.value(document, "pools", default=[])}
    # arm64 has pools of 64 KiB and 32 MiB, too.
    vm.same("pool list", "both pools", {size: total for size, total in totals.items() if total}, {"2m": 48, "1g": 1})
