"""Discrete Fourier transforms: ``mx.fft``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of
from weft.errors import ArgumentTypeError
from weft.graph.extents import AnyExtent, decide, identical, smallest
from weft.ops.arguments import Array, array_argument, axis_of, distinct_axes, fresh, integer_of, sequence_of, to_dtype
from weft.ops.joining import part
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "fft",
    "fft2",
    "fftn",
    "ifft",
    "ifft2",
    "ifftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftn",
]

_FORWARD_ROOTS = {"backward": 0, "ortho": 1, "forward": 2}
"""For each ``norm``: by which power of the square root of the length a forward transform is divided."""

Lengths = list[tuple[int, int | None]]
"""Axes, each with the length of the transform; None for the extent of the array."""


@replayed
def fft(a: Array, n: int | None = None, axis: int = -1, norm: str = "backward", stream: StreamOrDevice = None) -> Array:
    """The discrete Fourier transform along an axis: ``y[k] = sum(a[j] * exp(-2 pi i j k / n))``.

    Args:
        a: any shape and dtype; computed in complex64.
        n: the length of the transform: along ``axis`` the array is truncated or padded with zeros. By default the
            extent of the axis.
        axis: the axis to transform.
        norm: which transforms are divided: ``"backward"``, the inverse by ``n``; ``"ortho"``, both by the square root
            of ``n``; ``"forward"``, this one by ``n``.

    Returns:
        A complex64 array of the shape of ``a``, with ``n`` along ``axis``.

    Raises:
        ValueError: ``n`` is not positive, or ``norm`` is unknown.
        IndexError: there is no such axis.

    >>> mx.fft.fft(mx.array([1.0, 2.0, 3.0, 4.0]))
    array([10+0j, -2+2j, -2+0j, -2-2j], dtype=complex64)
    """
    return _complex("fft", a, n, axis, norm, inverse=False)


@replayed
def ifft(
    a: Array, n: int | None = None, axis: int = -1, norm: str = "backward", stream: StreamOrDevice = None
) -> Array:
    """The inverse of `fft`: ``y[j] = sum(a[k] * exp(2 pi i j k / n)) / n``.

    Arguments and errors are those of `fft`; with ``norm="forward"`` it is not divided by ``n``.

    >>> mx.fft.ifft(mx.array([10, -2 + 2j, -2, -2 - 2j]))
    array([1+0j, 2+0j, 3+0j, 4+0j], dtype=complex64)
    """
    return _complex("ifft", a, n, axis, norm, inverse=True)


@replayed
def rfft(
    a: Array, n: int | None = None, axis: int = -1, norm: str = "backward", stream: StreamOrDevice = None
) -> Array:
    """The first half of the discrete Fourier transform of real numbers; the second half is its conjugate.

    Arguments and errors are those of `fft`; ``a`` is real, and computed in float32.

    Returns:
        A complex64 array with ``n // 2 + 1`` numbers along ``axis``.

    >>> mx.fft.rfft(mx.array([1.0, 2.0, 3.0, 4.0]))
    array([10+0j, -2+2j, -2+0j], dtype=complex64)
    """
    x, axis = operand("rfft", a, axis)
    return real_forward("rfft", x, [(axis, length_of("rfft", n))], norm)


@replayed
def irfft(
    a: Array, n: int | None = None, axis: int = -1, norm: str = "backward", stream: StreamOrDevice = None
) -> Array:
    """The inverse of `rfft`: the real numbers whose transform has ``a`` as its first half.

    Args:
        a: any shape and dtype; computed in complex64. The imaginary parts of the first number and, if ``n`` is even, of
            the last one are ignored.
        n: the extent of the result along ``axis``, by default ``2 * (a.shape[axis] - 1)``.
        axis: the axis to transform.
        norm: as for `ifft`.

    Returns:
        A float32 array with ``n`` numbers along ``axis``.

    Raises:
        ValueError: ``n`` is not positive, or ``norm`` is unknown.
        IndexError: there is no such axis.

    >>> mx.fft.irfft(mx.array([10, -2 + 2j, -2]))
    array([1, 2, 3, 4], dtype=float32)
    """
    x, axis = operand("irfft", a, axis)
    return real_inverse("irfft", x, [(axis, length_of("irfft", n))], norm)


@replayed
def fft2(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """`fftn` along the last two axes or other ones; the arguments are the same.

    >>> mx.fft.fft2(mx.ones((2, 2)))
    array([[4+0j, 0+0j],
           [0+0j, 0+0j]], dtype=complex64)
    """
    return _complex_axes("fft2", a, s, axes, norm, inverse=False)


@replayed
def ifft2(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """`ifftn` along the last two axes or other ones; the arguments are the same.

    >>> mx.fft.ifft2(mx.array([[4, 0], [0, 0]]))
    array([[1+0j, 1+0j],
           [1+0j, 1+0j]], dtype=complex64)
    """
    return _complex_axes("ifft2", a, s, axes, norm, inverse=True)


@replayed
def fftn(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """The discrete Fourier transform along several axes.

    Args:
        a: any shape of at least one dimension, any dtype; computed in complex64.
        s: the length of the transform along each of ``axes``, which must then be given; see `fft`.
        axes: the axes to transform, by default all.
        norm: as in `fft`.

    Returns:
        A complex64 array; ``a`` itself if there are no axes.

    Raises:
        ValueError: a length is not positive, an axis is repeated, ``s`` and ``axes`` differ in length, ``s`` is given
            without ``axes``, or ``norm`` is unknown.
        IndexError: there is no such axis.

    >>> mx.fft.fftn(mx.ones((1, 2, 2)), axes=[0, 2])
    array([[[2+0j, 0+0j],
            [2+0j, 0+0j]]], dtype=complex64)
    """
    return _complex_axes("fftn", a, s, axes, norm, inverse=False)


@replayed
def ifftn(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """The inverse of `fftn`, with the same arguments and errors.

    >>> mx.fft.ifftn(mx.fft.fftn(mx.array([[1.0, 2.0]])))
    array([[1+0j, 2+0j]], dtype=complex64)
    """
    return _complex_axes("ifftn", a, s, axes, norm, inverse=True)


@replayed
def rfft2(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """`rfftn` along the last two axes or other ones; the arguments are the same.

    >>> mx.fft.rfft2(mx.ones((2, 3)))
    array([[6+0j, 0+0j],
           [0+0j, 0+0j]], dtype=complex64)
    """
    return _real_axes("rfft2", a, s, axes, norm, real_forward)


@replayed
def irfft2(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """`irfftn` along the last two axes or other ones; the arguments are the same.

    >>> mx.fft.irfft2(mx.array([[4, 0], [0, 0]]))
    array([[1, 1],
           [1, 1]], dtype=float32)
    """
    return _real_axes("irfft2", a, s, axes, norm, real_inverse)


@replayed
def rfftn(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """The transform of real numbers along several axes: `rfft` along the last one of ``axes``, then `fft` along the
    others.

    Arguments and errors are those of `fftn`; ``a`` is real, and computed in float32.

    >>> mx.fft.rfftn(mx.array([[1.0, 2.0], [3.0, 4.0]]))
    array([[10+0j, -2+0j],
           [-4+0j, 0+0j]], dtype=complex64)
    """
    return _real_axes("rfftn", a, s, axes, norm, real_forward)


@replayed
def irfftn(
    a: Array,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    stream: StreamOrDevice = None,
) -> Array:
    """The inverse of `rfftn`: `ifft` along all of ``axes`` but the last one, then `irfft` along that one.

    Arguments and errors are those of `fftn`; the length along the last axis is by default that of `irfft`. The result
    is float32.

    >>> mx.fft.irfftn(mx.array([[10, -2], [-4, 0]]))
    array([[1, 2],
           [3, 4]], dtype=float32)
    """
    return _real_axes("irfftn", a, s, axes, norm, real_inverse)


def operand(name: str, a: Any, axis: Any) -> tuple[Array, int]:
    x = array_argument(name, a)
    return x, axis_of(name, axis, x.node.ndim)


def length_of(name: str, n: Any) -> int | None:
    if n is None:
        return None
    length = integer_of(name, "n", n)
    return _positive(name, length)


def _positive(name: str, length: AnyExtent) -> AnyExtent:
    if decide(operator.lt, length, 1):
        raise ValueError(f"[{name}] The length of a transform must be positive; got {length}.")
    return length


def _lengths(name: str, x: Array, s: Any, axes: Any) -> Lengths:
    """The axes of a transform in the user's order, each with its length."""
    ndim = x.node.ndim
    if s is not None and axes is None:
        raise ValueError(f"[{name}] axes must be given too if s is.")
    if not ndim and axes is None:
        raise ValueError(f"[{name}] A 0-d array has no axis to transform.")
    named = range(ndim) if axes is None else sequence_of(name, "axes", axes)
    numbers = distinct_axes(name, named, ndim)
    if s is None:
        return [(axis, None) for axis in numbers]
    lengths = [length_of(name, n) for n in sequence_of(name, "s", s)]
    if len(lengths) != len(numbers):
        raise ValueError(f"[{name}] {len(lengths)} lengths are given for {len(numbers)} axes.")
    return list(zip(numbers, lengths, strict=True))


