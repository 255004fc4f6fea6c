"""Attention: means of values, weighted by how well their keys fit queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, identical, values_of
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array, Elementwise, Primitive, Tangent, is_constant, plus
from weft.primitives.indexing import Indexed
from weft.primitives.products import matrix_transpose
from weft.primitives.structure import Several
from weft.primitives.untrusted import check_inputs, check_numbers, check_word, require
from weft.runtime.devices import current_stream

__all__ = ["attention", "attention_gradients", "bounded_score", "causal_mask"]

MASKS = {"none": 0, "added": 1, "hidden": 2, "causal": 1}
"""How scores are masked, and how many inputs the mask takes: one that is added to the scores; two, which keys are seen
and the score of the other keys; or that score alone. With "causal", query i sees the keys up to i + S - T."""

BLOCK_BYTES = 1 << 20
"""Scores of a head are computed in blocks of queries of about this many bytes."""
MOST_BLOCKS = 16
LARGEST_BLOCK = 16
"""A block that has more than this many times `BLOCK_BYTES` is divided into parts, which all see the keys of the block:
their sums for keys have one shape, and are added up in place."""
CAUSAL_BLOCKS = 4
"""Causal attention is cut into at least this many blocks, if these have `FEWEST_ROWS` queries or more. Each leaves out
the keys that none of its queries sees."""
FEWEST_ROWS = 64
"""The fewest queries of a block."""
WHOLE_ROWS = 16
"""The number of queries in a block is a multiple of this."""

_QUERIES, _KEYS = 3, 4
"""The axis numbers of scores, whose shape is ``(B, M, G, T, S)``."""


class _Inputs(NamedTuple):
    """The inputs of attention in float32 or float64: queries ``(B, M, G, T, D)`` already times the ``scale``, keys
    ``(B, M, S, D)``, values ``(B, M, S, E)``, and optionally a mask, the score of hidden keys, and the scores of sinks.
    Masks and sinks have five axes, with the extents of the scores or 1; sinks have extent 1 where scores have keys.
    ``dtype`` is the one in which queries, keys and values were given."""

    q: Array
    k: Array
    v: Array
    scale: Array
    mask: Array | None
    lowest: Array | None
    sinks: Array | None
    dtype: Dtype

    @property
    def shape(self) -> Shape:
        """The shape of the scores."""
        return (*self.q.node.shape[:4], self.k.node.shape[2])

    def rows(self, x: Array) -> Array:
        """The groups of heads that share keys and values as rows of one matrix."""
        batch, heads, groups, count, last = x.node.shape
        return p.reshape(x, shape=(batch, heads, groups * count, last))

    def apart(self, x: Array) -> Array:
        """The inverse of `rows`."""
        return p.reshape(x, shape=(*self.shape[:4], x.node.shape[-1]))

    def masked(self, scores: Array, hidden: Array) -> Array:
        """Scores, with ``hidden`` in place of those of hidden keys."""
        return p.select(p.broadcast(self.mask, shape=self.shape), scores, hidden)

    def scores(self) -> Array:
        return self.with_mask(self.apart(p.matmul(self.rows(self.q), matrix_transpose(self.k))))

    def with_mask(self, found: Array) -> Array:
        """Masked scores, from products of queries and keys."""
        if self.lowest is not None:
            return self.masked(found, self.lowest)
        return found if self.mask is None else p.add(found, p.broadcast(self.mask, shape=self.shape))

    def largest(self, scores: Array) -> Array:
        """The largest score of each query."""
        found = _in_place_of_keys(p.max_(scores, axes=(_KEYS,)))
        return found if self.sinks is None else p.maximum(found, self.of_sinks(self.sinks))

    def of_sinks(self, x: Array) -> Array:
        """Sinks, or scores of them, repeated for each query."""
        return p.broadcast(x, shape=(*self.shape[:4], 1))

    def powers(self, scores: Array, largest: Array) -> tuple[Array, Array, Array | None]:
        """``exp(scores - largest)``, which is proportional to the weights of keys; the sums of that over keys and
        sinks; and the same powers for the sinks."""
        powers = p.exp(p.subtract(scores, p.broadcast(largest, shape=self.shape)))
        total = _in_place_of_keys(p.sum(powers, axes=(_KEYS,)))
        if self.sinks is None:
            return powers, total, None
        more = p.exp(p.subtract(self.of_sinks(self.sinks), largest))
        return powers, p.add(total, more), more

    def weights(self) -> tuple[Array, Array | None]:
        """The weights of keys, and of the sinks. The largest score is a constant for derivatives, because weights do
        not depend on it."""
        scores = self.scores()
        powers, total, more = self.powers(scores, p.stop_gradient(self.largest(scores)))
        found = p.divide(powers, p.broadcast(total, shape=self.shape))
        return found, None if more is None else p.divide(more, total)

    def value(self) -> Array:
        """The weighted means. Sums are divided by the total after the product, because these are fewer numbers than the
        powers."""
        scores = self.scores()
        powers, total, _ = self.powers(scores, self.largest(scores))
        found = self.apart(p.matmul(self.rows(powers), self.v))
        return p.divide(found, p.broadcast(total, shape=found.node.shape))

    def gradients(self, output: Array, cotangent: Array, rules: _Rules) -> _Gradients:
        """The cotangents of all inputs. Over the keys of a query, the weighted mean of the weights' cotangents is the
        product of the query's cotangent and output. These two are divided by the total, because they are fewer numbers
        than the powers."""
        scores = self.scores()
        powers, total, more = self.powers(scores, rules.fixed(self.largest(scores)))
        divided = cotangent / p.broadcast(total, shape=cotangent.node.shape)
        mean = _in_place_of_keys(p.sum(divided * output, axes=(_KEYS,)))
        rows = self.rows(divided)
        of_weights = self.apart(p.matmul(rows, matrix_transpose(self.v)))
        change = powers * (of_weights - p.broadcast(mean, shape=self.shape))
        of_scores = change if self.lowest is None else self.masked(change, rules.zeros(change))
        flat = self.rows(of_scores)
        return _Gradients(
            self,
            self.apart(p.matmul(flat, self.k)),
            p.matmul(matrix_transpose(flat), self.rows(self.q)),
            p.matmul(matrix_transpose(self.rows(powers)), rows),
            of_scores,
            None if more is None else -(more * mean),
        )

    def as_given(self, q: Array, k: Array, v: Array) -> list[Array]:
        """The cotangents of queries, keys and values in their own dtypes and scale, from those of the fields."""
        return [_in(self.dtype, x) for x in (_times(q, self.scale), k, v)]

    def block(self, start: int, stop: int, keys: int) -> _Inputs:
        """The attention of the queries from ``start`` up to ``stop`` to the first ``keys`` keys."""
        limits = {_QUERIES: (start, stop), _KEYS: (0, keys)}
        k, v = (_part(x, {2: (0, keys)}) for x in (self.k, self.v))
        mask = None if self.mask is None else _part(self.mask, limits)
        return self._replace(q=_part(self.q, {_QUERIES: (start, stop)}), k=k, v=v, mask=mask)


class _Rules(NamedTuple):
    """What differs between tracing and planning. In a planned graph nothing must be ``fixed`` against differentiation,
    and ``zeros`` cannot be a constant."""

    fixed: Callable[[Array], Array]
    zeros: Callable[[Array], Array]


_TRACED = _Rules(lambda x: p.stop_gradient(x), lambda x: p.zeros_like(x))
_PLANNED = _Rules(lambda x: x, lambda x: wrap(p.planned_zeros(x.node.shape, x.node.dtype)))


class _Gradients(NamedTuple):
    """Cotangents of queries, keys, values and scores, and of the sink of each query."""

    inputs: _Inputs
    q: Array
    k: Array
    v: Array
    scores: Array
    sinks: Array | None

    def results(self, of_mask: bool) -> list[Array]:
        """The cotangents of the inputs: queries, keys, values, the mask if wanted, and sinks if there are any."""
        return [*self.inputs.as_given(self.q, self.k, self.v), *self.summed(of_mask)]

    def summed(self, of_mask: bool) -> list[Array]:
        """The cotangents of the mask and the sinks, which are broadcast to scores."""
        x = self.inputs
        pairs = [(self.scores, x.mask)] if of_mask else []
        pairs += [(self.sinks, x.sinks)]
        return [_sum_to(found, one.node.shape) for found, one in pairs if found is not None and one is not None]


def _in_place_of_keys(x: Array) -> Array:
    """A reduction over the keys, with an axis of extent 1 in their place."""
    return p.expand(x, axes=(_KEYS,))


def _part(x: Array, limits: dict[int, tuple[int, int]]) -> Array:
    """The elements within ``limits`` along axes; axes of extent 1 stay whole."""
    shape = x.node.shape
    ranges = [limits.get(axis, (0, extent)) if extent != 1 else (0, 1) for axis, extent in enumerate(shape)]
    starts, sizes = tuple([start for start, _ in ranges]), tuple([stop - start for start, stop in ranges])
    return x if sizes == shape else p.slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))


def _sum_to(x: Array, shape: Shape) -> Array:
    return x if identical(x.node.shape, shape) else p.sum_to(x, shape=shape)


def _wide(dtype: Dtype) -> Dtype:
    """The dtype in which attention is computed."""
    return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32


def _in(dtype: Dtype, x: Array) -> Array:
    return x if x.node.dtype is dtype else p.cast(x, dtype=dtype)


def _times(x: Array, scale: Array) -> Array:
    """An array times a 0-d array."""
    if not is_constant(scale.node):
        shape = x.node.shape
        scale = p.broadcast(p.expand(scale, axes=tuple(range(len(shape)))), shape=shape)
    return p.multiply(x, scale)


def _masking(more: Sequence[Any], mask: str, sinks: bool) -> tuple[Any, Any, Any]:
    """The mask, the score of hidden keys, and the sinks, from the inputs that follow the scale."""
    count = MASKS[mask]
    given = more[0] if mask in ("added", "hidden") else None
    return given, more[count - 1] if mask in ("hidden", "causal") else None, more[count] if sinks else None


def _inputs_of(inputs: Sequence[Array], mask: str, sinks: bool) -> _Inputs:
    q, k, v, scale, *more = inputs
    dtype = q.node.dtype
    q, k, v = (_in(_wide(dtype), x) for x in (q, k, v))
    found = _Inputs(_times(q, scale), k, v, scale, *_masking(more, mask, sinks), dtype)
    return found._replace(mask=causal_mask(shape=(1, 1, 1, *found.shape[_QUERIES:]))) if mask == "causal" else found


def few_queries(inputs: Sequence[Array], mask: str, sinks: bool, multiply: Callable[[Array, Array], Array]) -> Array:
    """The value of attention whose scores need little memory. ``multiply`` makes products of the inputs in the dtype in
    which attention is computed; the powers of e are rounded to the dtype of the inputs."""
    x = _inputs_of(inputs, mask, sinks)
    q, k, v = inputs[:3]
    scores = x.with_mask(_times(x.apart(multiply(x.rows(q), matrix_transpose(k))), x.scale))
    powers, total, _ = x.powers(scores, x.largest(scores))
    found = x.apart(multiply(x.rows(_in(x.dtype, powers)), v))
    return p.divide(found, p.broadcast(total, shape=found.node.shape))


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
    scale (a 0-d array). `_Inputs` describes the other inputs.

    Planning decides how it is computed: in blocks of queries, leaving out keys that no query of a block sees.
    Derivatives compute the scores again.
    """

    name = "attention"
    parameters = ("mask", "sinks")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        if not _fit(*inputs[:3]):
            raise TypeError(f"attention: got {', '.join(describe(node.shape, node.dtype) for node in inputs)}")
        q, _, v, *_ = inputs
        return (*q.shape[:4], v.shape[-1]), _wide(q.dtype)

    def check(self, *inputs: Node, **params: Any) -> None:
        mask, sinks = params["mask"], params["sinks"]
        check_word(mask, MASKS)
        require(type(sinks) is bool, "sinks are there or not")
        check_inputs(inputs, 4 + MASKS[mask] + sinks)
        require(_fit(*inputs[:3]), "queries, keys and values do not fit")
        q, k, _, scale, *more = inputs
        wide = _wide(q.dtype)
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
        inputs = _inputs_of([wrap(x) for x in node.inputs], **node.keywords)
        blocks = _blocks_of(inputs.shape, node.dtype.size, node.keywords["mask"] == "causal", most)
        return [_joined([inputs.block(*block).value() for block in blocks]).node]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        x = _inputs_of(inputs, **params)
        t_q, t_k, t_v = self._tangents(inputs, tangents, x)
        t_mask, _, t_sinks = _masking(tangents[4:], **params)
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
        total = None if change is None else _in_place_of_keys(p.sum(change, axes=(_KEYS,)))
        if t_sinks is not None and of_sinks is not None:
            total = plus(total, of_sinks * p.broadcast(t_sinks, shape=of_sinks.node.shape))
        if total is not None:
            change = plus(change, -(weights * p.broadcast(total, shape=x.shape)))
        found = None if change is None else x.apart(p.matmul(x.rows(change), x.v))
        return found if t_v is None else plus(found, x.apart(p.matmul(x.rows(weights), t_v)))

    def _tangents(self, inputs: Sequence[Array], tangents: Sequence[Tangent], x: _Inputs) -> list[Tangent]:
        """The tangents of the scaled queries, the keys and the values."""
        wide = x.q.node.dtype
        of_q, of_k, of_v, of_scale = (None if t is None else _in(wide, t) for t in tangents[:4])
        found = None if of_q is None else _times(of_q, x.scale)
        if of_scale is not None:
            found = plus(found, _times(_in(wide, inputs[0]), of_scale))
        return [found, of_k, of_v]

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        """The cotangents are computed in blocks of queries; their own derivatives are those of the same formulas
        without blocks."""
        x = _inputs_of(inputs, **params)
        of_mask = x.mask is not None and x.lowest is None and wanted[4]
        apart = [one if is_constant(one.node) else p.stop_gradient(one) for one in (*inputs, output, cotangent)]
        found = attention_gradients(*apart, **params, of_mask=of_mask)
        whole = x.gradients(output, cotangent, _TRACED)
        chosen = [p.with_derivative_of(*pair) for pair in zip(found, whole.results(of_mask), strict=True)]
        results: list[Tangent] = [*chosen[:3], *[None] * (len(inputs) - 3)]
        if wanted[3]:
            results[3] = p.sum(whole.q * _in(whole.q.node.dtype, inputs[0]), axes=tuple(range(5)))
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
    size, wide = p.batch_size(inputs, axes), _wide(inputs[0].node.dtype)
    q = _in(wide, p.with_batch(inputs[0], axes[0], 0, size))
    scale = p.expand(p.with_batch(inputs[3], axes[3], 0, size), axes=tuple(range(1, q.node.ndim)))
    one = wrap(p.constant.make(1.0, wide))
    scaled = p.multiply(q, p.broadcast(scale, shape=q.node.shape))
    changed = [scaled, _in(wide, inputs[1]), _in(wide, inputs[2]), one, *inputs[4:]]
    return changed, [0, *axes[1:3], None, *axes[4:]], scale


