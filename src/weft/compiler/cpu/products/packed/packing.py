"""Packing for matrix products: parts of an operand are copied to panels, in which a kernel reads in order. Elements are
converted to the dtype of the sums: half precision becomes float32.

A panel has ``width`` elements for each term, and room for whole squares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.memory import CACHE_LINE, prefetch, transposed
from weft.compiler.cpu.products.half_squares import read_square
from weft.compiler.cpu.products.step import SQUARE, Block, below, read
from weft.dtypes import Dtype

PARAMETERS = "ptr %from, i64 %stride, ptr %to, i64 %inner, i64 %present"
"""The source, the distance of its lines, the target, how many terms and how many elements there are."""


class _PanelPacking(Integers):
    """Writes how panels of ``width`` elements are packed from an operand of ``dtype``."""

    def __init__(self, block: Block, dtype: Dtype, width: int) -> None:
        super().__init__(Emitter())
        self.block, self.dtype, self.width = block, dtype, width
        self.L = Lanes(self.e, gcd(width, block.lanes))

    def source(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, MEMORY_TYPES[self.dtype])

    def target(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, self.block.element)

    def read(self, pointer: str, index: str, mask: str | None) -> Value:
        return read(self.L, self.dtype, pointer, index, mask, self.block.dtype)

    def write(self, value: Value, pointer: str, index: str) -> None:
        store(self.L, value, self.block.dtype, Location(pointer, index, False), None)

    def copy_line(self, source: str, target: str, count: int) -> None:
        for start in range(0, count, self.L.width):
            self.write(self.read(source, str(start), None), target, str(start))

    def square(self, lines: Sequence[str], index: str, mask: str | None) -> list[str]:
        """A square of elements of ``lines``, transposed."""
        if mask is None and self.dtype is self.block.dtype:
            return read_square(self.L, self.dtype, [self.source(line, index) for line in lines])
        return transposed(self.L, self.block.dtype, [self.read(line, index, mask).name for line in lines])

    def copy_square(self, lines: Sequence[str], panel: str, term: str, mask: str | None) -> None:
        vectors = self.square(lines, term, mask)
        target = self.target(panel, self.multiply(term, self.width))
        for step, vector in enumerate(vectors):
            self.write(Value(self.L, vector, self.block.dtype), target, str(step * self.width))

    def prefetch_next(self, line: str, count: int) -> None:
        """Prefetch so many elements of a line after those that are present."""
        following = self.source(line, "%present") if count else line
        for distance in range(0, count * self.dtype.size, CACHE_LINE):
            prefetch(self.e, self.moved(following, distance))

    def function(self, name: str) -> EmittedFunction:
        return self.e, self.e.function(name, PARAMETERS, "internal ")


def pack_along(block: Block, dtype: Dtype, width: int, name: str = "", ahead: int = 0) -> EmittedFunction:
    """Pack panels of an operand in which the elements of a term are neighbours: term after term, in the same order. The
    next elements of each term, ``ahead`` of them, are prefetched: if each term is in a page of its own, processors do
    not notice that these are packed next."""
    w = _PanelPacking(block, dtype, width)
    rest, lanes = w.remainder("%present", width), w.L.width
    whole, inside = w.subtract("%present", rest), w.remainder(rest, lanes)
    vectors, mask = w.subtract(rest, inside), below(w.L, "0", inside)
    terms = w.rounded_up("%inner", SQUARE)
    with w.e.loop("0", "%inner") as term:
        line = w.source("%from", w.multiply(term, "%stride"))
        first = w.target("%to", w.multiply(term, width))
        w.prefetch_next(line, ahead)
        with w.e.loop("0", whole, width) as start:
            w.copy_line(w.source(line, start), w.target(first, w.multiply(start, terms)), width)
        with w.e.when(w.compare("ne", rest, 0)):
            source, target = w.source(line, whole), w.target(first, w.multiply(whole, terms))
            with w.e.loop("0", vectors, lanes) as start:
                w.write(w.read(source, start, None), target, start)
            with w.e.when(w.compare("ne", inside, 0)):
                w.write(w.read(source, vectors, mask), target, vectors)
    return w.function(name or f"pack_along_{width}")


def pack_lines(block: Block, dtype: Dtype) -> EmittedFunction:
    """Copy rows of a left operand in which the terms of an element are neighbours; each becomes a line: see
    `each_part`."""
    w = _PanelPacking(block, dtype, block.rows)
    w.L = Lanes(w.e, block.lanes)
    distance = w.rounded_up("%inner", SQUARE)

    def copy(row: str, source: str, term: str, mask: str | None) -> None:
        line = w.target("%to", w.multiply(row, distance))
        w.write(w.read(source, term, mask), line, term)

    each_part(w, MEMORY_TYPES[dtype], w.L, copy)
    return w.function("pack_lines")


def pack_turned(block: Block, dtype: Dtype, parts: int = 1, ahead: int = 0) -> EmittedFunction:
    """Copy rows of a left operand in which the rows of a term are neighbours; each becomes a line, as by `pack_lines`.
    Squares are transposed. Each element of ``dtype`` is ``parts`` terms. The next rows, ``ahead`` of them, are
    prefetched, as by `pack_along`."""
    w = _PanelPacking(block, dtype, block.rows)
    w.L = Lanes(w.e, block.lanes)
    side = block.lanes
    distance, terms = [w.divide(count, parts) for count in (w.rounded_up("%inner", SQUARE), "%inner")]
    last, rest = w.subtract(terms, 1), w.remainder("%present", side)
    whole, mask = w.subtract("%present", rest), below(w.L, "0", rest)

    def copy(lines: Sequence[str], row: str, term: str, mask: str | None) -> None:
        for step, vector in enumerate(w.square(lines, row, mask)):
            line = w.target("%to", w.multiply(w.add(row, step), distance))
            w.write(Value(w.L, vector, block.dtype), line, term)

    with w.e.loop("0", terms, side) as term:
        # For a term that does not exist the last one is copied.
        wanted = [w.smaller(w.add(term, step), last) for step in range(side)]
        lines = [w.source("%from", w.multiply(one, "%stride")) for one in wanted]
        for line in lines:
            w.prefetch_next(line, ahead)
        with w.e.loop("0", whole, side) as row:
            copy(lines, row, term, None)
        with w.e.when(w.compare("ne", rest, 0)):
            copy(lines, whole, term, mask)
    return w.function("pack_turned")


def each_part(w: Integers, element: str, L: Lanes, copy: Callable[[str, str, str, str | None], None]) -> None:
    """Write loops over parts of rows, each of as many terms as ``L`` has lanes. ``copy`` is given the number of the
    row, its address, the first term of the part, and a mask if some of its terms do not exist.

    A kernel reads single numbers of the left operand, so rows need not be transposed. Rows that do not exist are not
    written, as their sums are not stored.
    """
    rest = w.remainder("%inner", L.width)
    whole, mask = w.subtract("%inner", rest), below(L, "0", rest)
    with w.e.loop("0", "%present") as row:
        source = w.moved("%from", w.multiply(row, "%stride"), element)
        with w.e.loop("0", whole, L.width) as term:
            copy(row, source, term, None)
        with w.e.when(w.compare("ne", rest, 0)):
            copy(row, source, whole, mask)


def pack_across(block: Block, dtype: Dtype, width: int) -> EmittedFunction:
    """Pack panels of an operand in which the terms of an element are neighbours: squares are transposed.

    For elements that do not exist the last one is copied; the results are not stored.
    """
    w = _PanelPacking(block, dtype, width)
    square = w.L.width
    last, rest = w.subtract("%present", 1), w.remainder("%inner", square)
    whole = w.subtract("%inner", rest)
    with w.e.loop("0", "%present", square) as index:
        wanted = [w.smaller(w.add(index, step), last) for step in range(square)]
        lines = [w.source("%from", w.multiply(element, "%stride")) for element in wanted]
        inside = w.remainder(index, width)
        panel = w.target("%to", w.add(w.multiply(w.subtract(index, inside), w.rounded_up("%inner", SQUARE)), inside))
        with w.e.loop("0", whole, square) as term:
            w.copy_square(lines, panel, term, None)
        with w.e.when(w.compare("ne", rest, 0)):
            w.copy_square(lines, panel, whole, below(w.L, "0", rest))
    return w.function(f"pack_across_{width}")


def convert_rows(block: Block, source: Dtype) -> EmittedFunction:
    """Convert terms of rows, in vectors as long as those of ``block``. Then rows are ``%pitch`` elements apart."""
    w = Integers(Emitter())
    beside = w.compare("eq", "%a_inner", 1)
    for condition, width in ((beside, block.lanes), (w.negated(beside), 1)):
        L = Lanes(w.e, width)
        rest = w.remainder("%inner", width)
        whole, masks = w.subtract("%inner", rest), below(L, "0", rest) if width > 1 else None

        def convert(line: str, target: str, term: str, mask: str | None, L: Lanes = L) -> None:
            value = read(L, source, line, w.multiply(term, "%a_inner"), mask, block.dtype)
            store(L, value, block.dtype, Location(target, term, False), None)

        with w.e.when(condition), w.e.loop("0", "%rows") as row:
            line = w.moved("%a", w.multiply(row, "%a_row"), MEMORY_TYPES[source])
            target = w.moved("%to", w.multiply(row, "%pitch"), block.element)
            with w.e.loop("0", whole, width) as term:
                convert(line, target, term, None)
            if width > 1:
                with w.e.when(w.compare("ne", rest, 0)):
                    convert(line, target, whole, masks)
    parameters = "ptr %a, i64 %a_row, i64 %a_inner, ptr %to, i64 %rows, i64 %inner, i64 %pitch"
    return w.e, w.e.function("convert_rows", parameters, "internal ")


def panels_at(w: Integers, start: str, block: Block, columns: str, first: str, term: str, depth: str) -> str:
    """Where in the panels of a matrix those of a block of terms are, from the column ``first`` on. The block begins
    with ``term`` and has ``depth`` terms."""
    wide = w.multiply(w.divide(w.add(columns, block.columns - 1), block.columns), block.columns)
    before = w.add(w.multiply(term, wide), w.multiply(first, w.rounded_up(depth, SQUARE)))
    return w.moved(start, before, block.element)
