# title: programs of tests/harm on a kernel that is built without THP
# kernels: 6.1-rt
# seconds: 3600
"""Adverse environment `nothp` (tests/harm/environments.py)."""

import sys

import harm
import truth

if truth.THP.exists():
    sys.exit("this kernel has THP")
harm.run("nothp")
