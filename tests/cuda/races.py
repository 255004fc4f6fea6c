"""Accesses to memory that nothing orders: on a card, either may happen first."""

from __future__ import annotations

from typing import Literal

import numpy as np

NOBODY, MANY = -1, -2

Kind = Literal["reads", "writes", "changes"]
"""The kind of an access; ``changes`` are atomic."""

_CONFLICTS: dict[Kind, tuple[Kind, ...]] = {
    "reads": ("writes", "changes"),
    "writes": ("reads", "writes", "changes"),
    "changes": ("reads", "writes"),
}


class Latest:
    """The latest accesses of one kind to each byte of a block of memory: the warp, and how many barriers it had
    passed."""

    def __init__(self) -> None:
        self.who, self.when = np.empty(0, np.int64), np.empty(0, np.int64)

    def grow(self, size: int) -> None:
        """Make room for ``size`` bytes."""
        missing = np.full(max(0, size - self.who.size), NOBODY)
        if missing.size:
            self.who, self.when = np.append(self.who, missing), np.append(self.when, missing)

    def meets(self, where: np.ndarray, warps: np.ndarray, barriers: np.ndarray) -> bool:
        """Whether another warp of the block accessed one of the bytes without a barrier in between."""
        other = (self.who[where] != warps) & (self.who[where] != NOBODY)
        return bool((other & (self.when[where] == barriers)).any())

    def note(self, where: np.ndarray, warps: np.ndarray, barriers: np.ndarray) -> None:
        """Note accesses to bytes, by one warp or by several."""
        others = (self.when[where] == barriers) & (self.who[where] != warps) & (self.who[where] != NOBODY)
        self.who[where], self.when[where] = np.where(others, MANY, warps), barriers
        self.who[where[self.who[where] != warps]] = MANY


class Accesses:
    """The latest accesses to each byte of a block of memory.

    Threads of one warp are not distinguished, because instructions of the warp order their accesses.
    """

    def __init__(self) -> None:
        self.latest: dict[Kind, Latest] = {kind: Latest() for kind in _CONFLICTS}

    def grow(self, size: int) -> None:
        """Make room for ``size`` bytes."""
        for latest in self.latest.values():
            latest.grow(size)

    def unordered(self, where: np.ndarray, warps: np.ndarray, barriers: np.ndarray, kind: Kind) -> bool:
        """Note accesses to the bytes ``where``. Returns whether another warp of the block accesses one of them without
        a barrier in between, and one of the two writes."""
        size = where.shape[-1]
        where, warps, barriers = where.ravel(), np.repeat(warps, size), np.repeat(barriers, size)
        found = any(self.latest[other].meets(where, warps, barriers) for other in _CONFLICTS[kind])
        latest = self.latest[kind]
        latest.note(where, warps, barriers)
        return found or (kind == "writes" and bool((latest.who[where] == MANY).any()))