def roots_of(name: str, norm: Any, inverse: bool) -> int:
    forward = _FORWARD_ROOTS[one_of(name, "norm", norm, _FORWARD_ROOTS)]
    return 2 - forward if inverse else forward


def _complex(name: str, a: Any, n: Any, axis: Any, norm: Any, inverse: bool) -> Array:
    x, axis = operand(name, a, axis)
    return complex_along(name, x, [(axis, length_of(name, n))], roots_of(name, norm, inverse), inverse)


def _complex_axes(name: str, a: Any, s: Any, axes: Any, norm: Any, inverse: bool) -> Array:
    x = array_argument(name, a)
    lengths = _lengths(name, x, s, axes)
    roots = roots_of(name, norm, inverse)
    return complex_along(name, x, lengths, roots, inverse) if lengths else fresh(x)


def complex_along(name: str, x: Array, lengths: Lengths, roots: int, inverse: bool) -> Array:
    """Complex transforms along axes, the last one first."""
    x = to_dtype(x, dtypes.complex64)
    for axis, length in reversed(lengths):
        x = p.fft(_fitted(name, x, axis, length), axis=axis, inverse=inverse, roots=roots)
    return x


def _real_axes(name: str, a: Any, s: Any, axes: Any, norm: Any, transform: Any) -> Array:
    x = array_argument(name, a)
    lengths = _lengths(name, x, s, axes)
    roots_of(name, norm, inverse=False)
    result: Array = transform(name, x, lengths, norm) if lengths else fresh(x)
    return result


