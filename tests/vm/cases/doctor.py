# title: doctor: each verdict against a try of the same by bare system calls
# kernels: x86-64 arm64
# quick: 5.10 6.1 6.12 7.3
# seconds: 300
"""Doctor's verdicts on each way, compared with trying it."""

import truth
import vmcheck as vm

ROW = "doctor"


def verdicts(*arguments):
    # Findings are status 1.
    document = vm.megapage(ROW, "doctor", "--json", *arguments, allowed=(0, 1)).json
    return {verdict["way"]: verdict for verdict in vm.value(document, "verdicts", default=[])}, document


def hugetlb(what):
    found, _ = verdicts()
    verdict = found.get("mmap(MAP_HUGETLB) of 2m", {})
    failed = truth.try_hugetlb()
    vm.check(ROW, f"mmap(MAP_HUGETLB) with {what}", verdict.get("outcome") == ("fails" if failed else "works"),
             verdict, f"errno {failed}")
    if failed:
        vm.same(ROW, f"its errno with {what}", verdict.get("errno"), failed)


hugetlb("an empty pool")
vm.pool_pages(8)
hugetlb("a pool of 8")
vm.pool_pages(0)

found, document = verdicts()
advised = truth.try_advice(truth.MADV_HUGEPAGE)
verdict = found.get("madvise(MADV_HUGEPAGE)", {})
vm.check(ROW, "madvise(MADV_HUGEPAGE)", (verdict.get("outcome") == "works") == (advised[1] > 0), verdict, advised)

promotion = found.get("promotion of another process", {})
if truth.collapses():
    vm.check(ROW, "promotion of another process works", promotion.get("outcome") == "works", promotion, "MADV_COLLAPSE works")
else:
    vm.unsupported(ROW, "promotion of another process fails", promotion.get("outcome") == "fails", promotion,
                   "no MADV_COLLAPSE")
    vm.unsupported(ROW, "and says that the kernel is too old", "6.1" in str(document), promotion, "Linux 6.1")

# The kernel's abilities: a trial's finding must agree with the release, and with the tries here.
abilities = {ability["id"]: ability for ability in vm.value(document, "abilities", default=[])}
for name, ability in abilities.items():
    since = tuple(int(part) for part in ability.get("since", "0.0").split("."))
    if ability.get("known_by") == "trial":
        true = since <= truth.release()
        if name == "hugetlb-cma":  # left out of Debian's kernels for a while
            true = true and "CmaTotal" in truth.meminfo()
        vm.same(ROW, f"the ability {name} (since Linux {ability.get('since')})", ability.get("present"), true)
collapse = next((ability for name, ability in abilities.items() if "collapse" in name and "file" not in name), None)
if collapse:
    vm.same(ROW, "MADV_COLLAPSE, as tried here", collapse.get("present"), truth.collapses())

# THP switched off, and what memory gets without asking.
enabled = truth.THP / "enabled"
for setting in ("never", "always", "madvise"):
    truth.writable(enabled, setting)
    found, _ = verdicts()
    verdict = found.get("memory without asking", {})
    claimed = verdict.get("outcome")
    vm.check(ROW, f"memory without asking, THP {setting}",
             (claimed == "base-pages") == (setting != "always"), verdict, setting)
    advised = truth.try_advice(truth.MADV_HUGEPAGE)
    verdict = found.get("madvise(MADV_HUGEPAGE)", {})
    vm.check(ROW, f"madvise(MADV_HUGEPAGE), THP {setting}", (verdict.get("outcome") == "works") == (advised[1] > 0),
             verdict, advised)

# Another user, who may do nothing that only root may.
found, _ = verdicts("--user", "nobody")
vm.check(ROW, "it answers for another user", bool(found), found, "verdicts")
vm.megapage(ROW, "doctor", "--user", "no-such-user", allowed=(2,))
vm.megapage(ROW, "doctor", "--only-read", allowed=(0, 1))
vm.megapage(ROW, "doctor", "--for", "redis-server", allowed=(0, 1))
vm.megapage(ROW, "doctor", "--log", "/dev/null", allowed=(0, 1))

# One process: its backing.
with vm.Holder("--mib", "16", "--mmap") as holder:
    document = vm.megapage("doctor --why", "doctor", "--why", holder.pid, "--json", allowed=(0, 1)).json
    true = vm.quiet(holder.pid)
    vm.same("doctor --why", "THP of the process", vm.value(document, "backing", "thp_bytes"), true.thp)
    vm.same("doctor --why", "base pages of the process", vm.value(document, "backing", "base_bytes"), true.base, 256 << 10)
    human = vm.megapage("doctor --why", "doctor", "--why", holder.pid, allowed=(0, 1)).out
    if truth.collapses():
        vm.check("doctor --why", "recommends promotion", "run --attach" in human, human[-400:], "run --attach")
    else:
        vm.unsupported("doctor --why", "recommends nothing that this kernel cannot", "run --attach" not in human,
                       human[human.find("run --attach") - 200:][:400], "no MADV_COLLAPSE here")
vm.megapage("doctor --why", "doctor", "--why", "999999", allowed=(2,))

# As root of a new user namespace, which is not root here.
unshared = vm.run(["unshare", "-Ur", "megapage", "doctor", "--json"])
if "Operation not permitted" in unshared.err or "unshare" in unshared.err:
    vm.skip(ROW, "no user namespaces")
else:
    vm.orderly(ROW, "doctor in a user namespace", unshared, (0, 1))
