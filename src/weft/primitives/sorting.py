"""Sorting: the elements of rows (of the last axis) in order, or the indices that put them in order.

The order is stable, -0 and 0 are equal, NaN is behind all numbers, and complex numbers are ordered by real, then by
imaginary part. A result is the part of the sorted row from ``start`` on with ``count`` elements.
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
from weft.primitives.sort_cuts import Cut, word_bytes
from weft.primitives.untrusted import check_inputs, check_number

__all__ = ["LARGEST_INDEX", "argsort", "put_in_rows", "sort", "take_from_rows"]

LARGEST_INDEX = (1 << 32) - 1


def cut_of(x: Node, indices: bool) -> Cut:
    """How the rows of ``x`` are sorted."""
    return Cut(product(x.shape[:-1]), x.shape[-1], word_bytes(x.dtype, indices))


def _comparisons(node: Node) -> int:
    source = node.inputs[0]
    return source.size * max(math.ceil(math.log2(max(source.shape[-1], 1))), 1)


class Sorting(Primitive):
    """``count`` elements from ``start`` on of sorted rows, or, with ``indices``, where in the row they are."""

    parameters = ("start", "count")
    routine: Routine

    def __init__(self, name: str, indices: bool) -> None:
        self.name = name
        self.indices = indices
        self.routine = Routine(
            scratch=lambda node: cut_of(node.inputs[0], indices).scratch,
            arithmetic=_comparisons,
            loops=lambda node: (node.inputs[0].shape[:-1], node.inputs[0].shape[-1:]),
            names=("sort", "sorts"),
        )

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 1)
        check_number(params["start"])
        check_number(params["count"])

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, start, count = inputs[0], params["start"], params["count"]
        last, end = value_of(x.shape[-1]), value_of(start + count)
        if not 0 <= value_of(start) <= end <= last:
            raise ValueError(f"[{self.name}] There are no elements {start} to {end} in rows of {last} elements.")
        if last > LARGEST_INDEX:
            raise ValueError(f"[{self.name}] A row has at most {LARGEST_INDEX} elements, not {last}.")
        return (*x.shape[:-1], count), dtypes.uint32 if self.indices else x.dtype

    def places(self, x: Array, **params: Any) -> Array:
        """Where in its row of ``x`` each element of the result was."""
        return argsort(x, **params)

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        t = tangents[0]
        if t is None or self.indices:
            return None
        return take_from_rows(t, self.places(inputs[0], **params))

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        x = inputs[0]
        if self.indices or not wanted[0]:
            return [None]
        return [put_in_rows(p.zeros_like(x), self.places(x, **params), cotangent)]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        axis = axes[0]
        assert axis is not None
        return self(move_axis(inputs[0], axis, 0), **params), 0


def _indices_of_axes(indices: Array) -> list[Array]:
    """``indices`` along the last axis, the element's own along the others."""
    shape = indices.node.shape
    last = len(shape) - 1
    return [*[p.iota(shape=shape, axis=axis, dtype=dtypes.uint32) for axis in range(last)], indices]


def take_from_rows(x: Array, indices: Array) -> Array:
    """The elements of each row of ``x`` at the indices in the row of ``indices``."""
    rank = x.node.ndim
    taken = p.gather(x, *_indices_of_axes(indices), axes=tuple(range(rank)), slice_sizes=(1,) * rank)
    return p.squeeze(taken, axes=tuple(range(rank, 2 * rank)))


def put_in_rows(x: Array, indices: Array, values: Array, mode: str = "set") -> Array:
    """``x`` with ``values`` at the indices of each row."""
    rank = x.node.ndim
    values = p.expand(values, axes=tuple(range(rank, 2 * rank)))
    return p.scatter(x, *_indices_of_axes(indices), values, axes=tuple(range(rank)), mode=mode)


sort: Sorting = Sorting("sort", indices=False)
argsort: Sorting = Sorting("argsort", indices=True)
