"""Attention: means of values, weighted by how well their keys fit queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, identical, values_of
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.attention_blocks import BLOCK_BYTES, added, added_by_keys, blocks_of, joined
from weft.primitives.attention_formulas import (
    KEYS,
    MASKS,
    PLANNED,
    QUERIES,
    TRACED,
    AttentionInputs,
    in_place_of_keys,
    inputs_of,
    masking,
    sliced,
    sum_to,
    times,
)
from weft.primitives.base import Array, Elementwise, Primitive, Tangent, is_constant, plus
from weft.primitives.conversions import to_dtype, wide_dtype
from weft.primitives.indexing import Indexed
from weft.primitives.products import matrix_transpose
from weft.primitives.structure import Several
from weft.primitives.untrusted import check_inputs, check_numbers, check_word, require
from weft.runtime.devices import current_stream
from weft.runtime.precision import PRECISIONS, REPRODUCIBLE, get_matmul_precision

__all__ = ["attention", "attention_gradients", "bounded_score", "causal_mask"]


def _fit(q: Node, k: Node, v: Node) -> bool:
    """Whether the shapes and dtypes of queries, keys and values fit together."""
    if (q.ndim, k.ndim, v.ndim) != (5, 4, 4) or not q.dtype.is_floating or any(x.dtype is not q.dtype for x in (k, v)):
        return False
    return agree((*q.shape[:2], q.shape[-1]), (*k.shape[:2], k.shape[-1])) and agree(k.shape[:3], v.shape[:3])


def _merged(
    inputs: Sequence[Array], axes: Sequence[int | None], whole: bool
) -> tuple[list[Array], Callable[[Array], Array]]:
    """Mapped inputs with the mapped axis merged into the batch axis, and the function that separates both axes of a
    result. Unless ``whole``, masks and sinks that are the same for the whole batch are not repeated."""
    size, batch = p.batch_size(inputs, axes), _example(inputs[0], axes[0])[0]
    merged = []
    for position, (x, axis) in enumerate(zip(inputs, axes, strict=True)):
        shape = _example(x, axis)
        stays = not whole and position >= 3 and axis is None
        if not shape or (stays and identical(shape[0], 1)):
            merged.append(x)
            continue
        spread = p.broadcast(p.with_batch(x, axis, 0, size), shape=(size, batch, *shape[1:]))
        merged.append(p.reshape(spread, shape=(size * batch, *shape[1:])))
    return merged, lambda found: p.reshape(found, shape=(size, batch, *found.node.shape[1:]))


def _example(x: Array, axis: int | None) -> Shape:
    """The shape of one example of an array that may be mapped."""
    shape = x.node.shape
    return shape if axis is None else (*shape[:axis], *shape[axis + 1 :])


class CausalMask(Indexed):
    """Which keys, on the last axis of ``shape``, each query on the axis before sees. It is nowhere in memory: elements
    are computed where they are used."""

    name = "causal_mask"
    parameters = ("shape",)
    is_counted = True

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return wrap(Node(self, (), (params["shape"],), params["shape"], dtypes.bool_, current_stream()))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return params["shape"], dtypes.bool_

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 0)
        check_numbers(params["shape"])
        require(len(params["shape"]) >= 2, "it has no axes of queries and keys")

    @staticmethod
    def element(k: Any, index: Sequence[Any], node: Node) -> Any:
        queries, keys = node.shape[-2:]
        terms = index[-1], k.shift(index[-2], keys - queries)
        # Vectors of int32 are half as long.
        key, last = [k.apply(p.cast, k.index_value(term), dtype=dtypes.int32) for term in terms]
        return k.apply(p.less_equal, key, last)


class Attention(Primitive):
    """``softmax(scale * q @ k.T + mask) @ v`` for each head; sinks add to the sums of the softmax only.

    It is computed in float32, or in float64 if an input is float64, and this is also the dtype of the result and of the
    scale (a 0-d array). `AttentionInputs` describes the other inputs.

    Planning decides how it is computed: in blocks of queries, leaving out keys that no query of a block sees.
    Derivatives compute the scores again.
    """

    name = "attention"
    parameters = ("mask", "sinks", "precision")

    def __call__(self, *operands: Any, **params: Any) -> Array:
        """``precision`` is that of `get_matmul_precision` when attention is called, if bfloat16 is multiplied."""
        precision = params.get("precision", REPRODUCIBLE)
        if "precision" not in params and operands[0].node.dtype is dtypes.bfloat16:
            precision = get_matmul_precision()
        return super().__call__(*operands, **{**params, "precision": precision})

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        if not _fit(*inputs[:3]):
            raise TypeError(f"attention: got {', '.join(describe(node.shape, node.dtype) for node in inputs)}")
        q, _, v, *_ = inputs
        return (*q.shape[:4], v.shape[-1]), wide_dtype(q.dtype)

    def check(self, *inputs: Node, **params: Any) -> None:
        mask, sinks = params["mask"], params["sinks"]
        check_word(mask, MASKS)
        check_word(params["precision"], PRECISIONS)
        require(type(sinks) is bool, "sinks are there or not")
        check_inputs(inputs, 4 + MASKS[mask] + sinks)
        require(_fit(*inputs[:3]), "queries, keys and values do not fit")
        q, k, _, scale, *more = inputs
        wide = wide_dtype(q.dtype)
        require(scale.dtype is wide and scale.ndim == 0, "its scale is no number in which it is computed")
        kinds = {"none": [], "hidden": [dtypes.bool_, wide]}.get(mask, [wide]) + [wide] * sinks
        shape = values_of((*q.shape[:4], k.shape[2]))
        for number, (node, dtype) in enumerate(zip(more, kinds, strict=True)):
            rank = 0 if number == {"causal": 0, "hidden": 1}.get(mask) else 5
            spreads = all(n in (1, m) for n, m in zip(values_of(node.shape), shape, strict=False))
            require(node.dtype is dtype and node.ndim == rank and spreads, "its mask or sinks do not fit scores")

    def expanded(self, node: Node) -> Node | None:
        return self.in_blocks(node, BLOCK_BYTES)[0]

    def in_blocks(self, node: Node, most: int) -> list[Node]:
        """The result, computed in blocks of queries whose scores have about ``most`` bytes for each head."""
        inputs = inputs_of([wrap(x) for x in node.inputs], node.keywords)
        blocks = blocks_of(inputs.shape, node.dtype.size, node.keywords["mask"] == "causal", most)
        return [joined([inputs.block(*block).value() for block in blocks]).node]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        x = inputs_of(inputs, params)
        t_q, t_k, t_v = self._tangents(inputs, tangents, x)
        t_mask, _, t_sinks = masking(tangents[4:], params)
        of_scores = t_mask if x.lowest is None and t_mask is not None else None
        of_scores = None if of_scores is None else p.broadcast(of_scores, shape=x.shape)
        for q, k in ((t_q, x.k), (x.q, t_k)):
            if q is not None and k is not None:
                of_scores = plus(of_scores, x.apart(p.matmul(x.rows(q), matrix_transpose(k))))
        weights, of_sinks = x.weights()
        change = None
        if of_scores is not None:
            seen = of_scores if x.lowest is None else x.masked(of_scores, p.zeros_like(of_scores))
            change = weights * seen
        total = None if change is None else in_place_of_keys(p.sum(change, axes=(KEYS,)))
        if t_sinks is not None and of_sinks is not None:
            total = plus(total, of_sinks * p.broadcast(t_sinks, shape=of_sinks.node.shape))
        if total is not None:
            change = plus(change, -(weights * p.broadcast(total, shape=x.shape)))
        found = None if change is None else x.apart(p.matmul(x.rows(change), x.v))
        return found if t_v is None else plus(found, x.apart(p.matmul(x.rows(weights), t_v)))

    def _tangents(self, inputs: Sequence[Array], tangents: Sequence[Tangent], x: AttentionInputs) -> list[Tangent]:
        """The tangents of the scaled queries, the keys and the values."""
        wide = x.q.node.dtype
        of_q, of_k, of_v, of_scale = (None if t is None else to_dtype(t, wide) for t in tangents[:4])
        found = None if of_q is None else times(of_q, x.scale)
        if of_scale is not None:
            found = plus(found, times(to_dtype(inputs[0], wide), of_scale))
        return [found, of_k, of_v]

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        """The cotangents are computed in blocks of queries; their own derivatives are those of the same formulas
        without blocks."""
        x = inputs_of(inputs, params)
        of_mask = x.mask is not None and x.lowest is None and wanted[4]
        apart = [one if is_constant(one.node) else p.stop_gradient(one) for one in (*inputs, output, cotangent)]
        found = attention_gradients(*apart, **params, of_mask=of_mask)
        whole = x.gradients(output, cotangent, TRACED)
        chosen = [p.with_derivative_of(*pair) for pair in zip(found, whole.results(of_mask), strict=True)]
        results: list[Tangent] = [*chosen[:3], *[None] * (len(inputs) - 3)]
        if wanted[3]:
            results[3] = p.sum(whole.q * to_dtype(inputs[0], whole.q.node.dtype), axes=tuple(range(5)))
        if of_mask:
            results[4] = chosen[3]
        if params["sinks"]:
            results[-1] = chosen[-1]
        return results

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        inputs, axes, _ = _with_common_scale(inputs, axes)
        merged, apart = _merged(inputs, axes, whole=False)
        return apart(self(*merged, **params)), 0


def _with_common_scale(
    inputs: Sequence[Array], axes: Sequence[int | None]
) -> tuple[list[Array], list[int | None], Array | None]:
    """Inputs with an unmapped scale. If the scale was mapped, it multiplies the queries instead, and is also returned,
    with axes that fit theirs."""
    if axes[3] is None:
        return list(inputs), list(axes), None
    size, wide = p.batch_size(inputs, axes), wide_dtype(inputs[0].node.dtype)
    q = to_dtype(p.with_batch(inputs[0], axes[0], 0, size), wide)
    scale = p.expand(p.with_batch(inputs[3], axes[3], 0, size), axes=tuple(range(1, q.node.ndim)))
    one = wrap(p.constant.make(1.0, wide))
    scaled = p.multiply(q, p.broadcast(scale, shape=q.node.shape))
    changed = [scaled, to_dtype(inputs[1], wide), to_dtype(inputs[2], wide), one, *inputs[4:]]
    return changed, [0, *axes[1:3], None, *axes[4:]], scale


class AttentionGradients(Several):
    """Cotangents of the queries, keys and values of attention, of its mask if ``of_mask``, and of its sinks if there
    are any.

    The inputs are those of attention, its output, and the output's cotangent. It has no derivative itself:
    `Attention.vjp` gives it that of an equal expression.
    """

    name = "attention_gradients"
    parameters = ("mask", "sinks", "of_mask", "precision")

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        x = list(inputs[:3])
        if params["of_mask"]:
            x.append(inputs[4])
        if params["sinks"]:
            x.append(inputs[-3])
        return [(node.shape, node.dtype) for node in x]

    def check(self, *inputs: Node, **params: Any) -> None:
        of_mask = params["of_mask"]
        attention.check(*inputs[:-2], mask=params["mask"], sinks=params["sinks"], precision=params["precision"])
        require(type(of_mask) is bool and (not of_mask or params["mask"] == "added"), "this mask has no cotangent")
        shape, dtype = attention.infer(*inputs[:-2])
        for node in inputs[-2:]:
            fits = node.dtype is dtype and node.ndim == 5 and agree(node.shape, shape)
            require(fits, "its output or the cotangent does not fit")

    def expanded_results(self, node: Node) -> Sequence[Node] | None:
        return self.in_blocks(node, BLOCK_BYTES)

    def in_blocks(self, node: Node, most: int) -> list[Node]:
        """All results, in blocks as in `Attention.in_blocks`. The blocks' contributions to keys are added in the order
        of blocks."""
        *given, output, cotangent = [wrap(x) for x in node.inputs]
        mask, of_mask = node.keywords["mask"], node.keywords["of_mask"]
        inputs = inputs_of(given, node.keywords)
        found = []
        for start, stop, keys in blocks_of(inputs.shape, output.node.dtype.size, mask == "causal", most):
            x = inputs.block(start, stop, keys)
            rows = {QUERIES: (start, stop)}
            found.append(x.gradients(sliced(output, rows), sliced(cotangent, rows), PLANNED))
        shapes = [shape for shape, _ in self.infer_results(*node.inputs, **node.keywords)[3:]]
        of_keys = [added_by_keys([one.k for one in found]), added_by_keys([one.v for one in found])]
        results = inputs.as_given(joined([one.q for one in found]), *of_keys)
        parts = zip(*[one.summed(of_mask) for one in found], strict=True)
        for part, shape in zip(parts, shapes, strict=True):
            results.append(added(part) if shape[QUERIES] == 1 else joined(part))
        return [result.node for result in results]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> Any:
        dtype = inputs[0].node.dtype
        inputs, axes, scale = _with_common_scale(inputs, axes)
        merged, apart = _merged(inputs, axes, whole=True)
        found = [apart(x) for x in self(*merged, **params)]
        if scale is not None:
            found[0] = found[0] * p.broadcast(scale, shape=found[0].node.shape)
            found[:3] = [to_dtype(x, dtype) for x in found[:3]]
        size = p.batch_size(inputs, axes)
        like = [4] * params["of_mask"] + [len(inputs) - 3] * params["sinks"]
        shapes = [(size, *_example(inputs[position], axes[position])) for position in like]
        return [(x, 0) for x in (*found[:3], *map(sum_to, found[3:], shapes))]


causal_mask = CausalMask()
attention = Attention()
attention_gradients = AttentionGradients()
bounded_score = Elementwise(
    "bounded_score", lambda L, x: L.maximum(x, -(2.0**64)), (None,), accepts=lambda dtype: dtype.is_floating
)
"""An added mask, at least -2^64: that is low enough to hide a key, and finite so that it can be multiplied."""