class AttentionGradients(Several):
    """Cotangents of the queries, keys and values of attention, of its mask if ``of_mask``, and of its sinks if there
    are any.

    The inputs are those of attention, its output, and the output's cotangent. It has no derivative itself:
    `Attention.vjp` gives it that of an equal expression.
    """

    name = "attention_gradients"
    parameters = ("mask", "sinks", "of_mask")

    def infer_results(self, *inputs: Node, **params: Any) -> list[tuple[Shape, Dtype]]:
        x = list(inputs[:3])
        if params["of_mask"]:
            x.append(inputs[4])
        if params["sinks"]:
            x.append(inputs[-3])
        return [(node.shape, node.dtype) for node in x]

    def check(self, *inputs: Node, **params: Any) -> None:
        of_mask = params["of_mask"]
        attention.check(*inputs[:-2], mask=params["mask"], sinks=params["sinks"])
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
        mask, sinks, of_mask = node.params
        *given, output, cotangent = [wrap(x) for x in node.inputs]
        inputs = _inputs_of(given, mask, sinks)
        found = []
        for start, stop, keys in _blocks_of(inputs.shape, output.node.dtype.size, mask == "causal", most):
            x = inputs.block(start, stop, keys)
            rows = {_QUERIES: (start, stop)}
            found.append(x.gradients(_part(output, rows), _part(cotangent, rows), _PLANNED))
        shapes = [shape for shape, _ in self.infer_results(*node.inputs, **node.keywords)[3:]]
        of_keys = [_added_by_keys([one.k for one in found]), _added_by_keys([one.v for one in found])]
        results = inputs.as_given(_joined([one.q for one in found]), *of_keys)
        parts = zip(*[one.summed(of_mask) for one in found], strict=True)
        for part, shape in zip(parts, shapes, strict=True):
            results.append(_added(part) if shape[_QUERIES] == 1 else _joined(part))
        return [result.node for result in results]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> Any:
        dtype = inputs[0].node.dtype
        inputs, axes, scale = _with_common_scale(inputs, axes)
        merged, apart = _merged(inputs, axes, whole=True)
        found = [apart(x) for x in self(*merged, **params)]
        if scale is not None:
            found[0] = found[0] * p.broadcast(scale, shape=found[0].node.shape)
            found[:3] = [_in(dtype, x) for x in found[:3]]
        size = p.batch_size(inputs, axes)
        like = [4] * params["of_mask"] + [len(inputs) - 3] * params["sinks"]
        shapes = [(size, *_example(inputs[position], axes[position])) for position in like]
        return [(x, 0) for x in (*found[:3], *map(_sum_to, found[3:], shapes))]


