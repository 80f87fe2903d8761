"""Upgrade of a running program: the new version takes over the segments of the old one."""

from __future__ import annotations

import os
from ctypes import byref, c_size_t, c_uint64
from types import TracebackType
from typing import Iterable

from . import _library
from ._segment import Segment


class Listener:
    """A socket at `path` on which this process waits for its successor. It replaces an earlier listener at that path.

    fileno() is for select and asyncio: it becomes readable when a successor has connected.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._listener = 0
        listener = c_uint64()
        _library.call("megapage_upgrade_listen", str(path).encode(), byref(listener))
        self._listener = listener.value

    def fileno(self) -> int:
        return _library.call("megapage_upgrade_descriptor", self._open())

    def wait(self, seconds: float = 0.0) -> bool:
        """Waits for a successor, at most `seconds`. Returns true if there is one."""
        return _library.call("megapage_upgrade_wait", self._open(), _milliseconds(seconds)) == 1

    def hand_over(self, segments: Iterable[Segment], seconds: float = 10.0) -> bool:
        """Hands over segments, all or none, to the successor that wait() has found; then closes them and the listener.

        Returns true if the successor has confirmed that it has them; it owns them in any case. Raises BufferError while their
        arrays are in use. Raises MegapageError if nothing was handed over: then the segments stay open.
        """
        segments = list(segments)
        for segment in segments:
            segment._refuse_while_used("handing a segment over")
        handles = (c_uint64 * len(segments))(*[segment._open() for segment in segments])
        answer = _library.call(
            "megapage_upgrade_hand_over", self._open(), handles, len(segments), _milliseconds(seconds))
        self._listener = 0
        for segment in segments:
            segment._heap = 0
            segment._close_pool()
        return answer == 0

    def close(self) -> None:
        """Stops listening."""
        if self._listener:
            _library.call("megapage_upgrade_close", self._listener)
            self._listener = 0

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_listener", 0):
            _library.LIBRARY.megapage_upgrade_close(self._listener)
            self._listener = 0

    def _open(self):
        if not self._listener:
            raise ValueError("the listener is closed")
        return self._listener


def take_over(path: str | os.PathLike[str], seconds: float = 10.0) -> list[Segment] | None:
    """Returns the segments of the process that listens at `path`, in the order in which it hands them over.

    Returns None if no process listens, or if it ended before it had offered all: then start as usual. Raises MegapageError if
    that process stays the owner.
    """
    handles, count = (c_uint64 * _library.UPGRADE_MOST)(), c_size_t()
    _library.call("megapage_upgrade_take_over", str(path).encode(), _milliseconds(seconds), handles, byref(count))
    taken = [Segment._of_segment(handle) for handle in handles[: count.value]]
    return taken or None


def _milliseconds(seconds):
    return max(0, min(int(seconds * 1000), 0xFFFF_FFFF))
