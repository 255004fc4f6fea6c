"""Transposes squares of an operand in which the terms of an element are neighbours, into one vector for each term."""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, dtype_alignment, image
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import fenced, transposed
from weft.compiler.cpu.products import float16_squares
from weft.dtypes import Dtype

from .half_squares import read_square
from .step import further, read


def terms_of_square(L: Lanes, source: Dtype, in_pairs: bool = True) -> int:
    """How many terms a square has: as many as elements; twice as many in half precision, if pairs of terms are
    transposed."""
    return 2 * L.width if in_pairs and source in HALVES else L.width


def square(
    L: Lanes,
    source: Dtype,
    dtype: Dtype,
    lines: Sequence[str],
    term: str,
    mask: str | None,
    in_pairs: bool = True,
) -> list[Value]:
    """Vectors of the terms from ``term`` on of the elements that begin at ``lines``, as ``dtype``. Terms outside of
    ``mask``, which has a lane for each term, are zero. In half precision, terms are transposed ``in_pairs`` or
    converted first."""
    starts = [further(L.emitter, MEMORY_TYPES[source], line, term) for line in lines]
    if in_pairs and source in HALVES:
        if mask is None and float16_squares.fits(L, source):
            memory = float16_squares.write_square(L, starts)
            terms = [float16_squares.term(L, memory, number) for number in range(float16_squares.TERMS)]
            return [L.convert(x, dtype) for x in terms]
        if mask is None:
            pairs = read_square(L, dtypes.uint32, starts, dtype_alignment(source))
        else:
            pairs = transposed(L, dtypes.uint32, [_pairs(L, source, line, term, mask) for line in lines])
        return [x for name in pairs for x in both(Value(L, name, dtypes.uint32), source, dtype)]
    if mask is None and source is dtype:
        return [Value(L, name, dtype) for name in read_square(L, dtype, starts)]
    rows = [read(L, source, line, term, mask, dtype).name for line in lines]
    return [Value(L, name, dtype) for name in transposed(L, dtype, rows)]


def _pairs(L: Lanes, source: Dtype, line: str, term: str, mask: str | None) -> str:
    """Terms of an element, two of them in each lane."""
    terms = image(Lanes(L.emitter, 2 * L.width), source, Location(line, term, False), mask)
    return L.emitter.assign(f"bitcast <{2 * L.width} x i16> {terms} to <{L.width} x i32>")


def both(pairs: Value, source: Dtype, dtype: Dtype) -> list[Value]:
    """Both terms of each pair, as two vectors."""
    L = pairs.lanes
    if source is dtypes.bfloat16:
        bits = pairs << 16, pairs & 0xFFFF0000
        halves = [L.bitcast(x, dtypes.float32) for x in bits]
    else:
        halves = [L.half_from_bits(x, source) for x in _apart(pairs)]
    return [L.convert(Value(L, x.name, dtypes.float32), dtype) for x in halves]


def _apart(pairs: Value) -> list[Value]:
    """The first numbers of pairs and the second ones, by a single shuffle: LLVM would make two of it."""
    L, e, width = pairs.lanes, pairs.lanes.emitter, pairs.lanes.width
    type_ = f"<{2 * width} x i16>"

    def shuffled(name: str, order: Sequence[int]) -> str:
        numbers = ", ".join([f"i32 {lane}" for lane in order])
        return e.assign(f"shufflevector {type_} {name}, {type_} poison, <{len(order)} x i32> <{numbers}>")

    name = e.assign(f"bitcast {L.type_of(dtypes.uint32)} {pairs.name} to {type_}")
    name = shuffled(name, [*range(0, 2 * width, 2), *range(1, 2 * width, 2)])
    name = fenced(L, dtypes.uint32, type_, name)
    return [Value(L, shuffled(name, range(first, first + width)), dtypes.uint16) for first in (0, width)]
