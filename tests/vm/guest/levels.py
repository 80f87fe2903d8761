"""Huge pages at two levels, shared by the cases of a guest on base pages, THP and hugetlb pages of
the host.

The processor caches a translation of 2 MiB only if a huge page of the guest lies on a huge page of
the host at the same boundary. The guest-physical range is then one huge page of qemu's memory.
`judge` counts the huge pages of a program for which this holds."""

import truth
import vmcheck as vm

MIB_HELD = 48
POOL = 32
ON = {"base": "base pages", "thp": "THP", "hugetlb": "hugetlb pages"}


def judge(backing):
    """Runs programs on THP and on hugetlb pages of the guest, whose memory the host backs by
    `backing`."""
    vm.still_khugepaged()
    vm.megapage("pool set", "pool", "set", f"2m={POOL}")
    vm.same("pool set", "the guest's own pool", truth.pool(), POOL)
    for heap in ("thp", "2m"):
        row = f"run --heap {heap}"
        with vm.Holder("--mib", MIB_HELD, "--block", 1 << 20, prefix=("megapage", "run", "--heap", heap, "--")) as holder:
            of_program(row, heap, backing, holder)
            holder.intact(row, f"in a guest on {ON[backing]} of the host")
    vm.megapage("pool set", "pool", "set", "2m=0")
    vm.same("pool set", "the guest's own pool is empty again", truth.pool(), 0)


def frames(pid):
    """Returns a process's backing, and the physical addresses of its huge pages. Both are read
    again if a page became huge in between: the library's thread collapses base pages at once."""
    for _ in range(10):
        now, pages = vm.quiet(pid), truth.huge_pages(pid).values()
        if truth.backing(pid).huge == now.huge:
            break
    return now, pages


def of_program(row, heap, backing, holder):
    """Checks the pages of one program: as the guest's kernel has them, then as the host's has
    them."""
    now, pages = frames(holder.worker)
    held = now.thp if heap == "thp" else now.hugetlb_bytes
    vm.check(row, "the guest has the program on huge pages", held >= (MIB_HELD - 8) * vm.MIB, (now.thp, now.hugetlb),
             f"most of {MIB_HELD} MiB")
    vm.same(row, "HugetlbPages of its status are those of smaps", truth.status(holder.worker, "HugetlbPages"), now.hugetlb_bytes)
    vm.same(row, "the guest's page frames are those of smaps", len(pages) * truth.HUGE, now.huge)
    answer = vm.ask_host(pages)
    if not vm.check(row, "the host answers", "error" not in answer, answer, "an answer"):
        return
    on_huge, total = answer["on_huge"], len(pages)
    vm.note(f"{heap}: {on_huge} of {total} huge pages lie on huge pages of the host")
    vm.same(row, "each begins at a boundary of 2 MiB of qemu's memory", answer["aligned"], total)
    vm.check(row, "the host's page frames are no more than smaps counts",
             answer["huge_by_frames"] <= answer["thp"] + answer["hugetlb"], answer)
    vm.same(row, "HugetlbPages of qemu's status are those of smaps", answer["hugetlb_of_status"], answer["hugetlb"])
    if backing == "base":
        vm.same(row, "the host has qemu on no huge page", answer["thp"] + answer["hugetlb"], 0)
        vm.same(row, "no huge page of the guest lies on one of the host", on_huge, 0)
    elif backing == "thp":
        vm.check(row, "the host has qemu on THP, and on no page of a pool", answer["thp"] > 0 == answer["hugetlb"], answer)
        vm.check(row, "huge pages of the guest lie on THP of the host", 0 < on_huge <= total, on_huge, total)
    else:
        vm.same(row, "the host has all of the guest's memory on its pool", answer["hugetlb"], answer["memory"])
        vm.same(row, "every huge page of the guest lies on one of the host", on_huge, total)
