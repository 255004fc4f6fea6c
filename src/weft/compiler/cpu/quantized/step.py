"""What the steps of products with quantised matrices have in common: their numbers, and where matrices are."""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.quantized.codes import VectorCoding

# The numbers with which every step begins: slots and byte offsets of the operands and the result; rows, columns and
# terms; matrices in the stack (0 if there is no index); rows of a quantised matrix, and words and groups in each; by
# how many bits a place is shifted for its group; rows and columns of a tile; tiles from top to bottom, from left to
# right; products.
X, WORDS, SCALES, BIASES, INDEX, RESULT = range(0, 12, 2)
ROWS, COLUMNS, INNER, COUNT, HIGH, PER_ROW, GROUPS, GROUP_SHIFT, TILE_HIGH, TILE_WIDE, DOWN, ACROSS, PRODUCTS = range(
    12, 25
)


class Unit(NamedTuple):
    """A unit of work: where its matrices begin, its first row, rows, first column and columns."""

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
        """What is left of a whole, but not more than ``most``."""
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
        """A part of the product with a number: its first row and how many, its first column and how many."""
        high, wide, inner = self.number(ROWS), self.number(COLUMNS), self.number(INNER)
        x = self.moved(self.memory(X), self.multiply(matrix, self.multiply(high, inner)), self.element)
        result = self.moved(self.memory(RESULT), self.multiply(matrix, self.multiply(high, wide)), self.element)
        lines = self.multiply(self._chosen(matrix), self.number(HIGH))
        words = self.moved(self.memory(WORDS), self.multiply(lines, self.number(PER_ROW)), "i32")
        groups = self.multiply(lines, self.number(GROUPS))
        scales, biases = (
            self.moved(self.memory(position), groups, MEMORY_TYPES[self.coding.scales]) for position in (SCALES, BIASES)
        )
        return Unit(x, words, scales, biases, result, *rows, *columns)

    def index(self, matrix: str) -> str:
        return self.e.load("i64", self.moved(self.memory(INDEX), matrix, "i64"))

    def _chosen(self, matrix: str) -> str:
        """Which matrix of the stack is multiplied."""
        count, chosen = self.number(COUNT), self.e.slot("i64")
        self.e.store("i64", "0", chosen)
        with self.e.when(self.compare("ne", count, 0)):
            index = self.index(matrix)
            inside = self.larger(self.smaller(index, self.subtract(count, 1)), "0")
            self.e.store("i64", inside, chosen)
        return self.e.load("i64", chosen)
