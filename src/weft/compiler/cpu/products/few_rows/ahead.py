"""Prefetches of columns of a matrix, whose terms are neighbours in memory: see `kernel`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, opaque, prefetch
from weft.compiler.cpu.overlapping import Instructions
from weft.compiler.cpu.products.step import further
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

from .strip import SHORT_COLUMN, Strip

LINES_AHEAD = 4
"""How many cache lines ahead a column of the matrix is prefetched, into the second cache: often the lines of all
columns are in one set of the first cache, which does not hold so many. A matrix in a cache is read faster without."""


class ColumnsAhead:
    """Prefetches terms of the same columns or, if these end soon, of the columns of the next strip."""

    def __init__(self, e: Emitter, strip: Strip, source: Dtype, vectors: int) -> None:
        self.e, self.element = e, MEMORY_TYPES[source]
        next_strip = e.assign(f"mul i64 %b_step, {vectors * strip.lanes * source.size}")
        end = f"%b_step, {SHORT_COLUMN // source.size}" if strip.is_short else f"%inner, {DEPTH}"
        ends = e.assign(f"icmp slt i64 {end}")
        self.distance = e.assign(f"select i1 {ends}, i64 {next_strip}, i64 {LINES_AHEAD * CACHE_LINE}")
        """In bytes."""

    def read(self, columns: Sequence[str], term: str) -> None:
        """Prefetch for all columns what will follow a term."""
        for column in columns:
            prefetch(self.e, self._place(column, term))

    def in_turns(self, columns: Sequence[str], term: str, terms: int) -> Instructions:
        """The same for columns that are evenly apart and read by ``terms``, in half a cache line: every other time the
        lines of half of the columns, and then those of the others."""
        e, half = self.e, len(columns) // 2
        is_odd = e.assign(f"icmp ne i64 {e.assign(f'and i64 {term}, {terms}')}, 0")
        first = opaque(e, self._place(e.assign(f"select i1 {is_odd}, ptr {columns[half]}, ptr {columns[0]}"), term))
        apart = [e.assign(f"mul i64 %b_step, {number}") for number in range(half)]
        return [partial(prefetch, e, further(e, self.element, first, step), READ_SOON) for step in apart]

    def _place(self, column: str, term: str) -> str:
        return further(self.e, "i8", further(self.e, self.element, column, term), self.distance)
