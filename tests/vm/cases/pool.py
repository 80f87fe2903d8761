# title: pools: list, set, dry runs, shrinking below use, what is kept for the next boot
# kernels: x86-64 arm64
# quick: 5.10 6.1 6.12 7.3
# seconds: 240
"""Pools of the default size, on a machine with one node."""

import pathlib
import tempfile

import truth
import vmcheck as vm

ROW = "pool set"


def listed():
    """Returns the pool of 2 MiB pages as `pool list` has it."""
    document = vm.megapage("pool list", "pool", "list", "--json").json
    pools = {pool["page_size"]: pool["machine"] for pool in vm.value(document, "pools", default=[])}
    return pools.get("2m", {})


def agrees(what):
    claimed = listed()
    names = {"total": "nr_hugepages", "free": "free_hugepages", "reserved": "resv_hugepages", "surplus": "surplus_hugepages"}
    true = {name: truth.pool(name=file) for name, file in names.items()}
    vm.same("pool list", what, {name: claimed.get(name) for name in names}, true)
    meminfo = truth.meminfo()
    vm.same("pool list", f"{what}, as meminfo has it", claimed.get("total"), meminfo["HugePages_Total"])
    return claimed


agrees("an empty pool")
before = truth.pool()
dry = vm.megapage(ROW, "pool", "set", "2m=16", "--dry-run", "--json")
vm.same(ROW, "a dry run changes nothing", truth.pool(), before)
done = vm.megapage(ROW, "pool", "set", "2m=40", "--json").json
vm.same(ROW, "obtained is what is there", vm.value(done, "steps", 0, "obtained"), truth.pool())
vm.same(ROW, "40 pages are there", 40, truth.pool())
agrees("a pool of 40")
vm.megapage(ROW, "pool", "set", "2MB:+8")
vm.same(ROW, "8 more", 48, truth.pool())
vm.megapage(ROW, "pool", "set", "2MB:-8")
vm.same(ROW, "8 fewer", 40, truth.pool())

# More pages than the machine has: nothing may change.
refused = vm.megapage(ROW, "pool", "set", "2m=64g", allowed=(2,))
vm.same(ROW, "a refused size changes nothing", truth.pool(), 40)
vm.check(ROW, "the refusal names memory", "memory" in refused.words, refused.words, "a word of memory")

# In use: pages that a process holds cannot be taken away.
with vm.Holder("--mib", "16", prefix=("megapage", "run", "--heap", "2m", "--")) as holder:
    held = truth.pool() - truth.pool(name="free_hugepages")
    claimed = agrees("a pool in use")
    vm.same("pool list", "pages in use", claimed.get("in_use"), held)
    holder.intact("run --heap 2m", "with the pool in use")
    shrunk = vm.megapage(ROW, "pool", "set", "2m=0", "--json", "--timeout", "1", allowed=(0, 1, 2))
    kept = truth.pool()
    vm.check(ROW, "a pool in use is not shrunk below use, nor claimed to be", shrunk.status != 0 or kept == 0 or held == 0,
             f"status {shrunk.status}", f"{kept} pages left, {held} held")
    holder.intact("run --heap 2m", "after the pool was shrunk")
vm.megapage(ROW, "pool", "set", "2m=0")
vm.same(ROW, "empty again", 0, truth.pool())
agrees("an emptied pool")

# For the next boot, into an image's root.
with tempfile.TemporaryDirectory() as image:
    for name in ("etc/default/grub.d", "etc/sysctl.d", "boot/grub"):
        pathlib.Path(image, name).mkdir(parents=True)
    pathlib.Path(image, "etc/default/grub").write_text('GRUB_CMDLINE_LINUX=""\n')
    pathlib.Path(image, "boot/grub/grub.cfg").write_text("\n")
    before = sorted(str(path) for path in pathlib.Path(image).rglob("*"))
    vm.megapage("pool persist", "pool", "persist", "2m=24", "--root", image)
    after = sorted(str(path) for path in pathlib.Path(image).rglob("*"))
    vm.same("pool persist", "without --apply nothing is written", after, before)
    vm.megapage("pool persist", "pool", "persist", "2m=24", "--root", image, "--apply", allowed=(0, 1))
    kept = [path.read_text() for path in pathlib.Path(image, "etc/sysctl.d").glob("*")]
    vm.check("pool persist", "sysctl.d has the pool", any("vm.nr_hugepages = 24" in text or "vm.nr_hugepages=24" in text
             for text in kept), kept, "vm.nr_hugepages = 24")
    vm.megapage("pool persist", "pool", "persist", "--remove", "--apply", "--root", image, allowed=(0, 1))
    kept = [path.name for path in pathlib.Path(image, "etc/sysctl.d").glob("*megapage*")]
    vm.same("pool persist", "removed again", kept, [])
vm.megapage(ROW, "pool", "set", "2x=3", allowed=(2,))
