# title: a guest on base pages of the host: huge pages of its programs gain nothing
# kernels: 6.12
# memory: 768M
# backing: base
# seconds: 240
"""Two levels of page tables: the share of the guest's huge pages that the host backs by huge
pages."""

import levels

levels.judge("base")
