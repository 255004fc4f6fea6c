"""Arrays whose elements are outside of the process, for example in a file, until they are needed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from weft.runtime import recording
from weft.runtime.atomic import refuse_reentry, sections
from weft.runtime.devices import Stream
from weft.runtime.host import host
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Buffer, View

Read = Callable[[memoryview], None]
"""Writes the elements of an array into its memory, given as bytes. It may be called again if it failed."""

NOWHERE = Buffer(host, 1)
"""The buffer of views that have no memory yet."""


class Unread:
    """The event of a view whose elements are read when they are first needed, by the thread that needs them.

    Memory is taken then, too. An error of ``read`` is raised on every thread that asks for the elements.
    """

    __slots__ = ("__weakref__", "_begun", "_lock", "_read", "_size", "_stream", "done", "view")

    def __init__(self, size: int, strides: tuple[int, ...], read: Read, stream: Stream) -> None:
        """``size`` is in bytes; ``stream`` is the one on whose worker elements are read if no thread waits for them."""
        self._size = size
        self._read: Read | None = read
        self._stream = stream
        self._lock = fork_safe_lock()
        self._begun = False
        self.done = False
        self.view = View(NOWHERE, 0, strides)
        self.view.event = self

    def take_memory(self) -> None:
        """Take memory for the elements, if that has not happened."""
        with sections:
            if self.view.buffer is NOWHERE:
                self.view.move(Buffer(host, self._size))

    def begin(self) -> None:
        """Queue the reading on the stream; a thread that waits may still read first."""
        if not self._begun:
            self._begun = True
            self._stream.engine.submit(self._stream, self.wait)

    def wait(self) -> None:
        """Read the elements unless they were read; raises the error of reading."""
        refuse_reentry(sections)
        refuse_reentry(self._lock)
        with self._lock:
            read = self._read
            if read is not None:
                self.take_memory()
                with recording.transfer("file", host.device, self._size):
                    read(_bytes_of(self.view.buffer, self._size))
                self._read = None
        self.done = True
        self.view.event = None


def _bytes_of(buffer: Buffer, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(buffer.address)).cast("B")
