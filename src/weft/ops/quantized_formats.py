"""How numbers become codes of few bits, and the formats that arguments describe."""

from __future__ import annotations

from math import lcm

import weft.primitives as p
from weft import dtypes
from weft.checks import integer_of, one_of
from weft.ops.arguments import Array
from weft.ops.float8 import to_fp8
from weft.primitives.quantized_formats import MODES, POWER_BIAS, POWER_NAN, WORD, QuantizedFormat

__all__ = ["QuantizedFormat", "float_codes", "format_of", "packed", "power_codes"]

_FLOAT4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""The midpoints between the absolute values 0, 0.5, 1, 1.5, 2, 3, 4 and 6 of 4-bit floating-point numbers (e2m1)."""


def format_of(name: str, mode: str, group_size: int | None, bits: int | None) -> QuantizedFormat:
    """The format that arguments of the function ``name`` describe.

    Raises:
        ValueError: there is no such format.
        TypeError: an argument is no integer.
    """
    choices = MODES[one_of(name, "mode", mode, MODES)]

    def choice(word: str, value: int | None, allowed: tuple[int, ...]) -> int:
        if value is None:
            return allowed[0]
        number = int(integer_of(name, word, value))
        if number not in allowed:
            some = ", ".join(map(str, sorted(allowed)))
            raise ValueError(f"[{name}] {word} of the mode {mode!r} must be one of {some}; got {number}.")
        return number

    return QuantizedFormat(
        mode, choice("group_size", group_size, choices.group_sizes), choice("bits", bits, choices.bits)
    )


def packed(codes: Array, bits: int) -> Array:
    """Words of uint32 that hold the lowest ``bits`` bits of codes (uint32) along the last axis."""
    *outer, count = codes.node.shape
    words = lcm(bits, WORD) // WORD
    size = words * WORD // bits
    units = p.reshape(p.bitwise_and(codes, (1 << bits) - 1), shape=(*outer, count // size, size))
    if words == 1:
        return p.sum(units << (_count(size) * bits), axes=(len(outer) + 1,))
    # At most this many codes have bits in one word. They are shifted to the left or, if they begin in the word before,
    # to the right.
    most = (WORD - 1) // bits + 2
    begin = p.broadcast(_count(words)[:, None] * WORD, shape=(words, most))
    word = begin // bits + _count(most)
    start = word * bits
    parts = _chosen(units, word) << (p.maximum(start, begin) - begin)
    whole = p.sum(parts >> (p.maximum(start, begin) - start), axes=(len(outer) + 2,))
    return p.reshape(whole, shape=(*outer, count * bits // WORD))


def _count(number: int) -> Array:
    """The numbers 0, 1, ... as uint32."""
    return p.iota(shape=(number,), axis=0, dtype=dtypes.uint32)


def _chosen(x: Array, index: Array) -> Array:
    """The elements along the last axis at an index of any shape."""
    *outer, _ = x.node.shape
    last, rank = len(outer), index.node.ndim
    found = p.gather(x, index, axes=(last,), slice_sizes=(*outer, 1))
    return p.transpose(p.squeeze(found, axes=(rank + last,)), axes=(*range(rank, rank + last), *range(rank)))


def float_codes(x: Array, bits: int) -> Array:
    """The codes (uint32) of the 4-bit or 8-bit floating-point numbers nearest to float32 or float64 numbers."""
    if bits == 8:
        return p.cast(to_fp8(x), dtype=dtypes.uint32)
    size = p.absolute(x)
    # Ties go to the smaller number, and numbers rounded to zero lose their sign, as in MLX's files.
    code = sum(p.cast(p.greater(size, middle), dtype=dtypes.uint32) for middle in _FLOAT4_MIDDLES)
    negative = p.logical_and(p.less(x, 0), p.not_equal(code, 0))
    return code | (p.cast(negative, dtype=dtypes.uint32) << 3)


def power_codes(x: Array) -> Array:
    """The codes (uint8, e8m0) of the smallest powers of two that are not below real numbers; for 0, that of 1. NaN has
    its own code."""
    exponent = p.minimum(p.maximum(p.ceil(p.log2(x)), -POWER_BIAS), POWER_BIAS)
    exponent = p.select(p.equal(x, 0), p.zeros_like(x), exponent)
    code = p.select(p.equal(x, x), exponent + POWER_BIAS, p.full(x.node.shape, POWER_NAN, x.node.dtype))
    return p.cast(code, dtype=dtypes.uint8)
