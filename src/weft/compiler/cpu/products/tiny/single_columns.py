"""Products of stacks of small matrices with a vector each, in vectors of rows.

The rows of all matrices follow each other in memory, so a vector of sums has as many as fill it, whichever matrices
they are of: no lane is empty. Terms of a row are neighbours, so vectors of rows are transposed. This is done with 16
bytes of each row at once, because then all exchanges are inside of 16 bytes: reading these into a part of a vector is
no shuffle, and shuffles are what takes the time. Also any number of terms is whole pieces; the last one may have terms
of the one before, which are not added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, dtype_alignment, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, prefetch, transposed
from weft.compiler.cpu.products.step import multiply_add
from weft.primitives.products import DEPTH

from .groups import GROUPS, GroupWriter, Tiny

PIECE_BYTES = 16
"""How much of a row is transposed at once."""
MANY, MANY_TOGETHER = 8, 13
"""With fewer rows and terms than the first number, and than the second one together, vectors of results in the order of
memory take less time: vectors of rows have those of many matrices."""
MOST_ELEMENTS = 4096
"""How many elements a matrix has at most: threads can share the rows of larger ones elsewhere."""
AT_ONCE = 2
"""How many vectors of rows are multiplied at the same time."""
UNROLLED = 32
"""Code for at most so many terms has no loop; a turn of a loop has half as many."""
DTYPES = (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64)


def takes(tiny: Tiny) -> bool:
    """Whether matrices are computed here."""
    (rows, columns, inner), (_, a_inner, b_inner, _) = tiny.extents, tiny.strides
    if columns != 1 or a_inner != 1 or b_inner != 1 or tiny.source not in DTYPES:
        return False
    few = tiny.sizes["a"] <= MOST_ELEMENTS and inner <= DEPTH
    enough = max(rows, inner) >= MANY or rows + inner >= MANY_TOGETHER
    return few and enough and rows > 1 and inner >= PIECE_BYTES // tiny.source.size


class _LaneRows(NamedTuple):
    """Rows that fill a vector: the number of the ``first`` one, where they are, where those are that are multiplied
    next, and where the vectors are that they are multiplied with; the masks of the lanes from which on the second,
    third, ... one is; and the slot of the sums."""

    first: str
    rows: str
    ahead: str
    vectors: Sequence[str]
    masks: Sequence[Value]
    total: str


class TinySingleColumnsWriter(GroupWriter):
    """Multiplies matrices with a vector each. The last vector of rows may have rows of the one before."""

    def __init__(self, tiny: Tiny) -> None:
        super().__init__(tiny, 1)
        self.rows, _, self.inner = tiny.extents
        self.piece = PIECE_BYTES // tiny.dtype.size
        self.element = MEMORY_TYPES[tiny.dtype]
        self.ends["a"] = max(self.rows, tiny.lanes) * self.inner
        self.ends["c"] = max(self.rows, tiny.lanes)

    def function(self, name: str) -> EmittedFunction:
        lanes = self.L.width
        count = self.multiply("%count", self.rows)
        last = self.larger(self.subtract(count, lanes), "0")
        with self.e.loop("0", count, AT_ONCE * lanes) as number:
            firsts = [self.smaller(self.add(number, vector * lanes), last) for vector in range(AT_ONCE)]
            self._multiply([self._block(first) for first in firsts])
        return self.e, self.e.function(name, GROUPS, "internal ")

    def _block(self, first: str) -> _LaneRows:
        """The rows from ``first`` on, as many as fill a vector."""
        matrix = self.divide(first, self.rows)
        left = self.subtract(self.multiply(self.add(matrix, 1), self.rows), first)
        masks = [self._from(left, number) for number in range(self._matrices() - 1)]
        last = self.subtract("%count", 1)
        numbers = [matrix, *[self.smaller(self.add(matrix, number + 1), last) for number in range(len(masks))]]
        vectors = [self.moved("%b", self.multiply(number, self.inner), self.element) for number in numbers]
        rows = self.moved("%a", self.multiply(first, self.inner), self.element)
        ahead = self.moved(rows, AT_ONCE * self.L.width * self.inner, self.element)
        return _LaneRows(first, rows, ahead, vectors, masks, self.e.slot(self.L.type_of(self.tiny.dtype)))

    def _multiply(self, blocks: Sequence[_LaneRows]) -> None:
        """Multiply and store some blocks, piece by piece, because additions of one wait for each other."""
        L, e, dtype, piece = self.L, self.e, self.tiny.dtype, self.piece
        type_ = L.type_of(dtype)
        for block in blocks:
            e.store(type_, L.constant(0, dtype).name, block.total)
        whole, at_once = self.inner // piece * piece, UNROLLED // 2
        looped = 0 if self.inner <= UNROLLED else self.inner // at_once * at_once
        with e.loop("0", str(looped), at_once) as term:
            there = [self._moved(block, term) for block in blocks]
            for start, block in product(range(0, at_once, piece), there):
                self._add(block, start, start)
        for start, block in product(range(looped, whole, piece), blocks):
            self._add(block, start, start)
        if whole < self.inner:
            for block in blocks:
                self._add(block, self.inner - piece, whole)
        for block in blocks:
            total = Value(L, e.load(type_, block.total), dtype)
            store(L, total, dtype, Location("%c", block.first, False), None)

    def _moved(self, block: _LaneRows, term: str) -> _LaneRows:
        """The same block from a term on."""
        rows, *vectors = [self.moved(place, term, self.element) for place in (block.rows, *block.vectors)]
        ahead = self.moved(block.ahead, self.multiply(term, self.L.width), self.element)
        return block._replace(rows=rows, ahead=ahead, vectors=vectors)

    def _matrices(self) -> int:
        """Of how many matrices a vector may have rows."""
        lanes = self.L.width
        if self.rows % lanes == 0 or lanes % self.rows == 0:
            return max(1, lanes // self.rows)
        return -(-(lanes - 1) // self.rows) + 1

    def _from(self, left: str, number: int) -> Value:
        """The mask of the lanes that are not of a matrix or those before it, of which ``left`` rows and the rows of
        ``number`` more matrices come first."""
        kind = dtypes.int32 if self.tiny.dtype.size == 4 else dtypes.int64
        element = MEMORY_TYPES[kind]
        end = self.add(left, number * self.rows)
        scalar = end if kind is dtypes.int64 else self.e.assign(f"trunc i64 {end} to i32")
        lanes = f"<{', '.join(f'{element} {lane}' for lane in range(self.L.width))}>"
        found: Value = Value(self.L, lanes, kind) >= self.L.splat(Value(Lanes(self.e, 1), scalar, kind))
        return found

    def _add(self, block: _LaneRows, start: int, first: int) -> None:
        """Add the terms of a piece that begins at the term ``start``, from the ``first`` one on."""
        L, e, dtype = self.L, self.e, self.tiny.dtype
        type_, scalar = L.type_of(dtype), Lanes(e, 1)
        columns = transposed(L, dtype, [self._piece(block.rows, start, row) for row in range(self.piece)], self.piece)
        self._prefetch(block, first)
        for number in range(first - start, self.piece):
            places = [Location(vector, str(start + number), False) for vector in block.vectors]
            right, *others = [L.splat(load(scalar, dtype, place, None)) for place in places]
            for mask, factor in zip(block.masks, others, strict=True):
                right = L.select(mask, factor, right)
            total = Value(L, e.load(type_, block.total), dtype)
            e.store(type_, multiply_add(L, Value(L, columns[number], dtype), right, total).name, block.total)

    def _prefetch(self, block: _LaneRows, first: int) -> None:
        """Prefetch as many bytes of the next rows as a piece of these rows has. They are read in so many places that
        the processor would not do it."""
        start = first // self.piece * self.piece * self.L.width
        for place in range(0, self.piece * self.L.width, CACHE_LINE // self.tiny.dtype.size):
            prefetch(self.e, self.moved(block.ahead, start + place, self.element), READ_SOON)

    def _piece(self, rows: str, start: int, row: int) -> str:
        """A vector of pieces, of every row whose number has the remainder ``row``, divided by the length of pieces."""
        e, piece, width, align = self.e, self.piece, self.L.width, dtype_alignment(self.tiny.dtype)
        short, found = f"<{piece} x {self.element}>", ""
        for number in range(width // piece):
            place = self.moved(rows, (row + number * piece) * self.inner + start, self.element)
            read = e.assign(f"load {short}, ptr {place}, align {align}")
            order = [*range(piece), *["poison"] * (width - piece)]
            wide = e.assign(f"shufflevector {short} {read}, {short} poison, {_order(order)}")
            if number > 0:
                lanes = [width + lane % piece if lane // piece == number else lane for lane in range(width)]
                type_ = f"<{width} x {self.element}>"
                wide = e.assign(f"shufflevector {type_} {found}, {type_} {wide}, {_order(lanes)}")
            found = wide
        return found


def _order(lanes: Sequence[int | str]) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"
