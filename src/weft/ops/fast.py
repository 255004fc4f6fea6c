"""``mx.fast``: compositions that are computed by one kernel or a few, with half precision in float32."""

from __future__ import annotations

import functools
import math
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import wrong_type
from weft.dtypes import Dtype
from weft.graph.extents import agree, decide_equal, fixed, identical, value_of
from weft.graph.node import Handle, wrap
from weft.graph.symbolic import SymbolicExtent
from weft.ops.arguments import (
    Array,
    array_argument,
    broadcast,
    extent_constant,
    integer_of,
    real_number,
    shape_text,
    to_dtype,
)
from weft.ops.convert import python_scalar
from weft.ops.entrance import on_stream
from weft.ops.reductions import logsumexp
from weft.ops.replays import replayed
from weft.primitives.conversions import wide_dtype
from weft.runtime.devices import StreamOrDevice

__all__ = ["cross_entropy", "layer_norm", "rms_norm", "rope"]


def _mean_of_rows(x: Array) -> Array:
    """The mean over the last axis, which is kept with extent 1."""
    last = x.node.ndim - 1
    total = p.divide(p.sum(x, axes=(last,)), extent_constant(x.node.shape[last], x.node.dtype))
    return p.expand(total, axes=(last,))


def _normalisation(name: str, x: Any, factors: dict[str, Any]) -> tuple[list[Array | None], Dtype]:
    """The checked arguments, in the dtype to compute in, and the dtype of the result."""
    given = {word: array_argument(name, value, word) for word, value in factors.items() if value is not None}
    arrays = [array_argument(name, x, "x"), *given.values()]
    node = arrays[0].node
    if not node.ndim:
        raise ValueError(f"[{name}] x must have at least one dimension; it has none.")
    for word, factor in given.items():
        shape = factor.node.shape
        if len(shape) != 1 or not decide_equal(shape[0], node.shape[-1]):
            raise ValueError(
                f"[{name}] {word} must have the shape ({node.shape[-1]},), which is the last extent of x of shape "
                f"{shape_text(node.shape)}; it has the shape {shape_text(shape)}."
            )
    dtype = arrays[0].node.dtype
    if "weight" in given:
        dtype = dtypes.promote(dtype, given["weight"].node.dtype)
        if "bias" in given:
            dtype = dtypes.promote(dtype, given["bias"].node.dtype)
    if not dtype.is_floating:
        raise ValueError(
            f"[{name}] The dtype of the result must be a real floating one, not {dtype.name}. Convert x first, for "
            "example with astype(mx.float32)."
        )
    wide = [to_dtype(one, wide_dtype(dtype)) for one in arrays]
    by_word = dict(zip(given, wide[1:], strict=True))
    return [wide[0], *(by_word.get(word) for word in factors)], dtype


def _epsilon(name: str, eps: Any, like: Array) -> Any:
    """``eps`` as a number, or as a 0-d array in the dtype of ``like``."""
    if isinstance(eps, Handle) and not eps.node.ndim:
        return to_dtype(eps, like.node.dtype)
    return real_number(name, "eps", eps)


@replayed
def rms_norm(x: Array, weight: Array | None, eps: float, *, stream: StreamOrDevice = None) -> Array:
    """The last axis scaled to a mean square of one: ``x / sqrt(mean(x**2) + eps) * weight``.

    Zhang, Sennrich, arXiv:1910.07467. Half precision is computed in float32 and rounded once.

    Args:
        x: ``(..., D)``, floating, or any real dtype if ``weight`` is floating.
        weight: ``(D,)``, or None for no factor.
        eps: added to the mean square, a number or a 0-d array.

    Returns:
        ``(..., D)``, in the common dtype of ``x`` and ``weight``.

    Raises:
        ValueError: ``x`` has no dimensions, the shape of ``weight`` is not ``(D,)``, or the dtype is not floating.

    >>> mx.fast.rms_norm(mx.array([1.0, 7.0]), None, 0.0)
    array([0.2, 1.4], dtype=float32)
    """
    (wide, factor), dtype = _normalisation("rms_norm", x, {"weight": weight})
    result = wide * p.rsqrt(_mean_of_rows(p.square(wide)) + _epsilon("rms_norm", eps, wide))
    return to_dtype(result if factor is None else result * factor, dtype)


