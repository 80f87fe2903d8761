"""Arrays on huge pages that end with the process."""

from __future__ import annotations

import ctypes
import math
import mmap
from ctypes import byref, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, Literal, Sequence, Union

import numpy

from . import _library

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

HUGE = 2 << 20

# A length, or one for each dimension.
Shape = Union[int, Sequence[int]]
Pages = Literal["thp", "2m", "1g"]


class _Piece:
    """A segment in a memory file. It ends with the last array in it."""

    def __init__(self, length, pages):
        size = _library.page_bytes(pages)
        # The library keeps the first bytes for itself.
        whole = -(-(length + HUGE) // size) * size
        segment = c_uint64()
        _library.call("megapage_segment_in_memory", b"array", size, 1, whole, whole, byref(segment))
        self._segment = segment.value
        address, room = c_void_p(), c_uint64()
        _library.call("megapage_segment_memory", self._segment, byref(address), byref(room))
        self.address, self.length = address.value, room.value

    def __del__(self):
        if getattr(self, "_segment", 0):
            _library.LIBRARY.megapage_segment_close(self._segment)


class Use:
    """A token that lives as long as anything refers to the memory of an array."""


def view(address, shape, dtype, owner, uses=None):
    """Returns a numpy array of the memory at an address. The array keeps `owner` alive. Adds a Use of it to `uses`."""
    count = math.prod(shape)
    buffer = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    # Each view of the array keeps the buffer alive, and the buffer keeps these.
    buffer._owner, buffer._use = owner, Use()
    if uses is not None:
        uses.add(buffer._use)
    return numpy.frombuffer(buffer, dtype=dtype, count=count).reshape(shape)


def described(shape, dtype):
    """Returns the shape and type as numpy has them, and the bytes of such an array."""
    dtype = numpy.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"{dtype} holds Python objects, which cannot lie in memory of this kind")
    shape = (int(shape),) if isinstance(shape, (int, numpy.integer)) else tuple(int(length) for length in shape)
    if any(length < 1 for length in shape):
        raise ValueError(f"{shape} is an empty shape")
    return shape, dtype, math.prod(shape) * dtype.itemsize


def array(shape: Shape, dtype: DTypeLike = "f8", *, pages: Pages = "thp") -> NDArray[Any]:
    """Returns a numpy array of zeros on huge pages.

    pages: "thp" for transparent huge pages, which the kernel gives when it can (see backing()); "2m" or "1g" for pages from
    the pool. Raises MemoryError or MegapageError if the pool has too few (megapage pool set). Memory from the pool is shared
    with children of fork(2), as multiprocessing makes them: each sees the writes of the others.
    """
    shape, dtype, length = described(shape, dtype)
    if pages != "thp":
        piece = _Piece(length, pages)
        # Aligned for any type of numpy. The memory before it belongs to the library.
        return view(-(-piece.address // 64) * 64, shape, dtype, piece)
    memory = mmap.mmap(-1, length + HUGE)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    start = -(-first // HUGE) * HUGE
    # Before the first touch, so that pages are huge from the start. A kernel without huge pages gives base pages.
    try:
        _library.advise(start, -(-length // mmap.PAGESIZE) * mmap.PAGESIZE, 0)
    except _library.MegapageError:
        pass
    return view(start, shape, dtype, memory)


def backing(values: NDArray[Any]) -> _library.Backing:
    """Returns the Backing of an array's memory: the pages that map it, as the kernel reports."""
    if not values.flags.c_contiguous and not values.flags.f_contiguous:
        raise ValueError("the array is not in one piece")
    if values.nbytes == 0:
        raise ValueError("the array is empty")
    return _library.backing_of(values.ctypes.data, values.nbytes)
