"""Scaled dot-product attention."""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import AnyExtent, agree, decide_equal, value_of
from weft.graph.node import Handle, Shape
from weft.ops.arguments import (
    Array,
    array_argument,
    broadcasted_shape,
    extent_constant,
    promoted,
    real_number,
    shape_text,
    to_dtype,
)
from weft.ops.replays import replayed
from weft.primitives.conversions import wide_dtype
from weft.runtime.devices import StreamOrDevice

__all__ = ["scaled_dot_product_attention"]

_NAME = "scaled_dot_product_attention"


@replayed
def scaled_dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    mask: str | Array | None = None,
    sinks: Array | None = None,
    force_fused: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """Attention of several heads: ``softmax(scale * q @ k.T + mask) @ v``.

    Vaswani et al., arXiv:1706.03762; for fewer heads of keys and values than of queries: Ainslie et al.,
    arXiv:2305.13245. Everything is computed in float32 (float64 for float64) and rounded once.

    Args:
        q: floating, ``(B, N, T, D)``: queries of N heads.
        k: ``(B, M, S, D)``: keys, where M divides N; each head of keys and values serves N / M neighbouring heads.
        v: ``(B, M, S, E)``: values.
        scale: a factor of the scores, usually ``1 / sqrt(D)``.
        mask: ``"causal"``: query i sees the keys up to i + S - T. Or an array that broadcasts to ``(B, N, T, S)``:
            booleans, where False hides a key, or numbers that are added to the scores, in a dtype that does not change
            that of the result. A query from which causal or boolean masks hide all keys gets the mean of the values.
        sinks: ``(N,)``: for each head, the score of one more key, whose value is zero. Their dtype must not change that
            of the result.
        force_fused: accepted for compatibility with MLX; without effect.

    Returns:
        ``(B, N, T, E)``, in the common dtype of ``q``, ``k`` and ``v``.

    Raises:
        ValueError: shapes or dtypes do not fit.

    >>> q = mx.array([[[[1.0, 0.0]]]])
    >>> k = mx.array([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> v = mx.array([[[[10.0], [20.0]]]])
    >>> mx.fast.scaled_dot_product_attention(q, k, v, scale=100.0)
    array([[[[10]]]], dtype=float32)
    """
    queries, keys, values = promoted(_NAME, (q, k, v), words=("q", "k", "v"))
    dtype = queries.node.dtype
    _check_heads(queries, keys, values)
    batch, heads, count, features = queries.node.shape
    groups, length, width = values.node.shape[1:]
    if decide_equal(length, 0):
        return p.zeros((batch, heads, count, width), dtype)
    wide = wide_dtype(dtype)
    apart = p.reshape(queries, shape=(batch, groups, heads // groups, count, features))
    masks, kind = _masks(mask, (batch, heads, count, length), groups, dtype, wide)
    more = [] if sinks is None else [_sinks(sinks, heads, groups, dtype, wide)]
    inputs = (apart, keys, values, _factor(scale, wide), *masks, *more)
    result = p.attention(*inputs, mask=kind, sinks=sinks is not None)
    return to_dtype(p.reshape(result, shape=(batch, heads, count, width)), dtype)


def _factor(scale: Any, dtype: Dtype) -> Array:
    """The factor as a 0-d array."""
    if isinstance(scale, Handle) and scale.node.shape == () and not scale.node.dtype.is_complex:
        return to_dtype(scale, dtype)
    return extent_constant(real_number(_NAME, "scale", scale), dtype)


def _check_heads(q: Array, k: Array, v: Array) -> None:
    shapes = [x.node.shape for x in (q, k, v)]
    told = "q, k and v have the shapes " + ", ".join(map(shape_text, shapes))
    if not q.node.dtype.is_floating:
        raise ValueError(f"[{_NAME}] Attention is of floating numbers, not of {q.node.dtype.name}.")
    if any(len(shape) != 4 for shape in shapes):
        raise ValueError(f"[{_NAME}] q, k and v must have the axes (batch, heads, positions, features); {told}.")
    (batch, heads, _, features), keys, values = shapes
    if not agree(keys, (batch, keys[1], keys[2], features)) or not agree(values[:3], keys[:3]):
        raise ValueError(
            f"[{_NAME}] q (B, N, T, D), k (B, M, S, D) and v (B, M, S, E) must agree in B, M, S and D; {told}."
        )
    if not value_of(keys[1]) or value_of(heads) % value_of(keys[1]):
        raise ValueError(f"[{_NAME}] The heads of q must be a multiple of those of k and v; {told}.")


def _masks(mask: Any, shape: Shape, groups: AnyExtent, dtype: Dtype, wide: Dtype) -> tuple[list[Array], str]:
    """The inputs that mask scores of a shape, and the primitive's name for this kind of mask."""
    if mask is None:
        return [], "none"
    lowest = p.wrap(p.constant.make(float(dtypes.finfo(wide).min), wide))
    if isinstance(mask, str):
        if mask != "causal":
            raise ValueError(f"[{_NAME}] mask must be None, 'causal' or an array; got {mask!r}.")
        return [lowest], "causal"
    found = array_argument(_NAME, mask, "mask")
    try:
        fits = agree(broadcasted_shape(_NAME, (found.node.shape, shape)), shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"[{_NAME}] mask must broadcast to (batch, heads, queries, keys) {shape_text(shape)}; its shape is "
            f"{shape_text(found.node.shape)}."
        )
    if found.node.dtype is dtypes.bool_:
        return [_grouped(found, groups), lowest], "hidden"
    _check_dtype("mask", found, dtype)
    return [_grouped(to_dtype(found, wide), groups)], "added"


def _grouped(x: Array, groups: AnyExtent) -> Array:
    """An array that broadcasts to scores, with an axis for the heads that share keys."""
    full = p.expand(x, axes=tuple(range(4 - x.node.ndim)))
    batch, heads, *others = full.node.shape
    if decide_equal(heads, 1):
        return p.expand(full, axes=(2,))
    return p.reshape(full, shape=(batch, groups, heads // groups, *others))


def _sinks(sinks: Any, heads: AnyExtent, groups: AnyExtent, dtype: Dtype, wide: Dtype) -> Array:
    found = array_argument(_NAME, sinks, "sinks")
    if not agree(found.node.shape, (heads,)):
        raise ValueError(
            f"[{_NAME}] sinks must have one number for each of {heads} heads; their shape is "
            f"{shape_text(found.node.shape)}."
        )
    _check_dtype("sinks", found, dtype)
    return p.reshape(to_dtype(found, wide), shape=(1, groups, heads // groups, 1, 1))


def _check_dtype(word: str, x: Array, dtype: Dtype) -> None:
    if dtypes.promote(x.node.dtype, dtype) is not dtype:
        raise ValueError(
            f"[{_NAME}] {word} of {x.node.dtype.name} would change the dtype of the result, {dtype.name}. Convert it."
        )