@replayed
def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float, *, stream: StreamOrDevice = None
) -> Array:
    """The last axis with mean zero and variance one: ``(x - mean(x)) / sqrt(var(x) + eps) * weight + bias``.

    Ba, Kiros, Hinton, arXiv:1607.06450. Half precision is computed in float32 and rounded once.

    Args:
        x: ``(..., D)``, floating, or any real dtype if ``weight`` is floating.
        weight: ``(D,)``, or None for no factor.
        bias: ``(D,)``, or None; its dtype affects that of the result only if there is a weight.
        eps: added to the variance, a number or a 0-d array.

    Returns:
        ``(..., D)``, in the common dtype of ``x``, ``weight`` and ``bias``.

    Raises:
        ValueError: ``x`` has no dimensions, the shape of ``weight`` or ``bias`` is not ``(D,)``, or the dtype is not
            floating.

    >>> mx.fast.layer_norm(mx.array([1.0, 2.0, 3.0]), None, mx.array([0.0, 1.0, 0.0]), 0.0)
    array([-1.22474, 1, 1.22474], dtype=float32)
    """
    (wide, factor, shift), dtype = _normalisation("layer_norm", x, {"weight": weight, "bias": bias})
    centred = wide - _mean_of_rows(wide)
    result = centred * p.rsqrt(_mean_of_rows(p.square(centred)) + _epsilon("layer_norm", eps, wide))
    if factor is not None:
        result = result * factor
    return to_dtype(result if shift is None else result + shift, dtype)


@on_stream
def cross_entropy(logits: Array, targets: Array, *, stream: StreamOrDevice = None) -> Array:
    """``logsumexp(logits) - logits[target]`` over the last axis, without overflow.

    Args:
        logits: ``(..., C)``, floating: unnormalised logarithms of the probabilities of C classes.
        targets: ``(...)``, integers: the class of each row. Negative numbers count from the last class.

    Returns:
        ``(...)`` in float32. NaN where the target is no class.

    Raises:
        ValueError: shapes or dtypes do not fit.

    >>> mx.fast.cross_entropy(mx.array([[0.0, 0.0], [1000.0, 0.0]]), mx.array([0, 1]))
    array([0.693147, 1000], dtype=float32)
    """
    x, at = array_argument("cross_entropy", logits, "logits"), array_argument("cross_entropy", targets, "targets")
    shape, dtype = x.node.shape, x.node.dtype
    if not shape:
        raise ValueError("[cross_entropy] logits must have at least one dimension; they have none.")
    if not dtype.is_floating:
        raise ValueError(f"[cross_entropy] logits must be of a real floating dtype, not {dtype.name}.")
    if not at.node.dtype.is_integer:
        raise ValueError(f"[cross_entropy] targets must be integers, not {at.node.dtype.name}.")
    if at.node.ndim != len(shape) - 1 or not agree(at.node.shape, shape[:-1]):
        raise ValueError(
            f"[cross_entropy] targets must have the shape of the logits without the last axis, {shape_text(shape[:-1])}"
            f"; they have the shape {shape_text(at.node.shape)}."
        )
    wide, at = to_dtype(x, wide_dtype(dtype)), to_dtype(at, dtypes.int64)
    last = len(shape) - 1
    classes = extent_constant(shape[last], dtypes.int64)
    at = p.select(at < 0, at + classes, at)
    # A sum over the row instead of a gather: it shares the pass over the row, and so does its gradient.
    hit = p.equal(p.iota(shape=shape, axis=last, dtype=dtypes.int64), broadcast(p.expand(at, axes=(last,)), shape))
    chosen = p.sum(p.select(hit, wide, p.zeros_like(wide)), axes=(last,))
    known = p.logical_and(at >= 0, at < classes)
    loss = p.subtract(logsumexp(wide, axis=-1), chosen)
    return to_dtype(p.select(known, loss, p.full(loss.node.shape, math.nan, loss.node.dtype)), dtypes.float32)


