"""Accesses to memory that nothing orders: a card may do either first."""

from __future__ import annotations

import numpy as np

NOBODY, MANY = -1, -2


class Accesses:
    """The latest accesses to each byte of a block of memory: by which warp, and after how many of its barriers.

    Threads of a warp are not told apart: they wait for each other in their own ways.
    """

    def __init__(self) -> None:
        self.writer, self.reader, self.written, self.read = (np.empty(0, np.int64) for _ in range(4))

    def grow(self, size: int) -> None:
        """Have room for so many bytes."""
        missing = np.full(max(0, size - self.writer.size), NOBODY)
        if missing.size:
            self.writer, self.reader = np.append(self.writer, missing), np.append(self.reader, missing)
            self.written, self.read = np.append(self.written, missing), np.append(self.read, missing)

    def unordered(self, where: np.ndarray, warps: np.ndarray, barriers: np.ndarray, writes: bool) -> bool:
        """Note accesses to the bytes ``where``; whether another warp of the block accesses one of them without a
        barrier between, and one of both writes."""
        size = where.shape[-1]
        where, warps, barriers = where.ravel(), np.repeat(warps, size), np.repeat(barriers, size)
        found = self._meets(self.writer, self.written, where, warps, barriers)
        if writes:
            found |= self._meets(self.reader, self.read, where, warps, barriers)
            self.writer[where], self.written[where] = warps, barriers
            found |= bool((self.writer[where] != warps).any())
        else:
            others = (self.read[where] == barriers) & (self.reader[where] != warps) & (self.reader[where] != NOBODY)
            self.reader[where], self.read[where] = np.where(others, MANY, warps), barriers
            shared = self.reader[where] != warps
            self.reader[where[shared]] = MANY
        return found

    def _meets(
        self, who: np.ndarray, when: np.ndarray, where: np.ndarray, warps: np.ndarray, barriers: np.ndarray
    ) -> bool:
        other = (who[where] != warps) & (who[where] != NOBODY)
        return bool((other & (when[where] == barriers)).any())
