"""Decodes quantised numbers in registers, for every target.

Results equal the definitions of `weft.primitives.quantized_formats`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft import dtypes
from weft.compiler.codegen.values import Value
from weft.dtypes import Dtype
from weft.primitives.quantized_formats import FLOAT8_NAN, POWER_NAN, WORD, rounds_once

_FLOAT4_NIBBLES = 0xC8643210
"""Twice the magnitudes of 4-bit floating-point codes, four bits each."""
_FLOAT8_LEAST_NORMAL = 8
_SIGN = {4: 28, 8: 24}
"""How many bits the sign of a floating-point code is below that of a float32."""


@dataclass(frozen=True)
class Coding:
    """A format of quantised numbers: mode and bits of the codes, the dtype of scales (and biases) in memory, and the
    dtype of decoded numbers."""

    mode: str
    bits: int
    scales: Dtype
    dtype: Dtype
    narrow: bool

    @property
    def affine(self) -> bool:
        return self.mode == "affine"

    @property
    def adds_integers(self) -> bool:
        """Whether products of few rows are exact sums of integers (`weft.compiler.codegen.integer_sums`): codes are
        integers, and none is in two words."""
        return self.affine and WORD % self.bits == 0 and self.dtype is dtypes.float32

    @property
    def terms(self) -> int:
        """How many codes are decoded together. They share a scale, and begin and end at a word."""
        return WORD // 2 if self.narrow else WORD

    @property
    def words(self) -> int:
        """How many words these codes take."""
        return self.terms * self.bits // WORD


def field(words: Sequence[Value], start: int, bits: int) -> Value:
    """The code that begins at bit ``start`` of neighbouring words. The bits above it are undefined."""
    word, shift = divmod(start, WORD)
    code = words[word] >> shift if shift else words[word]
    return code | (words[word + 1] << (WORD - shift)) if shift + bits > WORD else code


def number(coding: Coding, code: Value) -> Value:
    """The number, without its scale, of a code: a uint32 whose upper bits are undefined."""
    L, bits = code.lanes, coding.bits
    if coding.affine:
        whole = code & ((1 << bits) - 1)
        found: Value = L.convert(Value(L, whole.name, dtypes.int32), coding.dtype)
        return found
    small: Value = L.convert(_float4(code) if bits == 4 else float8(code), coding.dtype)
    return small


def scale(coding: Coding, value: Value) -> Value:
    """A scale or bias in the dtype of decoded numbers. ``value`` was read with the dtype of `scale_image`."""
    L = value.lanes
    if coding.scales is not dtypes.uint8:
        return value
    if coding.mode == "nvfp4":
        return L.convert(float8(value), coding.dtype)
    # The byte is the exponent of a float32, except the lowest, which is a subnormal number, and the one for NaN.
    bits = L.select(L.equal(value, 0), L.constant(1 << 22, dtypes.uint32), value << 23)
    bits = L.select(L.equal(value, POWER_NAN), L.constant(0x7FC00000, dtypes.uint32), bits)
    return L.convert(L.bitcast(bits, dtypes.float32), coding.dtype)


def scale_image(coding: Coding) -> Dtype:
    """The dtype with which scales are read into registers: uint32 if they are bytes."""
    return dtypes.uint32 if coding.scales is dtypes.uint8 else coding.dtype


def scaled(coding: Coding, code: Value, factor: Value, offset: Value | None) -> Value:
    """A decoded number of the matrix."""
    if offset is None:
        return code * factor
    return code.lanes.fma(code, factor, offset) if rounds_once(coding.scales) else code * factor + offset


def _float4(code: Value) -> Value:
    """A 4-bit floating number (e2m1) as float32."""
    L = code.lanes
    shift = (code & 7) << 2
    twice = (L.constant(_FLOAT4_NIBBLES, dtypes.uint32) >> shift) & 15
    size = L.convert(Value(L, twice.name, dtypes.int32), dtypes.float32) * 0.5
    return _signed(size, code, 4)


def float8(code: Value) -> Value:
    """An 8-bit floating number (e4m3) as float32. Subnormal ones are given an implicit bit, which is then
    subtracted."""
    L = code.lanes
    size = code & 0x7F
    subnormal = size < _FLOAT8_LEAST_NORMAL
    fields = L.select(subnormal, size + _FLOAT8_LEAST_NORMAL, size)
    normal = L.bitcast((fields << 20) + (120 << 23), dtypes.float32)
    value = normal - L.select(subnormal, L.constant(2.0**-6, dtypes.float32), 0.0)
    value = L.select(L.equal(size, FLOAT8_NAN), L.constant(float("nan"), dtypes.float32), value)
    return _signed(value, code, 8)


def _signed(size: Value, code: Value, bits: int) -> Value:
    """``size`` with the highest bit of ``code`` as its sign."""
    L = code.lanes
    sign = (code & (1 << (bits - 1))) << _SIGN[bits]
    return L.bitcast(L.bitcast(size, dtypes.uint32) | sign, dtypes.float32)
