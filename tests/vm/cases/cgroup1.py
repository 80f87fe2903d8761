# title: limits of control groups, version 1
# kernels: x86-64 arm64
# cgroup: 1
# seconds: 500
"""Control groups, version 1: a hierarchy for each controller."""

import pathlib

import limits
import vmcheck as vm

group = pathlib.Path("/sys/fs/cgroup/hugetlb/limited")
if group.parent.exists():
    group.mkdir(exist_ok=True)
    limits.hugetlb("v1", group, "hugetlb.2MB.limit_in_bytes", "hugetlb.2MB.rsvd.limit_in_bytes")
    limits.lowered("v1", group, "memory.limit_in_bytes", "hugetlb.2MB.limit_in_bytes")
else:
    vm.skip("run --heap 2m", "this kernel has no control groups of version 1 for hugetlb")
memory = pathlib.Path("/sys/fs/cgroup/memory/limited")
if memory.parent.exists():
    memory.mkdir(exist_ok=True)
    (memory / "memory.limit_in_bytes").write_text(str(96 << 20))
    with vm.Holder("--mib", "32", prefix=(*limits.inside(memory), "megapage", "run", "--heap", "thp", "--")) as holder:
        holder.intact("run --heap thp", "v1: under a memory limit")
vm.pool_pages(0)