def _joined(parts: Sequence[Array]) -> Array:
    """Results for blocks of queries, concatenated."""
    return parts[0] if len(parts) == 1 else p.concatenate(*parts, axis=_QUERIES)


def _added(parts: Sequence[Array]) -> Array:
    """The sum over blocks, in their order."""
    total = parts[0]
    for part in parts[1:]:
        total = p.add(total, part)
    return total


def _added_by_keys(found: Sequence[Array]) -> Array:
    """The sum over blocks for keys, of which each block has only those that it sees."""
    parts = [_added(list(same)) for _, same in groupby(found, key=lambda part: part.node.shape[2])]
    ends: list[int] = []
    for part in sorted(parts, key=lambda part: part.node.shape[2]):
        if not ends or part.node.shape[2] != ends[-1]:
            ends.append(part.node.shape[2])
    sums = []
    for start, end in pairwise([0, *ends]):
        seen = [_part(part, {2: (start, end)}) for part in parts if part.node.shape[2] >= end]
        sums.append(_added(seen))
    return sums[0] if len(sums) == 1 else p.concatenate(*sums, axis=2)


def _blocks_of(shape: Shape, size: int, causal: bool, most: int) -> list[tuple[int, int, int]]:
    """Blocks of queries, each as (first, end, how many keys they can see). The scores of a block have about ``most``
    bytes for each head."""
    _, _, groups, queries, keys = shape
    wanted = -(-groups * queries * keys * size // most)
    wanted = min(max(wanted, CAUSAL_BLOCKS if causal else 1), MOST_BLOCKS, max(1, queries // FEWEST_ROWS))
    rows = -(-queries // (wanted * WHOLE_ROWS)) * WHOLE_ROWS
    limit = LARGEST_BLOCK * most // (groups * size)
    found: list[tuple[int, int, int]] = []
    start = 0
    while start < queries or not found:
        stop = min(start + rows, queries)
        # A query that sees no key gives all keys the same weight.
        seen = stop + keys - queries if causal and start + keys >= queries else keys
        few = rows if rows * seen <= limit else max(limit // seen // WHOLE_ROWS * WHOLE_ROWS, FEWEST_ROWS)
        while start < stop - few:
            found.append((start, start + few, seen))
            start = start + few
        found.append((start, stop, seen))
        start = stop
    return found


causal_mask = CausalMask()
attention = Attention()
attention_gradients = AttentionGradients()
bounded_score = Elementwise(
    "bounded_score", lambda L, x: L.maximum(x, -(2.0**64)), (None,), accepts=lambda dtype: dtype.is_floating
)
"""An added mask, at least -2^64: that is low enough to hide a key, and finite so that it can be multiplied."""
