"""Adafactor."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.optimizers.optimizer import AnySchedule, Optimizer
from weft.optimizers.settings import check_learning_rate, check_number, listed

__all__ = ["Adafactor"]


class Adafactor(Optimizer):
    """Steps scaled by a running mean of squares, of which only the means over rows and over columns are stored.

    Shazeer, Stern, arXiv:1804.04235. For parameters with fewer than two axes the whole mean is stored.

    Args:
        learning_rate: a number, at least 0, or a function of the step; None with ``relative_step``.
        eps: a pair: the number that is added to the squares, and the smallest root mean square of a parameter used with
            ``scale_parameter``.
        clip_threshold: the largest root mean square of a step, before the learning rate.
        decay_rate: at step t the share of the previous mean is ``1 - t**decay_rate``.
        beta_1: the share of the previous steps in a momentum; None for no momentum.
        weight_decay: the strength of the decay, at least 0; else ``ValueError``.
        scale_parameter: whether the learning rate is multiplied by the root mean square of each parameter.
        relative_step: whether the learning rate is ``min(0.01, 1 / sqrt(t))`` at step t instead of ``learning_rate``.
        warmup_init: whether 0.01 in that formula is replaced by ``0.000001 * t``.

    >>> optimizer = optim.Adafactor(learning_rate=0.5, relative_step=False, scale_parameter=False)
    >>> optimizer.apply_gradients({"w": mx.array([3.0, -4.0])}, {"w": mx.array([1.0, 1.0])})
    {'w': array([0.5, 1.5], dtype=float32)}
    """

    def __init__(
        self,
        learning_rate: float | mx.array | AnySchedule | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta_1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if learning_rate is None and not relative_step:
            raise ValueError("[Adafactor] needs a learning_rate, or relative_step=True.")
        for name, value in (("clip_threshold", clip_threshold), ("weight_decay", weight_decay)):
            check_number("Adafactor", name, value, 0)
        check_number("Adafactor", "decay_rate", decay_rate)
        for one in listed("Adafactor", "eps", eps):
            check_number("Adafactor", "each of eps", one, 0)
        if len(eps) != 2:
            raise ValueError(f"[Adafactor] eps must be two numbers; got {len(eps)}.")
        super().__init__()
        if learning_rate is not None:
            check_learning_rate("Adafactor", learning_rate)
            self._maybe_schedule("learning_rate", learning_rate)
        self.eps = eps
        self.clip_threshold = clip_threshold
        self.decay_rate = decay_rate
        self.beta_1 = beta_1
        self.weight_decay = weight_decay
        self.scale_parameter = scale_parameter
        self.relative_step = relative_step
        self.warmup_init = warmup_init

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Start the running means with zeros."""
        if parameter.ndim >= 2:
            state["exp_avg_sq_row"] = mx.zeros(parameter.shape[:-1], dtype=parameter.dtype)
            state["exp_avg_sq_col"] = mx.zeros((*parameter.shape[:-2], parameter.shape[-1]), dtype=parameter.dtype)
        else:
            state["exp_avg_sq"] = mx.zeros_like(parameter)
        if self.beta_1 is not None:
            state["exp_avg"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """One step for one parameter."""
        rate = self._rate(parameter).astype(gradient.dtype)
        share = (1.0 - self.step**self.decay_rate).astype(gradient.dtype)
        update = gradient * self._inverse_root(mx.square(gradient) + self.eps[0], share, state)
        update = rate * (update / mx.maximum(1.0, _root_mean_square(update) / self.clip_threshold))
        if self.beta_1 is not None:
            update = self.beta_1 * state["exp_avg"] + (1 - self.beta_1) * update
            state["exp_avg"] = update
        if self.weight_decay != 0:
            parameter = parameter - self.weight_decay * rate * parameter
        return parameter - update

    def _rate(self, parameter: mx.array) -> mx.array:
        if self.relative_step:
            largest = 1e-6 * self.step if self.warmup_init else 1e-2
            rate = mx.minimum(largest, mx.rsqrt(self.step))
        else:
            rate = self.learning_rate
        return mx.maximum(self.eps[1], _root_mean_square(parameter)) * rate if self.scale_parameter else rate

    @staticmethod
    def _inverse_root(square: mx.array, share: mx.array, state: dict[str, Any]) -> mx.array:
        """One over the square root of the running mean of squares."""

        def mean(name: str, new: mx.array) -> mx.array:
            found: mx.array = share * state[name] + (1 - share) * new
            state[name] = found
            return found

        if square.ndim < 2:
            return mx.rsqrt(mean("exp_avg_sq", square))
        rows = mean("exp_avg_sq_row", mx.mean(square, axis=-1))
        columns = mean("exp_avg_sq_col", mx.mean(square, axis=-2))
        relative = mx.rsqrt(rows / mx.mean(rows, axis=-1, keepdims=True))
        return mx.expand_dims(relative, -1) * mx.expand_dims(mx.rsqrt(columns), -2)


def _root_mean_square(x: mx.array) -> mx.array:
    return mx.sqrt(mx.mean(mx.square(x)))
