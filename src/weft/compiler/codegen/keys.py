"""Keys: unsigned integers whose order is the order of the elements.

Signed integers get their sign bit flipped, and so do floating-point numbers without a sign; of those with a sign, all
bits are flipped. NaN has the largest key, whatever its bits. In the order of values, -0 and 0 are equal. An `ordered`
key tells them apart, so that the element can be `restored` from it; the few elements that this puts out of order, or
that cannot be restored (NaN), are put in place afterwards. In an `equal` key, -0 has the key of 0. A complex number has
the key of its real part in the upper half and that of its imaginary part in the lower one. As in NumPy, numbers with a
NaN come last: first those with only an imaginary NaN, by their real part, then those with a real NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype

INFINITIES = {
    dtypes.float16: 0x7C00,
    dtypes.bfloat16: 0x7F80,
    dtypes.float32: 0x7F800000,
    dtypes.float64: 0x7FF0000000000000,
}


_NAN = 0xFFFFFFFF


@dataclass(frozen=True)
class WordForm:
    """What is moved while elements of ``dtype`` are sorted.

    That is the key alone, or, where the result is ``indices`` or the element cannot be restored from its key, the key
    in the upper half of a word and the index in the lower one. A wide key does not fit there: of the bits in which keys
    differ, only the upper ones are moved, and where these are equal the others are compared afterwards (`runs`).
    """

    dtype: Dtype
    indices: bool

    @property
    def key(self) -> Dtype:
        return dtypes.UNSIGNED[self.dtype.size]

    @property
    def carries(self) -> bool:
        """Whether the index is moved with the key."""
        return self.indices or self.dtype.is_complex

    @property
    def is_wide(self) -> bool:
        """Whether key and index do not fit in one word."""
        return self.carries and self.key.size == 8

    @property
    def is_double(self) -> bool:
        """Whether keys of float64 are moved alone."""
        return not self.carries and self.dtype is dtypes.float64

    @property
    def gathers(self) -> bool:
        """Whether the sorted values are gathered from the input at the sorted indices."""
        return self.carries and not self.indices

    @property
    def result(self) -> Dtype:
        return dtypes.uint32 if self.indices else self.key

    @property
    def mends(self) -> bool:
        """Whether some elements have to be put in place after the sort."""
        return not self.carries and self.dtype.is_floating

    @property
    def size(self) -> int:
        """Bytes of what is moved."""
        return 8 if self.carries else self.key.size

    @property
    def first_byte(self) -> int:
        """The lowest byte of the key in what is moved."""
        return self.size // 2 if self.carries else 0

    @property
    def name(self) -> str:
        return f"{self.dtype.name}_{'indices' if self.indices else 'values'}"


def _signs(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    """All bits set in each lane whose sign bit is set, none in the others."""
    signed = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}[dtype.size]
    shifted = Value(L, raw.name, signed) >> (8 * dtype.size - 1)
    return Value(L, shifted.name, raw.dtype)


def is_nan(raw: Value, dtype: Dtype) -> Value:
    return (raw & ~_sign_bit(dtype)) > INFINITIES[dtype]


def _sign_bit(dtype: Dtype) -> int:
    return 1 << (8 * dtype.size - 1)


def ordered(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    """The keys of elements whose bits in memory are ``raw``; the key of -0 is one below that of 0."""
    if dtype.is_complex:
        real, imag = (equal(L, L.convert(part, dtypes.uint32), dtypes.float32) for part in (raw, raw >> 32))
        behind = L.equal(imag, _NAN) & ~L.equal(real, _NAN)
        high, low = L.select(behind, L.constant(_NAN - 1, real.dtype), real), L.select(behind, real, imag)
        return (L.convert(high, dtypes.uint64) << 32) | L.convert(low, dtypes.uint64)
    if dtype.is_floating:
        return L.select(is_nan(raw, dtype), L.constant(-1, raw.dtype), ordered_number(L, raw, dtype))
    return raw ^ _sign_bit(dtype) if dtype.is_signed else raw


def ordered_number(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    """The key of floating-point elements that are not NaN."""
    return raw ^ (_signs(L, raw, dtype) | _sign_bit(dtype))


def equal(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    """The keys of elements; -0 has the key of 0."""
    if not dtype.is_floating:
        return ordered(L, raw, dtype)
    negative_zero = L.equal(raw, _sign_bit(dtype))
    return ordered(L, L.select(negative_zero, L.constant(0, raw.dtype), raw), dtype)


def restored(L: Lanes, key: Value, dtype: Dtype) -> Value:
    """The bits in memory of elements that have an `ordered` key."""
    if dtype.is_floating:
        return key ^ (~_signs(L, key, dtype) | _sign_bit(dtype))
    return key ^ _sign_bit(dtype) if dtype.is_signed else key


def out_of_order(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    """Whether an element cannot be restored from its key, or would be restored to a wrong position."""
    return is_nan(raw, dtype) | L.equal(raw, _sign_bit(dtype))


def is_zero_or_nan(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    return is_nan(raw, dtype) | is_zero(L, raw, dtype)


def is_zero(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    return L.equal(raw & ~_sign_bit(dtype), 0)


def is_negative(L: Lanes, raw: Value, dtype: Dtype) -> Value:
    """Whether an element is below zero."""
    sign = _signs(L, raw, dtype)
    return ~L.equal(sign, 0) & ~is_zero_or_nan(L, raw, dtype)
