"""Sorting and partitioning: the elements of rows (of the last axis) in order, or the indices that put them in order.

The order is stable, -0 equals 0, NaN comes after all numbers, and complex numbers are ordered by real, then by
imaginary part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import product, value_of
from weft.graph.node import Node, Shape
from weft.primitives.base import Array, Primitive, Tangent
from weft.primitives.batching import move_axis
from weft.primitives.routine import Routine
from weft.primitives.sort_cuts import PartedCut, SortCut, counts_bytes, word_bytes
from weft.primitives.untrusted import check_inputs, check_number

__all__ = [
    "LARGEST_INDEX",
    "argpartition",
    "argsort",
    "marked_first",
    "partition",
    "put_in_rows",
    "sort",
    "take_from_rows",
]

LARGEST_INDEX = (1 << 32) - 1


def cut_of(x: Node, indices: bool) -> SortCut:
    """How the rows of ``x`` are sorted."""
    return SortCut(*_rows_of(x), word_bytes(x.dtype, indices))


def parted_cut_of(x: Node) -> PartedCut:
    """How the rows of ``x`` are partitioned."""
    return PartedCut(*_rows_of(x), x.dtype.size)


def _rows_of(x: Node) -> tuple[int, int]:
    """The number of rows, and their extent."""
    return product(x.shape[:-1]), x.shape[-1]


def _loops(node: Node) -> tuple[Shape, Shape]:
    shape = node.inputs[0].shape
    return shape[:-1], shape[-1:]


def _comparisons(node: Node) -> int:
    source = node.inputs[0]
    return source.size * max(math.ceil(math.log2(max(source.shape[-1], 1))), 1)


class Ordering(Primitive):
    """Elements of rows in another order, all or some of them; or, with ``indices``, their positions in the row."""

    routine: Routine

    def __init__(self, name: str, indices: bool, routine: Routine) -> None:
        self.name, self.indices, self.routine = name, indices, routine

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 1)
        for name in self.parameters:
            check_number(params[name])

    def result(self, x: Node, count: int) -> tuple[Shape, Dtype]:
        """The shape and dtype of ``count`` elements of each row."""
        if value_of(x.shape[-1]) > LARGEST_INDEX:
            raise ValueError(f"[{self.name}] A row has at most {LARGEST_INDEX} elements, not {x.shape[-1]}.")
        return (*x.shape[:-1], count), dtypes.uint32 if self.indices else x.dtype

    def indices_of(self, x: Array, **params: Any) -> Array:
        """The position in its row of ``x`` of each element of the result."""
        raise NotImplementedError

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        t = tangents[0]
        if t is None or self.indices:
            return None
        return take_from_rows(t, self.indices_of(inputs[0], **params))

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        x = inputs[0]
        if self.indices or not wanted[0]:
            return [None]
        return [put_in_rows(p.zeros_like(x), self.indices_of(x, **params), cotangent)]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        axis = axes[0]
        assert axis is not None
        return self(move_axis(inputs[0], axis, 0), **params), 0


class Sorting(Ordering):
    """The ``count`` elements from ``start`` on of each sorted row."""

    parameters = ("start", "count")

    def __init__(self, name: str, indices: bool) -> None:
        routine = Routine(
            scratch=lambda node: cut_of(node.inputs[0], indices).scratch,
            arithmetic=_comparisons,
            loops=_loops,
            names=("sort", "sorts"),
        )
        super().__init__(name, indices, routine)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, start, count = inputs[0], params["start"], params["count"]
        last, end = value_of(x.shape[-1]), value_of(start + count)
        if not 0 <= value_of(start) <= end <= last:
            raise ValueError(f"[{self.name}] There are no elements {start} to {end} in rows of {last} elements.")
        return self.result(x, count)

    def indices_of(self, x: Array, **params: Any) -> Array:
        return argsort(x, **params)


class Partition(Ordering):
    """Rows partitioned at the element that sorting would put at index ``kth``.

    The order of the elements is part of the definition, so that every target gives the same: first the smaller ones,
    then the equal ones, then the larger ones, each in their original order. Rows for which `PartedCut.is_sorted` is
    true are sorted.
    """

    parameters = ("kth",)

    def __init__(self, name: str, indices: bool) -> None:
        routine = Routine(
            scratch=lambda node: parted_cut_of(node.inputs[0]).scratch(word_bytes(node.inputs[0].dtype, indices)),
            loops=_loops,
            names=("partition", "partitions"),
        )
        super().__init__(name, indices, routine)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, kth = inputs[0], params["kth"]
        last = value_of(x.shape[-1])
        if not 0 <= value_of(kth) < last:
            raise ValueError(f"[{self.name}] There is no element {kth} in rows of {last} elements.")
        return self.result(x, x.shape[-1])

    def indices_of(self, x: Array, **params: Any) -> Array:
        return argpartition(x, **params)


class MarkedFirst(Ordering):
    """The indices of the elements of rows of booleans that are true, in order, and then of those that are false."""

    def __init__(self) -> None:
        routine = Routine(
            scratch=lambda node: counts_bytes(*_rows_of(node.inputs[0])),
            loops=_loops,
            names=("partition", "partitions"),
        )
        super().__init__("marked_first", True, routine)

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        if inputs[0].dtype is not dtypes.bool_:
            raise ValueError(f"[{self.name}] Marks are booleans, not {inputs[0].dtype.name}.")
        return self.result(inputs[0], inputs[0].shape[-1])


def _indices_of_axes(indices: Array) -> list[Array]:
    """``indices`` along the last axis, and along the other axes each element's own index."""
    shape = indices.node.shape
    last = len(shape) - 1
    return [*[p.iota(shape=shape, axis=axis, dtype=dtypes.uint32) for axis in range(last)], indices]


def take_from_rows(x: Array, indices: Array) -> Array:
    """The elements of each row of ``x`` at the indices in the row of ``indices``."""
    rank = x.node.ndim
    taken = p.gather(x, *_indices_of_axes(indices), axes=tuple(range(rank)), slice_sizes=(1,) * rank)
    return p.squeeze(taken, axes=tuple(range(rank, 2 * rank)))


def put_in_rows(x: Array, indices: Array, values: Array) -> Array:
    """``x`` with ``values`` at the indices of each row."""
    rank = x.node.ndim
    values = p.expand(values, axes=tuple(range(rank, 2 * rank)))
    return p.scatter(x, *_indices_of_axes(indices), values, axes=tuple(range(rank)), mode="set")


sort: Sorting = Sorting("sort", indices=False)
argsort: Sorting = Sorting("argsort", indices=True)
partition: Partition = Partition("partition", indices=False)
argpartition: Partition = Partition("argpartition", indices=True)
marked_first: MarkedFirst = MarkedFirst()
