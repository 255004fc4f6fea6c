"""Operations on rows are one kernel that reads its inputs once and stores no intermediate results; so is the
gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from weft.compiler.planning.plan import Plan

ROWS, COLUMNS = 64, 300


def normal(*shape: int, seed: int = 0) -> mx.array:
    x = mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))
    mx.eval(x)
    return x


SCALE, SHIFT = normal(COLUMNS, seed=1), normal(COLUMNS, seed=2)
CLASSES = mx.array(np.random.default_rng(3).integers(0, COLUMNS, ROWS))
mx.eval(CLASSES)


def layer_norm(x: mx.array) -> mx.array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * mx.rsqrt(centered.square().mean(-1, keepdims=True) + 1e-5) * SCALE + SHIFT


def softmax(x: mx.array) -> mx.array:
    e = mx.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


FUNCTIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "softmax": lambda x: mx.softmax(x, axis=-1),
    "softmax in plain operations": softmax,
    "log-sum-exp": lambda x: mx.logsumexp(x, axis=-1),
    "log-sum-exp in plain operations": lambda x: mx.log(mx.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1),
    "log-softmax": lambda x: nn.log_softmax(x, axis=-1),
    "cross entropy": lambda x: nn.losses.cross_entropy(x, CLASSES),
    "layer norm": layer_norm,
    "RMS norm": lambda x: x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-5) * SCALE,
    "variance": lambda x: mx.var(x, axis=-1),
    "nn.LayerNorm": nn.LayerNorm(COLUMNS),
    "nn.RMSNorm": nn.RMSNorm(COLUMNS),
}


def planned(function: Callable[[mx.array], mx.array], x: mx.array) -> Plan:
    return plans_of(mx.compile(lambda x: function(x)), x)[-1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_are_one_kernel(name: str) -> None:
    function, x = FUNCTIONS[name], normal(ROWS, COLUMNS)
    plan = planned(function, x)
    assert (plan.steps.count, plan.arena) == (1, 0), str(plan)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_rows_are_one_kernel(name: str) -> None:
    function, x = FUNCTIONS[name], normal(ROWS, COLUMNS)
    cotangent = normal(*function(x).shape, seed=4)
    plan = planned(lambda x: mx.vjp(function, [x], [cotangent])[1][0], x)
    assert (plan.steps.count, plan.arena) == (1, 0), str(plan)
    plan = planned(lambda x: mx.grad(lambda x: function(x).sum())(x), x)
    assert (plan.steps.count, plan.arena) == (1, 0), str(plan)


def distances(x: mx.array) -> mx.array:
    return ((x[:, None] - x[None]) ** 2).sum(-1)


def test_broadcasting_before_a_reduction_takes_no_memory_but_a_copy_of_what_is_broadcast() -> None:
    count, dimensions = 400, 8
    x = normal(count, dimensions)
    plan = planned(distances, x)
    assert (plan.steps.count, plan.arena) == (2, x.nbytes), str(plan)
    exact = ((np.array(x)[:, None].astype(np.float64) - np.array(x)[None]) ** 2).sum(-1)
    np.testing.assert_allclose(np.array(distances(x)), exact, rtol=1e-5, atol=1e-6)


def test_nor_does_its_gradient() -> None:
    count, dimensions = 400, 8
    x, cotangent = normal(count, dimensions), normal(count, count, seed=1)
    gradient = mx.compile(lambda x: mx.vjp(distances, [x], [cotangent])[1][0])
    mx.eval(gradient(x))
    mx.reset_peak_memory()
    held = mx.get_active_memory()
    found = gradient(x)
    mx.eval(found)
    assert mx.get_peak_memory() - held < count * count * dimensions * 4 / 2
    values, weights = np.array(x).astype(np.float64), np.array(cotangent).astype(np.float64)
    differences = values[:, None] - values[None]
    exact = 2 * ((weights + weights.T)[:, :, None] * differences).sum(1)
    np.testing.assert_allclose(np.array(found), exact, rtol=1e-4, atol=1e-3)


def test_a_broadcast_number_is_no_array_of_a_compiled_function() -> None:
    def f(x: mx.array) -> mx.array:
        return x * mx.full((1 << 10, 1 << 10), 2.0)

    held = mx.get_active_memory()
    result = mx.compile(f)(mx.ones((1 << 10, 1 << 10)))
    mx.eval(result)
    assert mx.get_active_memory() - held <= result.nbytes + (1 << 16)


def test_more_expensive_values_than_a_pass_saves() -> None:
    functions = (mx.exp, mx.sin, mx.cos, mx.tanh, mx.erf, mx.sigmoid, mx.expm1, mx.arctan, mx.sinh, mx.cosh)

    def product(x: mx.array) -> mx.array:
        values = [function(x) for function in functions]
        result = sum(values[1:], values[0]).sum(-1, keepdims=True)
        for value in values:
            result = result * value
        return result

    x = normal(ROWS, COLUMNS)
    assert planned(product, x).steps.count == 1
    values = [function(x) for function in functions]
    mx.eval(values)
    np.testing.assert_array_equal(np.array(product(x)), np.array(stepwise(values)))


def stepwise(values: list[mx.array]) -> mx.array:
    """The same result, with every operation evaluated alone."""
    result = values[0]
    for value in values[1:]:
        result = result + value
        mx.eval(result)
    result = result.sum(-1, keepdims=True)
    for value in values:
        mx.eval(result)
        result = result * value
    return result


def test_columns_of_one_large_array_are_folded_by_one_kernel(rng: np.random.Generator) -> None:
    """The kernel reads the array once. For a small array, or for two arrays, one kernel saves nothing."""

    def folded(x: mx.array, y: mx.array) -> list[mx.array]:
        return [mx.sum(x * y, axis=0), mx.max(x, axis=0)]

    def apart(x: mx.array, y: mx.array) -> list[mx.array]:
        return [mx.sum(x, axis=0), mx.sum(y, axis=0)]

    x, y = (mx.array(rng.normal(size=(200, 4096)).astype(np.float32)) for _ in range(2))
    assert kernels_of(folded, x, y) == 1
    assert kernels_of(apart, x, y) == 2
    assert kernels_of(folded, x[:2], y[:2]) == 2
    products, largest = x * y, x + 0
    mx.eval(products, largest)
    assert_same_bits(folded(x, y), [mx.sum(products, axis=0), mx.max(largest, axis=0)])


def test_a_fold_that_needs_the_other_waits_for_it(rng: np.random.Generator) -> None:
    x = mx.array(rng.normal(size=(200, 4096)).astype(np.float32))

    def twice(x: mx.array) -> mx.array:
        return mx.sum(x * mx.cumsum(mx.sum(x, axis=0)), axis=0)

    sums = mx.cumsum(mx.sum(x, axis=0))
    mx.eval(sums)
    assert_same_bits(twice(x), mx.sum(x * sums, axis=0))
    assert kernels_of(twice, x) > 2


def kernels_of(function: Callable[..., Any], *arguments: mx.array) -> int:
    """The number of kernels that compute something."""
    records = [record for plan in plans_of(function, *arguments) for record in plan.describe().records]
    return len([record for record in records if record.launch is not None])
