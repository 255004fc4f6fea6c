"""Chains of products as exact sums of integers (`weft.compiler.codegen.integer_sums`).

The terms of the left operand become integers while they are handed on: three bytes each, the *digits*, of which the
highest has a sign. Four neighbouring bytes of a word in shared memory are the same digit of four terms, whose codes are
at the same bits of the four bytes of a word of the matrix. So one instruction adds four products of codes and digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import gcd
from operator import add

from weft import dtypes
from weft.compiler.codegen import integer_sums
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.quantized import scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.quantized.codes import halves, offset_of, rounded_sum, signed_bytes
from weft.compiler.cuda.quantized.strip_code import StripWriter, TermsInLine
from weft.compiler.cuda.quantized.strips import DIGITS, SHARED_BYTES, UNIT_BYTES, QuantizedWarpStrip
from weft.compiler.cuda.schedule import WIDEST_ACCESS
from weft.primitives.quantized_formats import WORD

_BYTES = 4
"""How many bytes a word has, and how many products one instruction adds."""
_LEAST_TOGETHER = 8
"""The least number of terms that a thread hands on: as many of half precision are read at once."""
_WARPS = 16
"""For how many warps the registers of a multiprocessor are enough, if its shared memory is."""
_MULTIPROCESSOR_BYTES = 2 * SHARED_BYTES
_WORDS_TOGETHER = WIDEST_ACCESS // _BYTES
_PAIRS, _LOWER, _UPPER, _THIRD = 0x5140, 0x5410, 0x7632, 0x0062
"""Which bytes of two words a permutation takes: the two lower ones of each in turns, the lower or upper halves, the
third ones."""


class SumsOfIntegers(StripWriter):
    """Writes a kernel that makes integers of the terms, and adds their products with the codes."""

    def __init__(self, strip: QuantizedWarpStrip) -> None:
        blocks = max(1, min(_WARPS // strip.warps, _MULTIPROCESSOR_BYTES // strip.shared))
        super().__init__(strip, max(_LEAST_TOGETHER, WORD // strip.coding.bits), blocks)
        self.of_byte = WORD // _BYTES // strip.coding.bits
        """How many codes a byte holds."""
        self.word_terms = _BYTES * self.of_byte
        self.four = Lanes(self.e, _WORDS_TOGETHER)
        self.threads_of_group = strip.group_size // self.together

    def factors(self, values: Sequence[Value]) -> Sequence[Value]:
        scale, bias = values
        zero = integer_sums.zero_code(self.coding, scale, bias)
        offset = self.L.bitcast(offset_of(zero, self.coding.bits), dtypes.float32)
        return scale, scaled(self.coding, zero, scale, bias), offset

    def put_terms(self, found: Sequence[list[Value]], places: Sequence[TermsInLine]) -> None:
        """Store the digits of terms, and the unit and sum of each group."""
        largest = self._of_groups(
            [reduce(self.L.maximum, [integer_sums.size(x) for x in terms]) for terms in found], self.L.maximum
        )
        exponents = [integer_sums.exponent(one) for one in largest]
        whole = [self._in_units(terms, one) for terms, one in zip(found, exponents, strict=True)]
        sums = self._of_groups([reduce(add, terms) for terms in whole], add)
        units = [
            integer_sums.unit(exponent, integer_sums.is_finite(one))
            for exponent, one in zip(exponents, largest, strict=True)
        ]
        for terms, unit, total, place in zip(whole, units, sums, places, strict=True):
            exists = self.word("icmp ult", place.line, self.strip.lines) if self.lines_may_lack else "true"
            with self.e.when(exists):
                line = self.moved(self.terms, self.wide(self.word("mul", place.line, self.strip.line_bytes)))
                self._put_digits(terms, self.moved(line, self.wide(self.word("mul", place.inside, DIGITS))))
                self._put_unit(unit, total, line, place.inside)

    def _of_groups(self, values: Sequence[Value], merge: Callable[[Value, Value], Value]) -> Sequence[Value]:
        """Values of threads merged with those of all threads that have terms of the same group. Values do not wait for
        each other."""
        distance = self.threads_of_group // 2
        while distance:
            source = self.word("xor", self.lane, distance)
            others = [Value(self.L, self.taken(value.name, source), value.dtype) for value in values]
            values = [merge(*pair) for pair in zip(values, others, strict=True)]
            distance //= 2
        return values

    def _in_units(self, terms: Sequence[Value], exponent: Value) -> list[Value]:
        """As `integer_sums.in_units`, for finite terms, with one conversion. Others may become any integers: the unit
        of their group is NaN."""
        factor = integer_sums.inverse_of_unit(exponent)
        names = [self.e.call("llvm.nvvm.f2i.rn", "i32", [("float", (x * factor).name)]) for x in terms]
        return [Value(self.L, name, dtypes.int32) for name in names]

    def _put_digits(self, terms: Sequence[Value], target: str) -> None:
        """Store digits in the order in which chains need them: for each word of the matrix, for each code of a byte,
        the digits of four terms."""
        found: list[Value] = []
        for first in range(0, len(terms), self.word_terms):
            for number in range(self.of_byte):
                found += self._digits(terms[first + number : first + self.word_terms : self.of_byte])
        some = Lanes(self.e, gcd(len(found), _WORDS_TOGETHER))
        for start in range(0, len(found), some.width):
            location = Location(target, str(start), False, some.width * _BYTES)
            store(some, self.joined(some, found[start : start + some.width]), dtypes.uint32, location, None)

    def _digits(self, terms: Sequence[Value]) -> list[Value]:
        """The digits of four terms: words of the lowest ones, of the middle ones, of the highest ones."""
        first, second = (self._permuted(_PAIRS, *terms[start : start + 2]) for start in (0, 2))
        highest = [self._permuted(_THIRD, *terms[start : start + 2]) for start in (0, 2)]
        return [
            self._permuted(_LOWER, first, second),
            self._permuted(_UPPER, first, second),
            self._permuted(_LOWER, *highest),
        ]

    def _permuted(self, selector: int, left: Value, right: Value) -> Value:
        arguments = [("i32", left.name), ("i32", right.name), ("i32", str(selector))]
        return Value(self.L, self.e.call("llvm.nvvm.prmt", "i32", arguments), dtypes.uint32)

    def _put_unit(self, unit: Value, total: Value, line: str, inside: str) -> None:
        """Let one thread store the unit and the sum of a group: the sum rounded, and its halves."""
        number = self.word("and", self.lane, self.threads_of_group - 1)
        with self.e.when(self.word("icmp eq", number, 0)):
            group = self.wide(self.word("udiv", inside, self.strip.group_size))
            units = self.moved(line, self.add(self.multiply(group, UNIT_BYTES), self.strip.units_at))
            whole = [unit, self.L.convert(total, dtypes.float32), *halves(total)]
            words = self.joined(self.four, [self.L.bitcast(one, dtypes.uint32) for one in whole])
            store(self.four, words, dtypes.uint32, Location(units, "0", False, UNIT_BYTES), None)

    def add_up(self, words: str, terms: str, count: str) -> None:
        strip, size = self.strip, self.strip.group_size
        group_words = size * self.coding.bits // WORD
        with self.e.loop("0", self.divide(count, size)) as group:
            found = self.words_at(self.moved(words, self.multiply(group, group_words), "i32"), group_words)
            sums = self._sums(found, self.rows_of(self.moved(terms, self.multiply(group, size * DIGITS))))
            units = self.rows_of(self.moved(terms, self.add(self.multiply(group, UNIT_BYTES), strip.units_at)))
            factors, offset = (self.factor(group), self.factor(group, 1)), self.factor(group, 2)
            offset = self.L.bitcast(offset, dtypes.int32)
            for total, of_digits, place in zip(self.totals, sums, units, strict=True):
                unit, rounded, high, low = self._unit(place)
                before = Value(self.L, self.e.load(self.element, total), dtypes.float32)
                of_codes = rounded_sum(of_digits, (high, low), offset, self.coding.bits)
                after = integer_sums.added(before, (of_codes, rounded), factors, unit)
                self.e.store(self.element, after.name, total)

    def _unit(self, place: str) -> list[Value]:
        """What `_put_unit` stored."""
        words = load(self.four, dtypes.uint32, Location(place, "0", False, UNIT_BYTES), None)
        kinds = (dtypes.float32, dtypes.float32, dtypes.int32, dtypes.int32)
        parts = [Value(self.L, self.part(self.four, words, number), dtypes.uint32) for number in range(len(kinds))]
        return [self.L.bitcast(part, kind) for part, kind in zip(parts, kinds, strict=True)]

    def _sums(self, words: Sequence[Value], lines: Sequence[str]) -> list[list[Value]]:
        """For each row, the sums of the codes in some words times each digit of its terms."""
        zero = self.L.constant(0, dtypes.int32)
        sums, loaded = [[zero] * DIGITS for _ in lines], [zero] * len(lines)
        codes = (four for word in words for four in signed_bytes(word, self.coding.bits))
        for position, four in enumerate(codes):
            for digit in range(DIGITS):
                index, part = divmod(position * DIGITS + digit, _WORDS_TOGETHER)
                for row, line in enumerate(lines):
                    if part == 0:
                        location = Location(line, str(index * _WORDS_TOGETHER), False, WIDEST_ACCESS)
                        loaded[row] = load(self.four, dtypes.uint32, location, None)
                    sums[row][digit] = self._dot(four, self.part(self.four, loaded[row], part), digit, sums[row][digit])
        return sums

    def _dot(self, codes: Value, digits: str, digit: int, total: Value) -> Value:
        """``total`` plus the products of four codes with digits, of which the highest have signs."""
        name = "llvm.nvvm.idp4a.s." + ("s" if digit == DIGITS - 1 else "u")
        arguments = [("i32", codes.name), ("i32", digits), ("i32", total.name)]
        return Value(self.L, self.e.call(name, "i32", arguments), dtypes.int32)
