# title: limits of control groups, version 2: hugetlb on faults and on reservations, memory; lowered while a program runs
# kernels: x86-64 arm64
# quick: 7.3
# seconds: 500
"""Control groups, version 2."""

import pathlib

import limits
import vmcheck as vm

group = pathlib.Path("/sys/fs/cgroup/limited")
group.mkdir(exist_ok=True)
if (group / "hugetlb.2MB.max").exists():
    limits.hugetlb("v2", group, "hugetlb.2MB.max", "hugetlb.2MB.rsvd.max")
    limits.lowered("v2", group, "memory.max", "hugetlb.2MB.max")
else:
    vm.skip("run --heap 2m", "no hugetlb controller")
vm.pool_pages(0)
