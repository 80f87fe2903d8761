# title: a guest on the host's pool: all of its programs' huge pages lie on the host's
# kernels: 6.12
# memory: 768M
# backing: hugetlb
# quick: 6.12
# seconds: 240
"""Two levels of page tables: the share of the guest's huge pages that the host backs by huge
pages."""

import levels

levels.judge("hugetlb")
