"""Matrix products as steps of a plan: generated code for float32 and float64, BLAS for complex numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import weft.primitives as p
from weft import dtypes
from weft.compiler.cpu import few_rows, gemm, product, row_streams
from weft.dtypes import Dtype
from weft.libraries import pointers
from weft.primitives.products import leading
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.executor import thread_count

_UNTILED_WORK = 1 << 20
"""A product of at most this many multiplications is one tile when BLAS computes it."""

_WORK_PER_GRAIN = 1 << 20
_READING = 16
"""To read an element from memory takes the time of so many multiplications."""

_CACHED = 1 << 20
"""A matrix of so many bytes is found in the second cache."""


@p.matmul.routine.on("cpu")
def step(call: RoutineCall) -> RoutineStep:
    """The step for a matrix product.

    The result is computed in tiles, which the threads share; how it is cut depends on the shape alone.
    """
    (a, b), (out,) = call.operands, call.results
    left, right = leading(a.shape[-2:], a.strides[-2:]), leading(b.shape[-2:], b.strides[-2:])
    if left is None or right is None:
        raise AssertionError(f"matmul cannot read operands with strides {a.strides} and {b.strides}")
    extents = (a.shape[-2], b.shape[-1], a.shape[-1])
    batch = list(zip(out.shape[:-2], a.strides, b.strides, out.strides, strict=False))
    matrices = 1
    for extent in out.shape[:-2]:
        matrices *= extent
    locations = [(operand.slot, operand.offset) for operand in (a, b, out)]
    if out.dtype not in product.DTYPES:
        describe = _from_library
    else:
        describe = _of_few_rows if min(extents[:2]) <= few_rows.MOST_ROWS else _generated
    address, numbers, tile = describe(out.dtype, locations, extents, (left, right), batch)
    units = matrices * -(-extents[0] // tile[0]) * -(-extents[1] // tile[1])
    high, wide = min(tile[0], extents[0]), min(tile[1], extents[1])
    tile_work = max(high * wide, _READING * max(high, wide)) * max(extents[2], 1)
    work = matrices * extents[0] * extents[1] * extents[2]
    return RoutineStep(address, numbers, units, max(1, _WORK_PER_GRAIN // tile_work), work)


Tiled = tuple[int, list[int], tuple[int, int]]
Batch = Sequence[tuple[int, int, int, int]]


def _of_few_rows(
    dtype: Dtype,
    locations: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    storage: Sequence[tuple[int, int]],
    batch: Batch,
) -> Tiled:
    """Address, numbers and tile of a product of few rows, or of few columns: these are the rows of the transposed
    product, whose operands change places."""
    rows, columns, inner = extents
    (a_row, a_inner), (b_inner, b_column) = [
        (1, distance) if by_columns else (distance, 1) for by_columns, distance in storage
    ]
    if rows <= columns:
        strides = [a_row, a_inner, b_inner, b_column, columns, 1]
        return _few_rows(dtype, locations, extents, strides, batch)
    a, b, c = locations
    strides = [b_column, b_inner, a_inner, a_row, 1, columns]
    turned = [(extent, right, left, out) for extent, left, right, out in batch]
    address, numbers, tile = _few_rows(dtype, [b, a, c], (columns, rows, inner), strides, turned)
    return address, numbers, (tile[1], tile[0])


def _few_rows(
    dtype: Dtype,
    locations: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    strides: Sequence[int],
    batch: Batch,
) -> Tiled:
    """The same of fewer rows than columns, with the strides of the operands and of the result."""
    rows, columns, inner = extents
    across, apart = strides[3] != 1, strides[5] != 1
    from_memory = rows <= row_streams.FEWEST_ROWS or inner * columns * dtype.size > _CACHED
    if from_memory and not across:
        streams = row_streams.streams_of(dtype, rows, apart)
        matrices = prod(extent for extent, *_ in batch)
        busy = min(thread_count(), matrices * inner * columns * _READING // _WORK_PER_GRAIN)
        width = row_streams.strip_of(streams, columns, matrices, busy)
        numbers = row_streams.step_numbers(locations, extents, strides, width, batch)
        return row_streams.address(streams), numbers, (rows, width)
    strip = few_rows.strip_of(dtype, rows, across, apart)
    return (
        few_rows.address(strip),
        few_rows.step_numbers(locations, extents, strides, strip, batch),
        (
            rows,
            strip.columns,
        ),
    )


def _generated(
    dtype: Dtype,
    locations: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    storage: Sequence[tuple[int, int]],
    batch: Batch,
) -> Tiled:
    """Address, numbers and tile of a product in generated code."""
    (by_columns, a), (right_by_columns, b) = storage
    strides = [*((1, a) if by_columns else (a, 1)), *((1, b) if right_by_columns else (b, 1))]
    tile = product.tile_of(dtype, extents, prod(extent for extent, *_ in batch), thread_count())
    ways = product.ways_of(dtype, extents, strides, tile)
    return product.address(dtype), product.step_numbers(locations, extents, strides, tile, ways, batch), tile


def _from_library(
    dtype: Dtype,
    locations: Sequence[tuple[int, int]],
    extents: tuple[int, int, int],
    storage: Sequence[tuple[int, int]],
    batch: Batch,
) -> Tiled:
    """Address, numbers and tile of a product that BLAS computes.

    The numbers are, in this order: for each operand slot and byte offset; m, n, k; the three leading distances; the
    letters of both operations; rows and columns of a tile; tiles down and across; the bytes from tile to tile, of the
    left operand down, of the right one across, of the result down and across; the number of batch axes, and per batch
    axis its extent and three byte strides.
    """
    assert dtype is dtypes.complex64
    rows, columns, inner = extents
    left, right = storage
    size = dtype.size
    tile_rows, tile_columns = _tile(rows, columns, inner)
    numbers = [number for location in locations for number in location]
    numbers += [rows, columns, inner, left[1], right[1], max(columns, 1)]
    numbers += [ord("T") if transposed else ord("N") for transposed in (left[0], right[0])]
    numbers += [tile_rows, tile_columns, -(-rows // tile_rows), -(-columns // tile_columns)]
    numbers += [tile_rows * size * (1 if left[0] else left[1]), tile_columns * size * (right[1] if right[0] else 1)]
    numbers += [tile_rows * size * columns, tile_columns * size, len(batch)]
    for extent, *distances in batch:
        numbers += [extent, *(distance * size for distance in distances)]
    return gemm.gemm_step(pointers.blas("cgemm")), numbers, (tile_rows, tile_columns)


def _tile(rows: int, columns: int, inner: int) -> tuple[int, int]:
    """The extents of the tiles of a result: small products stay whole, large ones leave work for many threads."""
    if rows * columns * inner <= _UNTILED_WORK:
        return rows, columns
    edge = 512 if min(rows, columns) >= 2048 else 256
    return edge, edge
