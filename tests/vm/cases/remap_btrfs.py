# title: remap prime on btrfs
# kernels: x86-64 arm64-7.3
# data: btrfs:512M
# seconds: 400
"""Code on huge pages, on btrfs."""

import pathlib
import sys

import remap_common
import vmcheck as vm

if any(line.split()[1:3] == ["/data", "btrfs"] for line in pathlib.Path("/proc/mounts").read_text().splitlines()):
    remap_common.judge("/data", "btrfs")
else:
    vm.skip("remap prime", "no btrfs on this kernel")
sys.exit(0)
