"""Logarithms of probabilities from logits of every magnitude, against float64: large logits do not cost digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import weft.core as mx
import weft.nn as nn

MAGNITUDES = [1.0, 1e2, 1e4, 1e8, 1e16, 1e30]
DTYPES = {"float16": np.float16, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}
STEPS = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [-9, 0, 4, 4], [0, -30, 1, -2]])
CLASSES = np.array([3, 0, 2, 1])
PROBABILITIES = softmax(np.cos(np.arange(16)).reshape(4, 4), axis=1).astype(np.float32)


def near(magnitude: float, dtype: str = "float32") -> np.ndarray:
    """Logits of a magnitude whose distances are the smallest in a dtype, but at least 0.25."""
    distance = float(np.spacing(np.array(magnitude, DTYPES[dtype]))) * (2**16 if dtype == "bfloat16" else 1)
    return np.array(magnitude, DTYPES[dtype]).astype(np.float64) + max(distance, 0.25) * STEPS


def assert_exact(found: mx.array, expected: np.ndarray, bits: int = 24) -> None:
    """Within two ulp, or within ``2**(1-bits)`` of 0, the logarithm of 1."""
    np.testing.assert_allclose(np.array(found.astype(mx.float64)), expected, rtol=2.0**-bits * 4, atol=2.0**-bits * 2)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("sign", [1, -1])
def test_log_softmax(magnitude: float, sign: int) -> None:
    logits = sign * near(magnitude)
    expected = log_softmax(logits, axis=1)
    assert_exact(nn.log_softmax(mx.array(logits, mx.float32)), expected)
    assert_exact(nn.log_softmax(mx.array(logits.T, mx.float32), axis=0).T, expected)


@pytest.mark.parametrize(
    ("dtype", "bits", "largest"), [("float16", 11, 1e4), ("bfloat16", 8, 1e30), ("float64", 24, 1e30)]
)
def test_log_softmax_of_other_dtypes(dtype: str, bits: int, largest: float) -> None:
    for magnitude in [one for one in MAGNITUDES if one <= largest]:
        logits = near(magnitude, dtype)
        found = nn.log_softmax(mx.array(logits, getattr(mx, dtype)))
        assert found.dtype == getattr(mx, dtype)
        assert_exact(found, log_softmax(logits, axis=1), bits)


def test_log_softmax_of_integers_and_of_complex_numbers() -> None:
    logits = 10**8 + 8 * STEPS
    assert_exact(nn.log_softmax(mx.array(logits, mx.int32)), log_softmax(logits.astype(float), axis=1))
    turned = np.exp(1j * np.arange(16)).reshape(4, 4) + 1e4
    turned = turned.astype(np.complex64).astype(np.complex128)
    shifted = turned - 1e4
    expected = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    np.testing.assert_allclose(np.array(nn.log_softmax(mx.array(turned, mx.complex64))), expected, rtol=1e-6)


def test_log_softmax_of_infinities() -> None:
    inf, nan = math.inf, math.nan
    rows = mx.array([[-inf, 1e8, 1e8], [inf, 1, -inf], [-inf, -inf, -inf], [nan, 1, 2]])
    half = math.log(0.5)
    expected = [[-inf, half, half], [nan, -inf, -inf], [nan, nan, nan], [nan, nan, nan]]
    np.testing.assert_allclose(np.array(nn.log_softmax(rows)), expected, rtol=1e-7)
    gradient = mx.grad(lambda x: nn.log_softmax(x)[1:].sum())(mx.array([-inf, 1e8, 1e8]))
    assert gradient.tolist() == [0, 0, 0]
    assert nn.log_softmax(mx.zeros((2, 0))).shape == (2, 0)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_cross_entropy(magnitude: float) -> None:
    logits = near(magnitude)
    x, classes, probabilities = mx.array(logits, mx.float32), mx.array(CLASSES), mx.array(PROBABILITIES)
    log_p = log_softmax(logits, axis=1)
    of_class = -np.take_along_axis(log_p, CLASSES[:, None], 1)[:, 0]
    of_probabilities = -(log_p * PROBABILITIES).sum(1)
    assert_exact(nn.losses.cross_entropy(x, classes), of_class)
    assert_exact(nn.losses.cross_entropy(x, probabilities), of_probabilities)
    smooth = 0.9 * of_class - 0.1 * log_p.mean(1)
    assert_exact(nn.losses.cross_entropy(x, classes, label_smoothing=0.1), smooth)
    assert_exact(nn.losses.cross_entropy(x.T, classes, axis=0, reduction="sum"), of_class.sum())


def test_targets_that_do_not_sum_to_one() -> None:
    logits, targets = near(1e4), 2 * PROBABILITIES - 0.1
    found = nn.losses.cross_entropy(mx.array(logits, mx.float32), mx.array(targets))
    np.testing.assert_allclose(np.array(found), -(log_softmax(logits, axis=1) * targets).sum(1), rtol=1e-5)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_gradients(magnitude: float) -> None:
    logits = near(magnitude)
    p = softmax(logits, axis=1)
    x, weights = mx.array(logits, mx.float32), mx.array(PROBABILITIES)
    found = mx.grad(lambda x: (nn.log_softmax(x) * weights).sum())(x)
    np.testing.assert_allclose(np.array(found), PROBABILITIES - p, atol=3e-7)
    for targets, expected in ((mx.array(CLASSES), p - np.eye(4)[CLASSES]), (weights, p - PROBABILITIES)):
        found = mx.grad(lambda x, t=targets: nn.losses.cross_entropy(x, t, reduction="sum"))(x)
        np.testing.assert_allclose(np.array(found), expected, atol=3e-7)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_second_derivatives(magnitude: float) -> None:
    """The second derivatives of ``sum(w * log_softmax(x))`` are ``p p^T - diag(p)`` times the sum of ``w``, here 1."""
    logits = near(magnitude)[1]
    p = softmax(logits)
    weights = mx.array(PROBABILITIES[0])
    gradient = mx.grad(lambda x: (nn.log_softmax(x) * weights).sum())
    rows = mx.vmap(lambda t: mx.jvp(gradient, [mx.array(logits, mx.float32)], [t])[1][0])(mx.eye(4))
    np.testing.assert_allclose(np.array(rows), np.outer(p, p) - np.diag(p), atol=3e-7)


def test_binary_cross_entropy_of_logits() -> None:
    logits = np.array([-100, -80, -10, -1, -1e-3, 0, 1e-3, 1, 10, 80, 100, 1e30], np.float32)
    for target in (0.0, 0.25, 1.0):
        x, t = logits.astype(np.float64), np.full(logits.shape, target)
        expected = t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
        targets = mx.array(t, mx.float32)
        found = nn.losses.binary_cross_entropy(mx.array(logits), targets, reduction="none")
        np.testing.assert_allclose(np.array(found), expected, rtol=3e-7, atol=1e-43)
        found = mx.grad(lambda x, t=targets: nn.losses.binary_cross_entropy(x, t, reduction="sum"))(mx.array(logits))
        np.testing.assert_allclose(np.array(found), 1 / (1 + np.exp(-x)) - t, rtol=1e-6, atol=1e-7)


def test_logits_of_a_compiled_function_of_every_shape() -> None:
    compiled = mx.compile(
        lambda x: (nn.log_softmax(x), nn.losses.cross_entropy(x, x[0].astype(mx.int32) * 0, axis=0)), shapeless=True
    )
    for shape in ((3, 5), (2, 7)):
        x = mx.random.normal(shape) + 1e4
        np.testing.assert_array_equal(np.array(compiled(x)[0]), np.array(nn.log_softmax(x)))
