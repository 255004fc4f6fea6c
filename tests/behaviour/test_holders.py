"""Wrong reference counts cost memory or time, but never give wrong values."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.__main__ import facts
from weft.graph.node import Node
from weft.runtime import holders
from weft.runtime.memory import Buffer, View


def shifted(by: int, *kinds: type) -> Callable[[object], int]:
    """A function that counts references, with a number added for objects of some kinds and of the test; for all if no
    kind is given."""
    kinds = (*kinds, holders.Probe) if kinds else (object,)

    def count(probe: object) -> int:
        return sys.getrefcount(probe) - own + isinstance(probe, kinds) * by

    own = 0
    own = next(map(count, [[]])) - next(map(sys.getrefcount, [[]])) - isinstance([], kinds) * by
    return count


WRONG: dict[str, Callable[[object], int]] = {
    "far too high": shifted(1 << 29),
    "one too high": shifted(1),
    "one too low": shifted(-1),
    "one too low for nodes": shifted(-1, Node),
    "one too low for nodes and views": shifted(-1, Node, View),
    "one too low for buffers": shifted(-1, Buffer),
    "always 0": lambda probe: 0,
    "always 3": lambda probe: 3,
}


def values(*shape: int, seed: int = 0) -> mx.array:
    x = mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
    mx.eval(x)
    return x


def replaced_while_held_by(hold: Callable[[mx.array], Any]) -> list[Any]:
    x = values(64)
    holder = hold(x)
    for _ in range(3):
        x = x * 0.5 + 1
        mx.eval(x)
    return [x, holder]


def intermediates() -> list[Any]:
    x = values(8, 16)
    inner = x * 3 - 1
    other = mx.exp(inner)
    x = other.sum(axis=0) + inner
    mx.eval(x)
    x = x + 1
    mx.eval(x)
    return [x, inner, other, inner + other]


def random_numbers() -> list[Any]:
    mx.random.seed(5)
    first = mx.random.normal((16,))
    second = first * 2 + mx.random.uniform(shape=(16,))
    mx.eval(second)
    third = mx.random.normal((16,)) + second
    mx.eval(third)
    return [third, first, second, mx.random.normal((3,))]


def gradients() -> list[Any]:
    def f(x: mx.array) -> mx.array:
        y = mx.exp(x)
        mx.eval(y)
        z = y * y
        mx.eval(z)
        return (z * y).sum()

    x = values(32)
    x = mx.grad(f)(x) + x
    mx.eval(x)
    return [x, mx.grad(f)(x)]


def training() -> list[Any]:
    mx.random.seed(3)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 16))
    optimizer = optim.Adam(1e-2)
    optimizer.init(model.trainable_parameters())
    loss_and_gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())

    def step(x: mx.array) -> mx.array:
        loss, gradients = loss_and_gradients(x)
        optimizer.update(model, gradients)
        return loss

    state = [model.state, optimizer.state, mx.random.state]
    mx.eval(state)
    compiled = mx.compile(step, inputs=state, outputs=state)
    x = values(8, 16)
    held: list[Any] = [compiled(x) for _ in range(4)]
    weight = model.layers[0].weight
    lazy = model.layers[2].weight * 2
    shown = np.array(model.layers[2].bias, copy=False)
    held += [compiled(x) for _ in range(4)]
    return [held, weight, lazy, shown, model.layers[0].weight]


PROGRAMS: dict[str, Callable[[], list[Any]]] = {
    "held by nobody": lambda: replaced_while_held_by(lambda x: mx.array(0)),
    "held by another name": lambda: replaced_while_held_by(lambda x: x),
    "held by a lazy expression": lambda: replaced_while_held_by(lambda x: mx.exp(x) * 5),
    "held by a view": lambda: replaced_while_held_by(lambda x: x[::2]),
    "held by NumPy": lambda: replaced_while_held_by(lambda x: np.array(x, copy=False)),
    "intermediates": intermediates,
    "random numbers": random_numbers,
    "gradients": gradients,
    "training": training,
}


def numbers(results: Any) -> Any:
    return [numbers(result) for result in results] if isinstance(results, list) else np.array(results).tolist()


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    assert holders.donation() == "on"
    return {name: numbers(program()) for name, program in PROGRAMS.items()}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_counts_change_no_value(
    wrong: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(holders, "getrefcount", WRONG[wrong])
    monkeypatch.setattr(holders, "_fault", None)
    with caplog.at_level(logging.WARNING, "weft"):
        monkeypatch.setattr(holders, "_fault", holders.tested())
    monkeypatch.setattr(holders, "_count_if_unused", holders.count_if_unused())
    assert [record.name for record in caplog.records] == ["weft"]
    assert {name: numbers(program()) for name, program in PROGRAMS.items()} == wanted
    assert dict(facts())["donation"].startswith("off: Python ")


def test_what_nobody_refers_to_is_unused() -> None:
    first, second = object(), object()
    objects = deque([first, second])
    assert holders.unused(objects) is None
    known = id(second)
    del second
    found = holders.unused(objects)
    assert id(found) == known
    assert holders.unused(objects) is None
    del found
    assert id(holders.unused(objects)) == known
    assert sorted(map(id, objects)) == sorted([id(first), known])


def test_what_is_held_is_found_with_any_number_of_references() -> None:
    held, also_held = object(), object()
    assert holders.held({held: 0, object(): 0, also_held: 0}, 0) == [held, also_held]
    fewer_references_than_known = {object(): 0}
    assert holders.held(fewer_references_than_known, 1) == [*fewer_references_than_known]


def test_objects_that_all_have_more_references() -> None:
    held, alone = [object()], [object()]
    assert holders.all_have_more({*held}, 0) is True
    assert holders.all_have_more({*held}, 1) is False
    assert holders.all_have_more({*held, alone.pop()}, 0) is False
    assert holders.all_have_more(set(), 0) is False
