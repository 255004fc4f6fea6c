"""The formats of quantised numbers: which groups share a scale, how words hold codes, what these stand for."""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import AnyExtent
from weft.graph.node import Shape
from weft.primitives.base import Array

__all__ = ["float8_values"]

WORD = 32
"""Bits of a word. Codes fill words from the lowest bit; where 32 is no multiple of theirs, some cross into the next."""

POWER_BIAS = 127
POWER_NAN = 0xFF
FLOAT8_NAN = 0x7F
_LARGEST = {4: 6.0, 8: 448.0}
"""The largest 4-bit and 8-bit floating numbers."""


class Choices(NamedTuple):
    """The sizes of groups and numbers of bits that a mode has, the usual one first."""

    group_sizes: tuple[int, ...]
    bits: tuple[int, ...]


MODES = {
    "affine": Choices((64, 32, 128), (4, 1, 2, 3, 5, 6, 8)),
    "mxfp4": Choices((32,), (4,)),
    "mxfp8": Choices((32,), (8,)),
    "nvfp4": Choices((16,), (4,)),
}


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

    def count(self, words: AnyExtent) -> AnyExtent:
        """How many codes so many words hold."""
        return words * WORD // self.bits

    def shape(self, words: Shape) -> Shape:
        """The shape of the numbers of which an array of words has the codes."""
        return (*words[:-1], self.count(words[-1]))

    def in_groups(self, x: Array) -> Array:
        """An array with its last axis cut into groups."""
        *outer, count = x.node.shape
        return p.reshape(x, shape=(*outer, count // self.group_size, self.group_size))

    def codes(self, words: Array, dtype: Dtype) -> Array:
        """The codes that words hold along the last axis as numbers, without their scales."""
        codes = _unpacked(words, self.bits)
        return p.cast(codes, dtype=dtype) if self.affine else _float_values(codes, self.bits, dtype)

    def values(self, words: Array, scales: Array, biases: Array | None, dtype: Dtype) -> Array:
        """The numbers (float32 or float64) that codes and scales stand for, and biases if there are any."""
        codes, factors = self.in_groups(self.codes(words, dtype)), self.scale_values(scales, dtype)[..., None]
        if biases is None:
            groups = codes * factors
        else:
            offsets = self.scale_values(biases, dtype)[..., None]
            if rounds_once(scales.node.dtype):
                parts = [p.broadcast(part, shape=codes.node.shape) for part in (factors, offsets)]
                groups = p.multiply_add(codes, *parts)
            else:
                groups = codes * factors + offsets
        return p.reshape(groups, shape=self.shape(words.node.shape))

    def scale_values(self, scales: Array, dtype: Dtype) -> Array:
        """Scales as numbers, also those of floating formats, which are bytes."""
        if scales.node.dtype.is_floating:
            return scales if scales.node.dtype is dtype else p.cast(scales, dtype=dtype)
        values = _power_values(scales) if self.powers else float8_values(scales)
        return values if dtype is dtypes.float32 else p.cast(values, dtype=dtype)


def rounds_once(scales: Dtype) -> bool:
    """Whether numbers of affine formats are rounded once, by a fused multiply-add. With scales of half precision the
    products are exact anyway, unless they are beyond the largest float32, and one operation is faster than two."""
    return scales.size == 2


def count_of(number: int) -> Array:
    """The numbers (uint32) from 0 on."""
    return p.iota(shape=(number,), axis=0, dtype=dtypes.uint32)


def _unpacked(words: Array, bits: int) -> Array:
    """The codes (uint32) that words hold, along the last axis."""
    *outer, count = words.node.shape
    length = lcm(bits, WORD) // WORD
    units = p.reshape(words, shape=(*outer, count // length, length))
    start = count_of(length * WORD // bits) * bits
    word, shift = start >> 5, start & (WORD - 1)
    if length == 1:
        codes = units >> shift
    else:
        # Some codes end in the next word. The last one of a unit does not, and what is read for it is masked out.
        beyond = chosen(units, p.minimum(word + 1, length - 1)) << (WORD - 1 - shift)
        codes = (chosen(units, word) >> shift) | (beyond << 1)
    return p.reshape(p.bitwise_and(codes, (1 << bits) - 1), shape=(*outer, count * WORD // bits))


def chosen(x: Array, index: Array) -> Array:
    """Elements along the last axis, of which an index of any shape chooses some."""
    *outer, _ = x.node.shape
    last, rank = len(outer), index.node.ndim
    found = p.gather(x, index, axes=(last,), slice_sizes=(*outer, 1))
    return p.transpose(p.squeeze(found, axes=(rank + last,)), axes=(*range(rank, rank + last), *range(rank)))


def float8_values(codes: Array) -> Array:
    """The numbers (float32) of bytes that hold 8-bit floating numbers (e4m3)."""
    size = p.cast(p.bitwise_and(codes, 0x7F), dtype=dtypes.uint16)
    # The same number as a float16, whose exponents are 8 larger.
    value = p.reinterpret(p.left_shift(size, 7), dtype=dtypes.float16)
    value = p.cast(value, dtype=dtypes.float32) * 256.0
    value = p.select(p.equal(size, FLOAT8_NAN), p.full(codes.node.shape, float("nan"), dtypes.float32), value)
    return p.select(p.greater_equal(codes, 0x80), p.negative(value), value)


def _float_values(codes: Array, bits: int, dtype: Dtype) -> Array:
    """The numbers that the codes (uint32) of 4-bit or 8-bit floating numbers stand for."""
    if bits == 8:
        values = float8_values(p.cast(codes, dtype=dtypes.uint8))
        return values if dtype is dtypes.float32 else p.cast(values, dtype=dtype)
    # A float16 has the same fields, with more bits of fraction and exponents that are 14 larger.
    same_fields = ((codes & 7) << 9) | ((codes & 8) << 12)
    value = p.reinterpret(p.cast(same_fields, dtype=dtypes.uint16), dtype=dtypes.float16)
    return p.cast(value, dtype=dtype) * 2.0**14


def _power_values(codes: Array) -> Array:
    """The powers of two (float32) that codes (uint8, e8m0) stand for."""
    wide = p.cast(codes, dtype=dtypes.uint32)
    # The exponents of float32, but for the lowest, which is a subnormal number there, and NaN.
    shape = codes.node.shape
    bits = p.select(p.equal(wide, 0), p.full(shape, 1 << 22, dtypes.uint32), wide << 23)
    bits = p.select(p.equal(wide, POWER_NAN), p.full(shape, 0x7FC00000, dtypes.uint32), bits)
    return p.reinterpret(bits, dtype=dtypes.float32)
