# title: remap check and prime on ext4: what is said against FilePmdMapped of a process, and the code's own sum
# kernels: x86-64 arm64
# seconds: 400
# quick: 7.3
"""Code on huge pages, on the root file system (ext4)."""

import sys

import remap_common

remap_common.judge("/root", "ext4")
sys.exit(0)
