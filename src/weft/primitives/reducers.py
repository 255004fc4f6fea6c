"""The scalar code of reductions, and the primitives of planned graphs that fold parts of a reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.base import Elementwise, Primitive

__all__ = ["ChunkTotals", "Folding", "JoinedTotals"]

Accumulator = tuple[Any, ...]


class Quick(NamedTuple):
    """A faster ``merge`` of two numbers, each the only accumulator. Its final result is right if ``holds`` is true of
    it."""

    holds: Callable[..., Any]
    merge: Callable[..., Any]


class Reducer:
    """The scalar code of a reduction, as a monoid on tuples of values.

    ``identity(dtype)`` gives the dtypes and initial values of the accumulators, ``lift(L, x, index)`` makes
    accumulators of one element (``index`` is its int64 index along the reduced axis), ``merge(L, a, b)`` combines two,
    ``finish(L, a, dtype)`` gives the result. ``ordered``: ``a`` must come before ``b``. ``sequential``: ``b`` must be a
    single element, because results depend on the grouping. Only scans may be ordered or sequential.
    ``regroups(dtype)``: elements may be grouped in any way. ``quick`` is a faster way to merge float32 numbers, and
    ``later(L, a, b)`` one to merge if all elements of ``b`` come after those of ``a``.
    """

    def __init__(
        self,
        identity: Callable[[Dtype], Sequence[tuple[Dtype, Any]]],
        lift: Callable[..., Accumulator],
        merge: Callable[..., Accumulator],
        finish: Callable[..., Any],
        needs_index: bool = False,
        ordered: bool = False,
        sequential: bool = False,
        regroups: Callable[[Dtype], bool] = lambda dtype: False,
        quick: Quick | None = None,
        later: Callable[..., Accumulator] | None = None,
    ) -> None:
        self.identity = identity
        self.lift = lift
        self.merge = merge
        self.finish = finish
        self.needs_index = needs_index
        self.ordered = ordered
        self.sequential = sequential
        self.regroups = regroups
        self.quick = quick
        self.later = later or merge

    def start(self, L: Any, dtype: Dtype) -> Accumulator:
        """The initial values of the accumulators."""
        return tuple([L.constant(value, part) for part, value in self.identity(dtype)])

    def of_nothing(self, L: Any, dtype: Dtype, result: Dtype) -> Any:
        """The result for no elements of ``dtype``."""
        return self.finish(L, self.start(L, dtype), result)


class OfElements(Elementwise):
    """A reduction of a few elements, each of which is an input, in the same order as in a `Reduction`.

    ``lanes`` is the extent of the last axis, at most 16, if it is reduced, else 1: the elements of each lane are merged
    one after the other, and then the lanes in halves.
    """

    parameters = ("lanes",)

    def __init__(self, name: str, reducer: Reducer, result: Callable[[Dtype], Dtype]) -> None:
        super().__init__(f"{name}_of_elements", self._joined, (), result=result)
        self.reducer = reducer

    def _joined(self, L: Any, *elements: Any, lanes: int) -> Any:
        reducer, dtype = self.reducer, elements[0].dtype
        lifted = [reducer.lift(L, x, L.constant(index, dtypes.int64)) for index, x in enumerate(elements)]
        if len(lifted) > 1:
            # In a reduction each lane begins with the identity. For real numbers it is enough to begin once: a sum that
            # begins with zero is never -0, and adding zero to anything else changes nothing.
            start = reducer.start(L, dtype)
            for lane in range(lanes if dtype.is_complex else 1):
                lifted[lane] = reducer.merge(L, start, lifted[lane])
        joined = lifted[:lanes]
        for position, element in enumerate(lifted[lanes:]):
            joined[position % lanes] = reducer.merge(L, joined[position % lanes], element)
        while len(joined) > 1:
            half = 1 << (len(joined) - 1).bit_length() - 1
            for lane, other in enumerate(joined[half:]):
                joined[lane] = reducer.merge(L, joined[lane], other)
            joined = joined[:half]
        return reducer.finish(L, joined[0], self.value_dtype(dtype))


class ChunkTotals(Primitive):
    """Elements along ``axis`` merged in chunks of ``size``; the last chunk may have fewer.

    A node is the accumulator ``part`` of each chunk, which is not rounded. ``reverse`` is the direction of an ordered
    scan.
    """

    parameters = ("axis", "size", "part", "reverse")

    def __init__(self, name: str, reducer: Reducer) -> None:
        self.name = f"{name}_totals"
        self.reducer = reducer

    def axis(self, node: Node) -> int:
        """The axis that is folded."""
        return int(node.params[0])

    def chunk_size(self, node: Node) -> int:
        """How many elements a chunk has."""
        return int(node.params[1])

    def manner(self, node: Node) -> dict[str, Any]:
        """What is computed, and in which direction, for generated code."""
        return {"part": node.params[2], "reverse": node.params[3]}


class Folding(Primitive):
    """Elements along axes, the first parameter, folded into one by a `Reducer`. The result lacks these axes."""

    parameters: tuple[str, ...] = ("axes",)
    reducer: Reducer

    def manner(self, node: Node) -> dict[str, Any]:
        """The parameters that generated code needs."""
        return {}


class JoinedTotals(Folding):
    """Totals of chunks folded into one. The inputs are the accumulators of a reduction of dtype ``of``."""

    parameters = ("axes", "of")

    def __init__(self, name: str, reducer: Reducer) -> None:
        self.name = f"{name}_joined"
        lift = lambda L, *parts: parts[:-1]  # noqa: E731  # the last argument is the index
        self.reducer = Reducer(reducer.identity, lift, reducer.merge, reducer.finish, regroups=reducer.regroups)

    def manner(self, node: Node) -> dict[str, Any]:
        return {"of": node.params[1]}
