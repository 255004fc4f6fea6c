"""Other threads evaluate, compile and differentiate what a thread is going to differentiate."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.graph import tracing


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of a function, run on another thread."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(timeout=60)
    return results[0]


def evaluated(x: mx.array) -> mx.array:
    sines = [mx.sin(x * k) for k in range(1, 4)]
    for y in sines:
        elsewhere(y.tolist)
    return sum((y.sum() for y in sines), mx.array(0.0))


def summed(x: mx.array) -> mx.array:
    """Reading this result needs values that the gradient needs as well."""
    y = mx.exp(x)
    elsewhere(lambda: (y * 2).sum().item())
    return (y * y).sum()


square = mx.compile(lambda x: x * x)


def compiled(x: mx.array) -> mx.array:
    result: mx.array = elsewhere(lambda: square(x))
    return result.sum()


def captured(x: mx.array) -> mx.array:
    y = x * 3
    result: mx.array = elsewhere(lambda: mx.compile(lambda z: z * y)(mx.ones(3)))
    return result.sum()


def nested(x: mx.array) -> mx.array:
    """The derivative of the sum of x ** 3, made and evaluated on the other thread."""

    def inner() -> mx.array:
        found = mx.grad(lambda z: (z * z * z).sum())(x)
        mx.eval(found)
        return found

    result: mx.array = elsewhere(inner)
    return result.sum()


PROGRAMS: dict[str, tuple[Callable[[mx.array], mx.array], Callable[[np.ndarray], np.ndarray]]] = {
    "evaluated": (evaluated, lambda x: np.cos(x) + 2 * np.cos(2 * x) + 3 * np.cos(3 * x)),
    "summed": (summed, lambda x: 2 * np.exp(2 * x)),
    "compiled": (compiled, lambda x: 2 * x),
    "captured": (captured, lambda x: np.full(3, 3.0)),
    "nested": (nested, lambda x: 6 * x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    function, derivative = PROGRAMS[name]
    x = mx.array([0.5, 1.0, 2.0])
    wanted = derivative(np.array([0.5, 1.0, 2.0]))
    for _ in range(2):
        np.testing.assert_allclose(np.array(mx.grad(function)(x)), wanted, rtol=1e-5)
        (tangent,) = mx.jvp(function, [x], [mx.ones(3)])[1]
        np.testing.assert_allclose(np.array(tangent), wanted.sum(), rtol=1e-5)


def test_memory_that_the_gradient_needs_is_not_given_away() -> None:
    """Another thread evaluates a function of y, to which nothing else refers."""
    x = mx.array(np.linspace(0, 1, 5000, dtype=np.float32))

    def function(x: mx.array) -> mx.array:
        y = mx.exp(x)
        mx.eval(y)
        z = y * y
        del y
        elsewhere(lambda: mx.eval(z))
        return z.sum()

    np.testing.assert_allclose(np.array(mx.grad(function)(x)), 2 * np.exp(2 * np.array(x)), rtol=1e-5)


def test_nothing_is_followed_or_remembered_afterwards() -> None:
    references: list[weakref.ref[Any]] = []

    def function(x: mx.array) -> mx.array:
        y = mx.sin(x)
        references.append(weakref.ref(y.node))
        elsewhere(y.tolist)
        return (y * y).sum()

    mx.grad(function)(mx.ones(3))
    gc.collect()
    assert [reference() for reference in references] == [None]
    assert not tracing.followed
