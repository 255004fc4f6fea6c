"""Fourier transforms of a few complex numbers, as formulas on lanes.

A complex number is a pair of real values. A product and a sum are fused only where a formula calls ``fma``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.primitives.fourier_lengths import root

Pair = tuple[Any, Any]


def butterfly(L: Any, x: Sequence[Pair]) -> list[Pair]:
    """The transform of ``n`` numbers, where ``n`` is a radix: ``y[k] = sum(x[j] * exp(-2 pi i j k / n))``."""
    count = len(x)
    if count == 2:
        return [added(x[0], x[1]), subtracted(x[0], x[1])]
    if count == 4:
        return _four(x)
    if _first_factor(count) is None:
        return _odd(L, x)
    results: list[Pair] = [x[0]] * count
    for k, result in in_turn(L, count, x.__getitem__):
        results[k] = result
    return results


def in_turn(L: Any, count: int, number: Callable[[int], Pair]) -> Iterator[tuple[int, Pair]]:
    """The results of a `butterfly` with their positions, each as soon as it is known. Inputs are read with ``number``
    when they are needed, so that few numbers are in registers at once.

    It transforms some of the numbers, multiplies by roots of unity, and transforms again (Cooley and Tukey, 1965).
    """
    first = _first_factor(count)
    if first is None:
        yield from enumerate(butterfly(L, [number(j) for j in range(count)]))
        return
    second = count // first
    columns = [butterfly(L, [number(j) for j in range(column, count, second)]) for column in range(second)]
    for row in range(first):
        rotated = [_rotated(L, columns[column][row], row * column, count) for column in range(second)]
        for k, result in enumerate(butterfly(L, rotated)):
            yield row + first * k, result


def _first_factor(count: int) -> int | None:
    """How many numbers are transformed first, if the radix is a product; None if all are transformed at once."""
    return next((first for first in (4, 3, 2) if count % first == 0 and count > max(first, 4)), None)


def added(x: Pair, y: Pair) -> Pair:
    return x[0] + y[0], x[1] + y[1]


def subtracted(x: Pair, y: Pair) -> Pair:
    return x[0] - y[0], x[1] - y[1]


def times(L: Any, x: Pair, real: Any, imag: Any) -> Pair:
    """The product of two complex numbers."""
    return L.fma(x[0], real, -(x[1] * imag)), L.fma(x[0], imag, x[1] * real)


def _four(x: Sequence[Pair]) -> list[Pair]:
    even, odd = added(x[0], x[2]), added(x[1], x[3])
    minus, crossed = subtracted(x[0], x[2]), subtracted(x[1], x[3])
    return [
        added(even, odd),
        (minus[0] + crossed[1], minus[1] - crossed[0]),
        subtracted(even, odd),
        (minus[0] - crossed[1], minus[1] + crossed[0]),
    ]


def _rotated(L: Any, x: Pair, numerator: int, count: int) -> Pair:
    """``x * exp(-2 pi i numerator / count)``."""
    eighths, rest = divmod(8 * (numerator % count), count)
    if rest:
        cosine, sine = root(numerator, count)
        return times(L, x, L.coerce(cosine, x[0].dtype), L.coerce(-sine, x[0].dtype))
    if eighths % 2:
        half = L.coerce(root(1, 8)[0], x[0].dtype)
        x = (x[0] + x[1]) * half, (x[1] - x[0]) * half
    real, imag = x
    return [(real, imag), (imag, -real), (-real, -imag), (-imag, real)][eighths // 2]


def _odd(L: Any, x: Sequence[Pair]) -> list[Pair]:
    """The transform of an odd count of numbers, from sums and differences of those with conjugate roots."""
    count, half = len(x), (len(x) + 1) // 2
    sums = [added(x[j], x[-j]) for j in range(1, half)]
    differences = [subtracted(x[j], x[-j]) for j in range(1, half)]
    result: list[Pair] = [x[0]] * count
    for pair in sums:
        result[0] = added(result[0], pair)
    for k in range(1, half):
        angles = [root(j * k, count) for j in range(1, half)]
        parts = [
            _weighted(L, x[0][part], [one[part] for one in sums], [cosine for cosine, _ in angles]) for part in (0, 1)
        ]
        crossed = [
            _weighted(L, None, [one[part] for one in differences], [sine for _, sine in angles]) for part in (0, 1)
        ]
        result[k] = parts[0] + crossed[1], parts[1] - crossed[0]
        result[count - k] = parts[0] - crossed[1], parts[1] + crossed[0]
    return result


def _weighted(L: Any, total: Any, values: Sequence[Any], weights: Sequence[float]) -> Any:
    """``total`` plus the values times their weights, in order."""
    for value, weight in zip(values, weights, strict=True):
        factor = L.coerce(weight, value.dtype)
        total = value * factor if total is None else L.fma(value, factor, total)
    return total
