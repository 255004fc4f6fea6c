"""Memory of the reference device: addresses that the process does not have, so that every wrong access is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np

from weft.runtime.memory import Allocator

REGION = 32
"""Each block has ``1 << REGION`` addresses of its own, so that an access beyond a block never reaches another one."""

UNWRITTEN = -1


class MemoryFault(Exception):
    """An access to bytes that do not exist, or a read of bytes that were never written."""


class ReferenceMemory:
    """Blocks of bytes at invented addresses; no address is used for a second block."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._blocks: dict[int, np.ndarray] = {}
        self.allocator = Allocator(self._allocate, self._free)
        self.allocator.cache_limit = 0  # blocks are freed at once, so that later reads of them are errors

    def _allocate(self, size: int) -> int:
        number = next(self._numbers)
        self._blocks[number] = np.full(size, UNWRITTEN, np.int16)
        return number << REGION

    def _free(self, address: int) -> None:
        del self._blocks[address >> REGION]

    @contextmanager
    def block(self, size: int) -> Iterator[int]:
        """The address of a block that exists inside the ``with`` block."""
        address = self._allocate(size)
        yield address
        self._free(address)

    def read(self, address: int, offsets: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """The elements ``offsets`` bytes after an address."""
        block, where = self._located(address, offsets, dtype.itemsize)
        found = block[where]
        if UNWRITTEN in found:
            raise MemoryFault(f"read of bytes that nobody has written, near {address:#x}")
        return found.astype(np.uint8).view(dtype)[..., 0]

    def write(self, address: int, offsets: np.ndarray, elements: np.ndarray) -> None:
        """Write elements ``offsets`` bytes after an address."""
        block, where = self._located(address, offsets, elements.dtype.itemsize)
        block[where] = np.ascontiguousarray(elements)[..., None].view(np.uint8)

    def _located(self, address: int, offsets: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The block of an address, and the positions in it of all bytes of each element."""
        block = self._blocks.get(address >> REGION)
        if block is None:
            raise MemoryFault(f"there is no memory at {address:#x}, or no longer")
        where = (offsets + (address & ((1 << REGION) - 1)))[..., None] + np.arange(size)
        if where.size and not 0 <= where.min() <= where.max() < len(block):
            raise MemoryFault(f"bytes {where.min()} to {where.max()} of a block of {len(block)}")
        return block, where
