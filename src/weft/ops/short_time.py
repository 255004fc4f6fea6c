"""Short-time Fourier transforms: transforms of overlapping frames of a signal."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of, wrong_type
from weft.graph.extents import decide, decide_equal, derived, fixed, smallest
from weft.ops.arguments import Array, array_argument, integer_of, to_dtype
from weft.ops.entrance import on_stream
from weft.ops.fourier import Lengths, complex_along, real_forward, real_inverse, roots_of
from weft.ops.joining import part
from weft.ops.padding import pad
from weft.runtime.devices import StreamOrDevice

__all__ = ["istft", "stft"]

_LEAST_ENVELOPE = 1e-8
"""Where the sum of the squared windows is smaller, `istft` divides by this."""


@on_stream
def stft(
    x: Array,
    n_fft: int = 2048,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Array | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    norm: str = "backward",
    onesided: bool | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The short-time Fourier transform: that of overlapping frames of a signal, each multiplied by a window.

    Args:
        x: ``(..., samples)``, any dtype; computed in float32 or complex64.
        n_fft: the samples of a frame.
        hop_length: the samples from the beginning of one frame to the next, by default ``n_fft // 4``.
        win_length: if there is no ``window``: how many samples in the middle of a frame are used; by default all.
        window: ``(length,)``, factors of the samples in the middle of a frame; the other samples count as zero.
        center: whether frames are centered: the signal is then extended by ``n_fft // 2`` samples on both sides.
        pad_mode: how it is extended: a mode of `pad`.
        norm: as in `fft`.
        onesided: whether to return only the first half of each transform, as `rfft` does. By default for real ``x``.

    Returns:
        A complex64 array ``(..., frequencies, frames)``.

    Raises:
        ValueError: a length is not positive, the window is longer than a frame or the signal shorter, ``onesided`` is
            set for complex numbers, or ``norm`` or ``pad_mode`` is unknown.

    >>> mx.fft.stft(mx.array([1.0, 2.0, 3.0, 4.0, 5.0]), n_fft=2, hop_length=1, center=False)
    array([[3+0j, 5+0j, 7+0j, 9+0j],
           [-1+0j, -1+0j, -1+0j, -1+0j]], dtype=complex64)
    """
    signal = array_argument("stft", x, "x")
    if not signal.node.ndim:
        raise ValueError("[stft] A 0-d array has no samples.")
    size, hop = _sizes("stft", n_fft, hop_length)
    roots = roots_of("stft", norm, inverse=False)
    one_of("stft", "pad_mode", pad_mode, ("reflect", "constant", "edge", "symmetric"))
    is_complex = signal.node.dtype.is_complex
    half = not is_complex if onesided is None else _flag("stft", "onesided", onesided)
    if half and is_complex:
        raise ValueError("[stft] The transform of complex numbers has no conjugate halves; leave onesided out.")
    signal = to_dtype(signal, dtypes.complex64 if is_complex else dtypes.float32)
    factors = _window("stft", window, win_length, size)
    if _flag("stft", "center", center) and size > 1:
        widths = [(0, 0)] * (signal.node.ndim - 1) + [(size // 2, size // 2)]
        signal = pad(signal, widths, pad_mode)  # type: ignore[arg-type]  # checked above
    if decide(operator.lt, signal.node.shape[-1], size):
        raise ValueError(f"[stft] A signal of {signal.node.shape[-1]} samples is shorter than a frame of {size}.")
    frames = p.frames(signal, size=size, hop=hop)
    if factors is not None:
        frames = frames * _along_frames(factors, frames)
    along: Lengths = [(frames.node.ndim - 1, None)]
    if half:
        return p.matrix_transpose(real_forward("stft", frames, along, norm))
    return p.matrix_transpose(complex_along("stft", frames, along, roots, inverse=False))


@on_stream
def istft(
    stft_matrix: Array,
    n_fft: int | None = None,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Array | None = None,
    center: bool = True,
    norm: str = "backward",
    onesided: bool | None = None,
    length: int | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """The inverse of `stft`: frames times the window, added where they overlap, and divided by the sum of squared
    windows.

    Args:
        stft_matrix: ``(..., frequencies, frames)``, any dtype; computed in complex64.
        n_fft: the samples of a frame; by default the number that fits the frequencies, an even one if ``onesided``.
        hop_length: the samples from the beginning of one frame to the next, by default ``n_fft // 4``.
        win_length: as for `stft`.
        window: as for `stft`.
        center: whether the frames were centered.
        norm: as in `ifft`.
        onesided: whether there is only the first half of each transform, which is the default.
        length: how many samples to return: the signal is truncated or padded with zeros.

    Returns:
        A float32 array ``(..., samples)``: the real part of the signal.

    Raises:
        ValueError: there are less than two dimensions, or no frames; otherwise as for `stft`.

    >>> mx.fft.istft(mx.fft.stft(mx.array([1.0, 2.0, 3.0, 4.0]), n_fft=4), n_fft=4)
    array([1, 2, 3, 4], dtype=float32)
    """
    matrix = array_argument("istft", stft_matrix, "stft_matrix")
    if matrix.node.ndim < 2:
        raise ValueError("[istft] There are less than two dimensions, which frequencies and frames need.")
    half = onesided is None or _flag("istft", "onesided", onesided)
    if n_fft is None:
        frequencies = fixed(matrix.node.shape[-2])
        n_fft = 2 * (frequencies - 1) if half else frequencies
    size, hop = _sizes("istft", n_fft, hop_length)
    if decide_equal(matrix.node.shape[-1], 0):
        raise ValueError("[istft] There are no frames.")
    factors = _window("istft", window, win_length, size)
    transformed = p.matrix_transpose(matrix)
    along: Lengths = [(matrix.node.ndim - 1, size)]
    if half:
        frames = real_inverse("istft", transformed, along, norm)
    else:
        roots = roots_of("istft", norm, inverse=True)
        frames = to_dtype(complex_along("istft", transformed, along, roots, inverse=True), dtypes.float32)
    count = frames.node.shape[-2]
    samples = (count - 1) * hop + size
    if factors is None:
        factors = p.ones((size,), dtypes.float32)
    signal = p.overlap_added(frames * _along_frames(factors, frames), hop, samples)
    squares = p.broadcast(p.expand(factors * factors, axes=(0,)), shape=(count, size))
    envelope = p.maximum(p.overlap_added(squares, hop, samples), _LEAST_ENVELOPE)
    others = tuple(range(signal.node.ndim - 1))
    signal = signal / p.broadcast(p.expand(envelope, axes=others), shape=signal.node.shape)
    start = size // 2 if _flag("istft", "center", center) else 0
    rest = samples - start if length is not None else samples - 2 * start
    return _trimmed(part(signal, signal.node.ndim - 1, start, rest), length)


def _flag(name: str, word: str, value: Any) -> bool:
    if not isinstance(value, (int, np.integer, np.bool_)):
        raise wrong_type(name, word, "True or False", value)
    return bool(value)


def _sizes(name: str, n_fft: Any, hop_length: Any) -> tuple[int, int]:
    """The samples of a frame, and those from the beginning of one frame to the next."""
    size = integer_of(name, "n_fft", n_fft)
    if decide(operator.lt, size, 1):
        raise ValueError(f"[{name}] n_fft must be positive; got {size}.")
    hop = size // 4 if hop_length is None else integer_of(name, "hop_length", hop_length)
    if decide(operator.lt, hop, 1):
        raise ValueError(f"[{name}] hop_length must be positive; got {hop}. By default it is n_fft // 4.")
    return size, hop


def _window(name: str, window: Any, win_length: Any, size: int) -> Array | None:
    """The factors of all samples of a frame; None if all are one."""
    if window is None:
        given = size if win_length is None else integer_of(name, "win_length", win_length)
        if decide_equal(given, size):
            return None
        factors = None
    else:
        factors = to_dtype(array_argument(name, window, "window"), dtypes.float32)
        if factors.node.ndim != 1:
            raise ValueError(f"[{name}] window must have one dimension; got shape {factors.node.shape}.")
        given = factors.node.shape[0]
    if decide(operator.lt, given, 0) or decide(operator.gt, given, size):
        raise ValueError(f"[{name}] A window of {given} samples does not fit a frame of {size}.")
    if factors is None:
        factors = p.ones((given,), dtypes.float32)
    before = (size - given) // 2
    return p.pad(factors, p.zeros((), dtypes.float32), low=(before,), high=(size - given - before,))


def _along_frames(factors: Array, frames: Array) -> Array:
    """The factors repeated for each frame, in the dtype of the frames."""
    others = tuple(range(frames.node.ndim - 1))
    return p.broadcast(p.expand(to_dtype(factors, frames.node.dtype), axes=others), shape=frames.node.shape)


def _trimmed(signal: Array, length: Any) -> Array:
    """The first ``length`` samples of a signal, padded with zeros if there are fewer; all samples if ``length`` is
    None."""
    if length is None:
        return signal
    wanted = integer_of("istft", "length", length)
    wanted = derived(max, wanted, 0)
    last, extent = signal.node.ndim - 1, signal.node.shape[-1]
    size = smallest(extent, wanted)
    low = (0,) * signal.node.ndim
    cut = part(signal, last, 0, size)
    return p.pad(cut, p.zeros((), dtypes.float32), low=low, high=(*low[1:], wanted - size))
