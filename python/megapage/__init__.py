"""Huge pages for numpy: arrays on huge pages, and arrays that survive a restart.

    import megapage

    table = megapage.array((10_000, 10_000), "f8")          # zeros, on transparent huge pages
    print(megapage.backing(table))

    with megapage.Segment("search", "index", "4g") as segment:
        index, found = segment.array("vectors", (1_000_000, 128), "f4")
        if not found:
            index[:] = build()
            segment.publish("vectors")                       # from now on the next start finds it

    megapage.remap_self()                                    # the interpreter's own code, on huge pages

This package wraps libmegapage_c.so (include/megapage.h). It looks for the library at MEGAPAGE_C_LIBRARY, in its own
directory, and where the dynamic loader looks, then in /usr/local/lib.
"""

from ._arrays import array, backing
from ._library import Backing, MegapageError, Remapped, remap_self, version
from ._segment import Segment
from ._upgrade import Listener, take_over

__all__ = [
    "Backing", "Listener", "MegapageError", "Remapped", "Segment", "array", "backing", "remap_self", "take_over", "version",
]
