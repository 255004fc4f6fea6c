"""Muon."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.checks import integer_of
from weft.optimizers.optimizer import AnySchedule, Optimizer
from weft.optimizers.settings import check_learning_rate, check_number

__all__ = ["Muon"]

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Coefficients of the polynomial that is applied repeatedly. It does not converge to 1, but grows fastest near 0; the
singular values end between 0.7 and 1.2."""


class Muon(Optimizer):
    """Steps in the direction of a momentum whose singular values are made about equal.

    K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024. Matrices are made orthogonal by
    some steps of the Newton-Schulz iteration. In arrays with more axes, all axes but the first are one; arrays with
    fewer axes use the momentum unchanged. For these, for embeddings and for last layers, choose another optimizer.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        momentum: the share of the previous direction, at least 0; else ``ValueError``.
        weight_decay: the strength of the L2 penalty, at least 0; else ``ValueError``.
        nesterov: whether to use Nesterov's momentum.
        ns_steps: how many steps of the iteration are made.

    >>> optimizer = optim.Muon(learning_rate=1.0, momentum=0.0, weight_decay=0.0, nesterov=False)
    >>> updated = optimizer.apply_gradients({"w": mx.array([[3.0, 0.0], [0.0, 2.0]])}, {"w": mx.zeros((2, 2))})
    >>> mx.abs(mx.abs(updated["w"]) - mx.eye(2)).max() < 0.5
    array(True, dtype=bool)
    """

    def __init__(
        self,
        learning_rate: float | mx.array | AnySchedule,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        nesterov: bool = True,
        ns_steps: int = 5,
    ) -> None:
        check_learning_rate("Muon", learning_rate)
        check_number("Muon", "momentum", momentum, 0)
        check_number("Muon", "weight_decay", weight_decay, 0)
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.ns_steps = integer_of("Muon", "ns_steps", ns_steps)

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the momentum ``v`` with zeros."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        if self.weight_decay != 0:
            gradient = gradient + self.weight_decay * parameter
        direction: mx.array = self.momentum * state["v"] + (1 - self.momentum) * gradient
        state["v"] = direction
        if self.nesterov:
            direction = (1 - self.momentum) * gradient + self.momentum * direction
        rate = self.learning_rate.astype(gradient.dtype)
        if direction.ndim >= 2:
            shape = direction.shape
            direction = self._orthogonal(direction.reshape(shape[0], -1)).reshape(shape)
            rate = rate * max(1.0, shape[-2] / shape[-1]) ** 0.5
        return parameter - rate * direction

    def _orthogonal(self, x: mx.array) -> mx.array:
        """A matrix with about the same singular vectors, and with singular values of about 1."""
        a, b, c = _COEFFICIENTS
        is_tall = x.shape[0] > x.shape[1]
        x = x.T if is_tall else x
        x = x / (mx.linalg.norm(x, keepdims=True) + 1e-7)
        for _ in range(self.ns_steps):
            square = x @ x.T
            x = a * x + (b * square + c * (square @ square)) @ x
        return x.T if is_tall else x
