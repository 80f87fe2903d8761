# title: programs on a machine of 256 MiB
# kernels: 7.3
# memory: 256M
# seconds: 3600
"""The smallest machine; programs that do not fit there plain are skipped."""

import adverse

adverse.programs("256 MiB", names=("shell", "pipeline", "sort", "gzip", "perl", "redis-memory"))
