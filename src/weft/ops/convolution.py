"""Convolutions of vectors."""

from __future__ import annotations

import operator

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of
from weft.graph.extents import decide, decide_equal
from weft.ops.arguments import Array, broadcast, promoted, shape_text, to_dtype
from weft.ops.entrance import on_stream
from weft.runtime.devices import StreamOrDevice

__all__ = ["convolve"]


@on_stream
def convolve(a: Array, v: Array, /, mode: str = "full", *, stream: StreamOrDevice = None) -> Array:
    """The discrete convolution of two vectors, ``sum(a[m] * v[n - m] for m)``; the longer one counts as ``a``.

    Args:
        a: a vector.
        v: a vector.
        mode: where N and M are the lengths of ``a`` and ``v``, ``"full"`` for all N + M - 1 results, ``"same"`` for N
            of them in the middle, ``"valid"`` for the N - M + 1 to which all of ``v`` contributes.

    Raises:
        ValueError: an argument is empty or no vector, or there is no such mode.

    >>> mx.convolve(mx.array([1.0, 2.0, 3.0]), mx.array([0.0, 1.0, 0.5]))
    array([0, 1, 2.5, 4, 1.5], dtype=float32)
    >>> mx.convolve(mx.array([1.0, 2.0, 3.0]), mx.array([0.0, 1.0, 0.5]), "same")
    array([1, 2.5, 4], dtype=float32)
    """
    one_of("convolve", "mode", mode, ("full", "same", "valid"))
    x, y = promoted("convolve", (a, v), words=("a", "v"))
    for word, one in (("a", x), ("v", y)):
        if one.node.ndim != 1 or decide_equal(one.node.size, 0):
            raise ValueError(
                f"[convolve] {word} must be a vector that is not empty; its shape is {shape_text(one.node.shape)}."
            )
    if decide(operator.lt, x.node.size, y.node.size):
        x, y = y, x
    dtype = x.node.dtype
    wide = dtypes.float32 if dtype.is_floating and dtype.size == 2 else dtypes.int32 if dtype.is_bool else dtype
    result = _sliding_sums(to_dtype(x, wide), to_dtype(y, wide), mode)
    return to_dtype(result, dtype) if dtype.is_inexact else result


def _sliding_sums(x: Array, y: Array, mode: str) -> Array:
    """The convolution, as sums over windows of the padded longer vector."""
    length = y.node.size
    low, high = {
        "full": (length - 1, length - 1),
        "same": (length // 2, (length - 1) // 2),
        "valid": (0, 0),
    }[mode]
    padded = p.pad(x, p.zeros((), x.node.dtype), low=(low,), high=(high,))
    shape = (padded.node.size - length + 1, length)
    windows = p.as_strided(padded, shape=shape, strides=(1, 1), offset=0)
    return p.sum(p.multiply(windows, broadcast(p.reversed_rows(y), shape)), axes=(1,))
