"""Attention that no library computes, without a card: some examples and heads are done after the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.fake_driver import FakeDriver
from weft.compiler.cuda.target import CudaTarget
from weft.compiler.rewriting.rewrites import planned_graph
from weft.compiler.running import evaluate
from weft.primitives import attention_parts
from weft.runtime import recording
from weft.runtime.engine import engine_of


@pytest.fixture
def few_scores(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_parts, "MANY_SCORES", 100)
    monkeypatch.setattr(attention_parts, "PART_SCORES", 150)
    evaluate.forget_plans()


def drawn(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32))


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "causal": lambda: {"mask": "causal"},
    "of each example": lambda: {"mask": drawn(3, 1, 7, 9)},
    "of each head": lambda: {"mask": drawn(4, 7, 9)},
    "hidden": lambda: {"mask": drawn(3, 4, 7, 9) > -1},
    "sinks": lambda: {"sinks": drawn(4), "mask": drawn(7, 9)},
}


@pytest.mark.parametrize("name", MASKS)
def test_the_bits_of_the_cpu(few_scores: None, name: str) -> None:
    q, k, v, more = drawn(3, 4, 7, 8), drawn(3, 2, 9, 8), drawn(3, 2, 9, 5), MASKS[name]()
    check_bits(q, k, v, more)


def test_one_head(few_scores: None) -> None:
    check_bits(drawn(1, 1, 30, 8), drawn(1, 1, 9, 8), drawn(1, 1, 9, 5), {})


def check_bits(q: mx.array, k: mx.array, v: mx.array, more: dict[str, Any]) -> None:
    """Results and gradients have the bits of the CPU."""

    def value(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, **more)

    def gradients(q: mx.array, k: mx.array, v: mx.array) -> Any:
        return mx.grad(lambda *operands: mx.sum(mx.sin(value(*operands))), argnums=(0, 1, 2))(q, k, v)

    for function in (value, gradients):
        with mx.stream(mx.cpu):
            wanted = function(q, k, v)
            mx.eval(wanted)
        with mx.stream(mx.gpu):
            assert_same_bits(mx.compile(function)(q, k, v), wanted)


@pytest.mark.parametrize("name", ["of each example", "of each head", "sinks"])
def test_cotangents_of_what_parts_have_in_common(few_scores: None, name: str) -> None:
    """They are summed in another order than on the CPU."""
    q, k, v, more = drawn(3, 4, 7, 8), drawn(3, 4, 9, 8), drawn(3, 4, 9, 5), MASKS[name]()

    def total(more: dict[str, Any]) -> mx.array:
        return mx.sum(mx.sin(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, **more)))

    with mx.stream(mx.cpu):
        wanted = mx.grad(total)(more)
        mx.eval(wanted)
    with mx.stream(mx.gpu):
        found = mx.grad(total)(more)
    for key, array in wanted.items():
        assert np.allclose(np.array(found[key]), np.array(array), rtol=1e-5, atol=1e-6)


def test_memory(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step makes more scores than a part has."""
    del driver
    sizes = []
    monkeypatch.setattr(attention_parts, "MANY_SCORES", 1 << 10)
    monkeypatch.setattr(attention_parts, "PART_SCORES", 1 << 10)
    evaluate.forget_plans()
    target = engine_of(mx.Device(mx.gpu)).target
    original = planned_graph

    def noted(*arguments: Any, **more: Any) -> Any:
        graph = original(*arguments, **more)
        sizes.extend([node.size for node in graph.order])
        return graph

    monkeypatch.setattr("weft.compiler.planning.planner.planned_graph", noted)
    x = drawn(2, 8, 32, 4)
    with mx.stream(mx.gpu):
        mx.eval(mx.grad(lambda x: mx.sum(mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0)))(x))
    assert target.kind == CudaTarget.kind
    assert max(sizes) == x.size


def test_temporaries(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a part is written to its place before the next part begins."""
    del driver
    monkeypatch.setattr(attention_parts, "MANY_SCORES", 1 << 10)
    monkeypatch.setattr(attention_parts, "PART_SCORES", 1 << 10)
    evaluate.forget_plans()
    x = drawn(4, 8, 32, 16)
    with mx.stream(mx.gpu), recording.recorded() as recorder:
        mx.eval(mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0))
    plan = recorder.runs[-1].plan
    assert plan.steps.count > 4 * 8
    assert plan.arena < 4 * (1 << 10) * x.dtype.size < x.nbytes
