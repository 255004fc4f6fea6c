"""Shared by the formulas: facts about the two floating-point formats, and arithmetic on pairs of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Number, Value
from weft.dtypes import Dtype


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format and the integers of its size."""

    dtype: Dtype
    signed: Dtype
    unsigned: Dtype
    fraction_bits: int
    bias: int

    @property
    def shifter(self) -> float:
        """Adding this to a small number leaves the nearest integer in the lowest bits of the sum."""
        return 1.5 * 2.0**self.fraction_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def sign_bit(self) -> int:
        return 1 << (8 * self.dtype.size - 1)


FLOAT32 = FloatFormat(dtypes.float32, dtypes.int32, dtypes.uint32, 23, 127)
FLOAT64 = FloatFormat(dtypes.float64, dtypes.int64, dtypes.uint64, 52, 1023)
INFINITY = float("inf")
NAN = float("nan")

Table = dict[FloatFormat, tuple[float, ...]]


def format_of(x: Value) -> FloatFormat:
    return FLOAT64 if x.dtype is dtypes.float64 else FLOAT32


def working(x: Value) -> Value:
    """``x`` in the precision of the arithmetic: float64 stays float64, all else is float32."""
    dtype = format_of(x).dtype
    return x if x.dtype is dtype else Value(x.lanes, x.name, dtype)


def sign_of(L: Lanes, x: Value) -> Value:
    """The sign bit of ``x`` as an unsigned integer."""
    format_ = format_of(x)
    return L.bitcast(x, format_.unsigned) & format_.sign_bit


def flip_sign(L: Lanes, x: Value, sign: Value) -> Value:
    """``-x`` where the sign bit of the unsigned integer ``sign`` is set; its other bits are zero."""
    format_ = format_of(x)
    return L.bitcast(L.bitcast(x, format_.unsigned) ^ sign, format_.dtype)


def at_most(L: Lanes, x: Value, bound: Number) -> Value:
    """``min(x, bound)`` that keeps NaN."""
    return L.select(x > bound, bound, x)


def at_least(L: Lanes, x: Value, bound: Number) -> Value:
    """``max(x, bound)`` that keeps NaN."""
    return L.select(x < bound, bound, x)


@dataclass(frozen=True)
class Pair:
    """The unevaluated sum of two numbers, ``low`` being at most a rounding error of ``high`` (Dekker, 1971)."""

    high: Value
    low: Value


def fast_two_sum(x: Value, y: Value) -> Pair:
    """``x + y`` exactly, for ``abs(x) >= abs(y)`` or ``x == 0``."""
    high = x + y
    return Pair(high, y - (high - x))


def two_sum(x: Value, y: Value) -> Pair:
    """``x + y`` exactly (Knuth)."""
    high = x + y
    part = high - x
    return Pair(high, (x - (high - part)) + (y - part))


def two_product(L: Lanes, x: Value, y: Value) -> Pair:
    """``x * y`` exactly."""
    high = x * y
    return Pair(high, L.fma(x, y, -high))


def multiply_pairs(L: Lanes, x: Pair, y: Pair) -> Pair:
    """The product of two pairs; the parts of the result may overlap by a bit."""
    product = two_product(L, x.high, y.high)
    return Pair(product.high, L.fma(x.low, y.high, L.fma(x.high, y.low, product.low)))


def divide_to_pair(L: Lanes, numerator: Pair, denominator: Pair) -> Pair:
    """The quotient of two pairs."""
    inverse = 1.0 / denominator.high
    high = numerator.high * inverse
    rest = L.fma(-high, denominator.high, numerator.high) + L.fma(-high, denominator.low, numerator.low)
    return Pair(high, rest * inverse)
