"""Stochastic gradient descent."""

from __future__ import annotations

import math
from typing import Any

import weft.core as mx
from weft.optimizers.optimizer import AnySchedule, Optimizer
from weft.optimizers.settings import check_learning_rate, check_number

__all__ = ["SGD"]


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum.

    With g the gradient plus ``weight_decay`` times the parameter w, the step is ``v = momentum * v + (1 - dampening) *
    g`` and ``w = w - learning_rate * v``; with Nesterov's momentum, v in the second formula is replaced by ``g +
    momentum * v``.

    Args:
        learning_rate: a number, at least 0, or a function of the step.
        momentum: the share of the previous direction that is added to the next one; 0 for none.
        weight_decay: the strength of the L2 penalty.
        dampening: reduces the share of the gradient in the momentum.
        nesterov: whether to use Nesterov's momentum, which needs a momentum and no dampening; else ``ValueError``.

    >>> optimizer = optim.SGD(learning_rate=0.5, momentum=0.5)
    >>> parameters = {"w": mx.array([1.0])}
    >>> for _ in range(2):
    ...     parameters = optimizer.apply_gradients({"w": mx.array([1.0])}, parameters)
    >>> parameters["w"]
    array([-0.25], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: float | mx.array | AnySchedule,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        check_learning_rate("SGD", learning_rate)
        for name, value, least in (
            ("momentum", momentum, 0),
            ("weight_decay", weight_decay, 0),
            ("dampening", dampening, -math.inf),
        ):
            check_number("SGD", name, value, least)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"[SGD] Nesterov's momentum needs a momentum above 0 and no dampening; got {momentum=}, {dampening=}."
            )
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.dampening = dampening
        self.nesterov = nesterov

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the momentum ``v`` with zeros."""
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        if self.weight_decay != 0:
            gradient = gradient + self.weight_decay * parameter
        rate = self.learning_rate.astype(gradient.dtype)
        if self.momentum <= 0:
            return parameter - rate * gradient
        velocity: mx.array = self.momentum * state["v"] + (1 - self.dampening) * gradient
        state["v"] = velocity
        return parameter - rate * (gradient + self.momentum * velocity if self.nesterov else velocity)
