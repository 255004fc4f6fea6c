"""Library calls as steps of a plan: which operand layouts a routine takes, and the numbers that describe a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.codegen import native
from weft.graph.node import Node, Shape
from weft.libraries import blas

_BATCH_AXES = 6
_WHOLE = 1 << 20
_WORK_PER_GRAIN = 1 << 20


@dataclass(slots=True)
class Routine:
    """A native function and its numbers; ``places`` says which numbers are the slot and byte offset of which
    operand."""

    address: int
    numbers: list[int]
    units: int
    grain: int
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

    The result is computed in tiles, which the threads share; how it is cut depends on the shape alone. The numbers of
    the step are, in this order: for each operand slot and byte offset; m, n, k; the three leading distances; the
    letters of both operations; rows and columns of a tile; tiles down and across; the bytes from tile to tile, of the
    left operand down, of the right one across, of the result down and across; the number of batch axes, and per batch
    axis its extent and three byte strides.
    """
    a, b = node.inputs
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    left, right = _leading(a.shape[-2:], strides[0][-2:]), _leading(b.shape[-2:], strides[1][-2:])
    if left is None or right is None:
        raise AssertionError(f"matmul cannot read operands with strides {strides}")
    size = node.dtype.size
    tile_rows, tile_columns = _tile(rows, columns, inner)
    down, across = -(-rows // tile_rows), -(-columns // tile_columns)
    numbers = [number for place in places for number in place]
    numbers += [rows, columns, inner, left[1], right[1], max(columns, 1)]
    numbers += [ord("T") if transposed else ord("N") for transposed in (left[0], right[0])]
    numbers += [tile_rows, tile_columns, down, across]
    numbers += [tile_rows * size * (1 if left[0] else left[1]), tile_columns * size * (right[1] if right[0] else 1)]
    numbers += [tile_rows * size * columns, tile_columns * size]
    batch = node.shape[:-2]
    numbers.append(len(batch))
    count = 1
    for axis, extent in enumerate(batch):
        numbers += [extent, *(operand[axis] * size for operand in strides)]
        count *= extent
    address = native.gemm_step(node.dtype, blas.gemm_address(node.dtype))
    tile_work = min(tile_rows, rows) * min(tile_columns, columns) * max(inner, 1)
    return Routine(
        address, numbers, count * down * across, max(1, _WORK_PER_GRAIN // tile_work), count * rows * columns * inner
    )


def _tile(rows: int, columns: int, inner: int) -> tuple[int, int]:
    """The extents of the tiles of a result: small products stay whole, large ones leave work for many threads."""
    if rows * columns * inner <= _WHOLE:
        return rows, columns
    edge = 512 if min(rows, columns) >= 2048 else 256
    return edge, edge
