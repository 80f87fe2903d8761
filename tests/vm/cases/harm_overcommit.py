# title: programs where the kernel promises no more memory than there is (vm.overcommit_memory=2)
# kernels: 7.3
# memory: 1G
# seconds: 3600
"""Strict accounting: a mapping that is reserved, not used, counts."""

import pathlib

import adverse

for name, value in (("overcommit_ratio", "80"), ("overcommit_memory", "2")):
    pathlib.Path("/proc/sys/vm", name).write_text(value)
adverse.programs("overcommit_memory=2")
pathlib.Path("/proc/sys/vm/overcommit_memory").write_text("0")
