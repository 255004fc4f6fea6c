"""Formulas between the transform of real numbers and that of half as many complex ones, on lanes."""

from __future__ import annotations

from typing import Any

from weft.compiler.cpu.fourier.butterflies import Pair


def real_of_half(L: Any, left: Pair, right: Pair, factor: Pair) -> Pair:
    """``x[k]`` of `ends.halves_to_real`, from ``z[k]``, ``z[h - k]`` and half of a root."""
    half = L.coerce(0.5, left[0].dtype)
    real, imaginary = left[0] + right[0], left[1] - right[1]
    crossed = left[1] + right[1], right[0] - left[0]
    return (
        L.fma(-crossed[1], factor[1], L.fma(crossed[0], factor[0], real * half)),
        L.fma(crossed[1], factor[0], L.fma(crossed[0], factor[1], imaginary * half)),
    )


def half_of_whole(L: Any, left: Pair, right: Pair, factor: Pair) -> tuple[Pair, Pair]:
    """``z[k]`` of `ends.real_to_halves`, from ``x[k]``, ``x[h - k]`` and a root; and its value if both are real."""
    plus, minus = (left[0] + right[0], left[1] - right[1]), (left[0] - right[0], left[1] + right[1])
    cosine, sine = factor
    result = (
        L.fma(minus[0], sine, L.fma(-minus[1], cosine, plus[0])),
        L.fma(minus[1], sine, L.fma(minus[0], cosine, plus[1])),
    )
    return result, (plus[0], minus[0])
