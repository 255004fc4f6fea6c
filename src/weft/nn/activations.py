"""Activation functions."""

from __future__ import annotations

import math

import weft.core as mx
from weft.nn.checks import array_of, axis_of, check_broadcast, number_of, real_array_of
from weft.nn.log_probabilities import result_dtype, spread

__all__ = [
    "celu",
    "elu",
    "gelu",
    "gelu_approx",
    "gelu_fast_approx",
    "glu",
    "hard_shrink",
    "hard_tanh",
    "hardswish",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "prelu",
    "relu",
    "relu2",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "step",
    "tanh",
]


def relu(x: mx.array) -> mx.array:
    """The rectified linear unit, ``max(x, 0)``.

    >>> nn.relu(mx.array([-1.0, 2.0]))
    array([0, 2], dtype=float32)
    """
    return mx.maximum(array_of("relu", "x", x), 0)


def leaky_relu(x: mx.array, negative_slope: float = 0.01) -> mx.array:
    """``x``, but ``negative_slope * x`` where it is negative. At zero the derivative is one.

    >>> nn.leaky_relu(mx.array([-1.0, 2.0]), 0.5)
    array([-0.5, 2], dtype=float32)
    """
    x = array_of("leaky_relu", "x", x)
    slope = number_of("leaky_relu", "negative_slope", negative_slope)
    return mx.where(mx.less(x, 0), mx.multiply(slope, x), x)


def elu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """The exponential linear unit: ``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Clevert, Unterthiner, Hochreiter, arXiv:1511.07289.

    >>> nn.elu(mx.array([-1.0, 2.0]))
    array([-0.632121, 2], dtype=float32)
    """
    x, alpha = real_array_of("elu", "x", x), number_of("elu", "alpha", alpha)
    # Large values would overflow in the branch that is not used, and make its derivative NaN.
    positive = mx.greater(x, 0)
    return mx.where(positive, x, alpha * mx.expm1(mx.where(positive, 0, x)))


def gelu(x: mx.array) -> mx.array:
    """The Gaussian error linear unit, ``x * (1 + erf(x / sqrt(2))) / 2``.

    Hendrycks, Gimpel, arXiv:1606.08415.

    >>> nn.gelu(mx.array([-1.0, 2.0]))
    array([-0.158655, 1.9545], dtype=float32)
    """
    x = real_array_of("gelu", "x", x)
    return x * (1 + mx.erf(x * math.sqrt(0.5))) / 2


def gelu_approx(x: mx.array) -> mx.array:
    """An approximation of `gelu` with tanh: ``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.

    Hendrycks, Gimpel, arXiv:1606.08415.

    >>> nn.gelu_approx(mx.array([-1.0, 2.0]))
    array([-0.158808, 1.9546], dtype=float32)
    """
    x = array_of("gelu_approx", "x", x)
    return mx.multiply(0.5, x) * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_fast_approx(x: mx.array) -> mx.array:
    """An approximation of `gelu` with the sigmoid: ``x * sigmoid(1.702 * x)``.

    Hendrycks, Gimpel, arXiv:1606.08415.

    >>> nn.gelu_fast_approx(mx.array([-1.0, 2.0]))
    array([-0.154204, 1.93566], dtype=float32)
    """
    x = real_array_of("gelu_fast_approx", "x", x)
    return x * mx.sigmoid(mx.multiply(1.702, x))


def silu(x: mx.array) -> mx.array:
    """The sigmoid linear unit (swish), ``x * sigmoid(x)``.

    >>> nn.silu(mx.array([-1.0, 2.0]))
    array([-0.268941, 1.76159], dtype=float32)
    """
    x = real_array_of("silu", "x", x)
    return x * mx.sigmoid(x)


def sigmoid(x: mx.array) -> mx.array:
    """The logistic function, ``1 / (1 + exp(-x))``.

    >>> nn.sigmoid(mx.array([0.0, 2.0]))
    array([0.5, 0.880797], dtype=float32)
    """
    return mx.sigmoid(array_of("sigmoid", "x", x))


