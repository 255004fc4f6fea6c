"""Memory of the reference device: an address space that exists nowhere, and in which every wrong access is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np

from weft.runtime.memory import Allocator

REGION = 32
"""Each block has an address space of ``1 << REGION`` bytes of its own, so that one is never taken for another."""

UNWRITTEN = -1


class MemoryFault(Exception):
    """An access to what is not there."""


class ReferenceMemory:
    """Blocks of bytes by made-up addresses, none of which is given twice."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._blocks: dict[int, np.ndarray] = {}
        self.allocator = Allocator(self._allocate, self._free)
        self.allocator.cache_limit = 0  # a block that ends is gone, so that nobody reads what was in it

    def _allocate(self, size: int) -> int:
        number = next(self._numbers)
        self._blocks[number] = np.full(size, UNWRITTEN, np.int16)
        return number << REGION

    def _free(self, address: int) -> None:
        del self._blocks[address >> REGION]

    @contextmanager
    def block(self, size: int) -> Iterator[int]:
        """The address of a block that is there as long as the ``with`` block runs."""
        address = self._allocate(size)
        yield address
        self._free(address)

    def read(self, address: int, offsets: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The elements that begin ``offsets`` bytes behind an address."""
        block, where = self._located(address, offsets, dtype.itemsize)
        found = block[where]
        if UNWRITTEN in found:
            raise MemoryFault(f"read of bytes that nobody has written, near {address:#x}")
        return found.astype(np.uint8).view(dtype)[..., 0]

    def write(self, address: int, offsets: np.ndarray, elements: np.ndarray) -> None:
        """Write elements ``offsets`` bytes behind an address."""
        block, where = self._located(address, offsets, elements.dtype.itemsize)
        block[where] = np.ascontiguousarray(elements)[..., None].view(np.uint8)

    def _located(self, address: int, offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The block of an address, and where in it each byte of each element is."""
        block = self._blocks.get(address >> REGION)
        if block is None:
            raise MemoryFault(f"there is no memory at {address:#x}, or no longer")
        where = (offsets + (address & ((1 << REGION) - 1)))[..., None] + np.arange(size)
        if where.size and not 0 <= where.min() <= where.max() < len(block):
            raise MemoryFault(f"bytes {where.min()} to {where.max()} of a block of {len(block)}")
        return block, where
