"""Library calls as steps of a plan: which operand layouts a routine takes, and the numbers that describe a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.compiler.codegen import native, product
from weft.dtypes import Dtype
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

    The result is computed in tiles, which the threads share; how it is cut depends on the shape alone.
    """
    a, b = node.inputs
    left, right = _leading(a.shape[-2:], strides[0][-2:]), _leading(b.shape[-2:], strides[1][-2:])
    if left is None or right is None:
        raise AssertionError(f"matmul cannot read operands with strides {strides}")
    extents = (a.shape[-2], b.shape[-1], a.shape[-1])
    batch = [
        (extent, strides[0][axis], strides[1][axis], strides[2][axis]) for axis, extent in enumerate(node.shape[:-2])
    ]
    matrices = 1
    for extent in node.shape[:-2]:
        matrices *= extent
    describe = _generated if node.dtype in product.DTYPES else _from_library
    address, numbers, tile = describe(node.dtype, places, extents, (left, right), batch)
    units = matrices * -(-extents[0] // tile[0]) * -(-extents[1] // tile[1])
    tile_work = min(tile[0], extents[0]) * min(tile[1], extents[1]) * max(extents[2], 1)
    work = matrices * extents[0] * extents[1] * extents[2]
    return Routine(address, numbers, units, max(1, _WORK_PER_GRAIN // tile_work), work)


Step = tuple[int, list[int], tuple[int, int]]
Batch = Sequence[tuple[int, int, int, int]]


def _generated(
    dtype: Dtype,
    places: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    leading: Sequence[tuple[int, int]],
    batch: Batch,
) -> Step:
    """Address, numbers and tile of a product in generated code."""
    (by_columns, a), (right_by_columns, b) = leading
    strides = [*((1, a) if by_columns else (a, 1)), *((1, b) if right_by_columns else (b, 1))]
    tile = product.tile_of(dtype, extents)
    return product.address(dtype), product.step_numbers(places, extents, strides, tile, batch), tile


def _from_library(
    dtype: Dtype,
    places: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    leading: Sequence[tuple[int, int]],
    batch: Batch,
) -> Step:
    """Address, numbers and tile of a product that BLAS computes.

    The numbers are, in this order: for each operand slot and byte offset; m, n, k; the three leading distances; the
    letters of both operations; rows and columns of a tile; tiles down and across; the bytes from tile to tile, of the
    left operand down, of the right one across, of the result down and across; the number of batch axes, and per batch
    axis its extent and three byte strides.
    """
    rows, columns, inner = extents
    left, right = leading
    size = dtype.size
    tile_rows, tile_columns = _tile(rows, columns, inner)
    numbers = [number for place in places for number in place]
    numbers += [rows, columns, inner, left[1], right[1], max(columns, 1)]
    numbers += [ord("T") if transposed else ord("N") for transposed in (left[0], right[0])]
    numbers += [tile_rows, tile_columns, -(-rows // tile_rows), -(-columns // tile_columns)]
    numbers += [tile_rows * size * (1 if left[0] else left[1]), tile_columns * size * (right[1] if right[0] else 1)]
    numbers += [tile_rows * size * columns, tile_columns * size, len(batch)]
    for extent, *distances in batch:
        numbers += [extent, *(distance * size for distance in distances)]
    return native.gemm_step(dtype, blas.gemm_address(dtype)), numbers, (tile_rows, tile_columns)


def _tile(rows: int, columns: int, inner: int) -> tuple[int, int]:
    """The extents of the tiles of a result: small products stay whole, large ones leave work for many threads."""
    if rows * columns * inner <= _WHOLE:
        return rows, columns
    edge = 512 if min(rows, columns) >= 2048 else 256
    return edge, edge
