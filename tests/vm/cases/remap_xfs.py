# title: remap prime, and segments in a directory, on XFS
# kernels: x86-64 arm64-7.3
# data: xfs:512M
# seconds: 400
"""Code on huge pages, on XFS."""

import pathlib
import sys

import remap_common
import vmcheck as vm

if any(line.split()[1:3] == ["/data", "xfs"] for line in pathlib.Path("/proc/mounts").read_text().splitlines()):
    remap_common.judge("/data", "xfs")
else:
    vm.skip("remap prime", "no XFS on this kernel")
sys.exit(0)
