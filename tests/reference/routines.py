"""Steps of routines on the reference device: functions of the elements of the operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tests.reference.memory import ReferenceMemory
from weft.primitives.routine import Attached, Operand, Routine, RoutineCall, RoutineStep

F = TypeVar("F", bound=Callable[..., Any])


def by(routine: Routine, attaches: bool = False) -> Callable[[F], F]:
    """Make a function of operands and parameters the step of a routine. ``attaches`` says whether kernels can be
    attached to it."""

    def register(function: F) -> F:
        register_step = routine.on("reference", attaches=(lambda call, whole, in_memory: True) if attaches else None)
        register_step(lambda call: RoutineStep(Computed(call, function)))
        return function

    return register


class Computed(NamedTuple):
    """The code of a step: stores the results of a function of the operands, or NaN if it raises ``LinAlgError``."""

    call: RoutineCall
    function: Callable[..., Any]

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        operands = [memory.read(slots[x.slot], offsets_of(x), x.dtype.numpy) for x in self.call.operands]
        try:
            found = self.function(*operands, **self.call.params)
        except np.linalg.LinAlgError:
            found = [np.full(result.shape, np.nan) for result in self.call.results]
        found = found if isinstance(found, (list, tuple)) else [found]
        arrays = []
        for result, elements in zip(self.call.results, found, strict=True):
            arrays.append(np.asarray(elements).astype(result.dtype.numpy).reshape(result.shape))
            if self.call.attached is None or self.call.attached.in_memory:
                memory.write(slots[result.slot], offsets_of(result), arrays[-1])
        if self.call.attached is not None:
            run_attached(self.call.attached, arrays[0], memory, slots)


def run_attached(attached: Attached, result: np.ndarray, memory: ReferenceMemory, slots: Sequence[int]) -> None:
    """Run an attached kernel: for the left half of the lanes and then for the right one, unless it needs all lanes at
    once."""
    lanes = attached.numbers[attached.lane]
    cuts = [0, lanes] if attached.whole or lanes == 1 else [0, lanes // 2, lanes]
    with memory.block(result.nbytes) as address:
        memory.write(address, np.arange(result.size) * result.itemsize, result.ravel())
        for first, last in pairwise(cuts):
            numbers = list(attached.numbers)
            numbers[attached.lane] = last - first
            for position, step in attached.shifts:
                numbers[position] += first * step
            if not attached.in_memory:
                for offset, _ in attached.reads:
                    numbers[offset - 1 : offset + 1] = len(slots), first * result.itemsize
            attached.code.run(memory, numbers, [*slots, address])


def offsets_of(operand: Operand) -> np.ndarray:
    """The distance in bytes of each element of an operand from the address in its slot."""
    offsets = np.full(operand.shape, operand.offset)
    for coordinate, stride in zip(np.ogrid[tuple(map(slice, operand.shape))], operand.strides, strict=True):
        offsets = offsets + coordinate * (stride * operand.dtype.size)
    return offsets
