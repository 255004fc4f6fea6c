"""Binary search in sorted rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, value_of
from weft.graph.node import Node, Shape, describe
from weft.primitives.base import Array, Primitive, Tangent
from weft.primitives.batching import batch_size, move_axis, with_batch
from weft.primitives.routine import Routine

__all__ = ["searchsorted"]


def _steps(node: Node) -> int:
    return node.size * max(node.inputs[0].shape[-1].bit_length(), 1)


class SearchSorted(Primitive):
    """How many elements of a sorted row come before a value, in the order of `sort`; with ``right``, also those that
    are equal to it.

    Rows are the last axis of the first input, whose other axes are the first axes of the values.
    """

    name = "searchsorted"
    parameters = ("right",)
    routine: Routine = Routine(arithmetic=_steps, names=("binary search", "binary searches"))

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        rows, values = inputs
        fits = rows.ndim and agree(rows.shape[:-1], values.shape[: rows.ndim - 1]) and rows.dtype is values.dtype
        if not fits:
            raise ValueError(
                f"[searchsorted] {describe(rows.shape, rows.dtype)} and {describe(values.shape, values.dtype)} do not "
                "fit together."
            )
        if value_of(rows.shape[-1]) > p.LARGEST_INDEX:
            raise ValueError(f"[searchsorted] A row has at most {p.LARGEST_INDEX} elements, not {rows.shape[-1]}.")
        return values.shape, dtypes.uint32

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        return None

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [None, None]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        (rows, values), (rows_axis, values_axis) = inputs, axes
        if rows_axis is None:
            assert values_axis is not None
            last = values.node.ndim - 1
            return self(rows, move_axis(values, values_axis, last), **params), last
        size = batch_size(inputs, axes)
        return self(move_axis(rows, rows_axis, 0), with_batch(values, values_axis, 0, size), **params), 0


searchsorted = SearchSorted()
