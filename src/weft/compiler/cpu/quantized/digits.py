"""Terms of products with quantised matrices as integers, split into digits for the processor's instructions.

A step makes them once for all strips of a product; `weft.compiler.codegen.integer_sums` has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import prod
from operator import or_

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.integer_sums import exponent, in_units, is_finite, size, unit
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.codegen.quantized import Coding
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, read
from weft.primitives.quantized_formats import WORD, QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep

HEADER = 5
"""Words before the digits of a group: its unit, the sum of its terms as float32, and the sum of each digit."""
UNIT, SUM, DIGIT_SUMS = 0, 1, 2
_TERMS = WORD
"""How many terms are split together."""
_TERMS_PER_GRAIN = 1 << 13

# The numbers of the step: slots and byte offsets of the terms and of the digits; how many terms a group has.
_X, _DIGITS, _SIZE = 0, 2, 4


@dataclass(frozen=True)
class TermDigits:
    """Terms are split into ``count`` digits of ``bits`` bits with signs. As many codes as a word has *fields* are
    multiplied with digits at once. The digits of 32 terms are stored in the order of words, codes of a field, digits,
    fields."""

    field: int
    bits: int
    count: int

    @property
    def fields(self) -> int:
        return WORD // self.field

    @property
    def words(self) -> int:
        """How many words the digits of 32 terms take."""
        return _TERMS * self.count * self.field // WORD

    def group_words(self, group_size: int) -> int:
        return HEADER + group_size // _TERMS * self.words


BYTES, PAIRS = TermDigits(8, 8, 3), TermDigits(16, 12, 2)


def digits_of_processor() -> TermDigits:
    """Bytes if an instruction multiplies four and adds up the products, else pairs of 16 bits: nearly all processors
    have an instruction for these."""
    features = host.current().features.split(",")
    return BYTES if "+avx512vnni" in features else PAIRS


def scratch_bytes(digits: TermDigits, kind: QuantizedFormat, terms: int) -> int:
    """How much memory the digits of this many terms take."""
    return terms // kind.group_size * digits.group_words(kind.group_size) * WORD // 8


def step(call: RoutineCall, kind: QuantizedFormat, coding: Coding, digits: TermDigits) -> RoutineStep:
    """The step that splits the terms of a product into scratch memory; a unit is a group."""
    x, terms = call.operands[0], prod(call.operands[0].shape)
    numbers = [x.slot, x.offset, *call.scratch, kind.group_size]
    grain = max(1, _TERMS_PER_GRAIN // kind.group_size)
    return RoutineStep(_address(coding, digits), numbers, terms // kind.group_size, grain, terms)


@cache
def _address(coding: Coding, digits: TermDigits) -> int:
    name = "digits_of_terms"
    return loading.load(f"{name} {coding} {digits}", lambda: generate(coding, digits, name), (name,))[name]


def generate(coding: Coding, digits: TermDigits, name: str) -> str:
    """The LLVM IR of the step."""
    emitter, text = _DigitsWriter(coding, digits).function(name)
    return module([emitter], [text])


class _DigitsWriter(Integers):
    """Writes the step."""

    def __init__(self, coding: Coding, digits: TermDigits) -> None:
        super().__init__(Emitter())
        self.coding, self.digits = coding, digits
        self.L, self.scalar = Lanes(self.e, _TERMS), Lanes(self.e, 1)

    def function(self, name: str) -> EmittedFunction:
        count = self.number(_SIZE)
        blocks = self.divide(count, _TERMS)
        words = self.add(self.multiply(blocks, self.digits.words), HEADER)
        with self.e.loop("%begin", "%end") as number:
            terms = self.moved(self.memory(_X), self.multiply(number, count), "float")
            group = self.moved(self.memory(_DIGITS), self.multiply(number, words), "i32")
            self._group(terms, group, count)
        return self.e, self.e.function(name, STEP)

    def _group(self, terms: str, group: str, count: str) -> None:
        largest = Value(self.scalar, self._folded(terms, count), dtypes.uint32)
        shared, finite = exponent(largest), is_finite(largest)
        type_ = self.L.type_of(dtypes.int32)
        slots = [self.e.slot(type_) for _ in range(self.digits.count + 1)]
        for slot in slots:
            self.e.store(type_, "zeroinitializer", slot)
        with self.e.loop("0", count, _TERMS) as start:
            x = in_units(read(self.L, dtypes.float32, terms, start), self.L.splat(shared), self.L.splat(finite))
            digits = self._digits(self._by_fields(x))
            for slot, value in zip(slots, (x, *digits), strict=True):
                total = Value(self.L, self.e.load(type_, slot), dtypes.int32) + value
                self.e.store(type_, total.name, slot)
            behind = self.add(self.multiply(self.divide(start, _TERMS), self.digits.words), HEADER)
            self._store([self._packed(digit) for digit in digits], self.moved(group, behind, "i32"))
        total, *sums = [self._sum(slot) for slot in slots]
        self._put(unit(shared, finite), group, UNIT)
        self._put(self.scalar.convert(total, dtypes.float32), group, SUM)
        for number, one in enumerate(sums):
            self._put(one, group, DIGIT_SUMS + number)

    def _sum(self, slot: str) -> Value:
        type_ = self.L.type_of(dtypes.int32)
        name = self.e.call(f"llvm.vector.reduce.add.v{_TERMS}i32", "i32", [(type_, self.e.load(type_, slot))])
        return Value(self.scalar, name, dtypes.int32)

    def _put(self, value: Value, group: str, word: int) -> None:
        type_ = MEMORY_TYPES[value.dtype]
        self.e.emit(f"store {type_} {value.name}, ptr {self.moved(group, word, 'i32')}, align {WORD // 8}")

    def _folded(self, terms: str, count: str) -> str:
        """The largest size of the terms of a group."""
        type_ = self.L.type_of(dtypes.uint32)
        largest = self.e.slot(type_)
        self.e.store(type_, "zeroinitializer", largest)
        with self.e.loop("0", count, _TERMS) as start:
            sizes = size(read(self.L, dtypes.float32, terms, start))
            before = Value(self.L, self.e.load(type_, largest), dtypes.uint32)
            self.e.store(type_, self.L.intrinsic("umax", sizes, before).name, largest)
        return self.e.call(f"llvm.vector.reduce.umax.v{_TERMS}i32", "i32", [(type_, self.e.load(type_, largest))])

    def _digits(self, x: Value) -> list[Value]:
        """The digits of terms, the lowest first."""
        unused, found = WORD - self.digits.bits, []
        for _ in range(self.digits.count):
            found.append((x << unused) >> unused)
            x = (x - found[-1]) >> self.digits.bits
        return found

    def _by_fields(self, x: Value) -> Value:
        """Terms in the order of fields, words, codes of a field."""
        codes, fields = WORD // self.coding.bits, self.digits.fields
        per_field = codes // fields
        order = [
            word * codes + field * per_field + step
            for field in range(fields)
            for word in range(self.coding.bits)
            for step in range(per_field)
        ]
        return Value(self.L, self._shuffled(_TERMS, x.name, x.name, order), x.dtype)

    def _packed(self, digit: Value) -> Value:
        """A digit of 32 terms, which are in the order of fields, in the fields of words."""
        digits, width = self.digits, _TERMS // self.digits.fields
        shifts = ", ".join(f"i32 {lane // width * digits.field}" for lane in range(_TERMS))
        placed = (digit & ((1 << digits.field) - 1)) << Value(self.L, f"<{shifts}>", digit.dtype)
        some = Lanes(self.e, width)
        starts = range(0, _TERMS, width)
        parts = [self._shuffled(_TERMS, placed.name, placed.name, range(start, start + width)) for start in starts]
        return reduce(or_, [Value(some, part, digit.dtype) for part in parts])

    def _store(self, packed: list[Value], to: str) -> None:
        """Store vectors, the first elements of all of them first, then the second ones."""
        count, width = len(packed), packed[0].lanes.width
        first, *others = [value.name for value in packed]
        pair = self._shuffled(width, first, others[0], range(2 * width))
        last = self._shuffled(width, others[-1], others[-1], range(2 * width))
        order = [digit * width + index for index in range(width) for digit in range(count)]
        name = self._shuffled(2 * width, pair, last, order)
        self.e.emit(f"store <{len(order)} x i32> {name}, ptr {to}, align {WORD // 8}")

    def _shuffled(self, width: int, left: str, right: str, indices: Sequence[int]) -> str:
        type_, mask = f"<{width} x i32>", ", ".join(f"i32 {index}" for index in indices)
        return self.e.assign(f"shufflevector {type_} {left}, {type_} {right}, <{len(indices)} x i32> <{mask}>")
