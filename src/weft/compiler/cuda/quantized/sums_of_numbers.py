"""Chains of products with the numbers that codes stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.quantized import scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.quantized.codes import number_at
from weft.compiler.cuda.quantized.strip_code import StripWriter, TermsInLine
from weft.compiler.cuda.quantized.strips import QuantizedWarpStrip
from weft.compiler.cuda.schedule import WIDEST_ACCESS


class SumsOfNumbers(StripWriter):
    """Writes a kernel that makes a number of each code, and adds its products with the terms one after the other."""

    def __init__(self, strip: QuantizedWarpStrip) -> None:
        super().__init__(strip, WIDEST_ACCESS // strip.coding.dtype.size)
        self.quad = Lanes(self.e, self.together)

    def put_terms(self, found: Sequence[list[Value]], places: Sequence[TermsInLine]) -> None:
        for terms, (_, line, inside) in zip(found, places, strict=True):
            start = self.moved(self.terms, self.wide(self.word("mul", line, self.strip.line_bytes)))
            value = self.joined(self.quad, terms)
            store(self.quad, value, self.coding.dtype, Location(start, self.wide(inside), False, WIDEST_ACCESS), None)

    def factors(self, values: Sequence[Value]) -> Sequence[Value]:
        return values

    def add_up(self, words: str, terms: str, count: str) -> None:
        coding = self.coding
        with self.e.loop("0", self.divide(count, coding.terms)) as part:
            found = self.words_at(self.moved(words, self.multiply(part, coding.words), "i32"), coding.words)
            group = self.divide(part, self.strip.group_size // coding.terms)
            factor, offset = self.factor(group), self.factor(group, 1) if coding.affine else None
            numbers = (
                scaled(coding, number_at(coding, found, term * coding.bits), factor, offset)
                for term in range(coding.terms)
            )
            self._add(self.moved(terms, self.multiply(part, coding.terms), self.element), numbers)

    def _add(self, terms: str, numbers: Iterable[Value]) -> None:
        """Add the products of some terms to the sums of all rows."""
        dtype, count = self.coding.dtype, self.quad.width
        lines, quads = self.rows_of(terms), list[Value]()
        for term, number in enumerate(numbers):
            if term % count == 0:
                places = [Location(line, str(term), False, WIDEST_ACCESS) for line in lines]
                quads = [load(self.quad, dtype, place, None) for place in places]
            for quad, total in zip(quads, self.totals, strict=True):
                left = Value(self.L, self.part(self.quad, quad, term % count), dtype)
                before = Value(self.L, self.e.load(self.element, total), dtype)
                self.e.store(self.element, self.L.fma(left, number, before).name, total)
