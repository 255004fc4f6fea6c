"""Logarithms of `softmax`, computed without differences of large numbers."""

from __future__ import annotations

import math

import weft.core as mx


def result_dtype(logits: mx.array) -> mx.Dtype:
    """The dtype of log-probabilities: that of the logits, float32 for integers."""
    return logits.dtype if mx.issubdtype(logits.dtype, mx.inexact) else mx.float32


def spread(logits: mx.array, axis: int) -> tuple[mx.array, mx.array, mx.array]:
    """The terms of log-probabilities, which are ``(x - largest) - log_sum``.

    Returns ``x``, the logits in the dtype to compute in (float32 for half precision); ``largest``, their maximum along
    the axis; and ``log_sum``, the logarithm of the sum of ``exp(x - largest)``. The latter two have extent 1 along the
    axis. ``largest`` is 0 where the maximum is not finite; it is a constant for derivatives, because log-probabilities
    do not depend on it.
    """
    dtype = result_dtype(logits)
    x = logits.astype(mx.float32 if dtype in (mx.float16, mx.bfloat16) else dtype)
    if x.shape[axis] == 0:
        largest = mx.sum(mx.real(x), axis=axis, keepdims=True)
    else:
        largest = mx.max(mx.stop_gradient(mx.real(x)), axis=axis, keepdims=True)
        largest = mx.where(mx.less(mx.abs(largest), math.inf), largest, 0)
    return x, largest, mx.log(mx.sum(mx.exp(x - largest), axis=axis, keepdims=True))
