"""Kernels of products of few rows that add several blocks of terms at the same time, with columns whose terms are
neighbours in memory: see `kernel`."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.codegen.memory import MEMORY_TYPES, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.products.step import further
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

from .kernel import FewRowsKernel
from .strip import Strip


class BlocksKernel(FewRowsKernel):
    """Multiplies whole blocks of terms with a strip that is a vector, all at the same time: the additions of one block
    do not wait for those of another."""

    def __init__(self, strip: Strip, source: Dtype, result: Dtype) -> None:
        super().__init__(strip, source, 1, False, result, strip.blocks)

    def _sum_across(self, starts: Sequence[str]) -> None:
        pointers = [self._further("%b", self._times(column, "%b_step")) for column in range(self.strip.lanes)]
        self._sum_squares(starts, pointers, str(DEPTH))

    def _store(self) -> None:
        e, L, dtype = self.e, self.L, self.strip.dtype
        for row in range(self.strip.rows):
            with e.when(e.assign(f"icmp slt i64 {row}, %rows")):
                start = further(e, MEMORY_TYPES[self.result], "%c", self._times(row, "%c_row"))
                location, total = self._location(start, 0), self.sums[row, 0, 0]
                with e.when("%again"):
                    before = load(L, dtype, location, None) + Value(L, e.load(self.type, total), dtype)
                    e.store(self.type, before.name, total)
                value = Value(L, e.load(self.type, total), dtype)
                for block in range(1, self.strip.blocks):
                    value = value + Value(L, e.load(self.type, self.sums[row, block, 0]), dtype)
                store(L, value, dtype, location, None)


class StaggeredKernel(FewRowsKernel):
    """Multiplies at least two blocks of terms, all of them whole, with a strip of two vectors of columns: each block
    with the first vector, and at the same time the one before with the second, at first the last one. What that gives
    is added at the end, as the order of blocks wants it."""

    def __init__(self, strip: Strip, source: Dtype, result: Dtype) -> None:
        super().__init__(strip, source, 2, False, result)
        self.overlaps = False
        self.totals = {key: self.e.slot(self.type) for key in self.sums}
        self.last = [self.e.slot(self.type) for _ in range(strip.rows)]

    def _sum_across(self, starts: Sequence[str]) -> None:
        e, pointers = self.e, [self._further("%b", self._times(n, "%b_step")) for n in range(self.strip.columns)]
        to_last = e.assign(f"sub i64 %inner, {DEPTH}")
        with e.loop("0", "%inner", DEPTH) as block:
            is_first, is_second = [e.assign(f"icmp eq i64 {block}, {number}") for number in (0, DEPTH)]
            to_second = e.assign(f"select i1 {is_first}, i64 {to_last}, i64 {-DEPTH}")
            end = e.assign(f"add i64 {block}, {DEPTH}")
            with e.loop(block, end, self._terms_of_square()) as term:
                second = e.assign(f"add i64 {term}, {to_second}")
                terms = {(0, 0): term, (0, 1): second}
                if self._has_float16_squares():
                    self._add_float16(starts, pointers, terms)
                else:
                    self._add_halves(starts, pointers, terms, [])
            for row in range(self.strip.rows):
                with e.when(is_first):
                    e.store(self.type, e.load(self.type, self.sums[row, 0, 1]), self.last[row])
                self._add_up(self.totals[row, 0, 0], self.sums[row, 0, 0], is_first)
                self._add_up(self.totals[row, 0, 1], self.sums[row, 0, 1], is_second)
            for slot in self.sums.values():
                e.store(self.type, self.L.constant(0.0, self.strip.dtype).name, slot)
        for row, last in enumerate(self.last):
            self._add_up(self.totals[row, 0, 1], last, "false")
        self.sums = self.totals

    def _add_up(self, total: str, sums: str, begins: str) -> None:
        """Add sums of a block to a total, which ``begins`` with them or not."""
        L, dtype = self.L, self.strip.dtype
        before, block = [Value(L, self.e.load(self.type, slot), dtype) for slot in (total, sums)]
        name = self.e.assign(f"select i1 {begins}, {self.type} {block.name}, {self.type} {(before + block).name}")
        self.e.store(self.type, name, total)
