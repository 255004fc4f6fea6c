"""Decodes a quantised matrix whose rows are terms of sums: lanes are neighbours in a row of the matrix."""

from __future__ import annotations

from collections.abc import Iterator

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.quantized import scale, scale_image, scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.products.step import read
from weft.compiler.cpu.quantized.codes import VectorCoding, number
from weft.primitives.quantized_formats import WORD


class Along(Integers):
    """Writes code that goes along a row of a matrix."""

    def __init__(self, coding: VectorCoding, w: Integers) -> None:
        super().__init__(w.e)
        self.coding = coding
        self.L, self.scalar = Lanes(self.e, coding.lanes), Lanes(self.e, 1)
        self.vectors = coding.terms // self.L.width

    def scale(self, scales: str, group: str) -> Value:
        """A scale, or a bias, repeated in all lanes."""
        coding = self.coding
        image = read(self.scalar, coding.scales, scales, group, None, scale_image(coding))
        value: Value = self.L.splat(scale(coding, image))
        return value

    def numbers(self, words: str, factor: Value, offset: Value | None) -> Iterator[tuple[int, Value]]:
        """The decoded numbers of the words at an address, one vector at a time, each with the position of its first
        number."""
        coding, L = self.coding, self.L
        type_ = f"<{coding.words} x i32>" if coding.words > 1 else "i32"
        whole = self.e.assign(f"load {type_}, ptr {words}, align {MEMORY_SIZE}")
        for vector in range(self.vectors):
            first = vector * L.width
            code = self._codes(whole, type_, range(first, first + L.width))
            yield first, scaled(coding, number(coding, code), factor, offset)

    def _codes(self, whole: str, type_: str, indices: range) -> Value:
        """Codes in the lowest bits of lanes; the bits above them are undefined."""
        coding, L = self.coding, self.L
        starts = [index * coding.bits for index in indices]
        words, shifts = [start // WORD for start in starts], [start % WORD for start in starts]
        low = self._spread(whole, type_, words)
        by = Value(L, f"<{', '.join(f'i32 {shift}' for shift in shifts)}>", dtypes.uint32)
        if all(shift + coding.bits <= WORD for shift in shifts):
            return low >> by
        # Bits from after the last word are masked out later.
        high = self._spread(whole, type_, [min(word + 1, coding.words - 1) for word in words])
        return L.intrinsic("fshr", high, low, by)

    def _spread(self, whole: str, type_: str, words: list[int]) -> Value:
        """The words that the lanes need, one in each lane."""
        if type_ == "i32":
            value: Value = self.L.splat(Value(self.scalar, whole, dtypes.uint32))
            return value
        mask = ", ".join(f"i32 {word}" for word in words)
        text = f"shufflevector {type_} {whole}, {type_} poison, <{self.L.width} x i32> <{mask}>"
        return Value(self.L, self.e.assign(text), dtypes.uint32)


MEMORY_SIZE = WORD // 8
"""Bytes of a word."""
