# title: programs of tests/harm on a kernel that is built without THP
# kernels: 6.1-rt
# seconds: 3600
"""Adverse environment `nothp` (tests/harm/environments.py)."""

import harm
import truth
import vmcheck as vm

vm.check(harm.ROW, "the kernel has no THP", not truth.THP.exists(), list(map(str, truth.THP.parent.iterdir())), "no directory")
harm.run("nothp")
