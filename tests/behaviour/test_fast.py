"""`mx.fast` in cases that the table of operations does not have: long sequences, large positions, half precision,
errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.ops.fast_rows import by_base, gated_delta_update
from tests.ops.row import assert_near, to_array, to_numpy

delta_update: Any = mx.fast.gated_delta_update
step_by_step: Any = gated_delta_update


def delta_arguments(steps: int, heads: int, per_key: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Keys of length one, and rates from 0 to 1, both included."""
    q, k = rng.normal(size=(2, 2, steps, heads, 8))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.normal(size=(2, steps, heads * per_key, 6))
    gamma, beta = np.clip(rng.uniform(-0.2, 1.2, (2, 2, steps, heads * per_key)), 0, 1)
    return [x.astype(np.float32) for x in (q, k, v, gamma, beta)]


@pytest.mark.parametrize(("steps", "heads", "per_key"), [(0, 1, 1), (1, 2, 1), (63, 1, 2), (64, 2, 2), (200, 2, 3)])
def test_gated_delta_update_of_any_length(steps: int, heads: int, per_key: int, rng: np.random.Generator) -> None:
    arguments = delta_arguments(steps, heads, per_key, rng)
    state = rng.normal(size=(2, heads * per_key, 6, 8)).astype(np.float32)
    mask = rng.random((2, steps)) < 0.8
    got = delta_update(*[mx.array(x) for x in (*arguments, state, mask)])
    for result, want in zip(got, step_by_step(*arguments, state, mask), strict=True):
        np.testing.assert_allclose(np.array(result), want, rtol=1e-5, atol=5e-6)


def test_equal_keys_do_not_lose_accuracy(rng: np.random.Generator) -> None:
    """Then the triangular matrix of a chunk is all ones, and its powers have elements near 1e18."""
    q, k, v, gamma, beta = delta_arguments(128, 1, 1, rng)
    k[:] = k[:, :1]
    gamma[:] = beta[:] = 1
    got, _ = delta_update(*[mx.array(x) for x in (q, k, v, gamma, beta)])
    np.testing.assert_allclose(np.array(got), step_by_step(q, k, v, gamma, beta)[0], rtol=1e-4, atol=1e-4)


def test_gradient_of_gated_delta_update_over_several_chunks(rng: np.random.Generator) -> None:
    arguments = [x.astype(np.float64) for x in delta_arguments(130, 1, 1, rng)]
    arguments.append(rng.normal(size=(2, 1, 6, 8)))
    directions = [rng.normal(size=x.shape) for x in arguments]

    def loss(*arrays: mx.array) -> mx.array:
        output, state = delta_update(*arrays)
        return mx.sum(mx.square(output)) + mx.sum(state)

    def along(distance: float) -> float:
        moved = [x + distance * d for x, d in zip(arguments, directions, strict=True)]
        output, state = step_by_step(*moved)
        return float(np.sum(output**2) + np.sum(state))

    gradients = mx.grad(loss, argnums=range(6))(*[mx.array(x, mx.float64) for x in arguments])
    slope = sum(np.sum(np.array(g) * d) for g, d in zip(gradients, directions, strict=True))
    np.testing.assert_allclose(slope, (along(1e-6) - along(-1e-6)) / 2e-6, rtol=1e-6)


def test_one_trace_of_gated_delta_update_serves_any_number_of_chunks(rng: np.random.Generator) -> None:
    compiled = mx.compile(mx.fast.gated_delta_update, shapeless=True)
    for steps in (3, 65, 1, 200):
        arrays = [mx.array(x) for x in delta_arguments(steps, 2, 1, rng)]
        for got, want in zip(compiled(*arrays), delta_update(*arrays), strict=True):
            assert np.array(got).tobytes() == np.array(want).tobytes()


def test_rope_is_exact_far_from_the_start(rng: np.random.Generator) -> None:
    """A float32 angle of 10**7 is wrong by up to half a turn."""
    x = rng.normal(size=(1, 4, 8)).astype(np.float32)
    got = mx.fast.rope(mx.array(x), 8, traditional=False, base=10000.0, scale=1.0, offset=10_000_000)
    want = by_base(x.astype(np.float64), 10_000_000, 8, False, 10000.0, 1.0)
    np.testing.assert_allclose(np.array(got), want, rtol=1e-6, atol=1e-6)


def test_rope_asks_no_library_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a logarithm that is wrong in its last bit, as another system's may be."""
    x = mx.ones((1, 2, 256), mx.float64)
    arguments: dict[str, Any] = {"traditional": False, "base": 12345.0, "scale": 1.0, "offset": 10**6}
    want = mx.fast.rope(x, 256, **arguments)
    mx.eval(want)
    monkeypatch.setattr(math, "log", lambda x, log=math.log: math.nextafter(log(x), 0))
    assert_same_bits(mx.fast.rope(x, 256, **arguments), want)


