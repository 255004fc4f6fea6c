"""Library calls as steps of a plan: which operand layouts a routine takes, and the numbers that describe a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.codegen import native
from weft.graph.node import Node, Shape
from weft.libraries import blas

_BATCH_AXES = 6


@dataclass(slots=True)
class Routine:
    """A native function and its numbers; ``places`` says which numbers are the slot and byte offset of which
    operand."""

    address: int
    numbers: list[int]
    units: int
    work: int


def accepts(node: Node, position: int, strides: Shape) -> bool:
    """Whether a matrix product can read an operand with these strides."""
    shape = node.inputs[position].shape
    return _leading(shape[-2:], strides[-2:]) is not None and len(shape) - 2 <= _BATCH_AXES


def _leading(shape: Shape, strides: Shape) -> tuple[int, int] | None:
    """Whether a matrix is stored by columns (1) or by rows (0), and the distance between these; None for neither."""
    (rows, columns), (down, across) = shape, strides
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return 0, max(down if rows > 1 else columns, columns, 1)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return 1, max(across if columns > 1 else rows, rows, 1)
    return None


def matmul(node: Node, strides: Sequence[Shape], places: Sequence[tuple[int, int]]) -> Routine:
    """The step for a matrix product; ``places`` are table slot and byte offset of both operands and of the result.

    Numbers: for each operand slot and byte offset; then m, n, k, the three leading distances, the letters of both
    operations, the number of batch axes, and per batch axis its extent and the three byte strides.
    """
    a, b = node.inputs
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    left, right = _leading(a.shape[-2:], strides[0][-2:]), _leading(b.shape[-2:], strides[1][-2:])
    if left is None or right is None:
        raise AssertionError(f"matmul cannot read operands with strides {strides}")
    letters = [ord("T") if transposed else ord("N") for transposed in (left[0], right[0])]
    numbers = [number for place in places for number in place]
    numbers += [rows, columns, inner, left[1], right[1], max(columns, 1), *letters]
    batch = node.shape[:-2]
    numbers.append(len(batch))
    size, count = node.dtype.size, 1
    for axis, extent in enumerate(batch):
        numbers += [extent, *(operand[axis] * size for operand in strides)]
        count *= extent
    address = native.gemm_step(node.dtype, blas.gemm_address(node.dtype))
    return Routine(address, numbers, count, count * rows * columns * inner)
