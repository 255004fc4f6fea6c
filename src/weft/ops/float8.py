"""Conversions to and from 8-bit floating-point numbers, which are stored as bytes."""

from __future__ import annotations

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.ops.arguments import Array, array_argument, to_dtype
from weft.ops.entrance import on_stream
from weft.primitives.quantized_formats import FLOAT8_NAN
from weft.runtime.devices import StreamOrDevice

__all__ = ["from_fp8", "to_fp8"]

_LARGEST = 448.0
_LEAST_EXPONENT = -6


@on_stream
def to_fp8(x: Array, *, stream: StreamOrDevice = None) -> Array:
    """Numbers rounded to 8-bit floating-point numbers (e4m3: 4 bits of exponent, 3 of fraction), as bytes.

    Halves are rounded to the even neighbour. Numbers beyond 448 become 448 with their sign; NaN becomes 0x7F or, with a
    minus sign, 0xFF. The format is that of Micikevicius et al., "FP8 formats for deep learning" (2022).

    Args:
        x: a floating array.

    Returns:
        uint8.

    Raises:
        ValueError: ``x`` is not floating.

    >>> mx.to_fp8(mx.array([1.0, -1.0, 0.3, 1000.0]))
    array([56, 184, 42, 126], dtype=uint8)
    """
    a = array_argument("to_fp8", x, "x")
    source = a.node.dtype
    if not source.is_floating:
        raise ValueError(f"[to_fp8] takes floating numbers, not {source.name}.")
    if source is not dtypes.float64:
        a = to_dtype(a, dtypes.float32)
    negative, code = _magnitudes(a)
    code = p.select(p.not_equal(a, a), p.full(a.node.shape, FLOAT8_NAN, dtypes.uint8), code)
    return p.bitwise_or(code, p.left_shift(p.cast(negative, dtype=dtypes.uint8), 7))


def _magnitudes(x: Array) -> tuple[Array, Array]:
    """Whether float32 or float64 numbers are negative, and the codes of their absolute values."""
    double = x.node.dtype is dtypes.float64
    word, fraction, bias = (dtypes.uint64, 52, 1023) if double else (dtypes.uint32, 23, 127)
    bits = p.reinterpret(x, dtype=word)
    negative = p.not_equal(p.right_shift(bits, 8 * word.size - 1), 0)
    size = p.minimum(p.absolute(x), _LARGEST)
    exponent = p.right_shift(p.reinterpret(size, dtype=word), fraction)
    exponent = p.maximum(exponent, bias + _LEAST_EXPONENT)
    # The distance between numbers of the format at this exponent, 2^(exponent - 3); dividing by it is exact.
    step = p.reinterpret(p.left_shift(exponent - 3, fraction), dtype=x.node.dtype)
    steps = p.cast(p.rint(size / step), dtype=word)
    # Subnormal numbers are a number of steps; each higher exponent adds 8. If rounding gave 16 steps, the sum carries
    # over.
    code = p.left_shift(exponent - (bias + _LEAST_EXPONENT), 3) + steps
    return negative, p.cast(code, dtype=dtypes.uint8)


@on_stream
def from_fp8(x: Array, dtype: Dtype = dtypes.bfloat16, *, stream: StreamOrDevice = None) -> Array:
    """The numbers stored as 8-bit floating-point numbers (e4m3) in bytes; see `to_fp8`.

    Args:
        x: uint8.
        dtype: a floating one; the conversion is exact for each.

    Raises:
        ValueError: ``x`` is not uint8, or ``dtype`` not floating.

    >>> mx.from_fp8(mx.to_fp8(mx.array([1.0, 0.3, -1000.0])))
    array([1, 0.3125, -448], dtype=bfloat16)
    """
    a = array_argument("from_fp8", x, "x")
    target = as_dtype(dtype)
    if a.node.dtype is not dtypes.uint8:
        raise ValueError(f"[from_fp8] takes uint8, not {a.node.dtype.name}.")
    if not target.is_floating:
        raise ValueError(f"[from_fp8] gives floating numbers, not {target.name}.")
    return to_dtype(p.float8_values(a), target)
