"""Clipping of gradients."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.errors import ArgumentTypeError
from weft.optimizers.settings import check_number, check_single
from weft.utils import tree_map, tree_reduce

__all__ = ["clip_grad_norm"]


def clip_grad_norm(grads: Any, max_norm: float) -> tuple[Any, mx.array]:
    """Scale gradients down so that their norm, over the whole tree, is at most ``max_norm``.

    Pascanu, Mikolov, Bengio, arXiv:1211.5063.

    Args:
        grads: a tree of arrays.
        max_norm: the largest L2 norm that is not reduced, at least 0; else ``ValueError``.

    Returns:
        The scaled tree, and the norm before scaling (computed in float32 for half precision).

    >>> gradients, norm = optim.clip_grad_norm({"w": mx.array([3.0, 4.0])}, max_norm=10.0)
    >>> gradients["w"], norm
    (array([3, 4], dtype=float32), array(5, dtype=float32))
    """
    return _scaled(grads, max_norm, mx.sqrt(_square_norm("clip_grad_norm", grads, max_norm)))


def clip_grad_norm_sharded(
    gradients: Any, max_norm: float, group: mx.distributed.Group | None = None
) -> tuple[Any, mx.array]:
    """`optim.clip_grad_norm` for gradients of which each process of a group has a part, as with `nn.fully_shard`.

    The norm is that of all parts together, so all processes of the group must call this.

    Args:
        gradients: a tree of arrays, the parts of this process.
        max_norm: the largest L2 norm that is not reduced, at least 0; else ``ValueError``.
        group: which processes; None for all.

    Returns:
        The scaled tree of this process, and the norm before scaling.

    Programs for MLX find it in `mlx.nn.utils`.

    >>> gradients, norm = clip_grad_norm_sharded({"w": mx.array([3.0, 4.0])}, max_norm=1.0)
    >>> mx.round(gradients["w"], 3), norm
    (array([0.6, 0.8], dtype=float32), array(5, dtype=float32))
    """
    square = _square_norm("clip_grad_norm_sharded", gradients, max_norm)
    return _scaled(gradients, max_norm, mx.sqrt(mx.distributed.all_sum(square, group=group)))


def _square_norm(name: str, grads: Any, max_norm: float) -> mx.array:
    """The sum of the squares of all elements of a tree. The arguments of the function ``name`` are checked here."""
    check_number(name, "max_norm", max_norm, 0)
    check_single(name, "max_norm", max_norm)
    return tree_reduce(lambda total, gradient: total + _square(name, gradient), grads, mx.array(0.0))


def _scaled(grads: Any, max_norm: float, norm: mx.array) -> tuple[Any, mx.array]:
    # The small number keeps the quotient finite if all gradients are zero.
    scale = mx.minimum(max_norm / (norm + 1e-6), 1.0)
    return tree_map(lambda gradient: (gradient * scale).astype(gradient.dtype), grads), norm


def _square(name: str, x: Any) -> mx.array:
    if not isinstance(x, mx.array):
        raise ArgumentTypeError(f"[{name}] gradients must be arrays; got a value of type {type(x).__name__}.")
    return mx.sum(mx.square(x.astype(mx.float32) if x.dtype in (mx.float16, mx.bfloat16) else x))
