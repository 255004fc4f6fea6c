"""Reductions over axes.

The order of a floating-point sum depends on the logical shape alone, not on the memory layout, fusion, threads or
vector width. Along a last axis, 16 virtual lanes each take every 16th element and are added in halves at the end; long
rows are cut into chunks that are added first. Along other axes, one element is added after the other; along a single
axis of 512 elements or more, parts of 256 are added first. Many elements with few results are added in parts. Sums and
products are accumulated in float64 and rounded once, which is as fast as float32: float64 lanes take twice as many
vectors, but each addition waits for the previous one in its vector, and additions in different vectors overlap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, product
from weft.graph.node import Node, Shape, new_node, wrap
from weft.primitives.base import Array, Elementwise, Tangent
from weft.primitives.batching import move_axis
from weft.primitives.binary import complex_extreme
from weft.primitives.reducers import Accumulator, ChunkTotals, Folding, JoinedTotals, OfElements, Quick, Reducer
from weft.primitives.untrusted import check_inputs, require
from weft.runtime.devices import current_stream

__all__ = ["Reduction", "all_", "any_", "argmax", "argmin", "max_", "min_", "prod"]

# A reduction of at least PARTED_SIZE elements is computed in parts if it has too few results for many threads: fewer
# than FEW_ROWS if the last axis is reduced, fewer than FEW_LANES if not, or fewer than FEW_FOLDS if each folds
# LONG_FOLD elements of several axes (a GPU has threads for these). So is one that folds more than LONGEST_FOLD elements
# into each result. Results of parts are folded in parts if they are at least PARTED_AGAIN.
PARTED_SIZE = 1 << 18
PARTED_AGAIN = 1 << 13
FEW_ROWS = 16
FEW_LANES = 1 << 14
FEW_FOLDS, LONG_FOLD, LONGEST_FOLD = 1 << 12, 1 << 16, 1 << 20

# Elements of a part if the last axis is reduced; if it is not; and if the results of such parts are reduced again.
ROW_PART = 1 << 14
LANES_PART = 1 << 8
LANES_AGAIN = 1 << 5
PARTED_SWEEP = 2 * LANES_PART
"""A kernel folds an axis that is not the last one in parts of `LANES_PART` from this many elements on."""
SHORTER = 8
"""A part of several axes may be smaller by this factor if it then divides an axis."""


class Reduction(Folding):
    """The elements along ``axes`` folded into one by a `Reducer`. ``axes`` is sorted; the result lacks these axes."""

    parameters = ("axes",)

    def __init__(
        self,
        name: str,
        reducer: Reducer,
        rule: Callable[..., Tangent] | None,
        transpose: Callable[..., Array] | None = None,
        result: Callable[[Dtype], Dtype] = lambda dtype: dtype,
        needs_elements: bool = False,
        partial: Callable[[Dtype], Dtype | None] = lambda dtype: None,
    ) -> None:
        self.name = name
        self.reducer = reducer
        self.rule = rule
        self.transpose = transpose
        self.result = result
        self.needs_elements = needs_elements
        self.partial = partial
        self.totals = ChunkTotals(name, reducer)
        self.joined = JoinedTotals(name, reducer)
        self.of_elements = OfElements(name, reducer, result)
        self.no_elements = Elementwise(f"{name}_of_nothing", self._of_nothing, (None,), result=result)

    def _of_nothing(self, L: Any, x: Any) -> Any:
        return self.reducer.of_nothing(L, x.dtype, self.result(x.dtype))

    def lowered(self, node: Node) -> Node | None:
        """An elementwise operation if all reduced axes have extent 1; zeros or other constants if one has extent 0;
        several reductions in parts if there are few long sums; else None."""
        x, axes, shape, dtype = node.inputs[0], node.params[0], node.shape, node.dtype
        if any(x.shape[axis] == 0 for axis in axes):
            return Node(self.no_elements, (p.planned_zeros(shape, x.dtype),), (), shape, dtype, None)
        if all(x.shape[axis] == 1 for axis in axes):
            return self.unrolled(node)
        ones = tuple([axis for axis in axes if x.shape[axis] == 1])
        if ones:
            kept = tuple([extent for axis, extent in enumerate(x.shape) if axis not in ones])
            x = Node(p.squeeze, (x,), (ones,), kept, x.dtype, None)
            axes = tuple([axis - sum(one < axis for one in ones) for axis in axes if axis not in ones])
        return self._finished(node, self._in_parts(x, axes, PARTED_SIZE))

    def in_parts(self, node: Node) -> Node | None:
        """A reduction along one axis that is folded in parts, as a reduction of each part and one of the results; None
        if the number of results is large anyway."""
        x, axes = node.inputs[0], node.params[0]
        if len(axes) != 1 or axes[0] == x.ndim - 1 or x.shape[axes[0]] < PARTED_SWEEP:
            return None
        return self._finished(node, self._in_parts(x, axes, PARTED_SWEEP))

    def _finished(self, node: Node, total: Node | None) -> Node | None:
        """A total converted to the dtype of a node."""
        if total is None or total.dtype is node.dtype:
            return total
        return Node(p.cast, (total,), (node.dtype,), node.shape, node.dtype, None)

    def unrolled(self, node: Node, columns: Sequence[Node] = ()) -> Node:
        """An elementwise operation on slices of the input, one for each element that is reduced. ``columns`` may be
        nodes that are equal to these slices."""
        x, axes, shape, dtype = node.inputs[0], node.params[0], node.shape, node.dtype
        sizes = tuple([1 if axis in axes else extent for axis, extent in enumerate(x.shape)])
        last = max((axis for axis, extent in enumerate(x.shape) if extent != 1), default=None)
        lanes = x.shape[last] if last is not None and last in axes else 1
        steps = (1,) * x.ndim
        starts = itertools.product(*[range(extent) if axis in axes else (0,) for axis, extent in enumerate(x.shape)])
        slices = columns or [Node(p.slice_, (x,), (start, sizes, steps), sizes, x.dtype, None) for start in starts]
        result = Node(self.of_elements, tuple(slices), (lanes,), sizes, dtype, None)
        return Node(p.squeeze, (result,), (axes,), shape, dtype, None) if axes else result

    def _in_parts(self, x: Node, axes: Sequence[int], least: int, again: bool = False) -> Node | None:
        """The reductions of the parts, and of their unrounded results; None if it is not done in parts, for example
        with fewer than ``least`` elements. ``again``: ``x`` consists of such results."""
        wide, parts = self.partial(x.dtype), self.reducer.identity(x.dtype)
        if not _has_few_results(x.shape, axes, least):
            return None
        size = ROW_PART if x.ndim - 1 in axes else LANES_AGAIN if again else LANES_PART
        axis, inner = cut_of(x.shape, axes, size)
        if axis == axes[0] and inner == x.shape[axis]:
            return None
        if [axis] == [*axes] and len(parts) > 1:
            return self._joined_chunks(x, axis, inner)
        if wide is None:
            return None
        results = self._chunks(x, axis, inner) if [axis] == [*axes] else self._boxes(x, axes, axis, inner, wide)
        outer = [a for a in axes if a <= axis]
        shape = tuple([extent for a, extent in enumerate(results.shape) if a not in outer])
        return self._in_parts(results, outer, PARTED_AGAIN, again=True) or Node(
            self, (results,), (tuple(outer),), shape, wide, None
        )

    def _joined_chunks(self, x: Node, axis: int, size: int) -> Node:
        """The result from all chunks along an axis, for reductions with several accumulators."""
        totals = tuple([self._chunks(x, axis, size, part) for part in range(len(self.reducer.identity(x.dtype)))])
        shape = (*x.shape[:axis], *x.shape[axis + 1 :])
        return Node(self.joined, totals, ((axis,), x.dtype), shape, self.result(x.dtype), None)

    def _chunks(self, x: Node, axis: int, size: int, part: int = 0) -> Node:
        """One accumulator of the chunks along an axis; the last chunk may be shorter."""
        shape = (*x.shape[:axis], -(-x.shape[axis] // size), *x.shape[axis + 1 :])
        dtype, _ = self.reducer.identity(x.dtype)[part]
        return Node(self.totals, (x,), (axis, size, part, False), shape, dtype, None)

    def _boxes(self, x: Node, axes: Sequence[int], axis: int, inner: int, wide: Dtype) -> Node:
        """The reductions of ``inner`` elements of an axis together with the reduced axes after it."""
        if wide is not x.dtype:
            x = Node(p.cast, (x,), (wide,), x.shape, wide, None)
        folded = [a for a in axes if a > axis]
        if inner > 1:
            count = x.shape[axis] // inner
            split, _ = p.split_axis.infer(x, axis=axis, count=count)
            x = Node(p.split_axis, (x,), (axis, count), split, wide, None)
            folded = [axis + 1, *[a + 1 for a in folded]]
        shape = tuple([extent for a, extent in enumerate(x.shape) if a not in folded])
        return Node(self, (x,), (tuple(folded),), shape, wide, None)

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 1)
        super().check(*inputs, **params)
        require(not self.reducer.needs_index or len(params["axes"]) == 1, "it is along one axis")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, axes = inputs[0], params["axes"]
        if self.needs_elements and any(agree(x.shape[axis], 0) for axis in axes):
            raise ValueError(f"[{self.name}] Cannot reduce axes {axes} of shape {x.shape}: there are no elements.")
        return tuple([extent for axis, extent in enumerate(x.shape) if axis not in axes]), self.result(x.dtype)

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        if tangents[0] is None or self.rule is None:
            return None
        return self.rule(tangents[0], output, inputs[0], **params)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        if self.transpose is None:
            return [None]
        return [self.transpose(cotangent, output, inputs[0], **params)]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        batch_axis = axes[0]
        if batch_axis is None:
            raise ValueError(f"{self.name}: no input is mapped")
        moved = move_axis(inputs[0], batch_axis, 0)
        return self(moved, axes=tuple([axis + 1 for axis in params["axes"]])), 0


def _has_few_results(shape: Shape, axes: Sequence[int], least: int) -> bool:
    """Whether a reduction of at least ``least`` elements has too few results for many threads."""
    size, folded = product(shape), product([shape[axis] for axis in axes])
    results = size // folded
    if size < least:
        return False
    if len(shape) - 1 not in axes:
        return results < FEW_LANES
    return (
        results < FEW_ROWS or folded > LONGEST_FOLD or (len(axes) > 1 and folded >= LONG_FOLD and results < FEW_FOLDS)
    )


def cut_of(shape: Shape, axes: Sequence[int], size: int) -> tuple[int, int]:
    """The axis to cut so that parts have about ``size`` elements, and how many of its elements are in a part: any
    number if it is the only axis, else a divisor of its extent."""
    for position, axis in reversed(list(enumerate(axes))):
        extent = shape[axis]
        if extent > size:
            if len(axes) == 1:
                return axis, size
            divisors = [count for count in range(size, size // SHORTER, -1) if extent % count == 0]
            if divisors:
                return axis, divisors[0]
            return (axis, 1) if position < len(axes) - 1 else (axes[position - 1], 1)
        size //= extent
    return axes[0], shape[axes[0]]


def spread(reduced: Array, like: Array, axes: Sequence[int]) -> Array:
    """A reduced array repeated along the axes that were reduced."""
    node, shape, stream = reduced.node, like.node.shape, current_stream()
    single = tuple([1 if axis in axes else extent for axis, extent in enumerate(shape)])
    expanded = new_node(p.expand, (node,), (tuple(axes),), single, node.dtype, stream)
    return wrap(new_node(p.broadcast, (expanded,), (shape,), shape, node.dtype, stream))


def register_dtype(dtype: Dtype) -> Dtype:
    """The dtype in which elements are compared."""
    return dtypes.float32 if dtype in (dtypes.float16, dtypes.bfloat16) else dtype


def accumulator_dtype(dtype: Dtype) -> Dtype:
    """The dtype in which elements are accumulated."""
    return dtypes.float64 if dtype.is_floating else dtype


def arithmetic(start: int, join: Callable[[Any, Any], Any]) -> Reducer:
    """A sum or product; for complex numbers, the accumulators are two real numbers."""

    def identity(dtype: Dtype) -> list[tuple[Dtype, Any]]:
        if dtype.is_complex:
            return [(dtypes.float64, start), (dtypes.float64, 0)]
        return [(accumulator_dtype(dtype), start)]

    def lift(L: Any, x: Any, index: Any) -> Accumulator:
        if x.dtype.is_complex:
            return L.convert(x.real, dtypes.float64), L.convert(x.imag, dtypes.float64)
        return (L.convert(x, accumulator_dtype(x.dtype)),)

    def merge(L: Any, a: Accumulator, b: Accumulator) -> Accumulator:
        if len(a) == 1:
            return (join(a[0], b[0]),)
        joined = join(L.complex(*a), L.complex(*b))
        return joined.real, joined.imag

    def finish(L: Any, a: Accumulator, dtype: Dtype) -> Any:
        parts = [L.convert(part, dtypes.float32 if dtype.is_complex else dtype) for part in a]
        return L.complex(*parts) if dtype.is_complex else parts[0]

    return Reducer(identity, lift, merge, finish, regroups=lambda dtype: not dtype.is_inexact)


def _wide(dtype: Dtype) -> Dtype | None:
    """The dtype of a partial sum or product; None for complex numbers, which have two accumulators."""
    return None if dtype.is_complex else accumulator_dtype(dtype)


sum_: Reduction = Reduction(
    "sum",
    arithmetic(0, lambda a, b: a + b),
    lambda t, out, x, axes: sum_(t, axes=axes),
    lambda ct, out, x, axes: spread(ct, x, axes),
    partial=_wide,
)


def _others_product(x: Array, axes: Sequence[int]) -> Array:
    """For each element, the product of all others along ``axes``. It multiplies those before and those after the
    element, because dividing the whole product would fail for zeros; it is rounded once."""
    shape, dtype = x.node.shape, x.node.dtype
    parallel = [axis for axis in range(len(shape)) if axis not in axes]
    order = (*parallel, *axes)
    moved = p.transpose(x, axes=order)
    rows = p.reshape(moved, shape=(*[shape[axis] for axis in parallel], product([shape[axis] for axis in axes])))
    rows = p.cast(rows, dtype=accumulator_dtype(dtype))
    before, behind = (p.cumprod(rows, axis=len(parallel), reverse=way, inclusive=False) for way in (False, True))
    result = p.cast(before * behind, dtype=dtype)
    return p.transpose(p.reshape(result, shape=moved.node.shape), axes=p.inverse(order))


def _prod_jvp(t: Array, out: Array, x: Array, axes: Sequence[int]) -> Array:
    return sum_(t * _others_product(x, axes), axes=axes)


def _prod_vjp(ct: Array, out: Array, x: Array, axes: Sequence[int]) -> Array:
    return spread(ct, x, axes) * p.conjugate_of(_others_product(x, axes))


prod: Reduction = Reduction("prod", arithmetic(1, lambda a, b: a * b), _prod_jvp, _prod_vjp, partial=_wide)


def _extreme_share(out: Array, x: Array, axes: Sequence[int]) -> Array:
    """For elements equal to the extreme, one over the number of such elements; zero for all others."""
    chosen = p.cast(p.equal(x, spread(out, x, axes)), dtype=x.node.dtype)
    return chosen / spread(sum_(chosen, axes=axes), x, axes)


def _extreme_value(dtype: Dtype, lowest: bool) -> float | int:
    """The extreme of no elements: no element is below (or above) it."""
    if dtype.is_bool:
        return not lowest
    if dtype.is_floating:
        return -math.inf if lowest else math.inf
    return dtype.lowest if lowest else dtype.highest


def _first_extremes(dtype: Dtype, lowest: bool) -> list[tuple[Dtype, Any]]:
    """The dtypes and initial values of accumulators of an extreme. Complex numbers have two."""
    if dtype.is_complex:
        return [(dtypes.float32, -math.inf if lowest else math.inf)] * 2
    return [(register_dtype(dtype), _extreme_value(dtype, lowest))]


def _compared(L: Any, x: Any) -> Accumulator:
    """An element as accumulators of `_first_extremes`."""
    return (x.real, x.imag) if x.dtype.is_complex else (L.convert(x, register_dtype(x.dtype)),)


def _joined(L: Any, parts: Accumulator) -> Any:
    return L.complex(*parts) if len(parts) == 2 else parts[0]


def _extreme(name: str, lowest_first: bool) -> Reduction:
    def join(L: Any, a: Accumulator, b: Accumulator) -> Accumulator:
        if len(a) == 1:
            return (L.maximum(a[0], b[0]) if lowest_first else L.minimum(a[0], b[0]),)
        chosen = complex_extreme(L, "gt" if lowest_first else "lt", L.complex(*a), L.complex(*b))
        return chosen.real, chosen.imag

    return Reduction(
        name,
        Reducer(
            lambda dtype: _first_extremes(dtype, lowest_first),
            lambda L, x, index: _compared(L, x),
            join,
            lambda L, a, dtype: _joined(L, a) if dtype.is_complex else L.convert(a[0], dtype),
            regroups=lambda dtype: True,
            quick=Quick(
                lambda L, a: L.absolute(a) > 0,
                lambda L, a, b: L.larger(a, b) if lowest_first else L.lesser(a, b),
            ),
        ),
        lambda t, out, x, axes: sum_(t * _extreme_share(out, x, axes), axes=axes),
        lambda ct, out, x, axes: spread(ct, x, axes) * _extreme_share(out, x, axes),
        needs_elements=True,
        partial=lambda dtype: dtype,
    )


max_ = _extreme("max", lowest_first=True)
max_.is_bound = max_.of_elements.is_bound = True
min_ = _extreme("min", lowest_first=False)


def _logical(name: str, start: bool, join: Callable[[Any, Any], Any]) -> Reduction:
    return Reduction(
        name,
        Reducer(
            identity=lambda dtype: [(dtypes.bool_, start)],
            lift=lambda L, x, index: (L.convert(x, dtypes.bool_),),
            merge=lambda L, a, b: (join(a[0], b[0]),),
            finish=lambda L, a, dtype: a[0],
            regroups=lambda dtype: True,
        ),
        None,
        result=lambda dtype: dtypes.bool_,
        partial=lambda dtype: dtypes.bool_,
    )


all_ = _logical("all", True, lambda a, b: a & b)
any_ = _logical("any", False, lambda a, b: a | b)


def _arg_extreme(name: str, lowest_first: bool) -> Reduction:
    """The index of the first extreme element along one axis; NaN is more extreme than any number.

    Accumulators begin with the least extreme value there is and index 0. If that value is the result, all elements are
    equal to it, and 0 is the first of them.
    """

    def later(L: Any, a: Accumulator, b: Accumulator) -> Accumulator:
        (*first, i), (*second, j) = a, b
        x, y = _joined(L, tuple(first)), _joined(L, tuple(second))
        if x.dtype.is_inexact:
            # A number is not at most NaN, either.
            take = ~L.compare_values("le" if lowest_first else "ge", y, x) & L.compare_values("eq", x, x)
        else:
            take = L.compare_values("gt" if lowest_first else "lt", y, x)
        return *[L.select(take, late, early) for late, early in zip(second, first, strict=True)], L.select(take, j, i)

    def merge(L: Any, a: Accumulator, b: Accumulator) -> Accumulator:
        (*first, i), (*second, j) = a, b
        x, y = _joined(L, tuple(first)), _joined(L, tuple(second))
        beats = L.compare_values("gt" if lowest_first else "lt", y, x)
        same = L.compare_values("eq", x, y)
        if x.dtype.is_inexact:
            x_is_nan, y_is_nan = L.compare_values("ne", x, x), L.compare_values("ne", y, y)
            beats = beats | (y_is_nan & ~x_is_nan)
            same = same | (y_is_nan & x_is_nan)
            beats = beats & ~(x_is_nan & ~y_is_nan)
        take = beats | (same & (j < i))
        return *[L.select(take, late, early) for late, early in zip(second, first, strict=True)], L.select(take, j, i)

    return Reduction(
        name,
        Reducer(
            lambda dtype: [*_first_extremes(dtype, lowest_first), (dtypes.uint32, 0)],
            lambda L, x, index: (*_compared(L, x), L.convert(index, dtypes.uint32)),
            merge,
            lambda L, a, dtype: a[-1],
            needs_index=True,
            regroups=lambda dtype: True,
            later=later,
        ),
        None,
        result=lambda dtype: dtypes.uint32,
        needs_elements=True,
    )


argmax = _arg_extreme("argmax", lowest_first=True)
argmin = _arg_extreme("argmin", lowest_first=False)
