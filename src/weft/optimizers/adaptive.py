"""Optimizers that scale steps by running sums or means of the squares of gradients, and `Lion`, which takes signs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.optimizers.optimizer import AnySchedule, Optimizer
from weft.optimizers.settings import check_betas, check_learning_rate, check_number

__all__ = ["AdaDelta", "Adagrad", "Lion", "RMSprop"]


class Adagrad(Optimizer):
    """Steps scaled by the sum of the squares of all gradients.

    With g the gradient, ``v = v + g**2`` and ``w = w - learning_rate * g / (sqrt(v) + eps)``. Duchi, Hazan, Singer,
    Adaptive subgradient methods for online learning and stochastic optimization, 2011.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        eps: added to the denominator, at least 0; else ``ValueError``.

    >>> optimizer = optim.Adagrad(learning_rate=0.5)
    >>> optimizer.apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.5, 1.5], dtype=float32)}
    """

    def __init__(self, learning_rate: float | mx.array | AnySchedule, eps: float = 1e-8) -> None:
        check_learning_rate("Adagrad", learning_rate)
        check_number("Adagrad", "eps", eps, 0)
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.eps = eps

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the sum ``v`` with zeros."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        total: mx.array = state["v"] + mx.square(gradient)
        state["v"] = total
        return parameter - self.learning_rate.astype(gradient.dtype) * gradient / (mx.sqrt(total) + self.eps)


class RMSprop(Optimizer):
    """Steps scaled by a running mean of the squares of gradients.

    With g the gradient, ``v = alpha * v + (1 - alpha) * g**2`` and ``w = w - learning_rate * g / (sqrt(v) + eps)``.
    Tieleman, Hinton, Neural networks for machine learning, lecture 6.5, 2012.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        alpha: the share of the previous mean, at least 0; else ``ValueError``.
        eps: added to the denominator, at least 0; else ``ValueError``.

    >>> optimizer = optim.RMSprop(learning_rate=0.5, alpha=0.0)
    >>> optimizer.apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.5, 1.5], dtype=float32)}
    """

    def __init__(self, learning_rate: float | mx.array | AnySchedule, alpha: float = 0.99, eps: float = 1e-8) -> None:
        check_learning_rate("RMSprop", learning_rate)
        check_number("RMSprop", "alpha", alpha, 0)
        check_number("RMSprop", "eps", eps, 0)
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.alpha = alpha
        self.eps = eps

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the running mean ``v`` with zeros."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        square: mx.array = self.alpha * state["v"] + (1 - self.alpha) * mx.square(gradient)
        state["v"] = square
        return parameter - self.learning_rate.astype(gradient.dtype) * gradient / (mx.sqrt(square) + self.eps)


class AdaDelta(Optimizer):
    """Steps scaled by running means of the squares of gradients and of steps.

    With g the gradient, ``v = rho * v + (1 - rho) * g**2``, ``d = sqrt(u + eps) / sqrt(v + eps) * g``,
    ``u = rho * u + (1 - rho) * d**2`` and ``w = w - learning_rate * d``. Zeiler, arXiv:1212.5701.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        rho: the share of the previous means, at least 0; else ``ValueError``.
        eps: added before taking square roots, at least 0; else ``ValueError``.

    >>> optimizer = optim.AdaDelta(learning_rate=1.0, rho=0.0, eps=1.0)
    >>> optimizer.apply_gradients({"w": mx.array([0.0])}, {"w": mx.array([1.0])})
    {'w': array([1], dtype=float32)}
    """

    def __init__(self, learning_rate: float | mx.array | AnySchedule, rho: float = 0.9, eps: float = 1e-6) -> None:
        check_learning_rate("AdaDelta", learning_rate)
        check_number("AdaDelta", "rho", rho, 0)
        check_number("AdaDelta", "eps", eps, 0)
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.rho = rho
        self.eps = eps

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the running means ``v`` and ``u`` with zeros."""
        state["v"] = mx.zeros_like(parameter)
        state["u"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        square: mx.array = self.rho * state["v"] + (1 - self.rho) * mx.square(gradient)
        step = mx.sqrt(state["u"] + self.eps) / mx.sqrt(square + self.eps) * gradient
        state["v"] = square
        state["u"] = self.rho * state["u"] + (1 - self.rho) * mx.square(step)
        return parameter - self.learning_rate.astype(gradient.dtype) * step


class Lion(Optimizer):
    """Steps of one size, in the direction of the signs of an interpolated momentum.

    With g the gradient, ``c = beta1 * m + (1 - beta1) * g``, ``m = beta2 * m + (1 - beta2) * g`` and
    ``w = w - learning_rate * (sign(c) + weight_decay * w)``. Chen et al., arXiv:2302.06675, who recommend a third to a
    tenth of Adam's learning rate.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        betas: (beta1, beta2), each at least 0 and below 1; else ``ValueError``.
        weight_decay: the strength of the decay, at least 0; else ``ValueError``.

    >>> optimizer = optim.Lion(learning_rate=0.5)
    >>> optimizer.apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.5, 1.5], dtype=float32)}
    """

    def __init__(
        self,
        learning_rate: float | mx.array | AnySchedule,
        betas: Sequence[float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        check_learning_rate("Lion", learning_rate)
        check_betas("Lion", betas)
        check_number("Lion", "weight_decay", weight_decay, 0)
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.betas = betas
        self.weight_decay = weight_decay

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the momentum ``m`` with zeros."""
        state["m"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        beta1, beta2 = self.betas
        rate = self.learning_rate.astype(gradient.dtype)
        direction = mx.sign(beta1 * state["m"] + (1 - beta1) * gradient)
        state["m"] = beta2 * state["m"] + (1 - beta2) * gradient
        if self.weight_decay > 0:
            parameter = (1 - rate * self.weight_decay) * parameter
        return parameter - rate * direction
