"""Quantised matrices: arrays of codes of few bits, with scales that neighbours share."""

from __future__ import annotations

from typing import cast

from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.ops.arguments import Array, array_argument
from weft.ops.entrance import on_stream
from weft.ops.quantized_formats import format_of
from weft.ops.quantized_matrix import (
    check_floating_matrix,
    quantized,
    quantized_matrix,
    scale_of_all,
)
from weft.runtime.devices import StreamOrDevice

__all__ = ["dequantize", "quantize"]


@on_stream
def quantize(
    w: Array,
    /,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    global_scale: Array | None = None,
    stream: StreamOrDevice = None,
) -> tuple[Array, Array, Array]:
    """The matrices in the last two axes, quantised: codes of few bits, with scales that neighbours in a row share.

    ========  ===============  ====================  =================================  ======
    mode      group sizes      bits                  a code stands for                  scales
    ========  ===============  ====================  =================================  ======
    affine    32, **64**, 128  1, 2, 3, **4**, 5,    ``scale * code + bias``            as w
                               6, 8
    mxfp4     32               4                     ``scale`` times a number in e2m1   e8m0
    mxfp8     32               8                     ``scale`` times a number in e4m3   e8m0
    nvfp4     16               4                     ``scale`` times a number in e2m1   e4m3
    ========  ===============  ====================  =================================  ======

    In the affine mode with two bits or more, the end of a group's range that is farther from zero is represented
    exactly, and so is zero if it is in the range. The ``mx`` formats are those of the OCP Microscaling Formats
    specification 1.0 (2023), with a scale for which no number of the group overflows.

    Args:
        w: floating, ``(..., M, N)``, where the group size divides ``N``.
        group_size: how many neighbours share a scale; None for the default, which is bold.
        bits: how many bits a code has; None for the default.
        mode: one of the table.
        global_scale: a float32 number, for ``nvfp4``: the largest absolute value in ``w``, or in all matrices that are
            multiplied together. Scales are then stored relative to it, so that they use their whole range.

    Returns:
        The codes in words of uint32, ``(..., M, N * bits / 32)``, the first code in the lowest bits. The scales,
        ``(..., M, N / group_size)``, as bytes (uint8) if their format is no dtype. In the affine mode also the biases.

    Raises:
        ValueError: an unknown mode, group size or number of bits, less than two axes, a last axis that is no multiple
            of the group size, a dtype that is not floating, or a global scale in another mode than ``nvfp4``.

    >>> w, scales, biases = mx.quantize(mx.arange(64.0)[None], bits=8)
    >>> w.shape, w.dtype
    ((1, 16), weft.core.uint32)
    >>> mx.abs(mx.dequantize(w, scales, biases, bits=8) - mx.arange(64.0)).max() < 0.13
    array(True, dtype=bool)
    """
    kind = format_of("quantize", mode, group_size, bits)
    x = array_argument("quantize", w, "w")
    check_floating_matrix("quantize", "w", x, kind)
    found = quantized(x, kind, scale_of_all("quantize", kind, global_scale))
    parts = [found.words, found.scales, *([] if found.biases is None else [found.biases])]
    # Type checkers are told of three, as in affine modes, because a tuple of unknown length cannot be unpacked into
    # arguments.
    return cast("tuple[Array, Array, Array]", tuple(parts))


@on_stream
def dequantize(
    w: Array,
    /,
    scales: Array,
    biases: Array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    global_scale: Array | None = None,
    dtype: Dtype | None = None,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """The numbers that codes made by `quantize` stand for.

    Args:
        w: words of uint32, ``(..., M, N * bits / 32)``.
        scales: ``(..., M, N / group_size)``.
        biases: of the shape of ``scales``, for affine modes.
        group_size: as for `quantize`.
        bits: as for `quantize`.
        mode: as for `quantize`.
        global_scale: the one with which ``w`` was quantised.
        dtype: the dtype of the result; by default that of the scales in affine modes, else bfloat16. Numbers are
            computed in float32 (float64 if that is the dtype) and rounded once.

    Returns:
        ``(..., M, N)``.

    Raises:
        ValueError: shapes or dtypes are not those that `quantize` gives with these parameters.

    >>> mx.dequantize(*mx.quantize(mx.array([[-6.0, 0.0] * 16]), mode="mxfp4"), mode="mxfp4")
    array([[-6, 0, -6, ..., 0, -6, 0]], dtype=bfloat16)
    """
    kind = format_of("dequantize", mode, group_size, bits)
    factor = scale_of_all("dequantize", kind, global_scale)
    matrix = quantized_matrix("dequantize", kind, w, scales, biases, factor)
    target = (matrix.dtype or dtypes.bfloat16) if dtype is None else as_dtype(dtype)
    if not target.is_floating:
        raise ValueError(f"[dequantize] gives floating numbers, not {target.name}.")
    return matrix.values(target)
