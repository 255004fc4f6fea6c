"""Memory of the reference device: an address space that exists nowhere, and in which every wrong access is an error."""

from __future__ import annotations

from itertools import count

import numpy as np

from weft.runtime.memory import Allocator

REGION = 32
"""Each block has an address space of ``1 << REGION`` bytes of its own, so that one is never taken for another."""


class MemoryFault(Exception):
    """An access to what is not there."""


class Block:
    """Bytes, and which of them somebody has written."""

    def __init__(self, size: int) -> None:
        self.data = np.zeros(size, np.uint8)
        self.written = np.zeros(size, np.bool_)


class ReferenceMemory:
    """Blocks by made-up addresses, none of which is given twice."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._blocks: dict[int, Block] = {}
        self.allocator = Allocator(self._allocate, self._free)
        self.allocator.cache_limit = 0  # a block that ends is gone, so that nobody reads what was in it

    def _allocate(self, size: int) -> int:
        number = next(self._numbers)
        self._blocks[number] = Block(size)
        return number << REGION

    def _free(self, address: int) -> None:
        del self._blocks[address >> REGION]

    def read(self, address: int, offsets: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The elements that begin ``offsets`` bytes behind an address."""
        block, where = self._located(address, offsets, dtype.itemsize)
        if not block.written[where].all():
            raise MemoryFault(f"read of bytes that nobody has written, near {address:#x}")
        return block.data[where].view(dtype)[..., 0]

    def write(self, address: int, offsets: np.ndarray, elements: np.ndarray) -> None:
        """Write elements ``offsets`` bytes behind an address."""
        block, where = self._located(address, offsets, elements.dtype.itemsize)
        block.data[where] = np.ascontiguousarray(elements)[..., None].view(np.uint8)
        block.written[where] = True

    def _located(self, address: int, offsets: np.ndarray, size: int) -> tuple[Block, np.ndarray]:
        """The block of an address, and where in it each byte of each element is."""
        block = self._blocks.get(address >> REGION)
        if block is None:
            raise MemoryFault(f"there is no memory at {address:#x}, or no longer")
        where = (offsets + (address & ((1 << REGION) - 1)))[..., None] + np.arange(size)
        if where.size and not 0 <= where.min() <= where.max() < len(block.data):
            raise MemoryFault(f"bytes {where.min()} to {where.max()} of a block of {len(block.data)}")
        return block, where
