# title: programs of tests/harm with vm.overcommit_memory=2
# kernels: 6.1
# seconds: 3600
"""Adverse environment `overcommit` (tests/harm/environments.py)."""

import harm

harm.run("overcommit")
