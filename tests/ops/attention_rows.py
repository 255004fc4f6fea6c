"""Rows of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tests.ops.row import FLOATS, Domain, Row

_SINGLE = ("float32", "float16", "bfloat16")
_SEEN = np.random.default_rng(8).random((3, 5)) < 0.6
_SEEN[1] = False


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None, sinks: np.ndarray | None = None
) -> np.ndarray:
    """Attention by its definition, with a scale of 0.5. A mask of bool hides scores, another mask is added to them."""
    shared = q.shape[1] // k.shape[1]
    scores = 0.5 * q @ np.swapaxes(np.repeat(k, shared, 1), -1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -1e300) if mask.dtype == bool else scores + mask
    if sinks is not None:
        first = np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
        scores = np.concatenate([first, scores], -1)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights[..., weights.shape[-1] - k.shape[2] :] @ np.repeat(v, shared, 1)


def causal(queries: int, keys: int) -> np.ndarray:
    return np.arange(keys) <= np.arange(queries)[:, None] + keys - queries


def _row(
    variant: str,
    function: Callable[..., Any],
    oracle: Callable[..., Any],
    *more: tuple[int, ...],
    q: tuple[int, ...] = (2, 4, 3, 6),
    grows: Sequence[tuple[int, ...]] = ((1, 2, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
) -> Row:
    shapes = (q, (2, 2, 5, 6), (2, 2, 5, 4), *more)

    def call(mx: Any, *arrays: Any) -> Any:
        return function(mx, partial(mx.fast.scaled_dot_product_attention, scale=0.5), *arrays)

    return Row(
        "fast.scaled_dot_product_attention",
        call,
        oracle,
        [Domain(shape=shape) for shape in shapes],
        dtypes=FLOATS,
        variant=variant,
        ulp=16,
        ulp_half=2,
        mlx_dtypes=_SINGLE,
        grows=grows,
    )


ROWS = [
    _row("shared heads", lambda mx, call, *qkv: call(*qkv), attended),
    _row("causal", lambda mx, call, *qkv: call(*qkv, mask="causal"), lambda q, k, v: attended(q, k, v, causal(3, 5))),
    _row(
        "hidden",
        lambda mx, call, *qkv: call(*qkv, mask=mx.array(_SEEN)),
        lambda q, k, v: attended(q, k, v, _SEEN),
        grows=((1, 2, 0, 1), (1, 1, 0, 1), (1, 1, 0, 1)),
    ),
    _row(
        "added mask and sinks",
        lambda mx, call, q, k, v, mask, sinks: call(q, k, v, mask=mask, sinks=sinks),
        attended,
        (4, 1, 5),
        (4,),
        grows=((1, 2, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), (2, 0, 1), (2,)),
    ),
    _row(
        "more queries than keys",
        lambda mx, call, *qkv: call(*qkv, mask="causal"),
        lambda q, k, v: attended(q, k, v, causal(7, 5)),
        q=(2, 2, 7, 6),
        grows=((1, 1, 1, 1),) * 3,
    ),
]
