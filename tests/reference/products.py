"""Matrix products on the reference device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

import weft.primitives as p
from tests.reference.lanes import fused
from tests.reference.memory import ReferenceMemory
from weft.compiler.cpu.product import DEPTH
from weft.primitives.routine import Operand, RoutineCall, RoutineStep


def elements_of(memory: ReferenceMemory, operand: Operand, slots: Sequence[int]) -> np.ndarray:
    """The elements of an operand."""
    return memory.read(slots[operand.slot], offsets_of(operand), operand.dtype.numpy)


def offsets_of(operand: Operand) -> np.ndarray:
    """How many bytes behind the address in its slot each element of an operand is."""
    offsets = np.full(operand.shape, operand.offset)
    for axis, (extent, stride) in enumerate(zip(operand.shape, operand.strides, strict=True)):
        steps = np.arange(extent).reshape(-1, *[1] * (len(operand.shape) - axis - 1))
        offsets = offsets + steps * (stride * operand.dtype.size)
    return offsets


@dataclass(frozen=True)
class Product:
    """Every element is the sum, in order, of blocks of ``DEPTH`` terms, each summed in order with fused
    multiply-adds. Complex products are those of NumPy."""

    call: RoutineCall

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        a, b = (elements_of(memory, operand, slots) for operand in self.call.operands)
        (result,) = self.call.results
        total = np.zeros(result.shape, result.dtype.numpy)
        with np.errstate(all="ignore"):
            for start in range(0, a.shape[-1], DEPTH):
                total = total + _block(a[..., start : start + DEPTH], b[..., start : start + DEPTH, :])
        memory.write(slots[result.slot], offsets_of(result), total)


def _block(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "c":
        return np.matmul(a, b)
    total = np.zeros((), a.dtype)
    for term in range(a.shape[-1]):
        total = fused(a[..., term, None], b[..., term, None, :], total)
    return total


@p.matmul.routine.on("reference")
def product(call: RoutineCall) -> RoutineStep:
    return RoutineStep(Product(call), [], 1, 1, call.results[0].shape[-1] * prod(call.operands[0].shape))
