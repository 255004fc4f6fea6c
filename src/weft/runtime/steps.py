"""The native steps that a plan is in the end, and the table that one run of them reads."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence


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

    def rows(self) -> list[tuple[int, list[int], int, int]]:
        """The sealed steps as they stand in memory."""
        table = [] if self._table is None else list(self._table)
        blocks = [list(block) for block in self._numbers]
        return [(table[4 * k], blocks[k], table[4 * k + 2], table[4 * k + 3]) for k in range(self.count)]


POOL, _STOP, DONE, FIRST = 0, 3, 4, 5
"""Where a `Table` has the address of the pool, how many steps were run, and from where on what they refer to."""


class Table:
    """64-bit integers in memory that native code reads while it runs steps: the pool, the steps and their count,
    whether to stop, how many were run; from ``FIRST`` on the addresses and constants that steps refer to by number.

    Native code begins with the step that was not run yet: so it goes on where it was stopped, and does nothing if all
    was done.
    """

    __slots__ = ("address", "values")

    def __init__(self, steps: StepTable, entries: Sequence[int]) -> None:
        self.values = array("Q", (0, steps.address, steps.count, 0, 0, *entries))
        self.address = self.values.buffer_info()[0]

    def cancel(self) -> None:
        """Stop before the next step."""
        self.values[_STOP] = 1

    @property
    def stopped(self) -> bool:
        return bool(self.values[_STOP])

    def revive(self) -> None:
        """Allow it to be run again."""
        self.values[_STOP] = 0

    @property
    def steps_run(self) -> int:
        """How many steps were run when native code returned."""
        return self.values[DONE]
