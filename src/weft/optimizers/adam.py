"""Adam, AdamW and Adamax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.optimizers.optimizer import AnySchedule, Optimizer
from weft.optimizers.settings import check_betas, check_learning_rate, check_number

__all__ = ["Adam", "AdamW", "Adamax"]


class Adam(Optimizer):
    """Steps scaled by running means of the gradient and of its square.

    With g the gradient, ``m = beta1 * m + (1 - beta1) * g``, ``v = beta2 * v + (1 - beta2) * g**2``, and the parameter
    becomes ``w - learning_rate * m / (sqrt(v) + eps)``. Kingma, Ba, arXiv:1412.6980. The paper always corrects the bias
    of m and v towards their initial zeros; here ``bias_correction`` does.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        betas: (beta1, beta2), each at least 0 and below 1; else ``ValueError``.
        eps: added to the denominator, at least 0; else ``ValueError``.
        bias_correction: whether to divide m and v by ``1 - beta**step``.

    >>> optimizer = optim.Adam(learning_rate=0.5, betas=(0.0, 0.0))
    >>> optimizer.apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.5, 1.5], dtype=float32)}
    """

    def __init__(
        self,
        learning_rate: float | mx.array | AnySchedule,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = False,
    ) -> None:
        name = type(self).__name__
        check_learning_rate(name, learning_rate)
        check_betas(name, betas)
        check_number(name, "eps", eps, 0)
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.betas = betas
        self.eps = eps
        self.bias_correction = bias_correction

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the running means ``m`` and ``v`` with zeros."""
        state["m"] = mx.zeros_like(parameter)
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        beta1, beta2 = self.betas
        mean: mx.array = beta1 * state["m"] + (1 - beta1) * gradient
        square: mx.array = beta2 * state["v"] + (1 - beta2) * mx.square(gradient)
        state["m"] = mean
        state["v"] = square
        rate = self.learning_rate.astype(gradient.dtype)
        if not self.bias_correction:
            return parameter - rate * mean / (mx.sqrt(square) + self.eps)
        mean_scale = (rate / (1 - beta1**self.step)).astype(gradient.dtype)
        square_scale = mx.rsqrt(1 - beta2**self.step).astype(gradient.dtype)
        return parameter - mean_scale * mean / (mx.sqrt(square) * square_scale + self.eps)


class AdamW(Adam):
    """Adam with a decay of the parameters that does not pass through the running means.

    Before the step of `Adam`, the parameter is scaled by ``1 - learning_rate * weight_decay``.
    Loshchilov, Hutter, arXiv:1711.05101. The arguments are those of `Adam`, and one more.

    Args:
        weight_decay: the strength of the decay.

    >>> optimizer = optim.AdamW(learning_rate=0.5, weight_decay=0.5)
    >>> optimizer.apply_gradients({"w": mx.array([0.0])}, {"w": mx.array([4.0])})
    {'w': array([3], dtype=float32)}
    """

    def __init__(
        self,
        learning_rate: float | mx.array | AnySchedule,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
    ) -> None:
        check_number(type(self).__name__, "weight_decay", weight_decay, 0)
        super().__init__(learning_rate, betas, eps, bias_correction)
        self.weight_decay = weight_decay

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        rate = self.learning_rate.astype(gradient.dtype)
        return super().apply_single(gradient, parameter * (1 - rate * self.weight_decay), state)


class Adamax(Adam):
    """`Adam` with the largest absolute value of recent gradients in place of the mean of squares, without bias
    correction.

    With g the gradient, ``m = beta1 * m + (1 - beta1) * g``, ``v = max(beta2 * v, abs(g))`` and
    ``w = w - learning_rate * m / (v + eps)``. Kingma, Ba, arXiv:1412.6980.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        betas: (beta1, beta2), each at least 0 and below 1; else ``ValueError``.
        eps: added to the denominator, at least 0; else ``ValueError``.

    >>> optimizer = optim.Adamax(learning_rate=0.5, betas=(0.0, 0.0))
    >>> optimizer.apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.5, 1.5], dtype=float32)}
    """

    def __init__(
        self, learning_rate: float | mx.array | AnySchedule, betas: Sequence[float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(learning_rate, betas, eps)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        beta1, beta2 = self.betas
        mean: mx.array = beta1 * state["m"] + (1 - beta1) * gradient
        size = mx.maximum(beta2 * state["v"], mx.abs(gradient))
        state["m"] = mean
        state["v"] = size
        return parameter - self.learning_rate.astype(gradient.dtype) * mean / (size + self.eps)
