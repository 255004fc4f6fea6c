"""Buffers, and the allocator that keeps freed ones for reuse.

Asking the system for 100 MB and touching it costs as much as computing with it, so blocks are kept by size class
when they are freed. Sizes are rounded up to a class with at most 1/8 lost.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from typing import Any, final

from weft.checks import integer_of

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


class _Block(weakref.ref["Buffer"]):
    """What a buffer had, for the time when it is gone. Sizes are in bytes."""

    __slots__ = ("address", "size")
    address: int
    size: int


class Allocator:
    """Hands out blocks and keeps what comes back, with the statistics that users may ask for. Sizes are in bytes.

    The block of a buffer that ends is put on a list, without any code in Python: an interrupt from the keyboard is
    never raised there, where nobody would see it. The next call takes it back.

    There is no lock. CPython changes threads, collects garbage and raises interrupts after calls and before it repeats
    a loop: statements without either, like those below that move a block, are done together or not at all.
    """

    def __init__(self) -> None:
        self._kept: dict[int, list[int]] = {}
        self._blocks: dict[int, _Block] = {}
        self._ended: deque[_Block] = deque()
        self._note_end = self._ended.append
        self._active = self.peak = 0
        self.memory_limit = sys.maxsize
        self.cache_limit = sys.maxsize

    def take(self, buffer: Buffer, size: int) -> int:
        """The address of a block of a size class, which is the buffer's until it ends."""
        if self._ended:
            self.take_back()
        block = _Block(buffer, self._note_end)
        kept = self._kept.get(size)
        if kept:
            address = kept[-1]
            del kept[-1]
        else:
            address = self._fresh(size, buffer.size)
        block.address, block.size = address, size
        self._blocks[address] = block
        self._active += size
        if self._active > self.peak:
            self.peak = self._active
        return address

    def take_back(self) -> None:
        """Keep the blocks of buffers that ended."""
        ended = self._ended
        while ended:
            try:
                block = ended[0]
            except IndexError:  # another thread was faster
                return
            del ended[0]
            del self._blocks[block.address]
            self._active -= block.size
            kept = self._kept[block.size]
            kept.append(block.address)
            if self.cache_limit < sys.maxsize:
                self._trim(kept)

    def _trim(self, kept: list[int]) -> None:
        """Return blocks that were kept to the system, if all together are too many."""
        while kept and self._bytes_kept() > self.cache_limit:
            _free_last(kept)

    @property
    def active(self) -> int:
        """What buffers hold."""
        self.take_back()
        return self._active

    @property
    def cached(self) -> int:
        """What is kept for reuse."""
        self.take_back()
        return self._bytes_kept()

    def _bytes_kept(self) -> int:
        return sum([size * len(addresses) for size, addresses in list(self._kept.items())])

    def _fresh(self, size: int, wanted: int) -> int:
        self._kept.setdefault(size, [])
        if self._active + self._bytes_kept() + size > self.memory_limit:
            self.clear()
        address = _system_block(size)
        if not address:
            self.clear()
            address = _system_block(size)
        if not address:
            raise MemoryError(f"no memory for an array of {wanted} bytes ({self.active} bytes are in use by arrays)")
        return address

    def clear(self) -> None:
        """Return the kept blocks to the system."""
        self.take_back()
        for kept in list(self._kept.values()):
            while kept:
                _free_last(kept)


def _free_last(kept: list[int]) -> None:
    try:
        address = kept[-1]
    except IndexError:  # another thread was faster
        return
    del kept[-1]
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


@final
class Buffer:
    """A block of memory that goes back to the allocator when nobody holds the buffer any more."""

    __slots__ = ("__weakref__", "address", "size")

    def __init__(self, size: int, block: int = 0) -> None:
        """``block`` is the size class, if it is known already."""
        self.size = size
        self.address = allocator.take(self, block or size_class(size))


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


def _bytes(name: str, limit: int) -> int:
    limit = integer_of(name, "limit", limit)
    if limit < 0:
        raise ValueError(f"[{name}] limit must not be negative; got {limit}.")
    return limit


def set_memory_limit(limit: int) -> int:
    """Set the limit in bytes above which kept memory is returned before more is taken; returns the old one.

    >>> before = set_memory_limit(1 << 30)
    >>> set_memory_limit(before) == 1 << 30
    True
    """
    before, allocator.memory_limit = allocator.memory_limit, _bytes("set_memory_limit", limit)
    return before


def set_cache_limit(limit: int) -> int:
    """Set how many bytes are kept for reuse at most; returns the old limit. What arrays held that ended goes back when
    the next one is made, or with `clear_cache`.

    >>> before = set_cache_limit(1 << 30)
    >>> set_cache_limit(before) == 1 << 30
    True
    """
    before, allocator.cache_limit = allocator.cache_limit, _bytes("set_cache_limit", limit)
    if allocator.cached > allocator.cache_limit:
        allocator.clear()
    return before
