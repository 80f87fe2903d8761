"""Arrays that survive a restart, by name, in a segment."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import weakref
from ctypes import byref, c_uint32, c_uint64, c_void_p
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from . import _library
from ._arrays import Shape, described, view

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# Before each array: magic, format, published, name, dtype, dimensions, shape.
HEADER = struct.Struct("<8sII64s32sQ8Q")
ROOM = 256
MAGIC, FORMAT = b"mpgarray", 1
PUBLISHED_AT = 12


def _tag(name):
    return _library.tag("python/array/1/" + name)


class Segment:
    """A segment of this user and application, which holds numpy arrays by name.

    application, name: 1 to 64 letters, digits, '-', '_' and '.'.
    size: bytes, or text such as "4g". most: the largest size that it may grow to; by default `size`.
    directory: the directory of the pool; by default on a mounted hugetlbfs. A directory that is not on hugetlbfs also works,
    on base pages.
    unlink: "never" reuses an existing segment, "existing" removes it first, "always" leaves no files behind.
    populate: fills the page tables of reused memory at the opening, about 0.3 ms for each GiB, instead of at the first access
    to each page.

    An array is found again only after publish(): one that a kill left half built must be built again. One process at a time
    has a segment. Arrays lie in the segment's memory: close() is refused while there are any.
    """

    def __init__(
        self,
        application: str,
        name: str,
        size: int | str,
        *,
        most: int | str = 0,
        directory: str | os.PathLike[str] | None = None,
        pages: Literal["2m", "1g"] = "2m",
        unlink: Literal["never", "existing", "always"] = "never",
        layout: Literal["single-file", "file-per-page"] = "single-file",
        populate: bool = False,
    ) -> None:
        self._heap, self._pool, self._arrays = 0, 0, weakref.WeakSet()
        for value, known in ((unlink, _library.UNLINK), (layout, _library.LAYOUT)):
            if value not in known:
                raise ValueError(f"'{value}' is none of {', '.join(known)}")
        pool, heap, found = c_uint64(), c_uint64(), c_uint32()
        page = _library.page_bytes(pages)
        if directory is None:
            _library.call("megapage_pool_open", application.encode(), page, byref(pool))
        else:
            _library.call("megapage_pool_open_in", str(directory).encode(), application.encode(), page, byref(pool))
        self._pool = pool.value
        options = _library.Options()
        _library.call("megapage_options_init", byref(options), _library.bytes_of(size))
        options.most = _library.bytes_of(most)
        options.unlink, options.layout = _library.UNLINK[unlink], _library.LAYOUT[layout]
        options.flags = _library.POPULATE if populate else 0
        try:
            _library.call("megapage_heap_open", self._pool, name.encode(), byref(options), byref(heap), byref(found))
        except BaseException:
            self._close_pool()
            raise
        self._heap = heap.value
        #: True if an existing segment was found.
        self.found: bool = bool(found.value)

    @classmethod
    def _of_segment(cls, handle):
        """Returns the segment that was taken over."""
        heap, found = c_uint64(), c_uint32()
        _library.call("megapage_heap_of_segment", handle, byref(heap), byref(found))
        self = cls.__new__(cls)
        self._heap, self._pool, self._arrays, self.found = heap.value, 0, weakref.WeakSet(), bool(found.value)
        return self

    def array(self, name: str, shape: Shape, dtype: DTypeLike = "f8") -> tuple[NDArray[Any], bool]:
        """Returns the array of that name, and true if it was found. A found array has its contents, a new one has zeros.

        Raises ValueError if an array of another shape or type was published under the name: remove() it first.
        """
        shape, dtype, length = described(shape, dtype)
        self._check_name(name)
        if len(shape) > 8:
            raise ValueError(f"{len(shape)} dimensions are more than 8")
        type_name = dtype.str.encode()
        if dtype.names is not None or len(type_name) > 32:
            raise TypeError(f"{dtype} is no plain type")
        handle = self._find(name)
        if handle is not None:
            address, there = self._block(name, handle)
            found = self._header(name, address, there)
            if found is None:
                # Its builder did not publish it.
                self._free(name, handle)
            elif found != (shape, dtype):
                raise ValueError(f"'{name}' is there with shape {found[0]} and type {found[1]}; ask for that, or remove it")
            else:
                return self._view(address, shape, dtype), True
        handle = _library.Handle()
        _library.call("megapage_heap_allocate", self._open(), ROOM + length, 0, _library.ZEROED, _tag(name), byref(handle))
        address, _ = self._block(name, handle)
        lengths = list(shape) + [0] * (8 - len(shape))
        header = HEADER.pack(MAGIC, FORMAT, 0, name.encode(), type_name, len(shape), *lengths)
        ctypes.memmove(address, header, len(header))
        return self._view(address, shape, dtype), False

    def publish(self, name: str) -> None:
        """Lets the next start find the array of that name. Call it when the array is complete."""
        handle = self._find(name)
        if handle is None:
            raise KeyError(name)
        address, _ = self._block(name, handle)
        # One aligned word, so that a kill leaves the array either unpublished or published.
        ctypes.c_uint32.from_address(address + PUBLISHED_AT).value = 1

    def remove(self, name: str) -> None:
        """Frees the memory of an array. Raises BufferError while arrays of this segment are in use."""
        handle = self._find(name)
        if handle is None:
            raise KeyError(name)
        self._refuse_while_used("removing an array")
        self._free(name, handle)

    def about(self) -> dict[str, int]:
        """Returns facts about the segment: address, size, pages by state."""
        about = _library.About()
        _library.call("megapage_heap_about", self._open(), byref(about))
        return {name: getattr(about, name) for name, _ in _library.About._fields_ if name != "reserved"}

    def close(self) -> None:
        """Unmaps the segment; its files stay (unless unlink is "always"). Raises BufferError while its arrays are in use."""
        if self._heap:
            self._refuse_while_used("closing the segment")
            _library.call("megapage_heap_close", self._heap)
            self._heap = 0
        self._close_pool()

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except BufferError:
            # The original error says more; the segment closes with its last array.
            pass

    def __del__(self):
        # No array is left: arrays keep the segment alive.
        if getattr(self, "_heap", 0):
            _library.LIBRARY.megapage_heap_close(self._heap)
            self._heap = 0
        if getattr(self, "_pool", 0):
            self._close_pool()

    def _open(self):
        if not self._heap:
            raise ValueError("the segment is closed")
        return self._heap

    def _close_pool(self):
        if self._pool:
            _library.LIBRARY.megapage_pool_close(self._pool)
            self._pool = 0

    def _refuse_while_used(self, what):
        if len(self._arrays):
            raise BufferError(f"{what} is not possible while {len(self._arrays)} arrays of it are in use")

    @staticmethod
    def _check_name(name):
        if not name or len(name.encode()) > 64 or "\0" in name:
            raise ValueError(f"{name!r} is no name for an array: 1 to 64 bytes")

    def _find(self, name):
        self._check_name(name)
        handle = _library.Handle()
        _library.call("megapage_heap_find", self._open(), _tag(name), byref(handle))
        return handle if handle.serial else None

    def _block(self, name, handle):
        address, length = c_void_p(), c_uint64()
        _library.call("megapage_heap_block", self._open(), handle, _tag(name), byref(address), byref(length))
        return address.value, length.value

    def _free(self, name, handle):
        _library.call("megapage_heap_free", self._open(), handle)

    def _header(self, name, address, length):
        """Returns shape and type of a published array; None for an unpublished one. Raises ValueError if it is no array."""
        if length < ROOM:
            raise ValueError(f"what is there as '{name}' is no array")
        magic, number, published, its_name, type_name, dimensions, *lengths = HEADER.unpack(
            ctypes.string_at(address, HEADER.size))
        if not published:
            return None
        if magic != MAGIC or number != FORMAT or its_name.rstrip(b"\0") != name.encode() or dimensions > 8:
            raise ValueError(f"what is there as '{name}' is no array")
        shape, dtype, wanted = described(lengths[:dimensions], type_name.rstrip(b"\0").decode())
        if wanted + ROOM != length:
            raise ValueError(f"what is there as '{name}' is no array of shape {shape}")
        return shape, dtype

    def _view(self, address, shape, dtype):
        return view(address + ROOM, shape, dtype, self, self._arrays)


assert sys.byteorder == "little", "segments are laid out for little-endian machines"
