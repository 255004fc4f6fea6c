"""Dropout."""

from __future__ import annotations

from typing import Any, ClassVar

import weft.core as mx
from weft.nn.checks import array_input, share_of
from weft.nn.module import Module

__all__ = ["Dropout", "Dropout2d", "Dropout3d"]


class Dropout(Module):
    """While training, sets elements to zero at random and scales the others by ``1 / (1 - p)``.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014). Evaluation mode
    (``model.eval()``) switches it off. Random numbers come from the global generator: a compiled function must name
    `mx.random.state` among its inputs and outputs.

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
        return _dropped(self, x, x)


class _ChannelDropout(Module):
    """The base of layers that drop whole channels. A subclass names its number of axes in its class statement."""

    _rank: ClassVar[int]

    def __init_subclass__(cls, rank: int = 0, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        cls._rank = rank

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self._p = share_of(type(self).__name__, "the probability p", p)

    def _extra_repr(self) -> str:
        return f"p={self._p}"

    def __call__(self, x: mx.array) -> mx.array:
        x = array_input(self, x)
        rank = self._rank
        if x.ndim not in (rank + 1, rank + 2):
            raise ValueError(f"[{self!r}] the input must have {rank + 1} or {rank + 2} axes; got shape {x.shape}.")
        return _dropped(self, x, x[..., *[slice(1)] * rank, :])


class Dropout2d(_ChannelDropout, rank=2):
    """While training, sets whole channels of images to zero at random and scales the others by ``1 / (1 - p)``.

    Tompson et al., arXiv:1411.4280: neighbouring pixels are so similar that dropping single ones has little effect.
    Otherwise as `Dropout`.

    Args:
        p: the probability of zero, at least 0 and below 1; else ``ValueError``.

    Called with ``(N, H, W, C)`` or ``(H, W, C)``.

    >>> dropped = nn.Dropout2d(p=0.5)(mx.ones((3, 5, 5, 4)))
    >>> mx.array_equal(dropped, mx.broadcast_to(dropped[:, :1, :1], dropped.shape))
    array(True, dtype=bool)
    """


class Dropout3d(_ChannelDropout, rank=3):
    """While training, sets whole channels of volumes to zero at random and scales the others by ``1 / (1 - p)``.

    Otherwise as `Dropout2d`.

    Args:
        p: the probability of zero, at least 0 and below 1; else ``ValueError``.

    Called with ``(N, D, H, W, C)`` or ``(D, H, W, C)``.

    >>> nn.Dropout3d(p=0.5).eval()(mx.ones((1, 1, 1, 2))).flatten()
    array([1, 1], dtype=float32)
    """


def _dropped(layer: Any, x: mx.array, drawn: mx.array) -> mx.array:
    """While training, ``x`` with random zeros: one number is drawn for each element of ``drawn``, which broadcasts to
    ``x``."""
    if layer._p == 0 or not layer.training:
        return x
    keep = 1 - layer._p
    chances = mx.full_like(drawn, keep, dtype=mx.float32)
    return mx.where(mx.random.bernoulli(chances), x * (1 / keep), 0)
