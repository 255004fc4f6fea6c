"""Products of groups of small matrices, row by row.

Elements of the right operand become vectors in registers, and those of the left one numbers in memory, once for all
rows. A vector of sums has as many rows as fill it, with the elements of a column in neighbouring lanes. So the elements
of the left operand for a term are neighbours in memory, and one instruction reads and repeats them. Numbers of half
precision are converted on the way; other left operands are read where they are if they have that order.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from weft import dtypes
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.memory import opaque
from weft.compiler.cpu.overlapping import Instructions, run
from weft.compiler.cpu.products.step import SQUARE, multiply_add

from .elements import TinyElements
from .groups import Tiny, shuffled, vector_bytes
from .halves import TinyHalves
from .pairs import TinyPairs
from .sums import TinySumsWriter

REGISTERS = {64: 32, 32: 16}
"""How many vectors registers hold, by their bytes."""
OTHERS = 4
"""How many registers are for other vectors than sums."""
FEWEST_SUMS = 8
"""How many vectors of sums a group has at least: each addition waits for the one before."""

MOST_COLUMNS = 16
"""The most columns, if they are neighbours in memory."""
MOST_ROWS_TOGETHER, FEW_TERMS = 8, 3
"""The most rows of a vector of sums, and how many terms are too few: shuffling both operands takes no longer then than
storing rows."""
FEW_ROWS = 4
"""For so few rows, columns that are no neighbours are transposed faster in squares, unless they are converted; for
twice as many rows, if there are more than `MOST_COLUMNS`, or if terms fill squares."""
FEW_ROWS_TOGETHER = 4
"""So few rows of a vector of sums suit half precision, even if there are few terms."""
MOST_WORK = 4096
"""How many multiplications the code for a group has at most, in all lanes: it takes time to generate."""


def takes(tiny: Tiny) -> bool:
    """Whether matrices are computed here."""
    (rows, columns, inner), lanes = tiny.extents, tiny.lanes
    together = _rows_together(columns, lanes)
    sums = -(-rows // together) * -(-columns // lanes)
    if max(sums, FEWEST_SUMS) * lanes * inner > MOST_WORK:
        return False
    if tiny.source in HALVES:
        return _suits_halves(tiny, together)
    in_squares = columns > MOST_COLUMNS or inner % SQUARE == 0
    return _are_many(tiny, together) and (tiny.strides[3] == 1 or rows > FEW_ROWS * (1 + in_squares))


def _are_many(tiny: Tiny, together: int) -> bool:
    """Whether there are so many rows and terms that shuffling both operands takes longer, whatever their dtype is."""
    (rows, columns, inner), beside = tiny.extents, tiny.strides[3] == 1
    if rows < together or together > MOST_ROWS_TOGETHER or (columns > MOST_COLUMNS and beside):
        return False
    most_few = FEW_TERMS if together == 1 else max(FEW_TERMS + 1, together)
    return inner > most_few and (rows > 1 or beside)


def _suits_halves(tiny: Tiny, together: int) -> bool:
    """Whether matrices of half precision are computed faster here."""
    rows, columns, _ = tiny.extents
    if _are_many(tiny, together):
        return True
    if columns > MOST_COLUMNS or together >= 2 * FEW_ROWS_TOGETHER or rows == together == FEW_ROWS_TOGETHER:
        return False
    if vector_bytes() < 64:
        return _suits_short_vectors(tiny, together)
    if together < FEW_ROWS_TOGETHER:
        return True
    return columns == together if rows < together else rows % together in (0, together - 1)


def _suits_short_vectors(tiny: Tiny, together: int) -> bool:
    """Whether processors without AVX-512, which lack shuffles from any place to any other, need few of them."""
    beside = tiny.strides[3] == 1
    return together == 1 and (beside or (tiny.source is dtypes.bfloat16 and tiny.extents[1] <= tiny.lanes))


def _rows_together(columns: int, lanes: int) -> int:
    """How many rows a vector has."""
    return max(1, lanes >> (columns - 1).bit_length())


class TinyRowsWriter(TinySumsWriter):
    """Multiplies a group of matrices. If a matrix has fewer rows than a part, parts have rows of several matrices."""

    groups = 1
    """Of how many groups left operands are in memory."""
    fewest_sums = FEWEST_SUMS

    def __init__(self, tiny: Tiny) -> None:
        rows, columns, inner = tiny.extents
        together = _rows_together(columns, tiny.lanes)
        self.are_mixed = rows < together
        whole = rows if self.are_mixed else -(-rows // together) * together
        matrices = max(1, -(-self.fewest_sums * tiny.lanes // max(columns, tiny.lanes)) * together // whole)
        if self.are_mixed:
            matrices = -(-matrices // together) * together
        super().__init__(tiny, matrices, together, whole)
        self.elements = self._elements()
        self.in_order = self.together == 1 or (tiny.strides[0] == 1 and not self.are_mixed)
        """Whether the left operand is converted in the order in which it is in memory."""
        self.at_once = tiny.lanes // (1 if self.in_order else self.together)
        """Of how many elements, or else for how many terms, a vector of the left operand is."""
        self.alternate = self.in_pairs and (self.together == 1 or not self.in_order)
        """Whether two vectors of the left operand have neighbours, because they are made of pairs of bfloat16."""
        self.element = MEMORY_TYPES[tiny.dtype]
        size = matrices * rows * inner if self.in_order else self.parts * inner
        self.left_vectors = -(-size // self.at_once)
        if tiny.source is tiny.dtype and self.in_order:
            self.left_vectors = 0
        self.left_vectors += self.left_vectors % 2
        # LLVM would replace memory that it knows by shuffles of registers.
        count = (self.groups * self.left_vectors + 1) * tiny.lanes
        room = self.e.slot(f"[{count} x {self.element}], align 64")
        self.left = opaque(self.e, room) if self.left_vectors > 0 else ""
        """Where the left operand is in the order in which it is read, if that is not where it was before."""
        self._right: dict[tuple[int, int], list[Value]] = {}

    def _elements(self) -> TinyPairs | TinyHalves | TinyElements:
        if self.in_pairs:
            return TinyPairs(self)
        return TinyHalves(self) if self.tiny.source is dtypes.float16 else TinyElements(self)

    def write(self) -> None:
        self.forget()
        self.convert_left(range(self.left_vectors), self.left)
        run(self.multiplications())

    def forget(self) -> None:
        """Read elements again from now on."""
        self.elements.forget()
        self._right = {}

    def multiplications(self) -> Instructions:
        """Multiply, and store the sums."""
        height = self._height()
        return [
            instruction
            for first in range(0, self.parts, height)
            for instruction in self._multiply(range(first, min(self.parts, first + height)))
        ]

    def _height(self) -> int:
        """How many parts are added up at the same time: all, if registers hold their sums, or as many as leave
        registers for the right operand."""
        free, vectors = REGISTERS[vector_bytes()] - OTHERS, self.vectors
        if self.parts * vectors <= free:
            return self.parts
        most = max(FEWEST_SUMS, free - self.tiny.extents[2] * vectors) // vectors
        height = -(-self.parts // -(-self.parts // most))
        return height + height % 2

    def convert_left(self, numbers: range, memory: str) -> None:
        """Write some vectors of the left operand to memory, converted and in order."""
        lanes = self.L.width
        orders = [[self._element_at(number, lane) for lane in range(lanes)] for number in numbers]
        for number, vector in zip(numbers, self.elements.vectors("a", orders), strict=True):
            store(self.L, vector, self.tiny.dtype, Location(memory, str(number * lanes), False, 64), None)

    def _element_at(self, number: int, lane: int) -> int:
        """The element of the left operand in a lane of a vector."""
        at_once, inner = self.at_once, self.tiny.extents[2]
        place, row = divmod(lane, self.L.width // at_once)
        index = number * at_once + place
        if self.alternate:
            index = number // 2 * 2 * at_once + 2 * place + number % 2
        if self.in_order:
            return index
        part, term = divmod(min(index, self.parts * inner - 1), inner)
        return self._element(part, row, term)

    def _element(self, part: int, row: int, term: int) -> int:
        """The element of the left operand for a term of a row of a part."""
        a_row, a_inner, _, _ = self.tiny.strides
        matrix, inside = self.row_of(part, row)
        nearest = min(inside, self.tiny.extents[0] - 1)
        return matrix * self.tiny.sizes["a"] + nearest * a_row + term * a_inner

    def _left(self, part: int, term: int) -> Value:
        """The elements of the left operand for a term of a part, repeated for all columns."""
        L, e, together, at_once = self.L, self.e, self.together, self.at_once
        index = self._element(part, 0, term) if self.in_order else part * self.tiny.extents[2] + term
        if self.alternate:
            two, inside = divmod(index, 2 * at_once)
            index = (2 * two + inside % 2) * at_once + inside // 2
        start, dtype = index * (L.width // at_once), self.tiny.dtype
        if not self.left:
            self.ends["a"] = max(self.ends["a"], start + together)
        location = Location(self.left or self.places["a"], str(start), False)
        if together == 1:
            return L.splat(load(Lanes(e, 1), dtype, location, None))
        read = load(Lanes(e, together), dtype, location, None).name
        order = [*range(together)] * (L.width // together)
        return Value(L, shuffled(e, [read], order, together, self.element), dtype)

    def right_for(self, part: int, term: int) -> list[Value]:
        """The vectors of the right operand for a term of a part. They are made for two terms at once."""
        owner = part if self.are_mixed else self.row_of(part, 0)[0]
        if (owner, term) not in self._right:
            numbers = [term, min(term + 1, self.tiny.extents[2] - 1)]
            orders = [self._order(part, number, v) for number in numbers for v in range(self.vectors)]
            made = self.elements.vectors("b", orders)
            self._right[owner, term + 1] = made[self.vectors :]
            self._right[owner, term] = made[: self.vectors]
        return self._right[owner, term]

    def _order(self, part: int, term: int, vector: int) -> list[int]:
        """The elements of the right operand for a term, in lanes. Those after the last column have any value."""
        columns, (_, _, b_inner, b_column) = self.tiny.extents[1], self.tiny.strides
        found = []
        for lane in range(self.L.width):
            place, row = divmod(lane, self.together)
            matrix, _ = self.row_of(part, row if self.are_mixed else 0)
            column = self.column(vector, place)
            distance = column if b_column == 1 else min(column, columns - 1) * b_column
            found.append(matrix * self.tiny.sizes["b"] + term * b_inner + distance)
        return found

    def _multiply(self, parts: range) -> Instructions:
        L, vectors = self.L, range(self.vectors)
        totals = {key: L.constant(0, self.tiny.dtype) for key in product(parts, vectors)}

        def add(term: int, part: int) -> None:
            left, right = self._left(part, term), self.right_for(part, term)
            for v in vectors:
                totals[part, v] = multiply_add(L, left, right[v], totals[part, v])

        additions = [partial(add, term, part) for term, part in product(range(self.tiny.extents[2]), parts)]
        return [*additions, lambda: self.store_sums(parts, totals)]
