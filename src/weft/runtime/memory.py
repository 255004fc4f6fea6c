"""Buffers, and the allocator that keeps freed ones for reuse.

Asking the system for 100 MB and touching it costs as much as computing with it, so blocks are kept by size class
when they are freed. Sizes are rounded up to a class with at most 1/8 lost.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
from typing import Any, final

_ALIGNMENT = 64
_SMALLEST = 64

_libc = ctypes.CDLL(None)
_posix_memalign = _libc.posix_memalign
_posix_memalign.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
_posix_memalign.restype = ctypes.c_int
_free = _libc.free
_free.argtypes = (ctypes.c_void_p,)
_free.restype = None

_PAGE_CLASS = 1 << 21
_madvise = getattr(_libc, "madvise", None) if sys.platform == "linux" else None
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_HUGE_PAGES = 14


def size_class(size: int) -> int:
    """The block size that serves ``size`` bytes: eight steps between powers of two."""
    if size <= _SMALLEST:
        return _SMALLEST
    step = max(1 << ((size - 1).bit_length() - 4), _ALIGNMENT)
    return (size + step - 1) & -step


class Allocator:
    """Hands out blocks and keeps what comes back, with the statistics that users may ask for. Sizes are in bytes."""

    # There is no lock: CPython changes threads, and collects garbage (which gives blocks back), between calls and not
    # within a statement like ``self.active += size``; and what a list pops only one thread gets.

    def __init__(self) -> None:
        self._kept: dict[int, list[int]] = {}
        self.active = self.peak = self.cached = 0
        self.memory_limit = sys.maxsize
        self.cache_limit = sys.maxsize

    def take(self, size: int) -> int:
        """The address of a block of a size class."""
        try:
            address = self._kept[size].pop()
            self.cached -= size
        except (KeyError, IndexError):
            address = self._fresh(size)
        self.active += size
        if self.active > self.peak:
            self.peak = self.active
        return address

    def give(self, address: int, size: int) -> None:
        """Take a block back."""
        self.active -= size
        if self.cached + size > self.cache_limit:
            _free(address)
            return
        self._kept[size].append(address)
        self.cached += size

    def _fresh(self, size: int) -> int:
        self._kept.setdefault(size, [])
        if self.active + self.cached + size > self.memory_limit:
            self.clear()
        address = _system_block(size)
        if not address:
            self.clear()
            address = _system_block(size)
        if not address:
            raise MemoryError(f"no memory for an array of {size} bytes ({self.active} bytes are in use by arrays)")
        return address

    def clear(self) -> None:
        """Return the kept blocks to the system."""
        for size, blocks in list(self._kept.items()):
            while blocks:
                try:
                    address = blocks.pop()
                except IndexError:  # another thread was faster
                    break
                self.cached -= size
                _free(address)


def _system_block(size: int) -> int:
    pointer = ctypes.c_void_p()
    if size > 1 << 56 or _posix_memalign(ctypes.byref(pointer), _ALIGNMENT, size) != 0 or pointer.value is None:
        return 0
    if size >= _PAGE_CLASS and _madvise is not None:
        start = (pointer.value + 4095) & -4096
        _madvise(start, (pointer.value + size - start) & -4096, _HUGE_PAGES)
    return pointer.value


allocator = Allocator()


def _leave() -> None:
    """Take no block back while the interpreter is taken apart: threads that were stopped then may still compute."""
    allocator.give = _keep  # type: ignore[method-assign]  # `Buffer.__del__` runs too often to ask each time


def _keep(address: int, size: int) -> None:
    return


atexit.register(_leave)


@final
class Buffer:
    """A block of memory that goes back to the allocator when nobody holds the buffer any more."""

    __slots__ = ("__weakref__", "_block", "address", "size")

    def __init__(self, size: int, block: int = 0) -> None:
        """``block`` is the size class, if it is known already."""
        self._block = 0
        block = block or size_class(size)
        self.address = allocator.take(block)
        self._block = block
        self.size = size

    def __del__(self) -> None:
        if self._block and allocator is not None:
            allocator.give(self.address, self._block)


@final
class View:
    """Elements of a buffer: where the first one is (in bytes) and how far apart they are (in elements, per axis).

    ``event`` is what to wait for before reading, or None once the value is there.
    """

    __slots__ = ("address", "buffer", "event", "offset", "strides")

    def __init__(self, buffer: Buffer, offset: int, strides: tuple[int, ...]) -> None:
        self.buffer, self.offset, self.strides = buffer, offset, strides
        self.address = buffer.address + offset
        self.event: Any = None

    def move(self, buffer: Buffer) -> None:
        """Show another buffer."""
        self.buffer, self.address = buffer, buffer.address + self.offset


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def get_active_memory() -> int:
    """Bytes in use by arrays."""
    return allocator.active


def get_peak_memory() -> int:
    """The most bytes that were in use by arrays since the start or the last `reset_peak_memory`."""
    return allocator.peak


def reset_peak_memory() -> None:
    """Start measuring the peak again."""
    allocator.peak = allocator.active


def get_cache_memory() -> int:
    """Bytes kept for reuse."""
    return allocator.cached


def clear_cache() -> None:
    """Return memory kept for reuse to the system."""
    allocator.clear()


def get_memory_limit() -> int:
    """The limit in bytes above which kept memory is returned before more is taken."""
    return allocator.memory_limit


def set_memory_limit(limit: int) -> int:
    """Set the limit in bytes above which kept memory is returned before more is taken; returns the old one."""
    before, allocator.memory_limit = allocator.memory_limit, int(limit)
    return before


def set_cache_limit(limit: int) -> int:
    """Set how many bytes are kept for reuse at most; returns the old limit."""
    before, allocator.cache_limit = allocator.cache_limit, int(limit)
    if allocator.cached > allocator.cache_limit:
        allocator.clear()
    return before
