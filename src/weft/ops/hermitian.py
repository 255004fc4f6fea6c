"""Discrete Fourier transforms whose results are real: ``mx.fft.hfft`` and its inverse."""

from __future__ import annotations

import weft.primitives as p
from weft.checks import one_of
from weft.dtypes import complex64
from weft.ops.arguments import Array, to_dtype
from weft.ops.entrance import on_stream
from weft.ops.fourier import length_of, operand, real_forward, real_inverse
from weft.runtime.devices import StreamOrDevice

__all__ = ["hfft", "ihfft"]

_OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


@on_stream
def hfft(
    a: Array, n: int | None = None, axis: int = -1, norm: str = "backward", *, stream: StreamOrDevice = None
) -> Array:
    """The real transform of a signal that equals its reversed conjugate; ``a`` is the first half of the signal.

    Args:
        a: any shape and dtype; computed in complex64.
        n: the extent of the result along ``axis``, by default ``2 * (a.shape[axis] - 1)``.
        axis: the axis to transform.
        norm: where to divide; see `mx.fft.fft`.

    Raises:
        ValueError: ``n`` is not positive, or ``norm`` is unknown.

    >>> mx.fft.hfft(mx.array([1.0, 2.0, 1.0]))
    array([6, 0, -2, 0], dtype=float32)
    """
    x, along = operand("hfft", a, axis)
    opposite = _OPPOSITE[one_of("hfft", "norm", norm, _OPPOSITE)]
    return real_inverse("hfft", p.conjugate(to_dtype(x, complex64)), [(along, length_of("hfft", n))], opposite)


@on_stream
def ihfft(
    a: Array, n: int | None = None, axis: int = -1, norm: str = "backward", *, stream: StreamOrDevice = None
) -> Array:
    """The inverse of `hfft`: the first half of a signal whose transform is the real array ``a``.

    Args:
        a: any shape and real dtype; computed in float32.
        n: the length of the transform, by default the extent of the axis.
        axis: the axis to transform.
        norm: where to divide; see `mx.fft.fft`.

    Raises:
        ValueError: ``n`` is not positive, or ``norm`` is unknown.

    >>> mx.real(mx.fft.ihfft(mx.array([6.0, 0.0, -2.0, 0.0])))
    array([1, 2, 1], dtype=float32)
    """
    x, along = operand("ihfft", a, axis)
    opposite = _OPPOSITE[one_of("ihfft", "norm", norm, _OPPOSITE)]
    return p.conjugate(real_forward("ihfft", x, [(along, length_of("ihfft", n))], opposite))
