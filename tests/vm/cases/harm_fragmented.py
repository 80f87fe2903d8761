# title: programs on memory without a free huge page
# kernels: 7.3
# memory: 1G
# seconds: 3600
"""A file in memory takes what is free and gives seven of eight pages back, so that free memory lies scattered."""

import ctypes
import pathlib

import adverse
import vmcheck as vm

PAGE, KEPT, PUNCH_HOLE_KEEP_SIZE = 4096, 8, 3
fallocate = ctypes.CDLL(None, use_errno=True).fallocate64
fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

vm.run(["mount", "-o", "remount,size=95%", "/dev/shm"])
available = next(line for line in pathlib.Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
path = pathlib.Path("/dev/shm/pages")
with path.open("wb", buffering=0) as file:
    for _ in range(max(0, int(available.split()[1]) - (96 << 10)) >> 10):
        file.write(b"x" * (1 << 20))
    for at in range(0, file.tell(), KEPT * PAGE):
        fallocate(file.fileno(), PUNCH_HOLE_KEEP_SIZE, at + PAGE, (KEPT - 1) * PAGE)
adverse.programs("fragmented memory", names=("shell", "pipeline", "sort", "gzip", "perl", "python-json", "redis-memory"))
path.unlink()
