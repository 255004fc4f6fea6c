"""The frequencies of discrete Fourier transforms, and their order."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import decide, decide_equal, derived, named
from weft.ops.arguments import Array, array_argument, axis_of, fresh, integer_of, real_number, sequence_of, to_dtype
from weft.ops.joining import part
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


@replayed
def fftfreq(
    n: int,
    d: float = 1.0,
    stream: StreamOrDevice = None,
    *,
    dtype: Dtype | None = None,
    device: StreamOrDevice = None,
) -> Array:
    """The frequencies of the elements of `fft`, in cycles per unit of ``d``.

    Args:
        n: the length of the transform.
        d: the distance between samples.
        dtype: of the result, float32 by default.

    Returns:
        An array of ``n`` numbers: 0, 1, ... and then ..., -2, -1, all divided by ``n * d``.

    Raises:
        ValueError: ``n`` is not positive, or ``d`` is zero.

    >>> mx.fft.fftfreq(5, d=0.1)
    array([0, 2, 4, -4, -2], dtype=float32)
    """
    length = _samples("fftfreq", n)
    middle = _number(derived(_half, length), dtypes.int64)
    index = p.iota(shape=(length,), axis=0, dtype=dtypes.int64)
    shifted = p.remainder(p.add(index, middle), _number(length, dtypes.int64))
    return _frequencies("fftfreq", p.subtract(shifted, middle), length, d, dtype)


@replayed
def rfftfreq(
    n: int,
    d: float = 1.0,
    stream: StreamOrDevice = None,
    *,
    dtype: Dtype | None = None,
    device: StreamOrDevice = None,
) -> Array:
    """The frequencies of the elements of `rfft`, in cycles per unit of ``d``.

    Arguments and errors are those of `fftfreq`.

    Returns:
        An array of ``n // 2 + 1`` numbers: 0, 1, ..., divided by ``n * d``.

    >>> mx.fft.rfftfreq(5, d=0.1)
    array([0, 2, 4], dtype=float32)
    """
    length = _samples("rfftfreq", n)
    index = p.iota(shape=(length // 2 + 1,), axis=0, dtype=dtypes.int64)
    return _frequencies("rfftfreq", index, length, d, dtype)


@replayed
def fftshift(a: Array, axes: int | Sequence[int] | None = None, stream: StreamOrDevice = None) -> Array:
    """The array with frequency zero, which is first in the result of `fft`, moved to the middle.

    Args:
        a: any shape and dtype.
        axes: the axes to shift, by default all.

    Raises:
        IndexError: there is no such axis.

    >>> mx.fft.fftshift(mx.fft.fftfreq(5, d=0.1))
    array([-4, -2, 0, 2, 4], dtype=float32)
    """
    return _shifted("fftshift", a, axes, lambda extent: (extent + 1) // 2)


@replayed
def ifftshift(a: Array, axes: int | Sequence[int] | None = None, stream: StreamOrDevice = None) -> Array:
    """The inverse of `fftshift`; the arguments and errors are the same.

    >>> mx.fft.ifftshift(mx.array([-4, -2, 0, 2, 4]))
    array([0, 2, 4, -4, -2], dtype=int32)
    """
    return _shifted("ifftshift", a, axes, lambda extent: extent // 2)


@named
def _half(length: int) -> int:
    return length // 2


def _number(value: complex, dtype: Dtype) -> Array:
    return p.wrap(p.constant.make(value, dtype))


def _samples(name: str, n: Any) -> int:
    length = integer_of(name, "n", n)
    if decide(operator.le, length, 0):
        raise ValueError(f"[{name}] n must be positive; got {length}.")
    return length


def _frequencies(name: str, index: Array, length: int, d: Any, dtype: Dtype | None) -> Array:
    distance = real_number(name, "d", d)
    if decide_equal(distance, 0):
        raise ValueError(f"[{name}] d cannot be zero.")
    span = p.multiply(_number(length, dtypes.float64), _number(distance, dtypes.float64))
    precise = to_dtype(index, dtypes.float64)
    return to_dtype(
        p.divide(precise, p.fill(span, index.node.shape)), dtypes.float32 if dtype is None else as_dtype(dtype)
    )


def _shifted(name: str, a: Any, axes: Any, start_of: Any) -> Array:
    x = array_argument(name, a)
    ndim = x.node.ndim
    named = range(ndim) if axes is None else (axes,) if hasattr(axes, "__index__") else sequence_of(name, "axes", axes)
    for axis in [axis_of(name, one, ndim) for one in named]:
        extent = x.node.shape[axis]
        start = start_of(extent)
        x = p.concatenate(part(x, axis, start, extent - start), part(x, axis, 0, start), axis=axis)
    return fresh(x)
