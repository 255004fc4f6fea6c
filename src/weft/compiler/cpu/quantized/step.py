"""Shared by the steps of products with quantised matrices: their numbers, and the addresses of matrices."""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.quantized.codes import VectorCoding

# The numbers of every step: slots and byte offsets of operands and result; rows, columns and terms; how many matrices
# the stack has (0 if there is no index); how many rows a quantised matrix has, and words and groups a row; the shift
# from a position in a row to its group; rows and columns of a tile; how many tiles there are down and across; how many
# products.
X, WORDS, SCALES, BIASES, INDEX, RESULT = range(0, 12, 2)
ROWS, COLUMNS, INNER, COUNT, HIGH, PER_ROW, GROUPS, GROUP_SHIFT, TILE_HIGH, TILE_WIDE, DOWN, ACROSS, PRODUCTS = range(
    12, 25
)


class Unit(NamedTuple):
    """A unit of work: the addresses of its matrices, its first row, rows, first column and columns."""

    x: str
    words: str
    scales: str
    biases: str
    result: str
    top: str
    rows: str
    left: str
    columns: str


class QuantizedStepWriter(Integers):
    """Writes the loop over the units of a step, which are tiles of the result."""

    def __init__(self, coding: VectorCoding) -> None:
        super().__init__(Emitter())
        self.coding = coding
        self.element = MEMORY_TYPES[coding.dtype]

    def rest(self, whole: str, done: str, most: str | int) -> str:
        """What is left of ``whole`` after ``done``, but at most ``most``."""
        return self.smaller(self.subtract(whole, done), most)

    def unit(self, number: str) -> Unit:
        across, down = self.number(ACROSS), self.number(DOWN)
        others = self.divide(number, across)
        matrix = self.divide(others, down)
        high, wide = self.number(TILE_HIGH), self.number(TILE_WIDE)
        top = self.multiply(self.remainder(others, down), high)
        left = self.multiply(self.remainder(number, across), wide)
        rows, columns = self.rest(self.number(ROWS), top, high), self.rest(self.number(COLUMNS), left, wide)
        return self.placed(matrix, (top, rows), (left, columns))

    def placed(self, matrix: str, rows: tuple[str, str], columns: tuple[str, str]) -> Unit:
        """A part of product ``matrix``: ``rows`` and ``columns`` are its first ones and how many there are."""
        high, wide = self.number(ROWS), self.number(COLUMNS)
        x = self.moved(self.memory(X), self.multiply(matrix, self.multiply(high, self.row_of_x())), self.element)
        result = self.moved(self.memory(RESULT), self.multiply(matrix, self.multiply(high, wide)), self.element)
        lines = self.multiply(self._chosen(matrix), self.number(HIGH))
        words = self.moved(self.memory(WORDS), self.multiply(lines, self.number(PER_ROW)), "i32")
        groups = self.multiply(lines, self.number(GROUPS))
        scales, biases = (
            self.moved(self.memory(position), groups, MEMORY_TYPES[self.coding.scales]) for position in (SCALES, BIASES)
        )
        return Unit(x, words, scales, biases, result, *rows, *columns)

    def row_of_x(self) -> str:
        """The distance from one row of ``x`` to the next, in elements."""
        return self.number(INNER)

    def index(self, matrix: str) -> str:
        return self.e.load("i64", self.moved(self.memory(INDEX), matrix, "i64"))

    def _chosen(self, matrix: str) -> str:
        """The matrix of the stack that product ``matrix`` uses; an index outside of the stack is moved inside."""
        count, chosen = self.number(COUNT), self.e.slot("i64")
        self.e.store("i64", "0", chosen)
        with self.e.when(self.compare("ne", count, 0)):
            index = self.index(matrix)
            inside = self.larger(self.smaller(index, self.subtract(count, 1)), "0")
            self.e.store("i64", inside, chosen)
        return self.e.load("i64", chosen)
