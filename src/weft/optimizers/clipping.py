"""Clipping of gradients."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.optimizers.settings import check_number, check_single
from weft.utils import tree_map, tree_reduce

__all__ = ["clip_grad_norm"]


def clip_grad_norm(grads: Any, max_norm: float) -> tuple[Any, mx.array]:
    """Scale gradients down so that their norm, over the whole tree, is at most ``max_norm``.

    Pascanu, Mikolov, Bengio, arXiv:1211.5063.

    Args:
        grads: a tree of arrays.
        max_norm: the largest L2 norm that is left as it is, at least 0; else ``ValueError``.

    Returns:
        The scaled tree, and the norm before (computed in float32 for half precision).

    >>> gradients, norm = optim.clip_grad_norm({"w": mx.array([3.0, 4.0])}, max_norm=10.0)
    >>> gradients["w"], norm
    (array([3, 4], dtype=float32), array(5, dtype=float32))
    """
    check_number("clip_grad_norm", "max_norm", max_norm, 0)
    check_single("clip_grad_norm", "max_norm", max_norm)
    norm = mx.sqrt(tree_reduce(lambda total, gradient: total + _square_norm(gradient), grads, mx.array(0.0)))
    # The small number keeps the quotient finite where all gradients are zero.
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    return tree_map(lambda gradient: (gradient * scale).astype(gradient.dtype), grads), norm


def _square_norm(x: Any) -> mx.array:
    if not isinstance(x, mx.array):
        raise TypeError(f"[clip_grad_norm] gradients have to be arrays, got a value of type {type(x).__name__}.")
    return mx.sum(mx.square(x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x))