def tanh(x: mx.array) -> mx.array:
    """The hyperbolic tangent.

    >>> nn.tanh(mx.array([0.0, 1.0]))
    array([0, 0.761594], dtype=float32)
    """
    return mx.tanh(array_of("tanh", "x", x))


def softplus(x: mx.array) -> mx.array:
    """A smooth `relu`, ``log(1 + exp(x))``.

    >>> nn.softplus(mx.array([0.0, 100.0]))
    array([0.693147, 100], dtype=float32)
    """
    return mx.logaddexp(array_of("softplus", "x", x), 0)


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """``exp(x)``, scaled so that it sums to one along an axis.

    Args:
        x: an array.
        axis: the axis.

    >>> nn.softmax(mx.array([1.0, 1.0]))
    array([0.5, 0.5], dtype=float32)
    """
    return mx.softmax(array_of("softmax", "x", x), axis=axis)


def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    """The logarithm of `softmax` along an axis, ``x - logsumexp(x)``, also accurate for large ``x``.

    Args:
        x: an array.
        axis: the axis.

    >>> nn.log_softmax(mx.array([1e8, 1e8]))
    array([-0.693147, -0.693147], dtype=float32)
    """
    x = array_of("log_softmax", "x", x)
    wide, largest, log_sum = spread(x, axis_of("log_softmax", "x", x, axis))
    return ((wide - largest) - log_sum).astype(result_dtype(x))


def celu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """The continuously differentiable `elu`: ``x`` where it is positive, else ``alpha * (exp(x / alpha) - 1)``.

    Barron, arXiv:1704.07483.

    >>> nn.celu(mx.array([-1.0, 2.0]), alpha=2.0)
    array([-0.786939, 2], dtype=float32)
    """
    x, alpha = real_array_of("celu", "x", x), number_of("celu", "alpha", alpha)
    return mx.maximum(x, 0.0) + mx.multiply(alpha, mx.expm1(mx.divide(mx.minimum(x, 0.0), alpha)))


def selu(x: mx.array) -> mx.array:
    """The scaled exponential linear unit, ``1.0507 * elu(x, 1.67326)``.

    Klambauer et al., arXiv:1706.02515.

    >>> nn.selu(mx.array([-1.0, 2.0]))
    array([-1.11133, 2.1014], dtype=float32)
    """
    return elu(real_array_of("selu", "x", x), 1.67326) * 1.0507


def prelu(x: mx.array, alpha: mx.array) -> mx.array:
    """``x``, but ``alpha * x`` where it is negative; ``alpha`` is learned. At zero the derivative is one.

    He et al., arXiv:1502.01852.

    >>> nn.prelu(mx.array([-1.0, 2.0]), mx.array([0.25]))
    array([-0.25, 2], dtype=float32)
    """
    x, alpha = array_of("prelu", "x", x), array_of("prelu", "alpha", alpha)
    check_broadcast("prelu", "x", x, "alpha", alpha)
    return mx.where(mx.less(x, 0), alpha * x, x)


def relu2(x: mx.array) -> mx.array:
    """The square of `relu`.

    >>> nn.relu2(mx.array([-1.0, 2.0]))
    array([0, 4], dtype=float32)
    """
    return mx.square(relu(array_of("relu2", "x", x)))


def relu6(x: mx.array) -> mx.array:
    """``min(max(x, 0), 6)``.

    >>> nn.relu6(mx.array([-1.0, 2.0, 7.0]))
    array([0, 2, 6], dtype=float32)
    """
    return mx.minimum(mx.maximum(array_of("relu6", "x", x), 0.0), 6.0)


def hard_tanh(x: mx.array, min_val: float = -1.0, max_val: float = 1.0) -> mx.array:
    """``x`` limited to the range from ``min_val`` to ``max_val``.

    >>> nn.hard_tanh(mx.array([-2.0, 0.5]))
    array([-1, 0.5], dtype=float32)
    """
    low, high = number_of("hard_tanh", "min_val", min_val), number_of("hard_tanh", "max_val", max_val)
    return mx.minimum(mx.maximum(array_of("hard_tanh", "x", x), low), high)


