"""Products of windows with matrices, as convolutions are planned on targets that have code of their own for them."""

from __future__ import annotations

from math import prod
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.base import Array, Primitive
from weft.primitives.convolution_products import by_group, weights_from_columns
from weft.primitives.convolution_windows import Geometry, reversed_along
from weft.primitives.products import MOST_BATCH_AXES, leading, matrix_transpose
from weft.primitives.routine import Routine
from weft.primitives.untrusted import require

__all__ = ["windowed_matmul", "windowed_sums"]


def _accepts(node: Node, position: int, strides: Shape) -> bool:
    """Whether the channels of an array are neighbours, or matrices are stored by rows or by columns."""
    shape = node.inputs[position].shape
    if position == 0:
        return strides[-1] == 1 or shape[-1] == 1
    return leading(shape[-2:], strides[-2:]) is not None and len(shape) - 2 <= MOST_BATCH_AXES


def _routine() -> Routine:
    return Routine(
        accepts=_accepts,
        arithmetic=lambda node: 2 * node.size * node.inputs[1].shape[-2],
        loops=lambda node: (node.shape, (node.inputs[1].shape[-2],)),
        names=("convolution", "convolutions"),
    )


class _OfWindows(Primitive):
    """An operation on the windows of an array and on a matrix, or one for each group of channels."""

    parameters = ("counts", "sizes", "strides", "low", "spacings")

    def check(self, *inputs: Node, **params: Any) -> None:
        require(False, "it is made when a graph is planned")


class WindowedMatmul(_OfWindows):
    """The windows of an array ``(N, ..., C)`` times a matrix ``(elements of a window times C, O)`` give a matrix
    ``(N times counts, O)``. If there are several matrices ``(groups, elements times C / groups, O / groups)``, each is
    for a group of the channels, and for the columns in the same place. There are ``low`` zeros before the array, and
    after it as many as windows need."""

    name = "windowed_matmul"
    routine: Routine = _routine()

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, matrices = inputs
        return (x.shape[0] * prod(params["counts"]), prod(matrices.shape[:-2]) * matrices.shape[-1]), x.dtype


windowed_matmul = WindowedMatmul()


class WindowedSums(_OfWindows):
    """An array ``(N, ..., C)`` and a matrix ``(N times counts, O)`` give ``(elements of a window times C, O)``: sums,
    over all windows, of products of the numbers of a window with a row of the matrix. If there are several matrices
    ``(groups, N times counts, O / groups)``, each is for a group of the channels. There are ``low`` zeros before the
    array, and after it as many as windows need."""

    name = "windowed_sums"
    routine: Routine = _routine()

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, matrices = inputs
        groups = matrices.shape[:-2]
        return (*groups, prod(params["sizes"]) * x.shape[-1] // prod(groups), matrices.shape[-1]), x.dtype


windowed_sums = WindowedSums()


def windowed(x: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """The convolution of an array, without zeros between its elements, with weights ``(O, sizes, C / groups)``."""
    outputs, *rest = w.node.shape
    rank, groups = len(counts), geometry.groups
    if geometry.flip:
        w = reversed_along(w, range(1, rank + 1))
    batch = (groups,) if groups > 1 else ()
    matrices = matrix_transpose(p.reshape(w, shape=(*batch, outputs // groups, prod(rest))))
    strides, low, spacings = geometry.strides, geometry.low, geometry.spacings
    sizes = tuple(rest[:-1])
    found = windowed_matmul(x, matrices, counts=counts, sizes=sizes, strides=strides, low=low, spacings=spacings)
    return p.reshape(found, shape=(x.node.shape[0], *counts, outputs))


def windowed_weights(ct: Array, x: Array, geometry: Geometry, sizes: Shape) -> Array:
    """The cotangents of weights ``(O, sizes, C / groups)`` of a convolution of an array without zeros between its
    elements, with the cotangents ``(N, counts, O)`` of its result."""
    counts, outputs = ct.node.shape[1:-1], ct.node.shape[-1]
    groups, channels = geometry.groups, x.node.shape[-1] // geometry.groups
    batch = (groups,) if groups > 1 else ()
    rows = p.reshape(by_group(ct, groups), shape=(*batch, prod(ct.node.shape[:-1]), outputs // groups))
    strides, low, spacings = geometry.strides, geometry.low, geometry.spacings
    found = windowed_sums(x, rows, counts=counts, sizes=sizes, strides=strides, low=low, spacings=spacings)
    ordered = weights_from_columns(found, groups, sizes, channels)
    return reversed_along(ordered, range(1, 1 + len(sizes))) if geometry.flip else ordered
