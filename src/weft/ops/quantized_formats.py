"""The formats of quantised numbers: which groups share a scale, what codes mean, how they are packed into words."""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.checks import integer_of, one_of
from weft.dtypes import Dtype
from weft.ops.arguments import Array
from weft.ops.float8 import from_fp8, to_fp8
from weft.ops.indexing import take

__all__ = ["Format", "float_codes", "float_values", "format_of", "packed", "power_codes", "power_values", "unpacked"]

WORD = 32
"""Bits of a word. Codes fill words from the lowest bit; where 32 is no multiple of theirs, some cross into the next."""

_FLOAT4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between which of the sizes 0, 0.5, 1, 1.5, 2, 3, 4 and 6 of 4-bit floating numbers (e2m1) others are rounded."""
_POWER_BIAS = 127
_POWER_NAN = 0xFF
_LARGEST = {4: 6.0, 8: 448.0}
"""The largest 4-bit and 8-bit floating numbers."""


class Format(NamedTuple):
    """How numbers are quantised: ``group_size`` neighbours along the last axis share a scale, and each is a code of
    ``bits`` bits.

    ``affine``: codes are whole numbers, there are biases, and scales and biases are of the dtype of what was quantised.
    Otherwise codes are floating numbers of 4 (e2m1) or 8 (e4m3) bits, and scales bytes: powers of two (e8m0) for the
    ``mx`` formats, e4m3 for ``nvfp4``.
    """

    mode: str
    group_size: int
    bits: int

    @property
    def affine(self) -> bool:
        return self.mode == "affine"

    @property
    def powers(self) -> bool:
        """Whether scales are powers of two."""
        return self.mode.startswith("mx")

    @property
    def global_scale(self) -> bool:
        """Whether one more scale, of all groups, may be given."""
        return self.mode == "nvfp4"

    @property
    def largest(self) -> float:
        """The largest number that a code of a floating format stands for."""
        return _LARGEST[self.bits]


class _Choices(NamedTuple):
    """The sizes of groups and numbers of bits that a mode has, the usual one first."""

    group_sizes: tuple[int, ...]
    bits: tuple[int, ...]


_MODES = {
    "affine": _Choices((64, 32, 128), (4, 1, 2, 3, 5, 6, 8)),
    "mxfp4": _Choices((32,), (4,)),
    "mxfp8": _Choices((32,), (8,)),
    "nvfp4": _Choices((16,), (4,)),
}


def format_of(name: str, mode: str, group_size: int | None, bits: int | None) -> Format:
    """The format that arguments of the function ``name`` describe.

    Raises:
        ValueError: there is none.
        TypeError: a number is no whole number.
    """
    choices = _MODES[one_of(name, "mode", mode, _MODES)]

    def chosen(word: str, value: int | None, allowed: tuple[int, ...]) -> int:
        if value is None:
            return allowed[0]
        number = integer_of(name, word, value)
        if number not in allowed:
            some = ", ".join(map(str, sorted(allowed)))
            raise ValueError(f"[{name}] {word} of the mode {mode!r} must be one of {some}; got {number}.")
        return number

    return Format(mode, chosen("group_size", group_size, choices.group_sizes), chosen("bits", bits, choices.bits))


def packed(codes: Array, bits: int) -> Array:
    """Words of uint32 with the lowest ``bits`` bits of codes (uint32), along the last axis."""
    *outer, count = codes.node.shape
    single = p.bitwise_and(codes[..., None] >> _count(bits), 1)
    in_words = p.reshape(single, shape=(*outer, count * bits // WORD, WORD))
    return p.sum(in_words << _count(WORD), axes=(len(outer) + 1,))


def unpacked(words: Array, bits: int) -> Array:
    """The codes (uint32) that words hold, along the last axis."""
    *outer, count = words.node.shape
    length = lcm(bits, WORD) // WORD
    units = p.reshape(words, shape=(*outer, count // length, length))
    start = _count(length * WORD // bits) * bits
    word, shift = start >> 5, start & (WORD - 1)
    if length == 1:
        codes = units >> shift
    else:
        # Some codes end in the next word. The last one of a unit does not, and what is read for it is masked out.
        beyond = take(units, p.minimum(word + 1, length - 1), axis=-1) << (WORD - 1 - shift)
        codes = (take(units, word, axis=-1) >> shift) | (beyond << 1)
    return p.reshape(p.bitwise_and(codes, (1 << bits) - 1), shape=(*outer, count * WORD // bits))


def _count(number: int) -> Array:
    return p.iota(shape=(number,), axis=0, dtype=dtypes.uint32)


def float_codes(x: Array, bits: int) -> Array:
    """The codes (uint32) of the 4-bit or 8-bit floating numbers that are nearest to float32 or float64 numbers."""
    if bits == 8:
        return p.cast(to_fp8(x), dtype=dtypes.uint32)
    size = p.absolute(x)
    # Ties go to the smaller number, and what becomes zero loses its sign, as in the files of MLX.
    code = sum(p.cast(p.greater(size, middle), dtype=dtypes.uint32) for middle in _FLOAT4_MIDDLES)
    negative = p.logical_and(p.less(x, 0), p.not_equal(code, 0))
    return code | (p.cast(negative, dtype=dtypes.uint32) << 3)


def float_values(codes: Array, bits: int, dtype: Dtype) -> Array:
    """The numbers that the codes (uint32) of 4-bit or 8-bit floating numbers stand for."""
    if bits == 8:
        return from_fp8(p.cast(codes, dtype=dtypes.uint8), dtype)
    # A float16 has the same fields, with more bits of fraction and exponents that are 14 larger.
    same_fields = ((codes & 7) << 9) | ((codes & 8) << 12)
    value = p.reinterpret(p.cast(same_fields, dtype=dtypes.uint16), dtype=dtypes.float16)
    return p.cast(value, dtype=dtype) * 2.0**14


def power_codes(x: Array) -> Array:
    """The codes (uint8, e8m0) of the least powers of two that are not below real numbers; that of 1 for 0. NaN has a
    code of its own."""
    exponent = p.minimum(p.maximum(p.ceil(p.log2(x)), -_POWER_BIAS), _POWER_BIAS)
    exponent = p.select(p.equal(x, 0), p.zeros_like(x), exponent)
    code = p.select(p.equal(x, x), exponent + _POWER_BIAS, p.full(x.node.shape, _POWER_NAN, x.node.dtype))
    return p.cast(code, dtype=dtypes.uint8)


def power_values(codes: Array, dtype: Dtype) -> Array:
    """The powers of two that codes (uint8, e8m0) stand for."""
    wide = p.cast(codes, dtype=dtypes.uint32)
    # The exponents of float32, but for the lowest, which is a subnormal number there, and NaN.
    shape = codes.node.shape
    bits = p.select(p.equal(wide, 0), p.full(shape, 1 << 22, dtypes.uint32), wide << 23)
    bits = p.select(p.equal(wide, _POWER_NAN), p.full(shape, 0x7FC00000, dtypes.uint32), bits)
    return p.cast(p.reinterpret(bits, dtype=dtypes.float32), dtype=dtype)
