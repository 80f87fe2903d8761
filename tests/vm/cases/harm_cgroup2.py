# title: programs in a control group of version 2 that is just large enough for plain
# kernels: 7.3
# seconds: 3600
"""The control group's environment of tests/harm, version 2."""

import adverse

adverse.programs("cgroup v2", "group")
