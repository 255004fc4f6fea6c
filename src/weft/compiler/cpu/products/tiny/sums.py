"""How rows of small matrices are added up in loops, and how sums of rows are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.memory import in_register
from weft.compiler.cpu.products import pairs_of_bfloat16
from weft.compiler.cpu.products.step import multiply_add

from .groups import LONG_VECTORS, GroupWriter, Tiny, shuffled, vector_bytes


class TinySumsWriter(GroupWriter):
    """Writes a function that adds up rows of results, and stores them.

    A part is the rows that fill a vector, or one row that fills several ``vectors``. A matrix counts as some ``rows``:
    its last part may have lanes of rows that do not exist, with any numbers. Parts are counted through all matrices.
    """

    def __init__(self, tiny: Tiny, matrices: int, together: int, rows: int) -> None:
        super().__init__(tiny, matrices)
        self.vectors = -(-tiny.extents[1] // tiny.lanes)
        self.together, self.rows = together, rows
        """How many rows a part has, and a matrix."""
        self.parts = matrices * rows // together
        self.in_pairs = tiny.source is dtypes.bfloat16
        self.paired = self.vectors // 2 * 2 if self.in_pairs else 0
        """For so many vectors of columns, one of two has the first columns of pairs, the other one the second ones."""

    def row_of(self, part: int, row: int) -> tuple[int, int]:
        """The matrix of a row of a part, and which row of it this is."""
        return divmod(part * self.together + row, self.rows)

    def column(self, vector: int, place: int) -> int:
        """The column at a place of a vector."""
        if vector < self.paired:
            return vector // 2 * 2 * self.L.width + 2 * place + vector % 2
        return vector * self.L.width + place

    def multiply_block(
        self, left: str, first: str, rows: range, vectors: range, right: Callable[[str], Sequence[Value]]
    ) -> None:
        """Multiply a block of ``rows`` from the row ``first`` on, of an operand at ``left`` that has the dtype of sums,
        and store the sums of ``vectors``. ``right`` writes how these vectors of a term are read."""
        e, L, dtype = self.e, self.L, self.tiny.dtype
        type_, element = L.type_of(dtype), MEMORY_TYPES[dtype]
        a_row, a_inner, _, _ = self.tiny.strides
        sums = {key: e.slot(type_) for key in product(rows, vectors)}
        for slot in sums.values():
            e.store(type_, L.constant(0, dtype).name, slot)
        block = self.moved(left, self.multiply(first, a_row), element)
        with e.loop("0", str(self.tiny.extents[2])) as term:
            values = right(term)
            start = self.moved(block, self.multiply(term, a_inner), element)
            for row in rows:
                number = L.splat(load(Lanes(e, 1), dtype, Location(start, str(row * a_row), False), None))
                for vector, value in zip(vectors, values, strict=True):
                    slot = sums[row, vector]
                    total = multiply_add(L, number, value, Value(L, e.load(type_, slot), dtype))
                    e.store(type_, total.name, slot)
        self.store_sums(rows, {key: Value(L, e.load(type_, slot), dtype) for key, slot in sums.items()}, vectors)

    def store_sums(self, parts: range, totals: Mapping[tuple[int, int], Value], vectors: range | None = None) -> None:
        """Store the sums of some parts, by the numbers of part and vector: those of all ``vectors``, or of a strip."""
        vectors = range(self.vectors) if vectors is None else vectors
        if self.vectors == 1 and self.tiny.result is dtypes.bfloat16:
            for part, other in self._twos(parts):
                self._store_two(part, other, totals[part, 0], totals[other, 0])
            return
        for part in parts:
            for v in range(vectors.start, min(vectors.stop, self.paired), 2):
                self._store_pairs(part, v, totals[part, v], totals[part, v + 1])
            for v in range(max(vectors.start, self.paired), vectors.stop):
                self._store(part, v, totals[part, v])

    def _twos(self, parts: range) -> list[tuple[int, int]]:
        """Parts whose rows are neighbours, two by two; the last one may be alone."""
        found, left = [], list(parts)
        while left:
            part = left.pop(0)
            end = self._start_of(part) + self.together * self.tiny.extents[1]
            follows = left and self._start_of(left[0]) == end
            found.append((part, left.pop(0) if follows else part))
        return found

    def _start_of(self, part: int) -> int:
        """Where the results of a part begin."""
        matrix, row = self.row_of(part, 0)
        return matrix * self.tiny.sizes["c"] + row * self.tiny.extents[1]

    def _store(self, part: int, vector: int, total: Value) -> None:
        L, result, name = self.L, self.tiny.result, total.name
        if self.together > 1:
            rows, columns = range(self.together), range(self.tiny.extents[1])
            order = [column * self.together + row for row, column in product(rows, columns)]
            name = shuffled(self.e, [name], _filled(order, L.width), L.width, MEMORY_TYPES[self.tiny.dtype])
        self._write(L, SumOfProducts(L, name, result), self._start_of(part) + vector * L.width)

    def _store_pairs(self, part: int, vector: int, *totals: Value) -> None:
        """Store the sums of the first columns of pairs and those of the second ones."""
        L, both = self.L, Lanes(self.e, 2 * self.L.width)
        if self.tiny.result is dtypes.bfloat16:
            value = pairs_of_bfloat16.rounded(L, *totals)
        else:
            value = pairs_of_bfloat16.together(L, *totals)
        self._write(both, value, self._start_of(part) + vector * L.width)

    def _store_two(self, part: int, other: int, first: Value, second: Value) -> None:
        """Store the sums of two parts as bfloat16."""
        L, together, columns = self.L, self.together, self.tiny.extents[1]
        both, pairs = Lanes(self.e, 2 * L.width), pairs_of_bfloat16.rounded(L, first, second).name
        lanes = [column * together + row for row, column in product(range(together), range(columns))]
        orders = [[2 * lane + half for lane in lanes] for half in (0, 1)]
        if L.width == pairs_of_bfloat16.MOST_LANES:
            name = shuffled(self.e, [pairs], _filled([*orders[0], *orders[1]], both.width), both.width)
            self._write(both, Value(both, name, dtypes.uint16), self._start_of(part))
            return
        filled = [index for order in orders for index in _filled(order, L.width)]
        name = shuffled(self.e, [pairs], filled, both.width)
        for half, place in enumerate((part,) if other == part else (part, other)):
            mine = shuffled(self.e, [name], range(half * L.width, (half + 1) * L.width), both.width)
            self._write(L, Value(L, mine, dtypes.uint16), self._start_of(place))

    def _write(self, L: Lanes, value: Value, first: int) -> None:
        """Store a vector of results, and garbage after the last one."""
        self.ends["c"] = max(self.ends["c"], first + L.width)
        if self.tiny.result is dtypes.float16 and vector_bytes() < LONG_VECTORS:
            value = Value(L, in_register(L.half_to_bits(value)), dtypes.uint16)
        store(L, value, value.dtype, Location(self.places["c"], str(first), False), None)


def _filled(order: Sequence[int], width: int) -> list[int | None]:
    return [*order, *[None] * (width - len(order))]
