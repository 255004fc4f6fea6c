"""Rows of ``mx.fast``."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special

from tests.ops.row import ANY, FLOATS, Domain, Row, whole


def _rms_norm(x: np.ndarray, *weight: np.ndarray) -> np.ndarray:
    result = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 0.01)
    return result * weight[0] if weight else result


def _layer_norm(x: np.ndarray, *factors: np.ndarray) -> np.ndarray:
    centred = x - np.mean(x, -1, keepdims=True)
    result = centred / np.sqrt(np.mean(centred * centred, -1, keepdims=True) + 0.01)
    for factor, combined in zip(factors, (np.multiply, np.add), strict=False):
        result = combined(result, factor)
    return result


def _cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return scipy.special.logsumexp(logits, -1) - chosen


def _rope(x: np.ndarray, angles: np.ndarray, dims: int, traditional: bool) -> np.ndarray:
    half = dims // 2
    first, second = (slice(0, dims, 2), slice(1, dims, 2)) if traditional else (slice(half), slice(half, dims))
    result = x.copy()
    result[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
    result[..., second] = x[..., first] * np.sin(angles) + x[..., second] * np.cos(angles)
    return result


def _positions(x: np.ndarray, offset: Any) -> np.ndarray:
    """The positions of tokens, with one more axis at the end for pairs of features."""
    offset = np.reshape(np.asarray(offset, np.float64), (-1, *(1,) * (x.ndim - 1)))
    return (np.arange(x.shape[-2])[:, None] + offset).reshape(*offset.shape[:-2], -1, 1)


def by_base(x: np.ndarray, offset: Any, dims: int, traditional: bool, base: float, scale: float) -> np.ndarray:
    return _rope(x, _positions(x, offset) * scale * base ** (-np.arange(dims // 2) / (dims // 2)), dims, traditional)


ANGLES = 12
"""Units in the last place. Float64 angles of some turns are rounded, so their sines are not exact to a few units."""


def _rope_row(variant: str, dims: int, traditional: bool, shape: tuple[int, ...] = (2, 3, 8)) -> Row:
    return Row(
        "fast.rope",
        lambda mx, x: mx.fast.rope(x, dims, traditional=traditional, base=50.0, scale=0.5, offset=3),
        lambda x: by_base(x, 3, dims, traditional, 50.0, 0.5),
        dtypes=FLOATS,
        shape=shape,
        variant=variant,
        ulp=ANGLES,
    )


def gated_delta_update(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    state: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The recurrence, step by step."""
    per_key = v.shape[2] // q.shape[2]
    q, k = np.repeat(q, per_key, 2), np.repeat(k, per_key, 2)
    state = np.zeros((*v.shape[:1], *v.shape[2:], k.shape[-1])) if state is None else state
    output = np.zeros(v.shape)
    for step in range(v.shape[1]):
        decayed = state * (gamma[:, step, :, None] if gamma.ndim == 4 else gamma[:, step, :, None, None])
        error = v[:, step] - np.einsum("bhvk,bhk->bhv", decayed, k[:, step])
        following = decayed + np.einsum("bh,bhv,bhk->bhvk", beta[:, step], error, k[:, step])
        taken = np.ones(len(v), bool) if mask is None else mask[:, step]
        state = np.where(taken[:, None, None, None], following, state)
        output[:, step] = np.where(taken[:, None, None], np.einsum("bhvk,bhk->bhv", state, q[:, step]), 0)
    return output, state


def _delta_domains(steps: int, *features: int) -> tuple[Domain, ...]:
    """Keys are shorter than 1; otherwise the state would grow."""
    keys, values, rows = (2, steps, 1, 4), (2, steps, 2, 5), (2, steps, 2)
    key = Domain(-0.5, 0.5, shape=keys)
    gamma, beta = Domain(0.3, 1, shape=(*rows, *features)), Domain(0.1, 1, shape=rows)
    return (Domain(shape=keys), key, Domain(shape=values), gamma, beta)


ROWS = [
    Row("fast.rms_norm", lambda mx, x: mx.fast.rms_norm(x, None, 0.01), _rms_norm, dtypes=FLOATS, ulp=4),
    Row(
        "fast.rms_norm",
        lambda mx, x, weight: mx.fast.rms_norm(x, weight, 0.01),
        _rms_norm,
        (ANY, Domain(shape=(4,))),
        FLOATS,
        variant="weight",
        ulp=4,
    ),
    Row("fast.layer_norm", lambda mx, x: mx.fast.layer_norm(x, None, None, 0.01), _layer_norm, dtypes=FLOATS, ulp=8),
    Row(
        "fast.layer_norm",
        lambda mx, x, weight, bias: mx.fast.layer_norm(x, weight, bias, 0.01),
        _layer_norm,
        (ANY, Domain(shape=(4,)), Domain(shape=(4,))),
        FLOATS,
        variant="weight and bias",
        ulp=8,
    ),
    Row(
        "fast.cross_entropy",
        lambda mx, logits, targets: mx.fast.cross_entropy(logits, targets),
        _cross_entropy,
        (ANY, whole(3, (2, 3), low=-4)),
        ("float32", "float16", "bfloat16"),
    ),
    _rope_row("halves", 8, False),
    _rope_row("halves of a part", 6, False),
    _rope_row("neighbours", 8, True),
    _rope_row("neighbours of a part", 4, True, (2, 2, 3, 6)),
    Row(
        "fast.rope",
        lambda mx, x, offset: mx.fast.rope(x, 8, traditional=False, base=50.0, scale=0.5, offset=offset),
        lambda x, offset: by_base(x, offset, 8, False, 50.0, 0.5),
        (ANY, whole(9, (2,))),
        FLOATS,
        (2, 2, 3, 8),
        variant="offsets",
        ulp=ANGLES,
    ),
    Row(
        "fast.rope",
        lambda mx, x, freqs: mx.fast.rope(x, 6, traditional=False, base=None, scale=2.0, offset=1, freqs=freqs),
        lambda x, freqs: _rope(x, _positions(x, 1) * 2.0 / freqs, 6, False),
        (ANY, Domain(0.5, 3.0, shape=(3,))),
        FLOATS,
        (2, 3, 6),
        variant="freqs",
        ulp=ANGLES,
        grows=((1, 1, 1), (0,)),
    ),
    Row(
        "fast.gated_delta_update",
        lambda mx, *arrays: mx.fast.gated_delta_update(*arrays),
        gated_delta_update,
        _delta_domains(2),
        FLOATS,
        ulp=16,
    ),
    Row(
        "fast.gated_delta_update",
        lambda mx, *arrays: mx.fast.gated_delta_update(*arrays),
        gated_delta_update,
        (*_delta_domains(3), Domain(shape=(2, 2, 5, 4)), Domain(shape=(2, 3), dtype="bool_")),
        FLOATS,
        variant="state, mask",
        ulp=16,
    ),
    Row(
        "fast.gated_delta_update",
        lambda mx, *arrays: mx.fast.gated_delta_update(*arrays),
        gated_delta_update,
        (*_delta_domains(3, 4), Domain(shape=(2, 2, 5, 4)), Domain(shape=(2, 3), dtype="bool_")),
        FLOATS,
        variant="gamma of each feature",
        ulp=16,
        without={"shapeless": "One step is computed after the other, so their number is fixed."},
    ),
]
