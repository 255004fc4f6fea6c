"""Vectors of words that fill a register, for processors that can move chosen lanes of a vector to its front.

AVX-512 has an instruction for it. AVX2 can put the lanes of a vector in any order; a table has the order for each mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft import dtypes
from weft.compiler.codegen import host, keys
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Code, read, write
from weft.dtypes import Dtype

_COMPRESSING = {1: "+avx512vbmi2", 2: "+avx512vbmi2", 4: "+avx512f", 8: "+avx512f"}
"""The feature of processors that have the instruction, for each size of words."""
MOST_LANES = 32
"""The most lanes of a vector: masks are made by shifting 64 bits by less than 64."""


def vector_bytes(size: int) -> int:
    """The bytes of a vector of words of ``size`` bytes; 0 if this processor cannot move lanes to the front."""
    features = host.current().features.split(",")
    if size in _COMPRESSING and _COMPRESSING[size] in features:
        return min(64, MOST_LANES * size)
    return 32 if size in (4, 8) and "+avx2" in features else 0


def is_fast(size: int) -> bool:
    """Whether words of ``size`` bytes are sorted with vectors. Single bytes are sorted by counting instead."""
    return size > 1 and vector_bytes(size) > 0


class Vectors:
    """Vectors of words, each of which fits a register."""

    def __init__(self, code: Code, size: int) -> None:
        self.code, self.e = code, code.e
        self.dtype: Dtype = dtypes.UNSIGNED[size]
        self.bytes = vector_bytes(size)
        self.L = Lanes(code.e, self.bytes // size)
        self.type = self.L.type_of(self.dtype)
        self.element = f"i{8 * size}"
        self.by_table = size in (4, 8) and self.bytes == 32

    @property
    def width(self) -> int:
        return self.L.width

    def value(self, name: str) -> Value:
        return Value(self.L, name, self.dtype)

    def load(self, pointer: str, index: str | int, mask: str | None = None) -> Value:
        return read(self.L, self.dtype, pointer, index, mask)

    def store(self, value: Value, pointer: str, index: str | int, mask: str | None = None) -> None:
        write(self.L, value, pointer, index, mask)

    def below(self, count: str) -> Value:
        """The mask of the first ``count`` lanes, or of all."""
        return self.code.below(self.L, count)

    def each(self, count: str, body: Callable[[str, Value | None], None], first: str = "0") -> None:
        """Call ``body(start, inside)`` for each vector of the elements from ``first`` to ``count``. ``inside`` is None,
        or the mask of the last elements if they do not fill a vector."""
        whole = self.e.assign(f"and i64 {count}, {-self.width}")
        with self.e.loop(first, whole, self.width) as start:
            body(start, None)
        rest = self.code.subtract(count, whole)
        with self.e.when(self.code.compare("ne", rest, 0)):
            body(whole, self.below(rest))

    def shuffled(self, first: Value, second: Value, lanes: Sequence[int]) -> Value:
        """Chosen lanes of two vectors; from ``width`` on, numbers are lanes of the second one."""
        type_ = self.L.type_of(first.dtype)
        chosen = ", ".join(f"i32 {lane}" for lane in lanes)
        text = f"shufflevector {type_} {first.name}, {type_} {second.name}, <{self.width} x i32> <{chosen}>"
        return Value(self.L, self.e.assign(text), first.dtype)

    def together(self, value: Value, mask: Value) -> Value:
        """The lanes of ``mask``, moved to the front."""
        if self.by_table:
            return self._together_by_table(value, mask)
        function = f"llvm.experimental.vector.compress.v{self.width}{self.element}"
        masks = self.L.type_of(dtypes.bool_)
        arguments = [(self.type, value.name), (masks, mask.name), (self.type, "poison")]
        return self.value(self.e.call(function, self.type, arguments))

    def _together_by_table(self, value: Value, mask: Value) -> Value:
        table = f"@together_{self.width}"
        if table not in self.e.declarations:
            orders = [_order(bits, self.width) for bits in range(1 << self.width)]
            rows = ", ".join([f"<8 x i32> <{', '.join([f'i32 {part}' for part in order])}>" for order in orders])
            self.e.declarations[table] = f"{table} = private constant [{len(orders)} x <8 x i32>] [{rows}]"
        bits = self.e.assign(f"bitcast {self.L.type_of(dtypes.bool_)} {mask.name} to i{self.width}")
        entry = self.code.moved(table, self.e.assign(f"zext i{self.width} {bits} to i64"), "<8 x i32>")
        order = self.e.load("<8 x i32>", entry)
        parts = self.e.assign(f"bitcast {self.type} {value.name} to <8 x i32>")
        moved = self.e.call("llvm.x86.avx2.permd", "<8 x i32>", [("<8 x i32>", parts), ("<8 x i32>", order)])
        return self.value(self.e.assign(f"bitcast <8 x i32> {moved} to {self.type}"))

    def in_order(self, left: Value, right: Value) -> tuple[Value, Value]:
        if left.dtype.is_floating:
            return self.L.select(left < right, left, right), self.L.select(left > right, left, right)
        if left.dtype.size == 8 and self.bytes == 64:  # with AVX-512 two exclusive ors take less time than a maximum
            low = self.L.intrinsic("umin", left, right)
            return low, left ^ right ^ low
        sign = "s" if left.dtype.is_signed else "u"
        return self.L.intrinsic(f"{sign}min", left, right), self.L.intrinsic(f"{sign}max", left, right)

    def comparable(self, value: Value) -> Value:
        """A form of words that `in_order` compares faster; applied again, the words. AVX2 compares 64 bits as signed
        numbers."""
        if self.bytes != 32 or self.dtype is not dtypes.uint64:
            return value
        other = dtypes.uint64 if value.dtype.is_signed else dtypes.int64
        return Value(self.L, (Value(self.L, value.name, dtypes.uint64) ^ (1 << 63)).name, other)


class NumberVectors(Vectors):
    """Vectors of keys of float64, which `comparable` makes numbers, because instructions for these are faster.

    Some keys change: that of NaN becomes that of infinity, and those of -0 and 0 may be exchanged. These elements are
    put in place afterwards.
    """

    def __init__(self, code: Code) -> None:
        super().__init__(code, dtypes.float64.size)

    def comparable(self, value: Value) -> Value:
        if value.dtype.is_floating:
            raw = self.e.assign(f"bitcast {self.L.type_of(value.dtype)} {value.name} to {self.type}")
            return keys.ordered_number(self.L, self.value(raw), dtypes.float64)
        numbers = self.L.type_of(dtypes.float64)
        raw = str(keys.restored(self.L, value, dtypes.float64).name)
        number = Value(self.L, self.e.assign(f"bitcast {self.type} {raw} to {numbers}"), dtypes.float64)
        infinity = self.L.constant(math.inf, dtypes.float64)
        return self.L.select(number < infinity, number, infinity)


def _order(bits: int, width: int) -> list[int]:
    """The source of each of 8 parts of a vector, so that chosen lanes come first."""
    lanes = sorted(range(width), key=lambda lane: not bits >> lane & 1)
    return [lane * 8 // width + part for lane in lanes for part in range(8 // width)]
