# title: programs of tests/harm in control groups of version 2 that are just large enough, with memory.max and with memory.high
# kernels: 6.1
# seconds: 3600
"""Adverse environments `cgroup2` and `high` (tests/harm/environments.py)."""

import harm

harm.run("cgroup2", "high")
