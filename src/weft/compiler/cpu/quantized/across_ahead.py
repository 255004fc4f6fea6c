"""Decodes a quantised matrix whose codes along a row are the terms of sums, for products whose time is that of reading
the matrix: while some words are decoded, the next ones are read and transposed."""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.products.term_squares import square
from weft.compiler.cpu.quantized.across import Across, WeightRows
from weft.compiler.cpu.quantized.codes import VectorCoding
from weft.primitives.quantized_formats import WORD

MOST_LINES = 16
"""The most cache lines that are read at once, to transpose as many words as are decoded at once."""


def squares_of_step(coding: VectorCoding, vectors: int) -> int:
    """How many squares of words are decoded at once, in ``vectors`` vectors of rows; 0 if that is no whole number."""
    words = coding.words * vectors
    return 0 if coding.lanes % coding.words or words % coding.lanes else words // coding.lanes


def reads_ahead(coding: VectorCoding, vectors: int, terms: int) -> bool:
    """Whether rows with this number of terms are read ahead. With more cache lines at once, arithmetic would wait for
    them all the same."""
    squares = squares_of_step(coding, vectors)
    return 0 < squares * coding.lanes <= MOST_LINES and terms * coding.bits >= coding.lanes * WORD


class AcrossAhead(Across):
    """Writes code that goes along ``rows``, ``vectors`` vectors of rows at once. Each row has at least as many words as
    a vector has lanes.

    A *span* of a row is as many words as a vector has lanes. The last span may overlap the one before it. The stack has
    room for two spans. While one is decoded, the next one is transposed: one square of it for each decoded square.
    """

    def __init__(self, coding: VectorCoding, vectors: int, w: Integers, rows: WeightRows) -> None:
        super().__init__(coding, vectors, w)
        self.rows, self.span = rows, coding.lanes
        self._count = vectors * self.span
        self._starts = self.e.slot(f"[{self._count} x ptr], align 64")
        self._last = self.subtract(rows.per_row, self.span)

    def rows_of_words(self) -> int:
        return 2 * self.coding.lanes

    def begin(self) -> None:
        """Transpose the first span."""
        last = self.subtract(self.rows.present, 1)
        with self.e.loop("0", str(self._count)) as row:
            distance = self.multiply(self.smaller(row, last), self.rows.per_row)
            self.e.store("ptr", self._word(self.rows.words, distance), self.moved(self._starts, row, "ptr"))
        with self.e.loop("0", str(self.vectors)) as vector:
            self._transpose("0", vector)

    def ready(self, term: str) -> str:
        """The position on the stack of the words of the terms from ``term`` on that are decoded at once. Later words
        are transposed and prefetched."""
        word = self.divide(self.multiply(term, self.coding.bits), WORD)
        span, inside = self.divide(word, self.span), self.remainder(word, self.span)
        squares = squares_of_step(self.coding, self.vectors)
        done = self.multiply(self.divide(inside, self.coding.words), squares)
        for number in range(squares):
            self._transpose(self.add(span, 1), self.add(done, number))
        self.prefetch_next(self.rows, term)
        return self.add(self._room(span), self.subtract(word, self._first(span)))

    def _word(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, MEMORY_TYPES[dtypes.uint32])

    def _first(self, span: str) -> str:
        """The position of a span's first word in its row."""
        return self.smaller(self.multiply(span, self.span), self._last)

    def _room(self, span: str) -> str:
        """The row of the stack at which a span begins."""
        return self.multiply(self.e.assign(f"and i64 {span}, 1"), self.span)

    def _transpose(self, span: str, vector: str) -> None:
        """Transpose the words of a span, for one vector of rows."""
        e = self.e
        starts = self.moved(self._starts, self.multiply(vector, self.span), "ptr")
        lines = [e.load("ptr", self.moved(starts, row, "ptr")) for row in range(self.span)]
        to = self.pointer_to(self.words, self._room(span), vector, dtypes.uint32)
        for step, value in enumerate(square(self.L, dtypes.uint32, dtypes.uint32, lines, self._first(span), None)):
            type_ = self.L.type_of(value.dtype)
            e.store(type_, value.name, self.moved(to, step * self.vectors, type_))