def real_forward(name: str, x: Array, lengths: Lengths, norm: Any) -> Array:
    roots = roots_of(name, norm, inverse=False)
    if x.node.dtype.is_complex:
        raise ArgumentTypeError(
            f"[{name}] transforms real numbers; got complex64. Use mx.fft.{name.removeprefix('r')}, or take mx.real."
        )
    *others, (axis, length) = lengths
    fitted = _fitted(name, to_dtype(x, dtypes.float32), axis, length)
    return complex_along(name, p.rfft(fitted, axis=axis, roots=roots), others, roots, inverse=False)


def real_inverse(name: str, x: Array, lengths: Lengths, norm: Any) -> Array:
    roots = roots_of(name, norm, inverse=True)
    *others, (axis, length) = lengths
    x = complex_along(name, x, others, roots, inverse=True)
    if length is None:
        length = _positive(name, 2 * (x.node.shape[axis] - 1))
    else:
        x = _fitted(name, x, axis, length // 2 + 1)
    return p.irfft(x, axis=axis, length=length, roots=roots)


def _fitted(name: str, x: Array, axis: int, length: int | None) -> Array:
    """An array truncated or padded with zeros along an axis. Its nodes are the same for every symbolic extent."""
    shape = x.node.shape
    extent = shape[axis]
    if length is None:
        _positive(name, extent)
        return x
    if identical(extent, length):
        return x
    size = smallest(extent, length)
    if not identical(size, extent):
        x = part(x, axis, 0, size)
    if identical(size, length):
        return x
    low = (0,) * len(shape)
    high = tuple([length - size if number == axis else 0 for number in range(len(shape))])
    return p.pad(x, p.zeros((), x.node.dtype), low=low, high=high)
