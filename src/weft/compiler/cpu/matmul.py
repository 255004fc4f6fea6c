"""Matrix products as steps of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.compiler.cpu import few_rows, product_amx, product_complex, row_streams
from weft.compiler.cpu import product as blocks
from weft.dtypes import Dtype
from weft.primitives.products import leading
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.executor import thread_count
from weft.runtime.precision import FAST

_WORK_PER_GRAIN = 1 << 18
_WORK_OF_READER = 1 << 20
_READING = 16
"""To read an element from memory takes the time of so many multiplications."""

_CACHED = 1 << 20
"""A matrix of so many bytes is found in the second cache."""


_SIGNED: dict[Dtype, Dtype] = {dtypes.uint32: dtypes.int32, dtypes.uint64: dtypes.int64}
"""The bits of a sum of products that wraps around are those of signed integers."""


class Product(NamedTuple):
    """What is multiplied: dtypes of the result and of the operands; slots and offsets of both operands and the result;
    rows, columns and terms; whether each operand is stored by columns, and the distance between these or its rows; and
    per batch axis its extent and three strides."""

    dtype: Dtype
    source: Dtype
    places: Sequence[tuple[int, int]]
    extents: tuple[int, int, int]
    storage: Sequence[tuple[int, int]]
    batch: Sequence[tuple[int, int, int, int]]

    @property
    def matrices(self) -> int:
        """How many products there are."""
        return prod([extent for extent, *_ in self.batch])

    @property
    def strides(self) -> list[int]:
        """Of the left operand from row to row and from term to term, of the right one from term to term and from column
        to column."""
        return [n for by_columns, far in self.storage for n in ((1, far) if by_columns else (far, 1))]

    def transposed(self) -> Product:
        """The transposed product, whose operands change places."""
        (a, b, c), (rows, columns, inner), (left, right) = self.places, self.extents, self.storage
        return self._replace(
            places=[b, a, c],
            extents=(columns, rows, inner),
            storage=[(1 - right[0], right[1]), (1 - left[0], left[1])],
            batch=[(extent, right, left, out) for extent, left, right, out in self.batch],
        )


Tiled = tuple[int, list[int], tuple[int, int]]
"""The address and the numbers of a step, rows and columns of its tiles."""


@p.matmul.routine.on("cpu")
def step(call: RoutineCall) -> RoutineStep:
    """The step for a matrix product. The result is computed in tiles, which the threads share."""
    (a, b), (out,) = call.operands, call.results
    left, right = leading(a.shape[-2:], a.strides[-2:]), leading(b.shape[-2:], b.strides[-2:])
    if left is None or right is None:
        raise AssertionError(f"matmul cannot read operands with strides {a.strides} and {b.strides}")
    extents = rows, columns, inner = a.shape[-2], b.shape[-1], a.shape[-1]
    batch = list(zip(out.shape[:-2], a.strides, b.strides, out.strides, strict=False))
    places = [(operand.slot, operand.offset) for operand in (a, b, out)]
    dtype, source = (_SIGNED.get(x.dtype, x.dtype) for x in (out, a))
    product = Product(dtype, source, places, extents, (left, right), batch)
    may_use_tiles = call.params["precision"] == FAST and a.dtype is dtypes.bfloat16
    in_tiles = may_use_tiles and product_amx.is_worth_it(rows, columns) and product_amx.is_available()
    address, numbers, tile = _of_tile_registers(product) if in_tiles else _tiled(product)
    units = product.matrices * -(-rows // tile[0]) * -(-columns // tile[1])
    high, wide = min(tile[0], rows), min(tile[1], columns)
    tile_work = max(high * wide, _READING * max(high, wide)) * max(inner, 1)
    work = product.matrices * rows * columns * inner
    return RoutineStep(address, numbers, units, max(1, _WORK_PER_GRAIN // tile_work), work, "AMX" if in_tiles else "")


def _tiled(product: Product) -> Tiled:
    """The way to compute a product."""
    rows, columns, _ = product.extents
    if product.dtype.is_complex:
        return _of_complex(product)
    if rows <= columns:
        return _of_few_rows(product, (columns, 1)) or _of_blocks(product)
    found = _of_few_rows(product.transposed(), (1, columns))
    if found is None:
        return _of_blocks(product)
    address, numbers, (wide, high) = found
    return address, numbers, (high, wide)


def _of_few_rows(product: Product, result: tuple[int, int]) -> Tiled | None:
    """A product of few rows, with the strides of the result; None if there are too many."""
    dtype, source, places, (rows, columns, inner), _, batch = product
    strides = [*product.strides, *result]
    across, apart = strides[3] != 1, strides[5] != 1
    cached = inner * columns * source.size <= _CACHED
    if rows > (few_rows.MOST_ROWS_ACROSS if across and (cached or apart) else few_rows.MOST_ROWS):
        return None
    strip = few_rows.strip_of(dtype, rows, columns, across, apart, strides[1] == 1)
    if across or strip.columns >= columns or (cached and rows > row_streams.FEWEST_ROWS):
        numbers = few_rows.step_numbers(places, product.extents, strides, strip, batch)
        return few_rows.address(strip, source), numbers, (rows, strip.columns)
    streams = row_streams.streams_of(dtype, rows, apart)
    busy = min(thread_count(), product.matrices * inner * columns * _READING // _WORK_OF_READER)
    width = row_streams.strip_of(streams, columns, product.matrices, busy)
    numbers = row_streams.step_numbers(places, product.extents, strides, width, batch)
    return row_streams.address(streams, source), numbers, (rows, width)


def _of_blocks(product: Product) -> Tiled:
    """A product of many rows and columns."""
    return _blocks_of(product, product.strides)


def _of_tile_registers(product: Product) -> Tiled:
    """A product of bfloat16 with the processor's own rounding."""
    _, _, places, extents, _, batch = product
    tile = product_amx.tile_of(extents, product.matrices, thread_count())
    return product_amx.address(), product_amx.numbers_of(places, extents, product.strides, tile, batch), tile


def _of_complex(product: Product) -> Tiled:
    """A product of complex numbers, as one of real numbers."""
    rows, columns, inner = product.extents
    batch = [(extent, 2 * left, 2 * right, 2 * out) for extent, left, right, out in product.batch]
    real = product._replace(dtype=dtypes.float32, extents=(rows, 2 * columns, 2 * inner), batch=batch)
    address, numbers, (high, wide) = _blocks_of(real, product_complex.real_strides(product.strides))
    return address, numbers, (high, wide // 2)


def _blocks_of(product: Product, strides: Sequence[int]) -> Tiled:
    dtype, source, places, extents, _, batch = product
    block = blocks.block_of(dtype)
    in_place = blocks.may_lie(block, source, extents, strides)
    tile = blocks.tile_of(dtype, extents, product.matrices, thread_count(), in_place)
    ways = blocks.ways_of(block, source, extents, strides, tile)
    numbers = blocks.step_numbers(places, extents, strides, tile, ways, batch)
    return blocks.address(dtype, source), numbers, tile
