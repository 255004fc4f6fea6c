"""Products of a few rows with a transposed quantised matrix as exact sums of integers: codes are multiplied with the
digits of terms. `weft.compiler.codegen.integer_sums` has the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.integer_sums import added, zero_code
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.quantized import scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.quantized.digits import BYTES, DIGIT_SUMS, HEADER, SUM, UNIT, TermDigits
from weft.compiler.cpu.quantized.strips import QuantizedStrip, StripKernel
from weft.dtypes import Dtype


class _Group(NamedTuple):
    """What a vector of rows of the matrix has for a group: the scale, the code of zero, and the number of that code."""

    scale: Value
    zero: Value
    offset: Value


class IntegerStripKernel(StripKernel):
    """Writes the function. ``%x`` has the digits of terms, row by row."""

    def __init__(self, strip: QuantizedStrip, digits: TermDigits) -> None:
        super().__init__(strip)
        self.digits = digits
        self.scalar = Lanes(self.e, 1)
        self.integers = self.L.type_of(dtypes.int32)
        self.parts = {(*key, digit): self.e.slot(self.integers) for key in self.sums for digit in range(digits.count)}
        """Sums of a group, for each row, vector of columns and digit."""

    def block(self, start: str, term: str, depth: str) -> None:
        coding = self.coding
        size = self.e.assign("shl i64 1, %shift")
        length = self.add(self.multiply(self.divide(size, coding.terms), self.digits.words), HEADER)
        before, kept = (self.e.assign(f"lshr i64 {n}, %shift") for n in (term, self.subtract(term, start)))
        with self.e.loop("0", self.e.assign(f"lshr i64 {depth}, %shift")) as group:
            distance = self.multiply(self.add(before, group), length)
            lines = [self.moved(line, distance, "i32") for line in self.lines]
            matrix = [self._group_of_matrix(self.add(kept, group), v) for v in range(self.strip.vectors)]
            self._begin(lines, matrix)
            inside = self.multiply(group, size)
            with self.e.loop("0", size, coding.terms) as part:
                index = self.add(inside, part)
                word = self.word_of(term, index)
                behind = self.add(self.multiply(self.divide(part, coding.terms), self.digits.words), HEADER)
                if self.ahead is None:
                    self.decoder.prefetch_next(self.rows, self.add(term, index))
                self._multiply(word, [self.moved(line, behind, "i32") for line in lines])
            self._add(lines, matrix)

    def _group_of_matrix(self, group: str, vector: int) -> _Group:
        scale, bias = self.decoder.scale_at(group, vector), self.decoder.bias_at(group, vector)
        code = zero_code(self.coding, scale, bias)
        return _Group(scale, code, scaled(self.coding, code, scale, bias))

    def _begin(self, lines: Sequence[str], matrix: Sequence[_Group]) -> None:
        """Set the sums of a group to what the zero codes subtract."""
        codes = [self.L.truncate_to_integer(group.zero, dtypes.int32) for group in matrix]
        for (row, vector, digit), slot in self.parts.items():
            total = self.L.splat(-self._word(lines[row], DIGIT_SUMS + digit))
            self.e.store(self.integers, (total * codes[vector]).name, slot)

    def _multiply(self, first: str, lines: Sequence[str]) -> None:
        """Add the products of 32 terms, whose codes are in the words from ``first`` on."""
        coding, digits = self.coding, self.digits
        steps, mask = digits.field // coding.bits, (1 << coding.bits) - 1
        repeated = sum(mask << (field * digits.field) for field in range(digits.fields))
        for number in range(coding.words):
            words = self.decoder.words_at(self.add(first, number))
            for step in range(steps):
                codes = [(word >> (step * coding.bits) if step else word) & repeated for word in words]
                position = (number * steps + step) * digits.count
                for row, line in enumerate(lines):
                    for digit in range(digits.count):
                        factor = self.L.splat(self._word(line, position + digit))
                        for vector, code in enumerate(codes):
                            self._accumulate((row, vector, digit), code, factor)

    def _word(self, line: str, position: int, dtype: Dtype = dtypes.int32) -> Value:
        value: Value = load(self.scalar, dtype, Location(line, str(position), False), None)
        return value

    def _accumulate(self, key: tuple[int, int, int], codes: Value, factor: Value) -> None:
        """Add the products of codes in the fields of words with digits."""
        slot, type_ = self.parts[key], self.integers
        before = self.e.load(type_, slot)
        if self.digits == BYTES:
            function = f"llvm.x86.avx512.vpdpbusd.{8 * self.coding.vector_bytes}"
            arguments = [(type_, before), (type_, codes.name), (type_, factor.name)]
            self.e.store(type_, self.e.call(function, type_, arguments), slot)
            return
        total = Value(self.L, before, dtypes.int32) + self._sum_of_pairs(codes, factor)
        self.e.store(type_, total.name, slot)

    def _sum_of_pairs(self, codes: Value, factor: Value) -> Value:
        """Sums of two products, in a form that LLVM recognises as one instruction."""
        halves = Lanes(self.e, 2 * self.L.width)
        narrow, wide = (halves.type_of(dtype) for dtype in (dtypes.int16, dtypes.int32))
        both = []
        for one in (codes, factor):
            cut = self.e.assign(f"bitcast {self.integers} {one.name} to {narrow}")
            both.append(Value(halves, self.e.assign(f"sext {narrow} {cut} to {wide}"), dtypes.int32))
        products = both[0] * both[1]
        even, odd = (self._every_second(products, first, wide) for first in (0, 1))
        return even + odd

    def _every_second(self, x: Value, first: int, type_: str) -> Value:
        mask = ", ".join(f"i32 {index}" for index in range(first, 2 * self.L.width, 2))
        text = f"shufflevector {type_} {x.name}, {type_} poison, <{self.L.width} x i32> <{mask}>"
        return Value(self.L, self.e.assign(text), dtypes.int32)

    def _add(self, lines: Sequence[str], matrix: Sequence[_Group]) -> None:
        """Add the sums of a group to those of the block."""
        L = self.L
        for vector, found in enumerate(matrix):
            factors = found.scale, found.offset
            for row, line in enumerate(lines):
                unit, total = (L.splat(self._word(line, word, dtypes.float32)) for word in (UNIT, SUM))
                slot = self.sums[row, vector]
                before = Value(L, self.e.load(self.type, slot), dtypes.float32)
                self.e.store(self.type, added(before, (self._whole(row, vector), total), factors, unit).name, slot)

    def _whole(self, row: int, vector: int) -> Value:
        """The sums of all digits together, rounded once to float32."""
        L, bits = self.L, self.digits.bits
        slots = [self.parts[row, vector, digit] for digit in range(self.digits.count)]
        low, middle, *high = [Value(L, self.e.load(self.integers, slot), dtypes.int32) for slot in slots]
        if high:
            # Two parts of at most 24 bits are exact as float32.
            lower = (middle << bits) + low
            upper, rest = high[0] + (lower >> 2 * bits), lower & ((1 << 2 * bits) - 1)
            return L.fma(L.convert(upper, dtypes.float32), float(1 << 2 * bits), L.convert(rest, dtypes.float32))
        upper, rest = L.convert(middle, dtypes.float64), L.convert(low, dtypes.float64)
        return L.convert(L.fma(upper, float(1 << bits), rest), dtypes.float32)
