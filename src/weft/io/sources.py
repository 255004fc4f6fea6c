"""Reading the bytes of a file by position.

Files are not mapped into memory: reading a page of a mapped file that another program has truncated ends the process,
while a read by position that reaches beyond the end is an error.
"""

from __future__ import annotations

import io
import os
import resource
import stat
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from heapq import nsmallest
from typing import Any

from weft.errors import ArgumentTypeError, EvaluationError, FileFormatError
from weft.io.files import called, is_open, opening

_PIECE = 1 << 24
"""How many bytes of an open file are read at once, because the length that it reports may be wrong."""


class Source(ABC):
    """Bytes that can be read by position. ``name`` is used in messages; ``is_here`` says whether the bytes are in
    memory."""

    is_here = False

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size

    @abstractmethod
    def read_into(self, position: int, memory: memoryview) -> None:
        """Fill ``memory`` with the bytes from ``position`` on; the caller has checked that the file contains them."""

    def bytes_at(self, position: int, count: int) -> bytes:
        """``count`` bytes from ``position`` on.

        Raises:
            FileFormatError: the file ends earlier.
        """
        if not 0 <= position <= position + count <= self.size:
            raise FileFormatError(f"[load] {self.name} ends after {self.size} bytes, in the middle of something.")
        found = bytearray(count)
        self.read_into(position, memoryview(found))
        return bytes(found)


class MemorySource(Source):
    """Bytes in memory."""

    is_here = True

    def __init__(self, name: str, data: bytes | bytearray) -> None:
        super().__init__(name, len(data))
        self._data = memoryview(data)

    def read_into(self, position: int, memory: memoryview) -> None:
        memory[:] = self._data[position : position + len(memory)]


class FileSource(Source):
    """A file that stays open until everything that is needed from it was read."""

    def __init__(self, path: str) -> None:
        _close_some()
        with opening():
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._descriptor = descriptor
        self._state = status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(f"[load] {path!r} is a folder.")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"[load] {path!r} is no regular file; open it and pass the open file.")
        super().__init__(repr(path), status.st_size)
        self._arrays: list[weakref.ref[Any]] = []
        _open[descriptor] = self

    def read_into(self, position: int, memory: memoryview) -> None:
        done = 0
        while done < len(memory):
            count = os.preadv(self._descriptor, [memory[done : done + (1 << 30)]], position + done)
            if count == 0:
                break
            done += count
        now = os.fstat(self._descriptor)
        if done < len(memory) or (now.st_size, now.st_mtime_ns) != (self._state.st_size, self._state.st_mtime_ns):
            raise EvaluationError(
                f"[load] {self.name} was changed after it was loaded, before the elements of an array were read from "
                "it. Load it again."
            )

    def add_unread(self, unread: Any) -> None:
        """Note that the elements of an array must still be read; ``unread`` is the event of the array."""
        self._arrays.append(weakref.ref(unread))

    def unread(self) -> list[Any]:
        """The events of arrays that must still be read."""
        return [unread for array in list(self._arrays) if (unread := array()) is not None]

    def read_unread(self) -> None:
        """Read the arrays that must still be read. If one cannot be read, the error is raised where it is evaluated."""
        for unread in self.unread():
            with suppress(EvaluationError, FileFormatError):
                unread.wait()

    def is_file(self, status: os.stat_result) -> bool:
        """Whether a path with this status refers to this file."""
        return (status.st_dev, status.st_ino) == (self._state.st_dev, self._state.st_ino)


_open: weakref.WeakValueDictionary[int, FileSource] = weakref.WeakValueDictionary()


def _opened() -> list[FileSource]:
    """All open sources. Other threads may open and close sources meanwhile, so only a list of them is iterated."""
    return [source for reference in _open.valuerefs() if (source := reference()) is not None]


def _close_some() -> None:
    """Read the smallest files to their end while these are half of the files that a process may have open."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    if 0 <= most <= len(_open):
        waiting = [source for source in _opened() if source.unread()]
        for source in nsmallest(len(waiting) + 1 - most, waiting, key=lambda source: source.size):
            source.read_unread()


def source_of(file: Any) -> Source:
    """The bytes of a named file, or of an open file from its position on."""
    if not is_open(file):
        return FileSource(os.fspath(file))
    name = called(file)
    return MemorySource(name, taken(file, name, None))


def taken(file: Any, name: str, count: int | None) -> bytearray:
    """The next ``count`` bytes of an open file, or all remaining bytes."""
    if isinstance(file, io.TextIOBase):
        raise ArgumentTypeError(f"[load] {name} must be opened for bytes, mode 'rb'; it was opened for text.")
    found = bytearray()
    while count is None or len(found) < count:
        piece = file.read(_PIECE if count is None else min(_PIECE, count - len(found)))
        if not isinstance(piece, bytes):
            raise ArgumentTypeError(
                f"[load] {name} must be opened for bytes, mode 'rb'; reading it gave {type(piece).__name__}."
            )
        if not piece:
            break
        found += piece
    if count is not None and len(found) < count:
        raise FileFormatError(f"[load] {name} ends {count - len(found)} bytes too early.")
    return found


def read_before_writing(file: str | int) -> None:
    """Read what arrays still need from a file that is about to be written, given as a path or a descriptor."""
    try:
        status = os.stat(file)
    except OSError:
        return
    for source in _opened():
        if source.is_file(status):
            source.read_unread()
