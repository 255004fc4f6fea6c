"""Activation functions, and the layers that apply them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import weft.core as mx
from weft.checks import shortened
from weft.nn.checks import array_of, axis_of, number_of, real_array_of
from weft.nn.log_probabilities import result_dtype, spread
from weft.nn.module import Module

__all__ = [
    "ELU",
    "GELU",
    "LeakyReLU",
    "LogSoftmax",
    "ReLU",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "elu",
    "gelu",
    "gelu_approx",
    "gelu_fast_approx",
    "leaky_relu",
    "log_softmax",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]


def relu(x: mx.array) -> mx.array:
    """The rectified linear unit, ``max(x, 0)``.

    >>> nn.relu(mx.array([-1.0, 2.0]))
    array([0, 2], dtype=float32)
    """
    return mx.maximum(array_of("relu", "x", x), 0)


def leaky_relu(x: mx.array, negative_slope: float = 0.01) -> mx.array:
    """``x`` where it is positive, else ``negative_slope * x``.

    >>> nn.leaky_relu(mx.array([-1.0, 2.0]), 0.5)
    array([-0.5, 2], dtype=float32)
    """
    x = array_of("leaky_relu", "x", x)
    slope = number_of("leaky_relu", "negative_slope", negative_slope)
    return mx.where(mx.greater(x, 0), x, mx.multiply(slope, x))


def elu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """The exponential linear unit: ``x`` where it is positive, else ``alpha * (exp(x) - 1)``.

    Clevert, Unterthiner, Hochreiter, arXiv:1511.07289.

    >>> nn.elu(mx.array([-1.0, 2.0]))
    array([-0.632121, 2], dtype=float32)
    """
    x, alpha = real_array_of("elu", "x", x), number_of("elu", "alpha", alpha)
    # Large values would overflow in the branch that is not taken, and make its derivative nan.
    positive = mx.greater(x, 0)
    return mx.where(positive, x, alpha * mx.expm1(mx.where(positive, 0, x)))


def gelu(x: mx.array) -> mx.array:
    """The Gaussian error linear unit, ``x * (1 + erf(x / sqrt(2))) / 2``.

    Hendrycks, Gimpel, arXiv:1606.08415.

    >>> nn.gelu(mx.array([-1.0, 2.0]))
    array([-0.158655, 1.9545], dtype=float32)
    """
    x = real_array_of("gelu", "x", x)
    return x * (1 + mx.erf(mx.divide(x, math.sqrt(2)))) / 2


def gelu_approx(x: mx.array) -> mx.array:
    """`gelu` by way of tanh: ``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``.

    Hendrycks, Gimpel, arXiv:1606.08415.

    >>> nn.gelu_approx(mx.array([-1.0, 2.0]))
    array([-0.158808, 1.9546], dtype=float32)
    """
    x = array_of("gelu_approx", "x", x)
    return mx.multiply(0.5, x) * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_fast_approx(x: mx.array) -> mx.array:
    """`gelu` by way of the sigmoid: ``x * sigmoid(1.702 * x)``.

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
        axis: which axis.

    >>> nn.softmax(mx.array([1.0, 1.0]))
    array([0.5, 0.5], dtype=float32)
    """
    return mx.softmax(array_of("softmax", "x", x), axis=axis)


def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    """The logarithm of `softmax` along an axis, ``x - logsumexp(x)``, accurate for large ``x`` as well.

    Args:
        x: an array.
        axis: which axis.

    >>> nn.log_softmax(mx.array([1e8, 1e8]))
    array([-0.693147, -0.693147], dtype=float32)
    """
    x = array_of("log_softmax", "x", x)
    wide, largest, log_sum = spread(x, axis_of("log_softmax", "x", x, axis))
    return ((wide - largest) - log_sum).astype(result_dtype(x))


class _Activation(Module):
    """A layer that applies a function of one array.

    A subclass names the function in its class statement; one with settings puts a partial function over it.
    """

    _function: ClassVar[Callable[..., mx.array]]

    def __init_subclass__(cls, function: Callable[..., mx.array] | None = None, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if function is not None:
            cls._function = staticmethod(function)

    def _set(self, **settings: Any) -> None:
        object.__setattr__(self, "_function", partial(type(self)._function, **settings))

    def __call__(self, x: mx.array) -> mx.array:
        return self._function(x)


class ReLU(_Activation, function=relu):
    """The layer of `relu`.

    >>> nn.ReLU()(mx.array([-1.0, 2.0]))
    array([0, 2], dtype=float32)
    """


class LeakyReLU(_Activation, function=leaky_relu):
    """The layer of `leaky_relu`.

    >>> nn.LeakyReLU(negative_slope=0.5)(mx.array([-1.0, 2.0]))
    array([-0.5, 2], dtype=float32)
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self._set(negative_slope=number_of("LeakyReLU", "negative_slope", negative_slope))


class ELU(_Activation, function=elu):
    """The layer of `elu`.

    >>> nn.ELU(alpha=2.0)(mx.array([-1.0, 2.0]))
    array([-1.26424, 2], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._set(alpha=number_of("ELU", "alpha", alpha))


_GELU_FUNCTIONS = {"none": gelu, "precise": gelu_approx, "tanh": gelu_approx, "fast": gelu_fast_approx}


class GELU(Module):
    """The layer of `gelu` and its approximations.

    Args:
        approx: "none" for `gelu`, "precise" or "tanh" for `gelu_approx`, "fast" for `gelu_fast_approx`; something else
            raises ``ValueError``.

    >>> nn.GELU(approx="fast")(mx.array([-1.0, 2.0]))
    array([-0.154204, 1.93566], dtype=float32)
    """

    def __init__(self, approx: str = "none") -> None:
        super().__init__()
        if not isinstance(approx, str) or approx not in _GELU_FUNCTIONS:
            raise ValueError(f"[GELU] approx has to be one of {list(_GELU_FUNCTIONS)}, got {shortened(approx)}.")
        self._function = _GELU_FUNCTIONS[approx]

    def __call__(self, x: mx.array) -> mx.array:
        return self._function(x)


class SiLU(_Activation, function=silu):
    """The layer of `silu`.

    >>> nn.SiLU()(mx.array([-1.0, 2.0]))
    array([-0.268941, 1.76159], dtype=float32)
    """


class Sigmoid(_Activation, function=sigmoid):
    """The layer of `sigmoid`.

    >>> nn.Sigmoid()(mx.array([0.0, 2.0]))
    array([0.5, 0.880797], dtype=float32)
    """


class Tanh(_Activation, function=tanh):
    """The layer of `tanh`.

    >>> nn.Tanh()(mx.array([0.0, 1.0]))
    array([0, 0.761594], dtype=float32)
    """


class Softplus(_Activation, function=softplus):
    """The layer of `softplus`.

    >>> nn.Softplus()(mx.array([0.0, 100.0]))
    array([0.693147, 100], dtype=float32)
    """


class Softmax(_Activation, function=softmax):
    """The layer of `softmax` along the last axis.

    >>> nn.Softmax()(mx.array([1.0, 1.0]))
    array([0.5, 0.5], dtype=float32)
    """


class LogSoftmax(_Activation, function=log_softmax):
    """The layer of `log_softmax` along the last axis.

    >>> nn.LogSoftmax()(mx.array([1.0, 1.0]))
    array([-0.693147, -0.693147], dtype=float32)
    """
