"""How a Fourier transform of a given length is cut into passes, and the roots of unity in these passes.

All of this depends on the length alone, so that results have the same bits for any layout and processor.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]

LONG = 1 << 17
"""Rows of at least this length are transformed as many short ones, because they need more memory than caches have."""

FINE = 16
"""Roots of unity of long rows are products of two: one of a multiple of this number, and one of the rest."""

_ODD_RADICES = (13, 11, 7, 5, 9, 3)
"""Lengths with a larger prime factor than these are computed as convolutions."""
_SINE = (1 / 355687428096000, -1 / 1307674368000, 1 / 6227020800, -1 / 39916800, 1 / 362880, -1 / 5040, 1 / 120, -1 / 6)
_COSINE = (
    -1 / 6402373705728000,
    1 / 20922789888000,
    -1 / 87178291200,
    1 / 479001600,
    -1 / 3628800,
    1 / 40320,
    -1 / 720,
)
_COSINE_LOW = (1 / 24, -0.5)


@cache
def radices_of(length: int) -> tuple[int, ...] | None:
    """The radices of the passes in order; None if the length has a prime factor for which there is no pass."""
    power, rest = 0, length
    while rest % 2 == 0:
        power, rest = power + 1, rest // 2
    odd = []
    for radix in _ODD_RADICES:
        while rest % radix == 0:
            odd.append(radix)
            rest //= radix
    if rest > 1:
        return None
    powers = _radices_of_power(power)
    # Rows with two passes share vectors. The first of them also reorders results, for which it needs registers.
    return tuple(powers[::-1]) if len(powers) == 2 and not odd else (*powers, *odd)


def _radices_of_power(power: int) -> list[int]:
    """Radices of 2, 4, 8 and 16 whose product is a power of two: as few as possible, the largest first."""
    passes = -(-power // 4)
    return [1 << (power // passes + (number < power % passes)) for number in range(passes)]


@cache
def convolution_length(length: int) -> int:
    """The smallest length with cheap passes at which a convolution with a chirp of ``length`` does not wrap around."""
    least = 2 * length - 1
    best = 1 << (least - 1).bit_length()
    for odd in (3, 5, 9, 15):
        power = max((-(-least // odd) - 1).bit_length(), 4)
        best = min(best, odd << power)
    return best


@cache
def work_length(length: int) -> int:
    """The number of complex numbers of a transform's buffer."""
    return length if radices_of(length) is not None else convolution_length(length)


@cache
def split_of(length: int) -> tuple[int, int] | None:
    """Two factors, as equal as possible, of a length that is transformed as many short ones; None for other lengths.

    With ``j = second * j1 + j2`` and ``k = k1 + first * k2``, transforms over ``j1``, roots of unity that depend on
    ``j2`` and ``k1``, and transforms over ``j2`` give the whole. (D. H. Bailey, FFTs in external or hierarchical
    memory, 1990.)
    """
    radices = radices_of(length)
    if radices is None or length < LONG:
        return None
    products = {1}
    for radix in radices:
        products |= {product * factor for product in products for factor in _divisors(radix)}
    first = min([product for product in products if product * product >= length])
    return first, length // first


def _divisors(radix: int) -> list[int]:
    return [factor for factor in range(2, radix + 1) if radix % factor == 0]


def scale_of(length: int, roots: int) -> float:
    """The factor of a transform that is divided by ``roots`` square roots of its length."""
    return (1.0, 1 / math.sqrt(length), 1 / length)[roots]


def roots(numerators: npt.NDArray[np.int64], length: int) -> tuple[Doubles, Doubles]:
    """Cosines and sines of ``2 pi numerators / length``.

    Angles are reduced to the first eighth of the circle in integer arithmetic, so that symmetric angles give the same
    digits. Only additions, products and quotients are used, which give the same bits on every processor.
    """
    angle = 8 * (numerators % length)
    below = angle > 4 * length
    angle = np.where(below, 8 * length - angle, angle)
    left = angle > 2 * length
    angle = np.where(left, 4 * length - angle, angle)
    steep = angle > length
    angle = np.where(steep, 2 * length - angle, angle)
    x = angle / length * (np.pi / 4)
    square = x * x
    sine = x + x * square * _polynomial(square, _SINE)
    cosine = 1 + square * _polynomial(square, _COSINE + _COSINE_LOW)
    cosine, sine = np.where(steep, sine, cosine), np.where(steep, cosine, sine)
    return np.where(left, -cosine, cosine), np.where(below, -sine, sine)


def _polynomial(x: Doubles, coefficients: tuple[float, ...]) -> Doubles:
    """Horner's scheme; the coefficient of the highest power is first."""
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def root(numerator: int, length: int) -> tuple[float, float]:
    """`roots` of a single numerator."""
    cosine, sine = roots(np.array([numerator]), length)
    return float(cosine[0]), float(sine[0])
