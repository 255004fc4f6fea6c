"""Dropout."""

from __future__ import annotations

import weft.core as mx
from weft.nn.checks import share_of
from weft.nn.module import Module

__all__ = ["Dropout"]


class Dropout(Module):
    """While training, sets elements to zero at random and scales the others by ``1 / (1 - p)``.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014). Evaluation
    mode (``model.eval()``) switches it off. The random numbers come from the global state: a compiled function
    has to name `mx.random.state` among its inputs and outputs.

    Args:
        p: the probability of zero, at least 0 and below 1; else ``ValueError``.

    >>> dropped = nn.Dropout(p=0.5)(mx.ones((100,)))
    >>> sorted(set(dropped.tolist()))
    [0.0, 2.0]
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self._p = share_of("Dropout", "the probability p", p)

    def _extra_repr(self) -> str:
        return f"p={self._p}"

    def __call__(self, x: mx.array) -> mx.array:
        if self._p == 0 or not self.training:
            return x
        keep = 1 - self._p
        chances = mx.full_like(x, keep, dtype=mx.float32)
        return mx.where(mx.random.bernoulli(chances), x * (1 / keep), 0)
