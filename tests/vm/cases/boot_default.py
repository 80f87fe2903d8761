# title: pool persist --default-size 1g --thp never: after the second boot both hold from the start, after the third neither
# kernels: x86-64 arm64
# memory: 3G
# seconds: 240
"""The line that articles recommend for a program on 1 GiB pages, in a machine of 3 GiB, and its
removal."""

import pathlib

import persisted
import truth
import vmcheck as vm

ROW = "pool persist"
GIB = 1 << 30
LINE = "transparent_hugepage=never default_hugepagesz=1G hugepagesz=1G hugepages=1"


def default_size():
    """Returns Hugepagesize of meminfo, in bytes."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Hugepagesize:"))


def thp():
    """Returns the word in brackets of THP's setting."""
    return (truth.THP / "enabled").read_text().partition("[")[2].partition("]")[0]


if vm.STAGE == 1:
    done, parameters = persisted.command_line("1g=1", "--default-size", "1g", "--thp", "never")
    vm.same(ROW, "the command line", parameters, LINE)
    vm.reboot(parameters)
elif vm.STAGE == 2:
    vm.same(ROW, "the default size after the boot", default_size(), GIB)
    vm.same(ROW, "the pool of 1 GiB pages after the boot", truth.pool(GIB), 1)
    vm.same(ROW, "THP after the boot", thp(), "never")
    document = vm.megapage("pool list", "pool", "list", "--json").json
    totals = {pool["page_size"]: pool["machine"]["total"] for pool in vm.value(document, "pools", default=[])}
    vm.same("pool list", "the pool", {size: total for size, total in totals.items() if total}, {"1g": 1})
    # Each boot begins with a fresh disk, so the files are made again. Then 2 MiB pages instead:
    # without default_hugepagesz= they are the default of the next boot, and sysctl.d has their
    # number.
    persisted.command_line("1g=1", "--default-size", "1g", "--thp", "never")
    vm.megapage(ROW, "pool", "persist", "2m=24", "--apply")
    sysctl = pathlib.Path("/etc/sysctl.d/60-megapage.conf").read_text()
    vm.check(ROW, "2 MiB pages are the next boot's default", "vm.nr_hugepages = 24" in sysctl, sysctl, "vm.nr_hugepages = 24")
    vm.same(ROW, "no boot parameter stays", list(pathlib.Path("/etc/default/grub.d").glob("*megapage*")), [])
    persisted.command_line("1g=1", "--default-size", "1g", "--thp", "never")
    vm.megapage(ROW, "pool", "persist", "--remove", "--apply")
    left = [str(path) for directory in ("/etc/default/grub.d", "/etc/sysctl.d")
            for path in pathlib.Path(directory).glob("*megapage*")]
    vm.same(ROW, "what is left after --remove", left, [])
    vm.reboot("")
else:
    vm.same(ROW, "the default size after the removal", default_size(), 2 << 20)
    vm.same(ROW, "the pool of 1 GiB pages after the removal", truth.pool(GIB), 0)
    vm.check(ROW, "THP after the removal", thp() != "never", thp(), "the kernel's own")