def hardswish(x: mx.array) -> mx.array:
    """``x * min(max(x + 3, 0), 6) / 6``.

    Howard et al., arXiv:1905.02244.

    >>> nn.hardswish(mx.array([-1.0, 3.0]))
    array([-0.333333, 3], dtype=float32)
    """
    x = array_of("hardswish", "x", x)
    return x * mx.minimum(mx.maximum(x + 3, 0.0), 6.0) / 6


def hard_shrink(x: mx.array, lambd: float = 0.5) -> mx.array:
    """``x`` where it is above ``lambd`` or below ``-lambd``, else 0.

    >>> nn.hard_shrink(mx.array([-1.0, 0.25]))
    array([-1, 0], dtype=float32)
    """
    x, lambd = array_of("hard_shrink", "x", x), number_of("hard_shrink", "lambd", lambd)
    return mx.where(mx.abs(x) > lambd, x, 0)


def softshrink(x: mx.array, lambd: float = 0.5) -> mx.array:
    """``x`` moved towards 0 by ``lambd``, but not beyond it.

    >>> nn.softshrink(mx.array([-1.0, 0.25]))
    array([-0.5, 0], dtype=float32)
    """
    x, lambd = array_of("softshrink", "x", x), number_of("softshrink", "lambd", lambd)
    return mx.where(mx.abs(x) > lambd, x - mx.sign(x) * lambd, 0)


def softsign(x: mx.array) -> mx.array:
    """``x / (1 + abs(x))``.

    >>> nn.softsign(mx.array([-1.0, 3.0]))
    array([-0.5, 0.75], dtype=float32)
    """
    x = array_of("softsign", "x", x)
    return mx.divide(x, 1 + mx.abs(x))


def log_sigmoid(x: mx.array) -> mx.array:
    """The logarithm of `sigmoid`, ``-log(1 + exp(-x))``, accurate for large ``x`` of both signs.

    >>> nn.log_sigmoid(mx.array([0.0, -100.0]))
    array([-0.693147, -100], dtype=float32)
    """
    return -softplus(mx.multiply(-1.0, array_of("log_sigmoid", "x", x)))


def mish(x: mx.array) -> mx.array:
    """``x * tanh(softplus(x))``.

    Misra, arXiv:1908.08681.

    >>> nn.mish(mx.array([-1.0, 2.0]))
    array([-0.303401, 1.94396], dtype=float32)
    """
    x = array_of("mish", "x", x)
    return x * mx.tanh(softplus(x))


def softmin(x: mx.array, axis: int = -1) -> mx.array:
    """`softmax` of ``-x``.

    Args:
        x: an array.
        axis: the axis.

    >>> nn.softmin(mx.array([1.0, 1.0]))
    array([0.5, 0.5], dtype=float32)
    """
    x = array_of("softmin", "x", x)
    return mx.softmax(mx.multiply(-1.0, x), axis=axis_of("softmin", "x", x, axis))


def glu(x: mx.array, axis: int = -1) -> mx.array:
    """The gated linear unit: the first half along an axis times the `sigmoid` of the second.

    Dauphin et al., arXiv:1612.08083.

    Args:
        x: an array.
        axis: the axis, of an even extent.

    Raises:
        ValueError: the extent of the axis is odd.

    >>> nn.glu(mx.array([3.0, 4.0, 0.0, 100.0]))
    array([1.5, 4], dtype=float32)
    """
    return gated("glu", x, axis)


def gated(function: str, x: mx.array, axis: int) -> mx.array:
    """`glu`; errors name ``function``, which may be a function or a layer."""
    x = array_of(function, "x", x)
    axis = axis_of(function, "x", x, axis)
    if x.shape[axis] % 2:
        raise ValueError(f"[{function}] axis {axis} of x of shape {x.shape} must have an even extent.")
    first, second = mx.split(x, 2, axis=axis)
    return first * mx.sigmoid(second)


def step(x: mx.array, threshold: float = 0.0) -> mx.array:
    """1 where ``x`` is at least ``threshold``, else 0, as int32.

    >>> nn.step(mx.array([-1.0, 0.0]))
    array([0, 1], dtype=int32)
    """
    below = array_of("step", "x", x) < number_of("step", "threshold", threshold)
    return mx.where(below, 0, 1)
