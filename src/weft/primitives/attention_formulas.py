"""The formulas of attention and of its cotangents, in primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.extents import identical
from weft.graph.node import Shape, wrap
from weft.primitives.base import Array, is_constant
from weft.primitives.conversions import to_dtype, wide_dtype
from weft.primitives.products import matrix_transpose

MASKS = {"none": 0, "added": 1, "hidden": 2, "causal": 1}
"""How scores are masked, and how many inputs the mask takes: one that is added to the scores; two, which keys are seen
and the score of the other keys; or that score alone. With "causal", query i sees the keys up to i + S - T."""

QUERIES, KEYS = 3, 4
"""The axis numbers of scores, whose shape is ``(B, M, G, T, S)``."""


class AttentionInputs(NamedTuple):
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

    def largest(self, scores: Array, reduction: Any = None) -> Array:
        """The largest score of each query. ``reduction`` finds the largest element (None: in the usual way)."""
        found = in_place_of_keys((reduction or p.max_)(scores, axes=(KEYS,)))
        return found if self.sinks is None else p.maximum(found, self.of_sinks(self.sinks))

    def of_sinks(self, x: Array) -> Array:
        """Sinks, or scores of them, repeated for each query."""
        return p.broadcast(x, shape=(*self.shape[:4], 1))

    def powers(self, scores: Array, largest: Array) -> tuple[Array, Array, Array | None]:
        """``exp(scores - largest)``, which is proportional to the weights of keys; the sums of that over keys and
        sinks; and the same powers for the sinks."""
        powers = self.exp(scores, largest)
        return powers, *self.totals(powers, largest)

    def exp(self, scores: Array, largest: Array) -> Array:
        """The powers of e for the keys."""
        return p.exp(p.subtract(scores, p.broadcast(largest, shape=self.shape)))

    def totals(self, powers: Array, largest: Array, add_up: Any = None) -> tuple[Array, Array | None]:
        """The sums of powers over keys and sinks, and the powers for the sinks. ``add_up`` is the reduction (None: the
        sum)."""
        total = in_place_of_keys((add_up or p.sum)(powers, axes=(KEYS,)))
        if self.sinks is None:
            return total, None
        more = p.exp(p.subtract(self.of_sinks(self.sinks), largest))
        return p.add(total, more), more

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

    def value_of_halves(self, multiply: Callable[[Array, Array], Array], quickly: bool) -> Array:
        """The weighted means, for queries, keys and values as they were given, in half precision. ``multiply`` makes
        products of these in the dtype in which attention is computed. The powers of e are rounded to half precision,
        before they are added up, too, so that the sum of all weights is one; both ``quickly`` if that is allowed."""
        found = self.apart(multiply(self.rows(self.q), matrix_transpose(self.k)))
        scores = self.with_mask(times(found, self.scale))
        # A NaN among the scores makes the total NaN, whatever the largest score is.
        largest = self.largest(scores, p.quick_max if quickly else None)
        powers = self.exp(scores, largest)
        powers = p.quick_bfloat16(powers) if quickly else to_dtype(powers, self.dtype)
        total, _ = self.totals(to_dtype(powers, scores.node.dtype), largest, p.quick_sum if quickly else None)
        found = self.apart(multiply(self.rows(powers), self.v))
        return p.divide(found, p.broadcast(total, shape=found.node.shape))

    def gradients(self, output: Array, cotangent: Array, rules: GradientRules) -> AttentionCotangents:
        """The cotangents of all inputs. Over the keys of a query, the weighted mean of the weights' cotangents is the
        product of the query's cotangent and output. These two are divided by the total, because they are fewer numbers
        than the powers."""
        scores = self.scores()
        powers, total, more = self.powers(scores, rules.fixed(self.largest(scores)))
        divided = cotangent / p.broadcast(total, shape=cotangent.node.shape)
        mean = in_place_of_keys(p.sum(divided * output, axes=(KEYS,)))
        rows = self.rows(divided)
        of_weights = self.apart(p.matmul(rows, matrix_transpose(self.v)))
        change = powers * (of_weights - p.broadcast(mean, shape=self.shape))
        of_scores = change if self.lowest is None else self.masked(change, rules.zeros(change))
        flat = self.rows(of_scores)
        return AttentionCotangents(
            self,
            self.apart(p.matmul(flat, self.k)),
            p.matmul(matrix_transpose(flat), self.rows(self.q)),
            p.matmul(matrix_transpose(self.rows(powers)), rows),
            of_scores,
            None if more is None else -(more * mean),
        )

    def as_given(self, q: Array, k: Array, v: Array) -> list[Array]:
        """The cotangents of queries, keys and values in their own dtypes and scale, from those of the fields."""
        return [to_dtype(x, self.dtype) for x in (times(q, self.scale), k, v)]

    def block(self, start: int, stop: int, keys: int) -> AttentionInputs:
        """The attention of the queries from ``start`` up to ``stop`` to the first ``keys`` keys."""
        limits = {QUERIES: (start, stop), KEYS: (0, keys)}
        k, v = (sliced(x, {2: (0, keys)}) for x in (self.k, self.v))
        mask = None if self.mask is None else sliced(self.mask, limits)
        return self._replace(q=sliced(self.q, {QUERIES: (start, stop)}), k=k, v=v, mask=mask)


class GradientRules(NamedTuple):
    """What differs between tracing and planning. In a planned graph nothing must be ``fixed`` against differentiation,
    and ``zeros`` cannot be a constant."""

    fixed: Callable[[Array], Array]
    zeros: Callable[[Array], Array]


TRACED = GradientRules(lambda x: p.stop_gradient(x), lambda x: p.zeros_like(x))
PLANNED = GradientRules(lambda x: x, lambda x: wrap(p.planned_zeros(x.node.shape, x.node.dtype)))


class AttentionCotangents(NamedTuple):
    """Cotangents of queries, keys, values and scores, and of the sink of each query."""

    inputs: AttentionInputs
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
        return [sum_to(found, one.node.shape) for found, one in pairs if found is not None and one is not None]


def in_place_of_keys(x: Array) -> Array:
    """A reduction over the keys, with an axis of extent 1 in their place."""
    return p.expand(x, axes=(KEYS,))


def sliced(x: Array, limits: dict[int, tuple[int, int]]) -> Array:
    """The elements within ``limits`` along axes; axes of extent 1 stay whole."""
    shape = x.node.shape
    ranges = [limits.get(axis, (0, extent)) if extent != 1 else (0, 1) for axis, extent in enumerate(shape)]
    starts, sizes = tuple([start for start, _ in ranges]), tuple([stop - start for start, stop in ranges])
    return x if sizes == shape else p.slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))


def sum_to(x: Array, shape: Shape) -> Array:
    return x if identical(x.node.shape, shape) else p.sum_to(x, shape=shape)


def times(x: Array, scale: Array) -> Array:
    """An array times a 0-d array."""
    if not is_constant(scale.node):
        shape = x.node.shape
        scale = p.broadcast(p.expand(scale, axes=tuple(range(len(shape)))), shape=shape)
    return p.multiply(x, scale)


def masking(more: Sequence[Any], params: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The mask, the score of hidden keys, and the sinks, from the inputs that follow the scale."""
    mask = params["mask"]
    count = MASKS[mask]
    given = more[0] if mask in ("added", "hidden") else None
    lowest = more[count - 1] if mask in ("hidden", "causal") else None
    return given, lowest, more[count] if params["sinks"] else None


def inputs_of(inputs: Sequence[Array], params: Mapping[str, Any]) -> AttentionInputs:
    """The inputs of attention with ``params`` in the dtype in which it is computed."""
    found = given_inputs(inputs, params)
    q, k, v = (to_dtype(x, wide_dtype(found.dtype)) for x in (found.q, found.k, found.v))
    return found._replace(q=times(q, found.scale), k=k, v=v)


def given_inputs(inputs: Sequence[Array], params: Mapping[str, Any]) -> AttentionInputs:
    """The inputs of attention with ``params``, queries, keys and values as they are: for
    `AttentionInputs.value_of_halves`."""
    q, k, v, scale, *more = inputs
    found = AttentionInputs(q, k, v, scale, *masking(more, params), q.node.dtype)
    if params["mask"] != "causal":
        return found
    return found._replace(mask=p.causal_mask(shape=(1, 1, 1, *found.shape[QUERIES:])))
