"""The functions of libmegapage_c.so, as include/megapage.h declares them."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Iterable, Literal, NamedTuple

PAGES = {"2m": 2 << 20, "1g": 1 << 30}
UNLINK = {"existing": 0, "always": 1, "never": 2}
LAYOUT = {"single-file": 0, "file-per-page": 1}
POPULATE = 1
UPGRADE_MOST = 64
ZEROED = 1
ADVISE_NOW, ADVISE_POPULATE = 1, 2
REMAP_PAGES = {"thp": 1, "2m": 2, "1g": 3}
REMAP_REQUIRE = 1


class MegapageError(OSError):
    """Refusal by the library: errno, and its message in one line."""


class Handle(ctypes.Structure):
    _fields_ = [("offset", c_uint64), ("serial", c_uint64)]


class Options(ctypes.Structure):
    _fields_ = [("size", c_uint64), ("most", c_uint64), ("unlink", c_uint32), ("layout", c_uint32), ("node", c_int32),
                ("mode", c_uint32), ("flags", c_uint32), ("reserved", c_uint32)]


class About(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("address", "size", "most", "page_size", "fresh_pages", "clean_pages",
                                              "dirty_pages", "openings")]
    _fields_ += [(name, c_uint32) for name in ("hugetlb", "owner", "same_address", "reserved")]


class RawBacking(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("hugetlb_1g", "hugetlb_2m", "thp", "base", "absent")]
    _fields_ += [("exact", c_uint32), ("reserved", c_uint32)]


class RawRemapped(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("possible", "huge", "advised", "nanoseconds", "pages_nanoseconds")]
    _fields_ += [("threads", c_uint32), ("reserved", c_uint32)]


class Remapped(NamedTuple):
    """Result of remap_self: bytes that could lie on huge pages, bytes that do, and bytes that will when they are touched;
    nanoseconds; and threads."""

    possible: int
    huge: int
    advised: int
    nanoseconds: int
    pages_nanoseconds: int
    threads: int


class Backing(NamedTuple):
    """Bytes of memory by the pages that map it, as the kernel reports."""

    hugetlb_1g: int
    hugetlb_2m: int
    thp: int
    base: int
    absent: int
    exact: bool

    @property
    def huge_share(self) -> float:
        """Share of the present memory that is on pages of 2 MiB or more, 0 to 1."""
        huge = self.hugetlb_1g + self.hugetlb_2m + self.thp
        return huge / (huge + self.base) if huge + self.base else 0.0


# Every function in use, with its arguments. call() checks the int that each returns.
FUNCTIONS = {
    "megapage_pool_open": [c_char_p, c_uint64, POINTER(c_uint64)],
    "megapage_pool_open_in": [c_char_p, c_char_p, c_uint64, POINTER(c_uint64)],
    "megapage_pool_close": [c_uint64],
    "megapage_pool_remove": [c_uint64, c_char_p, POINTER(c_uint64)],
    "megapage_options_init": [POINTER(Options), c_uint64],
    "megapage_segment_in_memory": [c_char_p, c_uint64, c_int, c_uint64, c_uint64, POINTER(c_uint64)],
    "megapage_segment_memory": [c_uint64, POINTER(c_void_p), POINTER(c_uint64)],
    "megapage_segment_close": [c_uint64],
    "megapage_heap_open": [c_uint64, c_char_p, POINTER(Options), POINTER(c_uint64), POINTER(c_uint32)],
    "megapage_heap_about": [c_uint64, POINTER(About)],
    "megapage_heap_allocate": [c_uint64, c_uint64, c_uint64, c_uint32, c_uint64, POINTER(Handle)],
    "megapage_heap_free": [c_uint64, Handle],
    "megapage_heap_block": [c_uint64, Handle, c_uint64, POINTER(c_void_p), POINTER(c_uint64)],
    "megapage_heap_find": [c_uint64, c_uint64, POINTER(Handle)],
    "megapage_heap_close": [c_uint64],
    "megapage_heap_of_segment": [c_uint64, POINTER(c_uint64), POINTER(c_uint32)],
    "megapage_upgrade_listen": [c_char_p, POINTER(c_uint64)],
    "megapage_upgrade_descriptor": [c_uint64],
    "megapage_upgrade_wait": [c_uint64, c_uint32],
    "megapage_upgrade_hand_over": [c_uint64, POINTER(c_uint64), c_size_t, c_uint32],
    "megapage_upgrade_take_over": [c_char_p, c_uint32, POINTER(c_uint64), POINTER(c_size_t)],
    "megapage_upgrade_close": [c_uint64],
    "megapage_advise": [c_void_p, c_size_t, c_uint32, POINTER(RawBacking)],
    "megapage_remap_self": [c_uint32, c_char_p, c_uint32, POINTER(RawRemapped)],
    "megapage_backing_of": [c_void_p, c_size_t, POINTER(RawBacking)],
}


def _load():
    beside = os.path.join(os.path.dirname(__file__), "libmegapage_c.so.0")
    tried = []
    for path in [os.environ.get("MEGAPAGE_C_LIBRARY"), beside, "libmegapage_c.so.0", "/usr/local/lib/libmegapage_c.so.0"]:
        if not path:
            continue
        try:
            library = ctypes.CDLL(path)
            break
        except OSError as error:
            tried.append(str(error))
    else:
        raise ImportError("libmegapage_c.so.0 is not found (make install, or set MEGAPAGE_C_LIBRARY): " + "; ".join(tried))
    library.megapage_message.restype = c_char_p
    library.megapage_message.argtypes = []
    library.megapage_version.restype = c_char_p
    library.megapage_version.argtypes = []
    library.megapage_tag.restype = c_uint64
    library.megapage_tag.argtypes = [c_char_p]
    for name, arguments in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = c_int
        function.argtypes = arguments
    return library


LIBRARY = _load()


def call(name, *arguments):
    """Calls a function that returns an int; raises MegapageError if that is negative."""
    answer = getattr(LIBRARY, name)(*arguments)
    if answer < 0:
        raise MegapageError(-answer, LIBRARY.megapage_message().decode())
    return answer


def version() -> str:
    """Returns the version of the library."""
    return LIBRARY.megapage_version().decode()


def tag(name):
    return LIBRARY.megapage_tag(name.encode())


def as_backing(raw):
    figures = [getattr(raw, name) for name in ("hugetlb_1g", "hugetlb_2m", "thp", "base", "absent")]
    return Backing(*figures, bool(raw.exact))


def advise(address, length, flags):
    raw = RawBacking()
    call("megapage_advise", address, length, flags, byref(raw))
    return as_backing(raw)


def backing_of(address, length):
    raw = RawBacking()
    call("megapage_backing_of", address, length, byref(raw))
    return as_backing(raw)


def remap_self(
    pages: Literal["thp", "2m", "1g"] = "thp", libraries: Iterable[str] = (), require: bool = False
) -> Remapped:
    """Moves the code and constants of the interpreter and of the named libraries onto huge pages.

    pages: "thp", or "2m" or "1g" for pages from the pool. libraries: the names under which they are loaded, such as
    "libpython3.11.so.1.0". Data is moved only while the process has one thread. See megapage_remap_self in megapage.h for
    further conditions.
    """
    if pages not in REMAP_PAGES:
        raise ValueError(f"'{pages}' is none of {', '.join(REMAP_PAGES)}")
    raw, names = RawRemapped(), ":".join(libraries).encode() or None
    call("megapage_remap_self", REMAP_PAGES[pages], names, REMAP_REQUIRE if require else 0, byref(raw))
    return Remapped(*(getattr(raw, field) for field in Remapped._fields))


def bytes_of(size):
    """Returns the bytes of a number, or of text such as '512m' or '4g' (powers of 1024)."""
    if isinstance(size, str):
        text = size.strip().lower()
        unit = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}.get(text[-1:], 1)
        digits = text[:-1] if unit > 1 else text
        if not digits.isdigit():
            raise ValueError(f"'{size}' is no size: give bytes, or a number with k, m, g or t")
        size = int(digits) * unit
    return int(size)


def page_bytes(pages):
    if pages not in PAGES:
        raise ValueError(f"'{pages}' is no page size: {', '.join(PAGES)}")
    return PAGES[pages]
