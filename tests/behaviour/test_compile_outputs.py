"""Functions that change other containers than those they read: repeated calls behave like first ones."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from weft.runtime import counters
from weft.transforms.repeat import StatefulRepeat

compiling = sys.modules["weft.transforms.compile"]  # the package has the function by this name


class Program:
    """A function with its state, and an action between two calls."""

    def __init__(self, inputs: str, outputs: str, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.model = nn.Linear(3, 3)
        self.model.update({"weight": self.array(3, 3), "bias": self.array(3)})
        self.cache: dict[str, Any] = {"k": self.array(2, 3), "n": self.array(3), "calls": 1, "old": self.array(2, 3)}
        self.seen: list[Any] = [self.array(2, 3)]
        self.held: list[Any] = []
        self.x = self.array(2, 3)
        self.containers: dict[str, Any] = {
            "cache": self.cache,
            "both": [self.model, self.cache],
            "both again": [self.model, self.cache],
            "seen": self.seen,
            "all": {"seen": self.seen, "cache": self.cache},
            "None": None,
        }
        self.inputs, self.outputs = self.containers[inputs], self.containers[outputs]
        self.changed = ["seen"] if outputs in ("seen", "all") else []
        self.compiled = mx.compile(self.step, inputs=self.inputs, outputs=self.outputs)

    def array(self, *shape: int) -> mx.array:
        found = mx.array(self.random.normal(size=shape).astype(np.float32))
        mx.eval(found)
        return found

    def step(self, x: mx.array) -> Any:
        kept = self.cache["k"] * 0.5 + self.model(x)
        if self.outputs is not self.seen:
            self.cache["old"] = kept * 3
            self.cache["k"] = kept
            self.cache["n"] += 1.0
        if "seen" in self.changed:
            self.seen[0] = kept * 2 + self.seen[0]
        return kept.sum(), self.cache["k"], self.cache["calls"]

    CHANGES: Sequence[Callable[[Program], object]] = (
        *[lambda self: None] * 8,
        lambda self: self.cache.update(k=self.array(2, 3)),
        lambda self: self.cache.update(k=self.array(2, 3) * 2),
        lambda self: self.held.append(self.cache["k"]),
        lambda self: self.cache.update(n=self.cache["n"] + 1),
        lambda self: self.cache.__setitem__("old", self.cache["k"]),
        lambda self: self.cache.__setitem__("old", self.seen[0]),
        lambda self: self.seen.__setitem__(0, self.cache["k"]),
        lambda self: self.seen.__setitem__(0, 5.0),
        lambda self: self.cache.__setitem__("old", self.x),
        lambda self: self.cache.update(old=self.array(2, 3), k=self.array(2, 3)),
        lambda self: self.seen.__setitem__(0, self.array(2, 3)),
        lambda self: self.cache.update(calls=self.cache["calls"] % 2 + 1),
        lambda self: self.cache.update(n=self.cache.pop("n")),
        lambda self: self.containers["both"].__setitem__(1, dict(self.cache)),
        lambda self: self.containers["both"].__setitem__(1, self.cache),
        lambda self: setattr(self.model, "bias", self.array(3)),
        lambda self: setattr(self, "x", self.array(2, 3)),
        lambda self: setattr(self, "x", self.cache["k"]),
        lambda self: self.held.append(np.asarray(self.cache["k"])),
        lambda self: self.held.clear(),
    )  # fmt: skip

    def run(self, calls: int) -> list[Any]:
        """The results of calls, and the state after each."""
        found = []
        for _ in range(calls):
            for number in self.random.integers(len(self.CHANGES), size=self.random.integers(3)):
                self.CHANGES[number](self)
            found.append(self.text(self.compiled(self.x)))
            found.append(self.text([self.cache, self.seen, self.held]))
        return found

    def text(self, value: Any) -> Any:
        """The values as text, with marks for equal objects."""
        arrays: dict[int, int] = {}

        def walk(value: Any) -> Any:
            if isinstance(value, dict):
                return [(key, walk(item)) for key, item in value.items()]
            if isinstance(value, (list, tuple)):
                return [walk(item) for item in value]
            if isinstance(value, mx.array):
                return arrays.setdefault(id(value), len(arrays)), np.array(value).tobytes()
            return value.tobytes() if isinstance(value, np.ndarray) else value

        return walk(value)


@pytest.mark.some_rows(10)
@pytest.mark.parametrize("outputs", ["cache", "both again", "seen", "all"])
@pytest.mark.parametrize("inputs", ["both", "cache", "None", "all"])
def test_short_calls_are_like_long_ones(monkeypatch: pytest.MonkeyPatch, inputs: str, outputs: str) -> None:
    for seed in range(6):
        short = Program(inputs, outputs, seed).run(25)
        with monkeypatch.context() as patched:
            patched.setattr(compiling, "repeat_of", lambda *arguments: None)
            long = Program(inputs, outputs, seed).run(25)
        assert short == long


def test_the_short_way_is_taken() -> None:
    model, cache = nn.Linear(3, 3), {"k": mx.zeros((2, 3)), "n": mx.array(0)}

    def step(x: mx.array) -> mx.array:
        cache["k"] = cache["k"] + model(x)
        cache["n"] = cache["n"] + 1
        return cache["k"] * 2

    compiled = mx.compile(step, inputs=[model.state, cache], outputs=cache)
    x = mx.ones((2, 3))
    compiled(x)
    plans, repeat = counters.plans, compiled._repeat
    assert isinstance(repeat, StatefulRepeat)
    for _ in range(5):
        compiled(x)
    assert compiled._repeat is repeat
    assert counters.plans == plans
    assert cache["n"].item() == 6


def test_memory_of_what_is_replaced_is_used_again() -> None:
    weights, cache = mx.ones((2, 2)), [mx.zeros((256, 256))]
    mx.eval(weights, cache)

    def step(x: mx.array) -> None:
        cache[0] = cache[0] + weights[0, 0] * x

    compiled = mx.compile(step, inputs=[[weights], cache], outputs=cache)
    x = mx.array(2.0)
    compiled(x)
    mx.eval(cache)
    gc.collect()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    for _ in range(4):
        compiled(x)
        mx.eval(cache)
    assert mx.get_peak_memory() - before < 256 * 256 * 4
    held = cache[0]
    compiled(x)
    assert held[0, 0].item() == 10
    assert cache[0][0, 0].item() == 12
