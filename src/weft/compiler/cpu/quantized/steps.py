"""Products with quantised matrices as steps of a plan."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import weft.primitives as p
from weft.compiler.cpu.products.few_rows.rows_at_once import width_of
from weft.compiler.cpu.products.tiles import block_of, tile_of
from weft.compiler.cpu.quantized import blocks, few_rows, few_rows_along, runs
from weft.compiler.cpu.quantized.codes import VectorCoding, coding_of
from weft.compiler.cpu.quantized.digits import digits_of_processor, scratch_bytes
from weft.compiler.cpu.quantized.digits import step as step_of_digits
from weft.graph.node import Node
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.runtime.executor import thread_count

_WORK_PER_GRAIN = 1 << 18
_WORK_OF_READER = 1 << 20
_READING = 8
"""Reading and decoding a code takes the time of this many multiplications."""


def _scratch(node: Node) -> int:
    kind, transpose = _split(node.keywords)
    coding = coding_of(kind, node.inputs[2].dtype, node.dtype)
    few = _adds_integers(coding, transpose, node.shape[-2])
    return scratch_bytes(digits_of_processor(), kind, node.inputs[0].size) if few else 0


@p.quantized_matmul.routine.on("cpu", scratch=_scratch)
def steps(call: RoutineCall) -> RoutineStep | list[RoutineStep]:
    """The steps for a product. The result is computed in tiles, which threads share."""
    kind, transpose = _split(call.params)
    coding = coding_of(kind, call.operands[2].dtype, call.results[0].dtype)
    if not _adds_integers(coding, transpose, call.results[0].shape[-2]):
        return _product(call, kind, coding, transpose)
    digits = digits_of_processor()
    # Where other steps read terms, this one reads their digits.
    x = call.operands[0]._replace(slot=call.scratch[0], offset=call.scratch[1])
    product = _product(call._replace(operands=(x, *call.operands[1:])), kind, coding, transpose)
    return [step_of_digits(call, kind, coding, digits), product]


def _split(params: dict[str, Any]) -> tuple[QuantizedFormat, bool]:
    """The format, and whether the matrix is transposed."""
    others = dict(params)
    transpose = bool(others.pop("transpose"))
    return QuantizedFormat(**others), transpose


def _adds_integers(coding: VectorCoding, transpose: bool, rows: int) -> bool:
    return transpose and rows <= few_rows.MOST_ROWS and coding.adds_integers


def _product(call: RoutineCall, kind: QuantizedFormat, coding: VectorCoding, transpose: bool) -> RoutineStep:
    *batch, rows, columns = call.results[0].shape
    extents, matrices = (rows, columns, call.operands[0].shape[-1]), prod(batch)
    tiled = _tiled(coding, transpose, extents, matrices)
    high, wide = tiled.rows, tiled.columns
    down, across = -(-rows // high), -(-columns // wide)
    numbers = [*_places(call, kind), *extents, *_matrix_numbers(call, kind), high, wide, down, across, matrices]
    tile_work = (min(high, rows) * tiled.products + _READING) * min(wide, columns) * extents[2]
    units, work = -(-matrices // tiled.products) * down * across, matrices * prod(extents)
    return RoutineStep(tiled.address, numbers, units, max(1, _WORK_PER_GRAIN // max(tile_work, 1)), work)


class _Tiled(NamedTuple):
    """The address of a step, rows and columns of its tiles, and how many products a tile has."""

    address: int
    rows: int
    columns: int
    products: int = 1


def _tiled(coding: VectorCoding, transpose: bool, extents: tuple[int, int, int], matrices: int) -> _Tiled:
    rows, columns, inner = extents
    rows = max(rows, 1)
    if rows == 1 and transpose and matrices > few_rows.MOST_ROWS:
        strip = few_rows.strip_of(coding, few_rows.MOST_ROWS, inner)
        return _Tiled(runs.address(strip), 1, strip.columns, strip.rows)
    if rows <= few_rows.MOST_ROWS and transpose:
        strip = few_rows.strip_of(coding, rows, inner)
        return _Tiled(few_rows.address(strip), rows, strip.columns)
    if rows <= few_rows_along.MOST_ROWS:
        at_once = few_rows_along.rows_at_once_of(coding, rows)
        busy = min(thread_count(), matrices * inner * columns * _READING // _WORK_OF_READER)
        wide = width_of(at_once.widest, columns, matrices, busy)
        return _Tiled(few_rows_along.address(at_once), rows, wide)
    high, wide = tile_of(block_of(coding.dtype), extents, matrices, thread_count())
    return _Tiled(blocks.address(coding, transpose), high, max(wide // blocks.ALIGNED, 1) * blocks.ALIGNED)


def _places(call: RoutineCall, kind: QuantizedFormat) -> list[int]:
    """Slots and byte offsets. For an operand that does not exist they are those of the first one."""
    x, words, scales, *others = call.operands
    biases = others[0] if kind.affine else x
    index = others[-1] if len(others) > kind.affine else x
    return [n for one in (x, words, scales, biases, index, call.results[0]) for n in (one.slot, one.offset)]


def _matrix_numbers(call: RoutineCall, kind: QuantizedFormat) -> list[int]:
    """How many matrices the stack has (0 without an index), rows a matrix, words and groups a row; and the group
    shift."""
    words, scales = call.operands[1], call.operands[2]
    count = words.shape[0] if len(words.shape) == 3 else 0
    return [count, words.shape[-2], words.shape[-1], scales.shape[-1], kind.group_size.bit_length() - 1]
