"""Initialisers, under the names of MLX's ``nn.init``: functions that return an array in the shape of another one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import weft.core as mx
from weft.checks import shortened
from weft.errors import ArgumentTypeError
from weft.nn.checks import number_of

__all__ = [
    "constant",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "normal",
    "orthogonal",
    "sparse",
    "uniform",
]


def __dir__() -> list[str]:
    return __all__


Fan = Literal["fan_in", "fan_out"]


class GlorotInitializer(Protocol):
    """The type of the initialisers of `glorot_normal` and `glorot_uniform`."""

    def __call__(self, a: mx.array, gain: float = 1.0) -> mx.array: ...


class HeInitializer(Protocol):
    """The type of the initialisers of `he_normal` and `he_uniform`."""

    def __call__(self, a: mx.array, mode: Fan = "fan_in", gain: float = 1.0) -> mx.array: ...


def constant(value: float, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """An initialiser that fills with one value.

    Args:
        value: the number.
        dtype: the dtype of the result.

    >>> nn.init.constant(0.5)(mx.zeros((2,)))
    array([0.5, 0.5], dtype=float32)
    """

    number = number_of("constant", "value", value)

    def initializer(a: mx.array) -> mx.array:
        return mx.full(_shape("constant", a), number, dtype=dtype)

    return initializer


def normal(mean: float = 0.0, std: float = 1.0, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """An initialiser of normally distributed values.

    Args:
        mean: the mean.
        std: the standard deviation.
        dtype: the dtype of the result.

    >>> nn.init.normal(std=0.1)(mx.zeros((2, 3))).shape
    (2, 3)
    """

    def initializer(a: mx.array) -> mx.array:
        return mx.random.normal(_shape("normal", a), dtype=dtype, loc=mean, scale=std)

    return initializer


def uniform(low: float = 0.0, high: float = 1.0, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """An initialiser of values uniform in ``[low, high)``.

    Args:
        low: the smallest value.
        high: the upper limit, which is excluded.
        dtype: the dtype of the result.

    >>> nn.init.uniform(-1, 1)(mx.zeros((2, 3))).shape
    (2, 3)
    """

    def initializer(a: mx.array) -> mx.array:
        return mx.random.uniform(low, high, _shape("uniform", a), dtype=dtype)

    return initializer


def identity(dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """An initialiser of square matrices with ones on the diagonal; other shapes raise ``ValueError``.

    >>> nn.init.identity()(mx.zeros((2, 2)))
    array([[1, 0],
           [0, 1]], dtype=float32)
    """

    def initializer(a: mx.array) -> mx.array:
        shape = _shape("identity", a)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"[identity] The array must be a square matrix; got shape {shape}.")
        return mx.eye(shape[0], dtype=dtype)

    return initializer


def glorot_normal(dtype: mx.Dtype = mx.float32) -> GlorotInitializer:
    """An initialiser of normal values with standard deviation ``gain * sqrt(2 / (fan_in + fan_out))``.

    Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010).
    The array has axes (out, ..., in), at least two; else ``ValueError``.

    >>> nn.init.glorot_normal()(mx.zeros((2, 3)), gain=2.0).shape
    (2, 3)
    """

    def initializer(a: mx.array, gain: float = 1.0) -> mx.array:
        return mx.random.normal(
            _shape("glorot_normal", a), dtype=dtype, scale=_glorot_deviation("glorot_normal", a, gain)
        )

    return initializer


def glorot_uniform(dtype: mx.Dtype = mx.float32) -> GlorotInitializer:
    """An initialiser of uniform values within ``gain * sqrt(6 / (fan_in + fan_out))`` around zero.

    Glorot, Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010).
    The array has axes (out, ..., in), at least two; else ``ValueError``.

    >>> nn.init.glorot_uniform()(mx.zeros((2, 3))).shape
    (2, 3)
    """

    def initializer(a: mx.array, gain: float = 1.0) -> mx.array:
        bound = math.sqrt(3) * _glorot_deviation("glorot_uniform", a, gain)
        return mx.random.uniform(-bound, bound, a.shape, dtype=dtype)

    return initializer


def he_normal(dtype: mx.Dtype = mx.float32) -> HeInitializer:
    """An initialiser of normal values with standard deviation ``gain / sqrt(fan)``.

    He, Zhang, Ren, Sun, arXiv:1502.01852. The array has axes (out, ..., in), at least two; ``mode`` chooses the fan,
    "fan_in" or "fan_out". Otherwise ``ValueError`` is raised.

    >>> nn.init.he_normal()(mx.zeros((2, 3)), mode="fan_out").shape
    (2, 3)
    """

    def initializer(a: mx.array, mode: Fan = "fan_in", gain: float = 1.0) -> mx.array:
        return mx.random.normal(_shape("he_normal", a), dtype=dtype, scale=_he_deviation("he_normal", a, mode, gain))

    return initializer


def he_uniform(dtype: mx.Dtype = mx.float32) -> HeInitializer:
    """An initialiser of uniform values within ``gain * sqrt(3 / fan)`` around zero.

    He, Zhang, Ren, Sun, arXiv:1502.01852. The array has axes (out, ..., in), at least two; ``mode`` chooses the fan,
    "fan_in" or "fan_out". Otherwise ``ValueError`` is raised.

    >>> nn.init.he_uniform()(mx.zeros((2, 3))).shape
    (2, 3)
    """

    def initializer(a: mx.array, mode: Fan = "fan_in", gain: float = 1.0) -> mx.array:
        bound = math.sqrt(3) * _he_deviation("he_uniform", a, mode, gain)
        return mx.random.uniform(-bound, bound, a.shape, dtype=dtype)

    return initializer


def orthogonal(gain: float = 1.0, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """An initialiser of matrices whose rows, or columns if there are fewer, are orthogonal and have length ``gain``.

    Saxe, McClelland, Ganguli, arXiv:1312.6120. Arrays that do not have two axes raise ``ValueError``.

    Args:
        gain: the factor of the orthogonal matrix.
        dtype: the dtype of the result.

    >>> rows = nn.init.orthogonal()(mx.zeros((2, 3)))
    >>> mx.allclose(rows @ rows.T, mx.eye(2), atol=1e-6)
    array(True, dtype=bool)
    """

    factor = number_of("orthogonal", "gain", gain)

    def initializer(a: mx.array) -> mx.array:
        rows, columns = _matrix_shape("orthogonal", a)
        size = max(rows, columns)
        q, r = mx.linalg.qr(mx.random.normal((size, size)))
        # With the signs of R's diagonal moved into Q, every orthogonal matrix is equally likely.
        unique = q * mx.sign(mx.diagonal(r))
        return (factor * unique[:rows, :columns]).astype(dtype)

    return initializer


def sparse(
    sparsity: float, mean: float = 0.0, std: float = 1.0, dtype: mx.Dtype = mx.float32
) -> Callable[[mx.array], mx.array]:
    """An initialiser of matrices of normal values; in each row a given share of the elements, chosen at random, is
    zero.

    Martens, "Deep learning via Hessian-free optimization" (2010). Arrays that do not have two axes raise
    ``ValueError``.

    Args:
        sparsity: the share of zeros, from 0 to 1; their number is rounded up.
        mean: the mean of the other values.
        std: the standard deviation of the other values.
        dtype: the dtype of the result.

    >>> mx.sum(nn.init.sparse(0.5)(mx.zeros((2, 4))) == 0, axis=1)
    array([2, 2], dtype=int32)
    """

    share = number_of("sparse", "sparsity", sparsity)
    center, deviation = number_of("sparse", "mean", mean), number_of("sparse", "std", std)
    if not 0 <= share <= 1:
        raise ValueError(f"[sparse] sparsity must be from 0 to 1; got {shortened(sparsity)}.")

    def initializer(a: mx.array) -> mx.array:
        rows, columns = _matrix_shape("sparse", a)
        order = mx.argsort(mx.random.uniform(shape=(rows, columns)), axis=1)
        values = mx.random.normal((rows, columns), dtype=dtype, loc=center, scale=deviation)
        zeros = mx.zeros((rows, math.ceil(share * columns)), dtype=dtype)
        return mx.put_along_axis(values, order[:, : zeros.shape[1]], zeros, axis=1)

    return initializer


def _matrix_shape(function: str, a: mx.array) -> tuple[int, int]:
    shape = _shape(function, a)
    if len(shape) != 2:
        raise ValueError(f"[{function}] The array must have two axes; got shape {shape}.")
    return shape


def _shape(function: str, a: mx.array) -> tuple[int, ...]:
    if not isinstance(a, mx.array):
        raise ArgumentTypeError(f"[{function}] takes an array, whose shape the result has; got {type(a).__name__}.")
    return a.shape


def _fans(function: str, a: mx.array) -> dict[str, int]:
    """How many inputs each output depends on, and how many outputs each input affects."""
    shape = _shape(function, a)
    if len(shape) < 2:
        raise ValueError(f"[{function}] At least two axes (out, ..., in) are needed; got shape {shape}.")
    window = math.prod(shape[1:-1])
    return {"fan_in": shape[-1] * window, "fan_out": shape[0] * window}


def _glorot_deviation(function: str, a: mx.array, gain: float) -> float:
    return gain * math.sqrt(2 / sum(_fans(function, a).values()))


def _he_deviation(function: str, a: mx.array, mode: str, gain: float) -> float:
    fans = _fans(function, a)
    if mode not in fans:
        raise ValueError(f"[{function}] mode must be one of {list(fans)}; got {mode!r}.")
    return gain / math.sqrt(fans[mode])
