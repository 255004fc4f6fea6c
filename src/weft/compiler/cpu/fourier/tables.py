"""Tables of roots of unity for the stages of Fourier transforms. All steps with the same table share it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from weft.compiler.cpu.fourier.butterflies import Pair, butterfly, times
from weft.primitives.fourier_lengths import FINE, Doubles, Floats, radices_of, roots
from weft.runtime.locks import fork_safe_lock

_tables: WeakValueDictionary[tuple[Any, ...], Floats] = WeakValueDictionary()
_lock = fork_safe_lock()


def shared(make: Callable[..., Floats], *arguments: int) -> Floats:
    """The table that ``make`` gives for arguments: the same one for as long as something refers to it."""
    key = (make, *arguments)
    with _lock:
        found = _tables.get(key)
        if found is None:
            found = _tables[key] = make(*arguments)
        return found


def address_of(table: Floats) -> int:
    """The address of the first number of a table."""
    address: int = table.__array_interface__["data"][0]
    return address


def lane_roots(radix: int, rest: int) -> Floats:
    """``exp(-2 pi i p k / (radix * rest))``, real and imaginary parts alternating, for each ``p`` below ``rest`` and
    each ``k`` from 1 to ``radix - 1``."""
    p, k = np.arange(rest), np.arange(1, radix)
    cosine, sine = roots(np.multiply.outer(p, k), radix * rest)
    return np.stack([cosine, -sine], -1).astype(np.float32)


def spread_roots(radix: int, rest: int, block: int, padding: int) -> Floats:
    """The roots of `lane_roots` by ``k``: all real before all imaginary parts, each ``p`` repeated ``block`` times,
    then ``padding`` zeros."""
    p, k = np.arange(rest), np.arange(1, radix)
    cosine, sine = roots(np.multiply.outer(k, p), radix * rest)
    table = np.stack([cosine, -sine], 1).repeat(block, axis=-1)
    return np.pad(table, [(0, 0), (0, 0), (0, padding)]).astype(np.float32)


def row_roots(radix: int, rest: int, rows: int) -> Floats:
    """The roots of `lane_roots` by ``k``: all real before all imaginary parts, and all ``p`` for each of ``rows``."""
    return np.tile(spread_roots(radix, rest, 1, 0), rows)


def coarse_roots(first: int, second: int) -> Floats:
    """``exp(-2 pi i j k / (first * second))``, real and imaginary parts alternating, for every `FINE`-th ``k`` below
    ``first`` and each ``j`` below ``second``; then zeros, up to which a stage may read."""
    k, j = np.arange(0, first, FINE), np.arange(second)
    cosine, sine = roots(np.multiply.outer(k, j), first * second)
    return np.pad(np.stack([cosine, -sine], -1).astype(np.float32).ravel(), (0, 2 * FINE))


def fine_roots(length: int, second: int) -> Floats:
    """``exp(-2 pi i j k / length)`` for ``j`` below ``second + FINE`` and ``k`` below `FINE`, all real before all
    imaginary parts."""
    j, k = np.arange(second + FINE), np.arange(FINE)
    cosine, sine = roots(np.multiply.outer(j, k), length)
    return np.stack([cosine, -sine]).astype(np.float32)


def half_roots(length: int, halved: int) -> Floats:
    """``exp(-pi i k / length)`` for ``k`` from 0 to ``length``, all real before all imaginary parts, divided by two if
    ``halved``."""
    cosine, sine = roots(np.arange(length + 1), 2 * length)
    return np.stack([cosine, -sine]).astype(np.float32) * np.float32(0.5 if halved else 1)


def row_half_roots(length: int, block: int, rows: int, halved: int) -> Floats:
    """The numbers of `half_roots` below ``length`` in blocks of ``block`` neighbours: each block once for each of
    ``rows``, all real before all imaginary parts. Then the number for ``length``."""
    half = half_roots(length, halved)
    blocks = half[:, :length].reshape(2, -1, block).swapaxes(0, 1)
    return np.concatenate([np.tile(blocks, rows).ravel(), half[:, length]])


def chirp(length: int) -> Floats:
    """``exp(-pi i k**2 / length)``, all real before all imaginary parts."""
    cosine, sine = _chirp(length)
    return np.stack([cosine, -sine]).astype(np.float32)


def _chirp(length: int) -> tuple[Any, Any]:
    k = np.arange(length)
    return roots(k * k % (2 * length), 2 * length)


def chirp_spectrum(length: int, whole: int) -> Floats:
    """The Fourier transform of ``exp(pi i k**2 / length)`` around zero, with ``whole`` numbers, divided by
    ``whole``."""
    around = np.zeros((2, whole))
    around[:, :length] = _chirp(length)
    around[:, whole - length + 1 :] = around[:, 1:length][:, ::-1]
    return (np.stack(_transform(around[0], around[1])) / whole).astype(np.float32)


class _Doubles:
    """Arrays of float64 in place of lanes. ``fma`` rounds the product, so that tables are the same on every
    processor."""

    @staticmethod
    def coerce(value: float, dtype: object) -> float:
        return value

    @staticmethod
    def fma(x: Doubles, y: Any, z: Any) -> Doubles:
        return x * y + z


def _transform(real: Doubles, imag: Doubles) -> Pair:
    """The Fourier transform in float64, by the same passes."""
    done, length = 1, real.size
    for radix in radices_of(length) or ():
        rest = length // done // radix
        shape = (radix, rest, done)
        results = butterfly(_Doubles, list(zip(real.reshape(shape), imag.reshape(shape), strict=True)))
        real, imag = np.empty((2, rest, radix, done))
        for k, result in enumerate(results):
            cosine, sine = roots(k * np.arange(rest), radix * rest)
            real[:, k], imag[:, k] = times(_Doubles, result, cosine[:, None], -sine[:, None])
        done *= radix
    return real.ravel(), imag.ravel()
