"""Buffers, and the allocator that keeps freed ones for reuse.

Asking the system for 100 MB and touching it costs as much as computing with it, so freed blocks are cached by size
class. Sizes are rounded up to a class; at most 1/8 is lost.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from weft.runtime.holders import unused

if TYPE_CHECKING:
    from weft.runtime.engine import Engine

ALIGNMENT = 64
_SMALLEST = 64
_SMALL = 1 << 16
"""Leases of blocks of at most so many bytes are kept: for small arrays, a new lease takes as long as the kernel."""
_MOST_KEPT = 4
"""How many leases of a size class are kept."""
_PATIENCE = 16
"""After so many leases that were new, kept ones are looked at for every eighth lease only: where many arrays stay, that
is in vain."""


def size_class(size: int) -> int:
    """The size of the block for ``size`` bytes: there are eight classes between two powers of two."""
    if size <= _SMALLEST:
        return _SMALLEST
    step = max(1 << ((size - 1).bit_length() - 4), ALIGNMENT)
    return (size + step - 1) & -step


class Lease:
    """The right to use a block. A buffer holds it; after that ended, another buffer may take it over."""

    __slots__ = ("__weakref__", "address")
    address: int


class _LeaseReference(weakref.ref[Lease]):
    """Weak reference to a lease, with the address and size in bytes of its block for when the lease has ended. The size
    is 0 until the lease has a block."""

    __slots__ = ("address", "size")
    address: int
    size: int


class Allocator:
    """Hands out blocks of a device's memory and caches freed ones; counts bytes for `get_active_memory` and others.
    Sizes are in bytes.

    ``allocate(size)`` returns the address of a new block, or 0 if there is none; ``free(address)`` gives it back;
    ``rest()`` is what an error message says of memory that is not arrays'.

    When a lease ends, its block goes on a list without running Python code, because an interrupt raised there would be
    lost. `take_back` moves the blocks of the list to the cache. Some leases of small blocks are kept when their buffers
    end, since the next buffer of the size class takes less time so; their bytes count as active until somebody asks.

    There is no lock: CPython switches threads only after calls and at loop ends, so that statements without calls are
    atomic. See `weft.runtime.atomic`.
    """

    def __init__(
        self, allocate: Callable[[int], int], free: Callable[[int], None], rest: Callable[[], str] = str
    ) -> None:
        self._allocate, self._free, self._rest = allocate, free, rest
        self._cached: dict[int, list[int]] = {}
        self._blocks: dict[int, _LeaseReference] = {}
        self._ended: deque[_LeaseReference] = deque()
        self._kept: dict[int, deque[Lease]] = {}
        self._note_end = self._ended.append
        self._active = self.peak = 0
        self._in_vain = self._not_kept = 0
        """How many leases were new since a kept one was used, and how often kept ones were looked at in vain. Threads
        may count wrongly, which is harmless."""
        self.memory_limit = sys.maxsize
        self.cache_limit = sys.maxsize

    def lease(self, size: int, wanted: int) -> Lease:
        """A lease of a block of a size class, of which ``wanted`` bytes are needed."""
        kept = self._kept.get(size)
        looks = self._in_vain < _PATIENCE or not self._in_vain % 8
        if looks and kept is not None:
            lease = unused(kept)
            if lease is not None:
                self._in_vain = 0
                return lease
        self._in_vain += 1
        lease = Lease()
        lease.address = self._take(lease, size, wanted)
        if looks and size <= _SMALL and self.cache_limit == sys.maxsize:
            self._keep(kept or (), size, lease)
        return lease

    def _keep(self, kept: Collection[Lease], size: int, lease: Lease) -> None:
        """Keep a new lease, in place of the oldest one that is ``kept`` if these are as many as may be. Only every
        eighth lease replaces one, which takes half as long as making a lease."""
        self._not_kept += 1
        if len(kept) < _MOST_KEPT or not self._not_kept % 8:
            # A new deque, as `unused` counts references wrongly if a lease leaves the one that it looks at.
            self._kept[size] = deque((*kept, lease), _MOST_KEPT)

    def _take(self, lease: Lease, size: int, wanted: int) -> int:
        """The address of a block that goes back when the lease ends."""
        block = _LeaseReference(lease, self._note_end)
        block.size = 0  # if there is no memory, who clears the frames of the error ends the lease before this reference
        if self._ended:
            first = self._ended[0]
            if first.size == size:  # checked first: in loops, buffers of the same sizes get the same addresses again
                del self._ended[0]
                address = block.address = first.address
                block.size = size
                self._blocks[address] = block
                return address
            self.take_back()
        cached = self._cached.get(size)
        if cached:
            address = cached[-1]
            del cached[-1]
        else:
            address = self._fresh(size, wanted)
        block.address, block.size = address, size
        self._blocks[address] = block
        self._active += size
        if self._active > self.peak:
            self._end_kept()
            if self._active > self.peak:
                self.peak = self._active
        return address

    def _end_kept(self) -> None:
        """Keep no leases any more."""
        if self._kept:
            self._kept.clear()
            self.take_back()

    def take_back(self) -> None:
        """Cache the blocks of leases that ended."""
        ended = self._ended
        while ended:
            try:
                block = ended[0]
            except IndexError:  # another thread took it
                return
            del ended[0]
            if not block.size:
                continue
            del self._blocks[block.address]
            self._active -= block.size
            cached = self._cached[block.size]
            cached.append(block.address)
            if self.cache_limit < sys.maxsize:
                self._trim(cached)

    def _trim(self, cached: list[int]) -> None:
        """Free cached blocks of one size while more bytes are cached than the limit allows."""
        while cached and self._bytes_cached() > self.cache_limit:
            self._free_last(cached)

    @property
    def active(self) -> int:
        """Bytes of the blocks that buffers hold."""
        self._end_kept()
        self.take_back()
        return self._active

    @property
    def cached(self) -> int:
        """Bytes of the blocks that are cached."""
        self._end_kept()
        self.take_back()
        return self._bytes_cached()

    def _bytes_cached(self) -> int:
        return sum([size * len(addresses) for size, addresses in list(self._cached.items())])

    def _fresh(self, size: int, wanted: int) -> int:
        self._cached.setdefault(size, [])
        if self.memory_limit < sys.maxsize and self._active + self._bytes_cached() + size > self.memory_limit:
            self.clear()
        address = self._allocate(size)
        if not address:
            self.clear()
            address = self._allocate(size)
        if not address:
            used = f"{self.active} bytes are in use by arrays{self._rest()}"
            raise MemoryError(f"no memory for an array of {wanted} bytes ({used})")
        return address

    def clear(self) -> None:
        """Free the cached blocks."""
        self._end_kept()
        self.take_back()
        for cached in list(self._cached.values()):
            while cached:
                self._free_last(cached)

    def _free_last(self, cached: list[int]) -> None:
        try:
            address = cached[-1]
        except IndexError:  # another thread took it
            return
        del cached[-1]
        self._free(address)


class Buffer:
    """A block of an engine's memory, which goes back to its allocator when nothing refers to the buffer.

    ``export`` is a weak reference to the `Export` through which NumPy and others share it, if any. Memory of another
    library has an ``owner``, which keeps it alive; it is only read. Memory of Weft ``is_own`` and may be written.
    """

    __slots__ = ("__weakref__", "address", "engine", "export", "is_own", "lease", "owner", "size")
    owner: Any
    lease: Lease

    def __init__(self, engine: Engine, size: int, block: int = 0) -> None:
        """``block`` is the size class, if the caller knows it."""
        self.engine = engine
        self.size = size
        self.is_own = True
        self.export: weakref.ref[Any] | None = None
        self.lease = engine.memory.lease(block or size_class(size), size)
        self.address = self.lease.address

    @classmethod
    def of_others(cls, engine: Engine, address: int, size: int, owner: Any) -> Buffer:
        """A buffer of memory of a device that belongs to another library."""
        buffer = cls.__new__(cls)
        buffer.engine, buffer.address, buffer.size, buffer.owner = engine, address, size, owner
        buffer.is_own, buffer.export = False, None
        return buffer


class BareBuffer(Buffer):
    """A buffer whose maker sets the attributes, which takes two thirds of the time of calling `Buffer`."""

    __slots__ = ()
    __init__ = object.__init__  # which runs no Python code


class Export(Protocol):
    """The bytes of a buffer, which it holds for all others that share it, such as NumPy arrays: an array of ctypes.
    ``writable``: some of them may write to it."""

    writable: bool

    def __buffer__(self, flags: int, /) -> memoryview: ...


@lru_cache(1024)
def _export_type(size: int) -> Any:
    """The type of the exports of buffers of a size. To make one takes 20 microseconds."""
    return type("Export", (ctypes.c_char * size,), {"__slots__": ("buffer", "writable")})


def export_of(buffer: Buffer) -> Any:
    """The `Export` of a buffer; None if nobody shares it."""
    reference = buffer.export
    return None if reference is None else reference()


class View:
    """Elements of a buffer: where the first one is (in bytes) and how far apart they are (in elements, per axis).

    ``event`` is what to wait for before reading, or None once the value has been computed. ``copies`` are buffers of
    other engines with the same elements; see `weft.runtime.transfers`.
    """

    __slots__ = ("__weakref__", "address", "buffer", "copies", "event", "offset", "strides")

    def __init__(self, buffer: Buffer, offset: int, strides: tuple[int, ...]) -> None:
        self.buffer, self.offset, self.strides = buffer, offset, strides
        self.address = buffer.address + offset
        self.event: Any = None
        self.copies: Any = None

    def move(self, buffer: Buffer) -> None:
        """Make the view refer to another buffer."""
        self.buffer, self.address = buffer, buffer.address + self.offset


class BareView(View):
    """A view whose maker sets the attributes; see `BareBuffer`."""

    __slots__ = ()
    __init__ = object.__init__


def copy_in_a_row(pieces: Sequence[tuple[View, int]], address: int) -> None:
    """Copy the first bytes of each view, as many as given, one piece after the other to an address of the host."""
    move = ctypes.memmove
    for view, length in pieces:
        move(address, view.address, length)
        address += length


def shared_with_others(view: View, writable: bool) -> Export:
    """The `Export` of a view's buffer, made if there is none; others may write to it if it is ``writable``.

    The buffer is not donated as long as its `Export` exists.
    """
    buffer = view.buffer
    export = None if buffer.export is None else export_of(buffer)
    if export is None:
        export = _export_type(buffer.size).from_address(buffer.address)
        export.buffer, export.writable = buffer, False
        buffer.export = weakref.ref(export, buffer.engine.export_ended)
    if writable:
        export.writable, view.copies = True, None
    return export


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    if len(shape) == 1:  # for speed
        return (1,)
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def span_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """The bytes, counted from the first element, that an array covers, as (first, end)."""
    if 0 in shape:
        return 0, 0
    distances = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low, high = sum([d for d in distances if d < 0]), sum([d for d in distances if d > 0])
    return low * itemsize, (high + 1) * itemsize
