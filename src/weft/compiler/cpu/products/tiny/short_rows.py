"""Products of groups of small matrices of half precision with short rows, for vectors of 32 bytes.

Each half of a vector of sums has rows of its own: one, or several if they are shorter. Elements of the left operand are
moved within 16 bytes then, which one instruction does, and a row of the right operand is read and repeated by another
one. So no operand needs to be converted to memory before, unless the right one is transposed. Sums of bfloat16 are two
vectors, of the first columns of pairs and of the second ones, which become a vector of results in the order of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import Location, from_memory, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.memory import fenced, in_register, opaque
from weft.compiler.cpu.products import pairs_of_bfloat16
from weft.compiler.cpu.products.step import multiply_add
from weft.compiler.cpu.products.tiny import strips as tiny_strips

from .groups import FEWEST_TERMS_TO_TRANSPOSE, LONG_VECTORS, GroupWriter, Tiny, shuffled, vector_bytes
from .halves import TinyHalves
from .pairs import TinyPairs
from .rows import MOST_WORK

MOST_SUMS, MOST_SUMS_OF_SEVERAL = 8, 6
"""How many vectors of sums there are at the same time at most. Those of several matrices need more right operands."""
MANY_ROWS, MANY_TERMS = 8, 16
"""With more rows than one block has and more terms, loops take less time."""
FEWEST_COLUMNS = 3
"""With fewer columns, less is shuffled if vectors of results have the order of memory."""
_Part = tuple[int, int]
"""A matrix of the group, and a part of its rows."""


class _HalvesOfVectors:
    """How rows of a kind of stack are in halves of vectors. Elements are counted as those of half precision."""

    def __init__(self, tiny: Tiny) -> None:
        self.vectors = 2 if tiny.source is dtypes.bfloat16 else 1
        """How many vectors of sums a part has."""
        self.elements = tiny.lanes * self.vectors // 2
        self.columns = 1 << (tiny.extents[1] - 1).bit_length()
        self.rows = self.elements // self.columns
        """How many elements a half has, as rows of so many columns."""
        self._rows_of_matrix = tiny.extents[0]

    @property
    def parts(self) -> int:
        """How many parts a matrix has: those of its rows that fill a vector of results."""
        return -(-self._rows_of_matrix // (2 * self.rows))


def takes(tiny: Tiny) -> bool:
    """Whether matrices are computed here."""
    if vector_bytes() >= LONG_VECTORS or tiny.source not in HALVES or tiny.result is not tiny.source:
        return False
    (rows, columns, inner), half = tiny.extents, _HalvesOfVectors(tiny)
    if rows == 1 or not FEWEST_COLUMNS <= columns <= half.elements:
        return False
    if half.parts * half.vectors * inner * tiny.lanes > MOST_WORK:
        return False
    if rows > MANY_ROWS and inner > MANY_TERMS and tiny_strips.takes(tiny):
        return False
    return _are_near(tiny, half)


def _are_near(tiny: Tiny, half: _HalvesOfVectors) -> bool:
    """Whether the elements of operands are read together, and there are so many terms that this matters."""
    (rows, columns, inner), (_, a_inner, _, b_column) = tiny.extents, tiny.strides
    if half.rows > 1:
        beside = a_inner != 1 or half.rows * inner <= half.elements
        return beside and columns + inner > 6 and rows % (2 * half.rows) in (0, 2 * half.rows - 1)
    if half.vectors == 2:
        return b_column == 1 or inner >= FEWEST_TERMS_TO_TRANSPOSE
    return columns + inner > 5 and (a_inner == 1 or rows <= half.elements)


class TinyShortRowsWriter(GroupWriter):
    """Multiplies a group of matrices."""

    def __init__(self, tiny: Tiny) -> None:
        self.half = _HalvesOfVectors(tiny)
        super().__init__(tiny, max(1, MOST_SUMS_OF_SEVERAL // (self.half.parts * self.half.vectors)))
        self.elements = TinyPairs(self) if self.half.vectors == 2 else TinyHalves(self)
        """Reads right operands in which columns are no neighbours."""
        self._transposed: list[str] = []
        """Where right operands of the group are transposed, if they are."""
        self._left_read: dict[tuple[int, int], Value] = {}
        self._right_read: dict[tuple[int, int], Sequence[Value]] = {}

    def write(self) -> None:
        if self.half.vectors == 2 and self.half.rows == 1 and self.tiny.strides[3] != 1:
            self._transposed = [self._transpose(matrix) for matrix in range(self.matrices)]
        parts = list(product(range(self.matrices), range(self.half.parts)))
        blocks = -(-len(parts) * self.half.vectors // MOST_SUMS)
        height = -(-len(parts) // blocks)
        for first in range(0, len(parts), height):
            self._multiply(parts[first : first + height])

    def _multiply(self, parts: Sequence[_Part]) -> None:
        """Multiply some parts, and store the sums."""
        L, tiny = self.L, self.tiny
        self.elements.forget()
        self._left_read, self._right_read = {}, {}
        totals = {part: [L.constant(0, tiny.dtype)] * self.half.vectors for part in parts}
        for term, part in product(range(tiny.extents[2]), parts):
            left, right = self._left(part, term), self._right(part[0], term)
            totals[part] = [multiply_add(L, left, one, total) for one, total in zip(right, totals[part], strict=True)]
        for part, sums in totals.items():
            self._store(part, sums)

    def _left(self, part: _Part, term: int) -> Value:
        """The elements of the left operand for a term of a part, each repeated for the columns of its row."""
        (matrix, number), rows = part, self.half.rows
        first, (a_row, a_inner, _, _) = number * 2 * rows, self.tiny.strides
        last = self.tiny.extents[0] - 1
        places = [min(first + row, last) * a_row + term * a_inner for row in range(2 * rows)]
        start = matrix * self.tiny.sizes["a"]
        elements = [[start + place for place in places[n : n + rows]] for n in (0, rows)]
        before = term if a_inner == 1 else first
        starts = self._starts(elements, before % self.half.elements)
        window = self._window(*starts)
        order = [
            n * self.half.elements + element - starts[n]
            for n in (0, 1)
            for element in elements[n]
            for _ in range(self.L.width // (2 * rows))
        ]
        if self.half.vectors == 2:
            return pairs_of_bfloat16.moved_up(self.L, window.name, order)
        return Value(self.L, shuffled(self.e, [window.name], order, self.L.width, "float"), self.tiny.dtype)

    def _starts(self, elements: Sequence[Sequence[int]], before: int) -> tuple[int, int]:
        """From where on both halves are read, for ``elements`` of each, ``before`` of which there are some. If
        possible, one instruction reads both."""
        here, there = [half[0] - before for half in elements]
        width = self.half.elements

        def has(start: int, wanted: Sequence[int]) -> bool:
            return start >= 0 and all(start <= element < start + width for element in wanted)

        if has(here, [*elements[0], *elements[1]]):
            return here, here
        return (there - width if has(there - width, elements[0]) else here), there

    def _window(self, *starts: int) -> Value:
        """What is in memory of the left operand from two elements on: as float32, or as it is if it is bfloat16."""
        first, second = starts
        if (first, second) not in self._left_read:
            width = self.half.elements
            if second == first + width:
                words = self._words("a", first, 2 * width)
            else:
                halves = [self._words("a", start, width) for start in starts]
                words = shuffled(self.e, halves, range(2 * width), width)
            self._left_read[first, second] = self._converted(words)
        return self._left_read[first, second]

    def _converted(self, words: str) -> Value:
        """Elements of 16 bits as float32, or as they are if they are bfloat16."""
        if self.half.vectors == 2:
            return Value(Lanes(self.e, 2 * self.L.width), words, dtypes.uint16)
        return Value(self.L, from_memory(self.L, words, dtypes.float16).name, dtypes.float32)

    def _words(self, operand: str, start: int, count: int) -> str:
        self.ends[operand] = max(self.ends[operand], start + count)
        pointer = self.moved(self.places[operand], start, "i16")
        return self.e.assign(f"load <{count} x i16>, ptr {pointer}, align 2")

    def _right(self, matrix: int, term: int) -> Sequence[Value]:
        """The vectors of the right operand for a term of a matrix, repeated for all rows of a part."""
        if (matrix, term) not in self._right_read:
            if self._transposed:
                self._right_read[matrix, term] = self._transposed_row(self._transposed[matrix], term)
            elif self.tiny.strides[3] == 1:
                self._right_read[matrix, term] = self._row(matrix, term)
            else:
                self._read_columns(matrix, term)
        return self._right_read[matrix, term]

    def _row(self, matrix: int, term: int) -> Sequence[Value]:
        count = self.half.columns
        start = matrix * self.tiny.sizes["b"] + term * self.tiny.strides[2]
        order = [*range(count)] * (2 * self.half.rows)
        words = self._converted(shuffled(self.e, [self._words("b", start, count)], order, count))
        if self.half.vectors == 1:
            return [words]
        type_ = self.L.type_of(dtypes.uint32)
        pairs = self.e.assign(f"bitcast {words.lanes.type_of(dtypes.uint16)} {words.name} to {type_}")
        return pairs_of_bfloat16.apart(self.L, Value(self.L, pairs, dtypes.uint32))

    def _transpose(self, matrix: int) -> str:
        """Write the terms of a right operand to memory as float32. First columns of pairs are in one half of a vector
        and second ones in the other, so that elements are shuffled within halves."""
        e, L, (_, columns, inner) = self.e, self.L, self.tiny.extents
        type_, start = f"<{2 * L.width} x i16>", matrix * self.tiny.sizes["b"]
        memory = opaque(e, e.slot(f"[{inner * L.width} x float], align 32"))
        for first in range(0, inner, L.width):
            lines = [start + min(column, columns - 1) * self.tiny.strides[3] + first for column in range(L.width)]
            vectors = [self._lines(*lines[n : n + 2]) for n in range(0, L.width, 2)]
            for _ in range(2):
                pairs = list(zip(vectors[:2], vectors[2:], strict=True))
                vectors = [self._interleaved(*pair, upper) for pair in pairs for upper in (False, True)]
            for number in range(min(L.width, inner - first)):
                term = self._interleaved("zeroinitializer", vectors[number // 2], number % 2 == 1)
                e.store(type_, term, self.moved(memory, (first + number) * L.width, "float"))
        return memory

    def _transposed_row(self, memory: str, term: int) -> Sequence[Value]:
        half, order = Lanes(self.e, self.L.width // 2), [*range(self.L.width // 2)] * 2
        places = [Location(memory, str(term * self.L.width + n * half.width), False) for n in (0, 1)]
        names = [load(half, dtypes.float32, place, None).name for place in places]
        return [Value(self.L, shuffled(self.e, [x], order, half.width, "float"), dtypes.float32) for x in names]

    def _lines(self, first: int, second: int) -> str:
        """Terms of two columns, from two elements on, in the halves of a vector."""
        width = self.half.elements
        if second == first + width:
            return self._words("b", first, 2 * width)
        return shuffled(self.e, [self._words("b", start, width) for start in (first, second)], range(2 * width), width)

    def _interleaved(self, one: str, other: str, upper: bool) -> str:
        """Numbers of 16 bits of two vectors, of the lower or upper halves of their halves."""
        width = 2 * self.L.width
        lanes = [half + width // 4 * upper + lane for half in (0, width // 2) for lane in range(width // 4)]
        name = shuffled(self.e, [one, other], [n for lane in lanes for n in (lane, width + lane)], width)
        return fenced(self.L, dtypes.float32, f"<{width} x i16>", name)

    def _read_columns(self, matrix: int, term: int) -> None:
        """Shuffle two vectors of a right operand whose columns are no neighbours, those of a term or of two."""
        vectors, (_, columns, inner) = self.half.vectors, self.tiny.extents
        terms = range(term, min(term + 2 // vectors, inner))
        start, (_, _, b_inner, b_column) = matrix * self.tiny.sizes["b"], self.tiny.strides
        numbers = [[*range(vector, self.half.columns, vectors)] * (2 * self.half.rows) for vector in range(vectors)]
        orders = [
            [start + one * b_inner + min(column, columns - 1) * b_column for column in order]
            for one, order in product(terms, numbers)
        ]
        found = self.elements.vectors("b", orders)
        for place, one in enumerate(terms):
            self._right_read[matrix, one] = found[place * vectors : (place + 1) * vectors]

    def _store(self, part: _Part, sums: Sequence[Value]) -> None:
        """Store the results of a part, and garbage after the last one."""
        (matrix, number), half, L = part, self.half, self.L
        rows, columns, _ = self.tiny.extents
        width, first = 2 * half.elements, number * 2 * half.rows
        here = min(2 * half.rows, rows - first)
        if half.vectors == 2:
            words = pairs_of_bfloat16.rounded(L, *sums).name
        else:
            words = in_register(L.half_to_bits(SumOfProducts(L, sums[0].name, dtypes.float16)))
        start = matrix * self.tiny.sizes["c"] + first * columns
        if columns == half.columns:
            pieces = [range(width if here > half.rows else half.elements)]
        else:
            pieces = [range(row * half.columns, (row + 1) * half.columns) for row in range(here)]
        for row, piece in enumerate(pieces):
            place = Location(self.places["c"], str(start + row * columns), False)
            self.ends["c"] = max(self.ends["c"], start + row * columns + len(piece))
            some = Value(Lanes(self.e, len(piece)), shuffled(self.e, [words], piece, width), dtypes.uint16)
            store(some.lanes, some, dtypes.uint16, place, None)
