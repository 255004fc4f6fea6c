"""How many kernels the functions of `mx.fast` and their gradients are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
from tests.codegen.planned import plans_of

X = mx.random.normal((64, 48), key=mx.random.key(0))
HEADS = mx.random.normal((2, 3, 16, 8), key=mx.random.key(1))
W = mx.random.normal((48,), key=mx.random.key(2))
LABELS = mx.arange(64) % 48


def rms_norm(x: mx.array, w: mx.array) -> mx.array:
    return mx.fast.rms_norm(x, w, 1e-5)


def layer_norm(x: mx.array, w: mx.array) -> mx.array:
    return mx.fast.layer_norm(x, w, w, 1e-5)


def cross_entropy(x: mx.array) -> mx.array:
    return mx.fast.cross_entropy(x, LABELS)


def flipped(x: mx.array) -> mx.array:
    return mx.flip(x) * W


def rope(x: mx.array, traditional: bool = False) -> mx.array:
    return mx.fast.rope(x, 8, traditional=traditional, base=100.0, scale=1.0, offset=0)


def pulled_back(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the arguments of ``function`` and a cotangent of its result, last: the cotangents of the
    arguments."""
    return lambda *arrays: mx.vjp(function, list(arrays[:-1]), [arrays[-1]])[1]


def kernels(function: Callable[..., Any], *arrays: mx.array) -> int:
    """The number of kernels in a call of the compiled function; its constants are computed before."""
    compiled = mx.compile(function)
    mx.eval(compiled(*arrays))
    return plans_of(compiled, *arrays)[-1].steps.count


@pytest.mark.parametrize(
    ("function", "arrays", "count"),
    [
        (rms_norm, (X, W), 1),
        (layer_norm, (X, W), 1),
        (cross_entropy, (X,), 1),
        (rope, (HEADS,), 1),
        (lambda x: rope(x, True), (HEADS,), 1),
        (pulled_back(lambda x: rms_norm(x, W)), (X, X), 1),
        (pulled_back(rms_norm), (X, W, X), 2),
        (pulled_back(lambda x: layer_norm(x, W)), (X, X), 1),
        (pulled_back(cross_entropy), (X, W[:1] + LABELS), 1),
        (pulled_back(rope), (HEADS, HEADS), 2),
        (pulled_back(flipped), (X, X), 1),
    ],
)
def test_count(function: Callable[..., Any], arrays: tuple[mx.array, ...], count: int) -> None:
    assert kernels(function, *arrays) == count
