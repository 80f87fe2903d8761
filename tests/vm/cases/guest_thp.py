# title: a guest on THP of the host: its programs' huge pages lie on the host's
# kernels: 6.12
# memory: 768M
# backing: thp
# seconds: 240
"""Two levels of page tables: the share of the guest's huge pages that the host backs by huge
pages."""

import levels

levels.judge("thp")