def test_offset_of_rope_stays_open_in_a_shapeless_trace(rng: np.random.Generator) -> None:
    def after(past: mx.array, x: mx.array) -> mx.array:
        return mx.fast.rope(x, 8, traditional=False, base=100.0, scale=1.0, offset=past.shape[1])

    compiled = mx.compile(after, shapeless=True)
    x = mx.array(rng.normal(size=(1, 4, 8)))
    for length in (2, 7):
        past = mx.zeros((1, length))
        np.testing.assert_array_equal(np.array(compiled(past, x)), np.array(after(past, x)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(dtype: str, rng: np.random.Generator) -> None:
    """Sums over 4,096 numbers whose squares overflow float16."""
    x, weight = [to_array(rng.normal(size=shape).astype(np.float32) * 300) for shape in ((3, 4096), (4096,))]
    x, weight = x.astype(getattr(mx, dtype)), weight.astype(getattr(mx, dtype)) / 300
    exact = to_numpy(x).astype(np.float64)
    factor = to_numpy(weight).astype(np.float64)
    centred = exact - exact.mean(-1, keepdims=True)
    rms = exact / np.sqrt(np.mean(exact**2, -1, keepdims=True)) * factor
    layer = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True)) * factor + factor
    assert_near(to_numpy(mx.fast.rms_norm(x, weight, 0.0)), rms, 0.51, True)
    assert_near(to_numpy(mx.fast.layer_norm(x, weight, weight, 0.0)), layer, 0.51, False)


def test_cross_entropy_of_large_logits_and_unknown_classes() -> None:
    logits = mx.array([[1000.0, 0.0, -1000.0]] * 4)
    got = mx.fast.cross_entropy(logits, mx.array([0, -1, 3, -4]))
    np.testing.assert_array_equal(np.array(got), np.array([0, 2000, np.nan, np.nan], np.float32))
    ruled_out = mx.array([[0.0, -np.inf], [-np.inf, -np.inf]])
    got = mx.fast.cross_entropy(ruled_out, mx.array([1, 0]))
    np.testing.assert_array_equal(np.array(got), np.array([np.inf, np.nan], np.float32))
    gradient = mx.grad(lambda x: mx.fast.cross_entropy(x, mx.array([0]))[0])(ruled_out[:1])
    np.testing.assert_array_equal(np.array(gradient), np.zeros((1, 2)))


X = mx.ones((2, 3, 4))


def rope(**changed: Any) -> Callable[[], mx.array]:
    a = changed.pop("a", X)
    arguments: dict[str, Any] = {"dims": 4, "traditional": False, "base": 10.0, "scale": 1.0, "offset": 0, **changed}
    return lambda: mx.fast.rope(a, **arguments)


def delta(**changed: mx.array) -> Callable[[], list[mx.array]]:
    rows, features = mx.ones((1, 3, 2)), mx.ones((1, 3, 2, 4))
    arguments = {"q": features, "k": features, "v": features, "gamma": rows, "beta": rows, **changed}
    return lambda: delta_update(**arguments)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no dimensions": (lambda: mx.fast.rms_norm(mx.array(1.0), None, 0.1), r"\[rms_norm\] x must have at least one"),
    "weight": (lambda: mx.fast.rms_norm(X, mx.ones((3,)), 0.1), r"\[rms_norm\] weight must have the shape \(4,\)"),
    "bias": (lambda: mx.fast.layer_norm(X, None, mx.ones((1, 4)), 0.1), r"\[layer_norm\] bias must have the shape"),
    "integers": (lambda: mx.fast.layer_norm(mx.array([1]), None, None, 0.1), r"\[layer_norm\] .* not int32"),
    "complex": (lambda: mx.fast.rms_norm(mx.array([1j]), None, 0.1), r"\[rms_norm\] .* not complex64"),
    "targets": (lambda: mx.fast.cross_entropy(X, mx.zeros((2, 4), mx.int32)), r"the shape \(2, 4\)"),
    "classes": (lambda: mx.fast.cross_entropy(X, mx.zeros((2, 3))), r"targets must be integers, not float32"),
    "logits": (lambda: mx.fast.cross_entropy(mx.array([1]), mx.array(0)), r"real floating dtype, not int32"),
    "odd": (rope(dims=3), r"\[rope\] dims must be positive and even; got 3"),
    "too many": (rope(dims=6), r"\[rope\] dims must not exceed the last extent of the array, 4; got 6"),
    "two": (rope(freqs=mx.ones((2,))), r"Exactly one of base and freqs"),
    "none": (rope(base=None), r"Exactly one of base and freqs"),
    "freqs": (rope(base=None, freqs=mx.ones((3,))), r"freqs must have the shape \(2,\)"),
    "offsets": (rope(offset=mx.array([1, 2, 3])), r"offset must be an int or have the shape \(\) or \(2,\)"),
    "fraction": (rope(offset=mx.array(1.5)), r"offset must be an integer, not float32"),
    "matrix": (rope(a=X[0]), r"at least 3 dimensions"),
    "base": (rope(base=-1.0), r"base must be positive"),
    "gamma": (delta(gamma=mx.ones((1, 3, 2, 5))), r"\[gated_delta_update\] gamma must have the shape \(1, 3, 2, 4\)"),
    "keys": (delta(k=mx.ones((1, 3, 2, 5))), r"\[gated_delta_update\] k must have the shape \(1, 3, 2, 4\)"),
    "heads": (delta(q=mx.ones((1, 3, 3, 4)), k=mx.ones((1, 3, 3, 4))), r"must be a multiple of that of q and k"),
    "state": (delta(initial_state=mx.ones((1, 4, 4))), r"initial_state must have the shape \(1, 2, 4, 4\)"),
    "mask": (delta(mask=mx.ones((3,))), r"mask must have the shape \(1, 3\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()