@on_stream
def rope(
    a: Array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | Array,
    freqs: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Rotary positional encoding: pairs of features are rotated by angles that grow with the position.

    Pair ``i`` at position ``t`` is rotated by ``(t + offset) * scale * base ** (-2 * i / dims)``. Su et al.,
    arXiv:2104.09864. Angles are computed in float64, so that they are accurate at any position.

    Args:
        a: ``(B, ..., T, D)``, floating: features at T positions.
        dims: how many features are rotated, an even number; further features are unchanged.
        traditional: whether a pair consists of two neighbours; else of feature ``i`` and feature ``i + dims / 2``.
        base: the angle per position of pair ``i`` is ``base ** (-2 * i / dims)``; None if ``freqs`` is given.
        scale: the factor of positions.
        offset: the first position: an int, or integers ``()``, ``(1,)`` or ``(B,)``.
        freqs: ``(dims / 2,)``: pair ``i`` is rotated by ``(t + offset) * scale / freqs[i]``.

    Returns:
        ``(B, ..., T, D)`` in the dtype of ``a``.

    Raises:
        ValueError: shapes or dtypes do not fit, or not exactly one of ``base`` and ``freqs`` is given.

    >>> x = mx.array([[[1.0, 0.0], [1.0, 0.0]]])
    >>> mx.fast.rope(x, 2, traditional=False, base=10000.0, scale=1.0, offset=0)
    array([[[1, 0],
            [0.540302, 0.841471]]], dtype=float32)
    """
    x = array_argument("rope", a)
    if not isinstance(traditional, bool):
        raise wrong_type("rope", "traditional", "True or False", traditional)
    dims = _turned_features(x, dims)
    start = _first_position(x, offset)
    factor = wrap(p.constant.make(real_number("rope", "scale", scale), dtypes.float64))
    return _rotated(x, start, factor, dims, traditional, base, freqs)


@replayed
def _rotated(x: Array, start: Array, factor: Array, dims: int, traditional: bool, base: Any, freqs: Any) -> Array:
    """`rope` from position ``start`` on, with a ``factor`` of positions, both in float64."""
    node = x.node
    positions = p.iota(shape=(node.shape[-2], 1), axis=0, dtype=dtypes.float64) + start
    angles = positions * factor * _frequencies(dims, base, freqs)
    front = (0,) * (node.ndim - 1)
    steps = (1,) * node.ndim
    part = x
    if not identical(dims, node.shape[-1]):
        part = p.slice_(x, starts=(*front, 0), sizes=(*node.shape[:-1], dims), steps=steps)
    turned = to_dtype(_turned(part, angles, traditional), node.dtype)
    rest = node.shape[-1] - dims
    if identical(rest, 0):
        return turned
    others = p.slice_(x, starts=(*front, dims), sizes=(*node.shape[:-1], rest), steps=steps)
    return p.concatenate(turned, others, axis=node.ndim - 1)


def _turned_features(x: Array, dims: Any) -> int:
    """``dims``, after it and the array were checked."""
    dims = integer_of("rope", "dims", dims)
    node = x.node
    if node.ndim < 3:
        raise ValueError(
            f"[rope] The array must have at least 3 dimensions, (B, ..., T, D); its shape is {shape_text(node.shape)}."
        )
    if not node.dtype.is_floating:
        raise ValueError(f"[rope] The array must be of a real floating dtype, not {node.dtype.name}.")
    if dims <= 0 or dims % 2:
        raise ValueError(f"[rope] dims must be positive and even; got {dims}.")
    if value_of(node.shape[-1]) < dims:
        raise ValueError(f"[rope] dims must not exceed the last extent of the array, {node.shape[-1]}; got {dims}.")
    return dims


def _first_position(x: Array, offset: Any) -> Array:
    """The position of the first row in float64: one number, or one for each example, as ``(B or 1, 1, ..., 1, 1)``."""
    node = x.node
    number = python_scalar(offset)
    if number is not None:
        number = number if isinstance(number, SymbolicExtent) else integer_of("rope", "offset", number)
        return wrap(p.constant.make(number, dtypes.float64))
    start = array_argument("rope", offset, "offset")
    if not start.node.dtype.is_integer:
        raise ValueError(f"[rope] offset must be an integer, not {start.node.dtype.name}.")
    if start.node.ndim > 1 or (start.node.ndim and value_of(start.node.shape[0]) not in (1, value_of(node.shape[0]))):
        raise ValueError(
            f"[rope] offset must be an int or have the shape () or ({node.shape[0]},); it has the shape "
            f"{shape_text(start.node.shape)}."
        )
    start = to_dtype(start, dtypes.float64)
    return p.expand(start, axes=tuple(range(1, node.ndim))) if start.node.ndim else start


def _frequencies(dims: int, base: Any, freqs: Any) -> Array:
    """The angle of each pair per position, in float64."""
    if (base is None) == (freqs is None):
        raise ValueError("[rope] Exactly one of base and freqs must be None.")
    if freqs is None:
        base = real_number("rope", "base", base)
        if not base > 0:
            raise ValueError(f"[rope] base must be positive; got {base}.")
        pairs = p.iota(shape=(dims // 2,), axis=0, dtype=dtypes.float64)
        return p.exp(pairs * (-2 * _logarithm(float(fixed(base))) / dims))
    frequencies = array_argument("rope", freqs, "freqs")
    if frequencies.node.ndim != 1 or not decide_equal(frequencies.node.shape[0], dims // 2):
        raise ValueError(
            f"[rope] freqs must have the shape ({dims // 2},); they have the shape "
            f"{shape_text(frequencies.node.shape)}."
        )
    return 1.0 / to_dtype(frequencies, dtypes.float64)


@functools.lru_cache(maxsize=64)
def _logarithm(number: float) -> float:
    """The natural logarithm, correctly rounded, because the C library's may differ between machines."""
    import decimal  # takes 2 ms

    return float(decimal.Decimal(number).ln(decimal.Context(prec=40)))


def _turned(x: Array, angles: Array, neighbours: bool) -> Array:
    """``x`` with its pairs rotated: each feature times the cosine, plus or minus its partner times the sine."""
    *rows, dims = x.node.shape
    pair = x.node.ndim if neighbours else x.node.ndim - 1
    shape = (*rows, dims // 2, 2) if neighbours else (*rows, 2, dims // 2)
    ndim = len(shape)
    x = p.reshape(x, shape=shape)
    starts = tuple([int(axis == pair) for axis in range(ndim)])
    partner = p.slice_(x, starts=starts, sizes=shape, steps=tuple([1 - 2 * start for start in starts]))
    axis = angles.node.ndim if neighbours else angles.node.ndim - 1
    dtype = wide_dtype(x.node.dtype)
    x, partner = to_dtype(x, dtype), to_dtype(partner, dtype)  # after the views, so that both read the memory of x
    cosine, sine = [p.expand(to_dtype(f(angles), dtype), axes=(axis,)) for f in (p.cos, p.sin)]
    second = p.iota(shape=shape[pair:] if neighbours else (2, 1), axis=0, dtype=dtype)
    result = x * cosine + partner * (sine * (second * 2 - 1))
    return p.reshape(result, shape=(*rows, dims))
