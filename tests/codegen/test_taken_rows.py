"""Narrow rows that are taken from computed places."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits

from .planned import plans_of

PIXELS = (17, 20)
DTYPES = (mx.uint8, mx.bool_, mx.int16, mx.bfloat16, mx.float32, mx.int64, mx.complex64)

Function = Callable[[mx.array, mx.array, mx.array], mx.array]


def image(channels: int, dtype: mx.Dtype) -> mx.array:
    numbers = mx.random.randint(0, 100, (*PIXELS, channels), key=mx.random.key(channels))
    return (numbers % 2 == 0) if dtype is mx.bool_ else numbers.astype(dtype)


def places(shape: tuple[int, ...]) -> tuple[mx.array, mx.array]:
    """Rows and columns, some of them outside. The last pixel, behind which memory may end, is among them."""
    keys = mx.random.split(mx.random.key(shape[0]))
    y, x = (mx.random.randint(-25, 25, shape, key=key) for key in keys)
    return y, x


def taken(pixels: mx.array, y: mx.array, x: mx.array) -> mx.array:
    return pixels[y, x]


def computed(pixels: mx.array, y: mx.array, x: mx.array) -> mx.array:
    return pixels[mx.clip(2 * y + 1, 0, 16), mx.abs(x - y) // 3]


def blended(pixels: mx.array, y: mx.array, x: mx.array) -> mx.array:
    share = mx.where(x > 3, x, y)[..., None]
    return pixels[y, x] * share + pixels[y, x + 1] * (1 - share)


def curved(pixels: mx.array, y: mx.array, x: mx.array) -> mx.array:
    colour = pixels[y, x]
    return (colour * colour + 1) / (colour * colour + 2)


@pytest.mark.parametrize("channels", [2, 3, 4, 5, 6, 7, 8, 9])
def test_they_are_the_rows_at_these_places(channels: int) -> None:
    for dtype in DTYPES:
        pixels = image(channels, dtype)
        for shape in ((16,), (3, 33), (257,), (40, 15)):
            y, x = (np.array(one) for one in places(shape))
            near = [np.clip(np.where(i < 0, i + n, i), 0, n - 1) for i, n in zip((y, x), PIXELS, strict=True)]
            flat = mx.array((near[0] * PIXELS[1] + near[1]).ravel())
            alone = [mx.take(pixels[..., n].reshape(-1), flat).reshape(shape) for n in range(channels)]
            assert_same_bits(mx.compile(taken)(pixels, mx.array(y), mx.array(x)), mx.stack(alone, axis=-1))


@pytest.mark.parametrize("channels", [3, 8])
@pytest.mark.parametrize("function", [computed, blended, curved])
def test_bits_stay_the_same(function: Function, channels: int) -> None:
    """Of fewer lanes than fill a vector, each element is taken by itself."""
    pixels, (y, x) = image(channels, mx.float32), places((9, 60))
    parts = [function(pixels, y[:, n : n + 10], x[:, n : n + 10]) for n in range(0, 60, 10)]
    assert_same_bits(mx.compile(function)(pixels, y, x), mx.concatenate(parts, axis=1))


@pytest.mark.parametrize(
    ("function", "channels", "together"),
    [(taken, 3, 1), (computed, 8, 1), (blended, 4, 2), (curved, 4, 1), (curved, 8, 0)],
)
def test_what_finds_a_place_is_done_once(function: Function, channels: int, together: int) -> None:
    """One body does all elements of a row, if that pays."""
    (plan,) = plans_of(mx.compile(function), image(channels, mx.float32), *places((9, 60)))
    text = str(plan)
    assert text.count("kernel rows") == 1
    assert text.count(f".{channels - 1} taken") == together
    assert text.count("store") == (channels if together else 1)
