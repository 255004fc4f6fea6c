"""Fourier transforms on the reference device: the passes by which Weft defines them, with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft.primitives as p
from tests.reference.lanes import L, array_of, fused, joined
from tests.reference.routines import by
from weft import dtypes
from weft.compiler.cpu.fourier import tables
from weft.compiler.cpu.fourier.butterflies import butterfly
from weft.primitives.fourier_lengths import FINE, convolution_length, radices_of, scale_of, split_of

Parts = tuple[np.ndarray, np.ndarray]


def _times(x: Parts, factor: Any) -> Parts:
    real, imag = np.broadcast_arrays(*factor)
    return fused(x[0], real, -(x[1] * imag)), fused(x[0], imag, x[1] * real)


def _swapped(x: Parts) -> Parts:
    return x[1], x[0]


def _transformed(x: Parts) -> Parts:
    """The transform along the last axis."""
    length = x[0].shape[-1]
    if radices_of(length) is not None:
        return _passes(x)
    whole = convolution_length(length)
    chirp = tables.chirp(length)
    padding = [(0, 0)] * (x[0].ndim - 1) + [(0, whole - length)]
    real, imag = (np.pad(part, padding) for part in _times(x, chirp))
    product = _times(_passes((real, imag)), tables.chirp_spectrum(length, whole))
    real, imag = _swapped(_passes(_swapped(product)))
    return _times((real[..., :length], imag[..., :length]), chirp)


def _in_two_halves(x: Parts, split: tuple[int, int]) -> Parts:
    """The transform of long rows."""
    first, second = split
    shape, others = x[0].shape, x[0].shape[:-1]
    real, imag = (np.swapaxes(part.reshape(*others, first, second), -1, -2) for part in x)
    real, imag = (np.swapaxes(part, -1, -2) for part in _passes((real.copy(), imag.copy())))
    k, j = np.arange(first)[:, None], np.arange(second)
    coarse = tables.coarse_roots(first, second)[: -2 * FINE].reshape(-1, second, 2)[k // FINE, j]
    fine = tables.fine_roots(first * second, second)[:, j, k % FINE]
    roots = _times((coarse[..., 0].copy(), coarse[..., 1].copy()), (fine[0].copy(), fine[1].copy()))
    real, imag = _passes(_times((real.copy(), imag.copy()), roots))
    return np.swapaxes(real, -1, -2).reshape(shape), np.swapaxes(imag, -1, -2).reshape(shape)


def _passes(x: Parts) -> Parts:
    length, done = x[0].shape[-1], 1
    for radix in radices_of(length) or ():
        rest = length // done // radix
        split = [part.reshape(*part.shape[:-1], radix, rest, done) for part in x]
        real, imag = (np.moveaxis(part, -3, 0) for part in split)
        numbers = [
            (L.value(a.copy(), dtypes.float32), L.value(b.copy(), dtypes.float32))
            for a, b in zip(real, imag, strict=True)
        ]
        results = [(array_of(real), array_of(imag)) for real, imag in butterfly(L, numbers)]
        if rest > 1:
            table = tables.lane_roots(radix, rest)
            for k in range(1, radix):
                results[k] = _times(results[k], (table[:, k - 1, 0, None], table[:, k - 1, 1, None]))
        real, imag = (np.stack([result[part] for result in results], -2) for part in (0, 1))
        shape = (*x[0].shape[:-1], length)
        x = real.reshape(shape), imag.reshape(shape)
        done *= radix
    return x


def _scaled(x: np.ndarray, length: int, roots: int) -> np.ndarray:
    return x * np.float32(scale_of(length, roots)) if roots else x


def _along(axis: int, transform: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    return np.moveaxis(transform(np.moveaxis(x, axis, -1)), -1, axis)


@by(p.fft.routine)
def fft(x: np.ndarray, axis: int, inverse: bool, roots: int) -> np.ndarray:
    length = x.shape[axis]
    split = split_of(length)

    def transform(rows: np.ndarray) -> np.ndarray:
        parts = rows.real.copy(), rows.imag.copy()
        parts = _swapped(parts) if inverse else parts
        parts = _transformed(parts) if split is None else _in_two_halves(parts, split)
        return joined(*(_swapped(parts) if inverse else parts))

    return _scaled(_along(axis, transform, x), length, roots)


@by(p.rfft.routine)
def rfft(x: np.ndarray, axis: int, roots: int) -> np.ndarray:
    return _scaled(_along(axis, _real, x), x.shape[axis], roots)


@by(p.irfft.routine)
def irfft(x: np.ndarray, axis: int, length: int, roots: int) -> np.ndarray:
    return _scaled(_along(axis, _inverse_real, x), length, roots)


def _real(elements: np.ndarray) -> np.ndarray:
    real, imag = _transformed((elements[..., ::2].copy(), elements[..., 1::2].copy()))
    a, b = (np.concatenate([part, part[..., :1]], -1) for part in (real, imag))
    c, d = a[..., ::-1], b[..., ::-1]
    cosine, sine = tables.half_roots(real.shape[-1], True)
    cosine, sine = np.broadcast_to(cosine, a.shape), np.broadcast_to(sine, a.shape)
    half = np.float32(0.5)
    return joined(
        fused(-(c - a), sine, fused(b + d, cosine, (a + c) * half)),
        fused(c - a, cosine, fused(b + d, sine, (b - d) * half)),
    )


def _inverse_real(elements: np.ndarray) -> np.ndarray:
    half = elements.shape[-1] - 1
    a, b = elements.real[..., :-1].copy(), elements.imag[..., :-1].copy()
    c, d = elements.real[..., :0:-1].copy(), elements.imag[..., :0:-1].copy()
    cosine, sine = (np.broadcast_to(part[:half], a.shape) for part in tables.half_roots(half, False))
    real = fused(a - c, sine, fused(-(b + d), cosine, a + c))
    imag = fused(b + d, sine, fused(a - c, cosine, b - d))
    real[..., 0], imag[..., 0] = (a + c)[..., 0], (a - c)[..., 0]
    imag, real = _transformed((imag, real))
    return np.stack([real, imag], -1).reshape(*real.shape[:-1], 2 * half)
