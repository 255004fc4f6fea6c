"""Sorting and searching on the reference device: NumPy's stable sort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

import weft.primitives as p
from tests.reference.memory import ReferenceMemory
from tests.reference.products import elements_of, offsets_of
from weft import dtypes
from weft.primitives.routine import Operand, RoutineCall, RoutineStep


def numbers_of(memory: ReferenceMemory, operand: Operand, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The elements of an operand as they are in memory, and as numbers that NumPy orders."""
    elements = elements_of(memory, operand, slots)
    if operand.dtype is dtypes.bfloat16:
        return elements, (elements.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return elements, elements


@dataclass(frozen=True)
class Sorted:
    """A part of the sorted rows, or of the indices that sort them."""

    call: RoutineCall
    indices: bool

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        (operand,), (result,) = self.call.operands, self.call.results
        elements, ordered = numbers_of(memory, operand, slots)
        start = self.call.params["start"]
        places = np.argsort(ordered, axis=-1, kind="stable")[..., start : start + self.call.params["count"]]
        found = places.astype(np.uint32) if self.indices else np.take_along_axis(elements, places, -1)
        memory.write(slots[result.slot], offsets_of(result), found)


@dataclass(frozen=True)
class Searched:
    """Where values belong in sorted rows."""

    call: RoutineCall

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        (result,) = self.call.results
        rows, values = (numbers_of(memory, operand, slots)[1] for operand in self.call.operands)
        side: Literal["left", "right"] = "right" if self.call.params["right"] else "left"
        found = np.zeros(result.shape, np.uint32)
        for row in np.ndindex(rows.shape[:-1]):
            found[row] = np.searchsorted(rows[row], values[row], side)
        memory.write(slots[result.slot], offsets_of(result), found)


@p.sort.routine.on("reference")
def sort(call: RoutineCall) -> RoutineStep:
    return RoutineStep(Sorted(call, indices=False), [], 1, 1, 1)


@p.argsort.routine.on("reference")
def argsort(call: RoutineCall) -> RoutineStep:
    return RoutineStep(Sorted(call, indices=True), [], 1, 1, 1)


@p.searchsorted.routine.on("reference")
def searchsorted(call: RoutineCall) -> RoutineStep:
    return RoutineStep(Searched(call), [], 1, 1, 1)
