"""Chains of 100,000 operations are built, evaluated, differentiated, compiled and freed: nothing recurses."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx

DEEP = 100_000
TRANSFORMED_DEPTH = 30_000
SHORTER = 1_100  # beyond Python's recursion limit, for operations that take more time


@pytest.fixture(params=[5_000, pytest.param(DEEP, marks=pytest.mark.slow)])
def depth(request: pytest.FixtureRequest) -> int:
    """Far beyond Python's recursion limit; in the slow tests the documented depth."""
    length: int = request.param
    return length


@pytest.fixture(autouse=True)
def _the_recursion_limit_is_left_alone() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    yield
    assert sys.getrecursionlimit() == limit


def chain(x: mx.array, length: int) -> mx.array:
    for _ in range(length):
        x = x + 1
    return x


def rotation(x: mx.array, length: int) -> mx.array:
    """A chain of several kinds of operations, with little code and a derivative that is not constant."""
    for _ in range(length // 4):
        x = mx.sqrt(x) * 0.5 + x.sum() * 0.1
    return x


def test_built_and_evaluated(depth: int) -> None:
    assert chain(mx.zeros((2,)), depth).tolist() == [depth, depth]


def test_freed_without_evaluation(depth: int) -> None:
    last = chain(mx.zeros((2,)), depth)
    reference = weakref.ref(last)
    del last
    gc.collect()
    assert reference() is None


def test_freed_after_evaluation(depth: int) -> None:
    """Evaluated nodes drop their inputs."""
    memory = mx.get_active_memory()
    last = chain(mx.zeros((256,)), depth)
    mx.eval(last)
    assert mx.get_active_memory() - memory <= 4 * 256 * 4
    del last
    assert mx.get_active_memory() <= memory


def test_every_intermediate_is_held() -> None:
    values = [mx.zeros((2,))]
    for _ in range(SHORTER):
        values.append(values[-1] + 1)
    mx.eval(values)
    assert values[SHORTER // 2].tolist() == [SHORTER // 2] * 2
    assert values[-1].tolist() == [SHORTER] * 2


def test_differentiated(depth: int) -> None:
    assert mx.grad(lambda x: chain(x, depth))(mx.array(0.0)).item() == 1.0


def test_compiled(depth: int) -> None:
    compiled = mx.compile(lambda x: chain(x, depth))
    assert compiled(mx.array(0.0)).item() == depth
    assert compiled(mx.array(1.0)).item() == depth + 1


TRANSFORMED: dict[str, Callable[[Callable[[mx.array], mx.array]], Callable[[mx.array], Any]]] = {
    "eager": lambda f: f,
    "grad": lambda f: mx.grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: mx.vjp(f, [x], [x])[1][0],
    "jvp": lambda f: lambda x: mx.jvp(f, [x], [x])[1][0],
    "vmap": lambda f: lambda x: mx.vmap(f)(x[None]),
    "compile": mx.compile,
    "compile grad": lambda f: mx.compile(mx.grad(lambda x: f(x).sum())),
    "grad compile": lambda f: mx.grad(mx.compile(lambda x: f(x).sum())),
    "checkpoint": lambda f: mx.grad(mx.checkpoint(lambda x: f(x).sum())),
    "shapeless": lambda f: mx.compile(f, shapeless=True),
}


@pytest.mark.some_rows(6)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_every_transformation_of_a_deep_graph(name: str) -> None:
    result = TRANSFORMED[name](lambda x: rotation(x, SHORTER))(mx.array([0.5, 0.25]))
    assert np.isfinite(np.array(result)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMED)
def test_every_transformation_of_a_very_deep_graph(name: str) -> None:
    result = TRANSFORMED[name](lambda x: rotation(x, TRANSFORMED_DEPTH))(mx.array([0.5, 0.25]))
    assert np.isfinite(np.array(result)).all()


def test_a_value_used_twice_at_every_step_is_computed_once() -> None:
    """Walked as a tree, this graph would have 2**1000 leaves."""

    def diamond(x: mx.array) -> mx.array:
        for _ in range(1000):
            x = x * 0.5 + x * 0.5
        return x

    assert diamond(mx.array(3.0)).item() == 3.0
    assert mx.grad(diamond)(mx.array(3.0)).item() == 1.0
    assert mx.compile(diamond)(mx.array(3.0)).item() == 3.0


def test_a_wide_graph() -> None:
    terms = [mx.array(1.0) * k for k in range(SHORTER)]
    assert mx.stack(terms).sum().item() == sum(range(SHORTER))


def test_deep_views_and_updates() -> None:
    x = mx.zeros((4,))
    for k in range(SHORTER):
        x[k % 4] = k
    assert sorted(x.tolist()) == [SHORTER - 4, SHORTER - 3, SHORTER - 2, SHORTER - 1]
    y = mx.arange(6)
    for _ in range(SHORTER):
        y = y.reshape(2, 3).T.reshape(6)[::-1]
    assert sorted(y.tolist()) == list(range(6))


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 13), reason="CPython 3.13 needs a larger stack to free any long chain of objects"
)
def test_on_a_thread_with_a_small_stack() -> None:
    """Recursion in native code would need far more than these 512 KiB."""
    results: list[Any] = []

    def work() -> None:
        results.append(chain(mx.array(0.0), 20_000).item())
        results.append(mx.grad(lambda x: chain(x, 20_000))(mx.array(0.0)).item())

    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert results == [20_000.0, 1.0]


def test_deeply_nested_containers() -> None:
    tree: Any = mx.array(2.0)
    for level in range(200):
        tree = [tree] if level % 2 else {"k": tree}

    def leaf(t: Any) -> mx.array:
        while not isinstance(t, mx.array):
            t = t[0] if isinstance(t, list) else t["k"]
        return t

    assert leaf(mx.grad(lambda t: leaf(t) ** 2)(tree)).item() == 4.0
    assert leaf(mx.compile(lambda t: t)(tree)).item() == 2.0
