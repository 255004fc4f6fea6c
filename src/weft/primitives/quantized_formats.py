"""The formats of quantised numbers: which numbers share a scale, how words hold codes, and what codes stand for."""

from __future__ import annotations

from typing import NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree
from weft.graph.node import Node, Shape
from weft.primitives.base import Array
from weft.primitives.conversions import to_dtype
from weft.primitives.untrusted import check_word, require

__all__ = ["float8_values"]

WORD = 32
"""Bits of a word. Codes fill words from the lowest bit; if their size does not divide 32, some codes are in two
words."""

POWER_BIAS = 127
POWER_NAN = 0xFF
FLOAT8_NAN = 0x7F
_LARGEST = {4: 6.0, 8: 448.0}
"""The largest finite numbers of the 4-bit and 8-bit floating formats."""


class Choices(NamedTuple):
    """The group sizes and numbers of bits of a mode, the default first."""

    group_sizes: tuple[int, ...]
    bits: tuple[int, ...]


MODES = {
    "affine": Choices((64, 32, 128), (4, 1, 2, 3, 5, 6, 8)),
    "mxfp4": Choices((32,), (4,)),
    "mxfp8": Choices((32,), (8,)),
    "nvfp4": Choices((16,), (4,)),
}


class QuantizedFormat(NamedTuple):
    """How numbers are quantised: ``group_size`` neighbours along the last axis share a scale, and each is a code of
    ``bits`` bits.

    ``affine``: codes are integers, there are biases, and scales and biases have the dtype of the quantised array.
    Otherwise codes are floating-point numbers of 4 (e2m1) or 8 (e4m3) bits, and scales are bytes: powers of two (e8m0)
    in the ``mx`` formats, e4m3 in ``nvfp4``.
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
        """Whether there may be one more scale, of the whole array."""
        return self.mode == "nvfp4"

    @property
    def largest(self) -> float:
        """The largest number that a code of a floating format stands for."""
        return _LARGEST[self.bits]

    def shape(self, words: Shape) -> Shape:
        """The shape of the numbers whose codes are in an array of words."""
        return (*words[:-1], words[-1] * WORD // self.bits)

    def in_groups(self, x: Array) -> Array:
        """An array with its last axis split into groups."""
        *outer, count = x.node.shape
        return p.reshape(x, shape=(*outer, count // self.group_size, self.group_size))

    def fits(self, words: Node, scales: Node, biases: Node | None, dtype: Dtype) -> bool:
        """Whether nodes are the parts of quantised matrices whose numbers are float32 or float64, or were rounded from
        these."""
        *outer, wide = self.shape(words.shape)
        numbers = scales.dtype.is_floating and scales.dtype.size <= max(dtype.size, 4)
        return (
            words.dtype is dtypes.uint32
            and (numbers or (scales.dtype is dtypes.uint8 and not self.affine))
            and agree(scales.shape, (*outer, wide // self.group_size))
            and agree(wide % self.group_size, 0)
            and (biases is None) is not self.affine
            and (biases is None or (biases.dtype is scales.dtype and agree(biases.shape, scales.shape)))
        )

    def check(self) -> None:
        """Raise if there is no format with these settings."""
        check_word(self.mode, MODES)
        require(self.bits in MODES[self.mode].bits, "there is no such number of bits")
        require(self.group_size in MODES[self.mode].group_sizes, "there is no such group size")

    def codes(self, words: Array, like: Array, dtype: Dtype) -> Array:
        """The codes in words along the last axis as numbers that are not scaled; ``like`` are the scales."""
        scales = [p.full(like.node.shape, 1, dtype), *([p.full(like.node.shape, 0, dtype)] if self.affine else [])]
        return p.dequantize(words, *scales, **self._asdict(), dtype=dtype)

    def scale_values(self, scales: Array, dtype: Dtype) -> Array:
        """Scales as numbers, also those that are stored as bytes."""
        if scales.node.dtype.is_floating:
            return to_dtype(scales, dtype)
        values = _power_values(scales) if self.powers else float8_values(scales)
        return to_dtype(values, dtype)


def rounds_once(scales: Dtype) -> bool:
    """Whether numbers of affine formats are rounded once, by a fused multiply-add. With scales of half precision the
    products are exact in float32 unless they overflow, and one operation is faster than two."""
    return scales.size == 2


def float8_values(codes: Array) -> Array:
    """The numbers (float32) of bytes that hold 8-bit floating numbers (e4m3)."""
    size = p.cast(p.bitwise_and(codes, 0x7F), dtype=dtypes.uint16)
    # The same number as a float16, in which exponents are larger by 8.
    value = p.reinterpret(p.left_shift(size, 7), dtype=dtypes.float16)
    value = p.cast(value, dtype=dtypes.float32) * 256.0
    value = p.select(p.equal(size, FLOAT8_NAN), p.full(codes.node.shape, float("nan"), dtypes.float32), value)
    return p.select(p.greater_equal(codes, 0x80), p.negative(value), value)


def _power_values(codes: Array) -> Array:
    """The powers of two (float32) that codes (uint8, e8m0) stand for."""
    wide = p.cast(codes, dtype=dtypes.uint32)
    # Codes are the exponents of float32, except for the smallest one, which gives a subnormal number, and NaN.
    shape = codes.node.shape
    bits = p.select(p.equal(wide, 0), p.full(shape, 1 << 22, dtypes.uint32), wide << 23)
    bits = p.select(p.equal(wide, POWER_NAN), p.full(shape, 0x7FC00000, dtypes.uint32), bits)
    return p.reinterpret(bits, dtype=dtypes.float32)
