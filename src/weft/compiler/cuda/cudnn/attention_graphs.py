"""Graphs of attention as cuDNN recognises them. It matches a pattern: the operations and their order must be these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft import dtypes
from weft.compiler.cuda.cudnn.graphs import GraphDraft, Pointwise, ReduceOperator
from weft.dtypes import Dtype
from weft.graph.node import Shape
from weft.runtime.cuda.cudnn.descriptors import DescriptorContent
from weft.runtime.cuda.cudnn.plans import CudnnWork


class Heads(NamedTuple):
    """The layout of heads: the extents, and the strides in elements."""

    batch: int
    heads: int
    positions: int
    features: int
    strides: Shape

    @property
    def shape(self) -> Shape:
        return self[:4]


class Mask(NamedTuple):
    """How scores are masked: the dtype, shape and strides of what is added to them, and whether attention is causal."""

    added: tuple[Dtype, Shape, Shape] | None
    causal: bool


class _AttentionDraft(GraphDraft):
    """Shared by both graphs."""

    def heads(self, dtype: Dtype, x: Heads) -> DescriptorContent:
        return self.in_memory(dtype, x.shape, x.strides)

    def columns(self, dtype: Dtype, x: Heads) -> DescriptorContent:
        """Heads with their last two axes exchanged."""
        (*outer, rows, columns), (*steps, down, across) = x.shape, x.strides
        return self.in_memory(dtype, (*outer, columns, rows), (*steps, across, down))

    def number_of_each(self, shape: Shape) -> DescriptorContent:
        """A float32 tensor that is never in memory."""
        return self.inside(dtypes.float32, shape)

    def factor(self) -> DescriptorContent:
        return self.in_memory(dtypes.float32, (1,) * 4, (1,) * 4)

    def added(self, mask: Mask) -> DescriptorContent | None:
        return None if mask.added is None else self.in_memory(*mask.added)

    def scores(
        self,
        q: DescriptorContent,
        k: DescriptorContent,
        full: Shape,
        scale: DescriptorContent,
        added: DescriptorContent | None,
        causal: bool,
    ) -> DescriptorContent:
        """Scores; those of hidden keys are -inf."""
        found = self.product(self.inside(dtypes.float32, full), q, k)
        found = self.pointwise(Pointwise.MULTIPLY, self.inside(dtypes.float32, full), found, scale)
        if added is not None:
            found = self.pointwise(Pointwise.ADD, self.inside(dtypes.float32, full), found, added)
        return self._seen(found, full) if causal else found

    def _seen(self, scores: DescriptorContent, full: Shape) -> DescriptorContent:
        queries, keys = full[2:]
        last = self._index(scores, full, 2)
        if keys != queries:
            ahead = self.number(dtypes.int32, 4, keys - queries)
            last = self.pointwise(Pointwise.ADD, self.inside(dtypes.int32, full), last, ahead, compute=dtypes.int32)
        key = self._index(scores, full, 3)
        seen = self.pointwise(Pointwise.GREATER_EQUAL, self.inside(dtypes.bool_, full), last, key, compute=dtypes.bool_)
        hidden = self.number(dtypes.float32, 4, float("-inf"))
        return self.pointwise(Pointwise.SELECT, self.inside(dtypes.float32, full), scores, hidden, seen)

    def _index(self, scores: DescriptorContent, full: Shape, axis: int) -> DescriptorContent:
        return self.pointwise(Pointwise.INDEX, self.inside(dtypes.int32, full), scores, compute=dtypes.int32, axis=axis)


def value_work(dtype: Dtype, q: Heads, k: Heads, v: Heads, result: Heads, sums: Heads, mask: Mask) -> CudnnWork:
    """The graph from queries, keys, values, the factor and what is added, if anything, to means and logarithms of
    sums."""
    draft = _AttentionDraft()
    full, row = (*q.shape[:3], k.positions), (*q.shape[:3], 1)
    queries, keys, values = draft.heads(dtype, q), draft.columns(dtype, k), draft.heads(dtype, v)
    scale, added = draft.factor(), draft.added(mask)
    means, logarithms = draft.heads(dtype, result), draft.heads(dtypes.float32, sums)
    scores = draft.scores(queries, keys, full, scale, added, mask.causal)
    largest = draft.reduce(ReduceOperator.MAX, draft.number_of_each(row), scores)
    below = draft.pointwise(Pointwise.SUBTRACT, draft.number_of_each(full), scores, largest)
    powers = draft.pointwise(Pointwise.EXP, draft.number_of_each(full), below)
    total = draft.reduce(ReduceOperator.SUM, draft.number_of_each(row), powers)
    logarithm = draft.pointwise(Pointwise.LOG, draft.number_of_each(row), total)
    draft.pointwise(Pointwise.ADD, logarithms, largest, logarithm)
    weights = draft.pointwise(Pointwise.DIVIDE, draft.inside(dtype, full), powers, total)
    draft.product(means, weights, values)
    return draft.work(f"attention {q.shape} of {k.shape} {dtype}")


class Known(NamedTuple):
    """What the cotangents of attention depend on besides its inputs: its result, the cotangent of that, the logarithms
    of sums."""

    result: Heads
    cotangent: Heads
    sums: Heads


def gradients_work(dtype: Dtype, given: Sequence[Heads], made: Sequence[Heads], known: Known, mask: Mask) -> CudnnWork:
    """The graph from queries, keys and values (``given``), what is ``known``, the factor and what is added, if
    anything, to the cotangents of the first three (``made``) and the mean cotangent of the weights of each query.

    The cotangents of scores are stored in scratch memory: otherwise cuDNN sums those of queries in an order that
    differs from run to run.
    """
    draft = _AttentionDraft()
    q, k, v = given
    full, row = (*q.shape[:3], k.positions), (*q.shape[:3], 1)
    queries, keys, values = draft.heads(dtype, q), draft.columns(dtype, k), draft.columns(dtype, v)
    means, cotangents = draft.heads(dtype, known.result), draft.heads(dtype, known.cotangent)
    sums, scale, added = draft.heads(dtypes.float32, known.sums), draft.factor(), draft.added(mask)
    of_q, of_k, of_v = [draft.heads(dtype, x) for x in made]
    mean = draft.heads(dtypes.float32, known.sums)

    def multiply(left: DescriptorContent, right: DescriptorContent, shape: Shape = full) -> DescriptorContent:
        return draft.pointwise(Pointwise.MULTIPLY, draft.number_of_each(shape), left, right)

    def by_keys(x: DescriptorContent) -> DescriptorContent:
        """The transpose of each matrix, in half precision."""
        rows, columns = full[3], full[2]
        strides = (q.heads * rows * columns, rows * columns, 1, rows)
        return draft.reshape(draft.inside(dtype, (*full[:2], rows, columns), strides), x)

    def add_up(result: DescriptorContent, left: DescriptorContent, right: DescriptorContent, like: Heads) -> None:
        """A product, summed over the heads that share keys."""
        if like.heads == q.heads:
            draft.product(result, left, right)
        else:
            each = draft.product(draft.inside(dtype, (q.batch, q.heads, *like.shape[2:])), left, right)
            draft.reduce(ReduceOperator.SUM, result, each)

    of_weights = draft.product(draft.number_of_each(full), cotangents, values)
    straight = draft.reshape(draft.inside(dtypes.float32, k.shape, k.strides), keys)  # cuDNN requires these strides
    scores = draft.scores(queries, keys, full, scale, added, mask.causal)
    below = draft.pointwise(Pointwise.SUBTRACT, draft.number_of_each(full), scores, sums)
    weights = draft.pointwise(Pointwise.EXP, draft.number_of_each(full), below)
    add_up(of_v, by_keys(weights), cotangents, v)
    products = multiply(cotangents, means, known.result.shape)
    one = draft.number(dtypes.float32, 4, 1.0)
    draft.pointwise(
        Pointwise.MULTIPLY, mean, draft.reduce(ReduceOperator.SUM, draft.number_of_each(row), products), one
    )
    change = draft.pointwise(Pointwise.SUBTRACT, draft.number_of_each(full), of_weights, mean)
    of_scores = multiply(multiply(change, weights), scale)
    add_up(of_k, by_keys(of_scores), queries, k)
    draft.product(of_q, of_scores, straight)
    return draft.work(f"gradients of attention {q.shape} of {k.shape} {dtype}")
