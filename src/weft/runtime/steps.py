"""The table of native steps that a plan is in the end."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence


def integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    """64-bit integers in memory: addresses and numbers that native code reads."""
    return (ctypes.c_uint64 * len(values))(*values)


class StepTable:
    """Steps as ``{function, numbers, units, grain}`` in memory; open while steps are added, then sealed."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, Sequence[int], int, int]] = []
        self._numbers: list[ctypes.Array[ctypes.c_int64]] = []
        self._table: ctypes.Array[ctypes.c_int64] | None = None
        self.count = 0
        self.address = 0

    def add(self, function: int, numbers: Sequence[int], units: int, grain: int) -> None:
        """Append a step whose ``units`` of work may be shared in pieces of ``grain``."""
        self._steps.append((function, numbers, units, grain))

    def seal(self) -> None:
        """Lay the table out in memory; no step can be added afterwards."""
        flat: list[int] = []
        for function, numbers, units, grain in self._steps:
            block = (ctypes.c_int64 * max(len(numbers), 1))(*numbers)
            self._numbers.append(block)
            flat += [function, ctypes.addressof(block), units, grain]
        self.count = len(self._steps)
        self._table = (ctypes.c_int64 * max(len(flat), 1))(*flat)
        self.address = ctypes.addressof(self._table)
        self._steps.clear()
