"""Steps of routines on the reference device: functions of the elements of the operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tests.reference.memory import ReferenceMemory
from weft.primitives.routine import Operand, Routine, RoutineCall, RoutineStep

F = TypeVar("F", bound=Callable[..., Any])


def by(routine: Routine) -> Callable[[F], F]:
    """Make a function of the operands and parameters the step of a routine."""

    def register(function: F) -> F:
        routine.on("reference")(lambda call: RoutineStep(Computed(call, function)))
        return function

    return register


class Computed(NamedTuple):
    """Results that a function gives for the operands; NaN for those of which it finds that there are none."""

    call: RoutineCall
    function: Callable[..., Any]

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        operands = [memory.read(slots[x.slot], offsets_of(x), x.dtype.numpy) for x in self.call.operands]
        try:
            found = self.function(*operands, **self.call.params)
        except np.linalg.LinAlgError:
            found = [np.full(result.shape, np.nan) for result in self.call.results]
        found = found if isinstance(found, (list, tuple)) else [found]
        for result, elements in zip(self.call.results, found, strict=True):
            elements = np.asarray(elements).astype(result.dtype.numpy).reshape(result.shape)
            memory.write(slots[result.slot], offsets_of(result), elements)


def offsets_of(operand: Operand) -> np.ndarray:
    """How many bytes behind the address in its slot each element of an operand is."""
    offsets = np.full(operand.shape, operand.offset)
    for coordinate, stride in zip(np.ogrid[tuple(map(slice, operand.shape))], operand.strides, strict=True):
        offsets = offsets + coordinate * (stride * operand.dtype.size)
    return offsets
