"""Convolutions in which each channel is a group, as planned on targets that have code of their own for them."""

from __future__ import annotations

from math import prod
from typing import Any

import weft.primitives as p
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, wrap
from weft.primitives.base import Array, Primitive
from weft.primitives.convolution_windows import Geometry, reversed_along
from weft.primitives.routine import Routine
from weft.primitives.untrusted import require

__all__ = ["depthwise", "depthwise_rows"]


class _Depthwise(Primitive):
    """A convolution of ``(N, ..., C)`` without zeros between its elements, of one or two spatial axes."""

    def check(self, *inputs: Node, **params: Any) -> None:
        require(False, "it is made when a graph is planned")


class Depthwise(_Depthwise):
    """An array ``(N, ..., C)`` and weights ``(elements of a window, C)`` give ``(N, counts, C)``: sums over the
    elements of a window, in order, each term added by a fused multiply-add. There are ``low`` zeros before the array,
    and after it as many as windows need."""

    name = "depthwise"
    parameters = ("counts", "sizes", "strides", "low", "spacings")
    routine: Routine = Routine(
        arithmetic=lambda node: 2 * node.size * node.inputs[1].shape[0],
        loops=lambda node: (node.shape, (node.inputs[1].shape[0],)),
        names=("depthwise convolution", "depthwise convolutions"),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, _ = inputs
        return (x.shape[0], *params["counts"], x.shape[-1]), x.dtype


depthwise = Depthwise()


class DepthwiseRows(_Depthwise):
    """Cotangents ``(N, counts, C)`` and an array ``(N, ..., C)`` give ``(N, all counts but the last, elements of a
    window, C)``: for each element of a window, the sum along the last spatial axis of its products with the cotangents.
    It is computed in float64 and rounded."""

    name = "depthwise_rows"
    parameters = ("counts", "sizes", "strides", "low", "spacings")
    routine: Routine = Routine(
        arithmetic=lambda node: 2 * node.inputs[0].size * prod(node.params[1]),
        loops=lambda node: (node.shape, (node.inputs[0].shape[-2],)),
        names=("depthwise convolution", "depthwise convolutions"),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        ct, _ = inputs
        return (*ct.shape[:-2], prod(params["sizes"]), ct.shape[-1]), ct.dtype


depthwise_rows = DepthwiseRows()


def depthwise_of(x: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """The convolution of an array with weights ``(C, sizes, 1)``."""
    channels, *sizes, _ = w.node.shape
    if geometry.flip:
        w = reversed_along(w, range(1, len(sizes) + 1))
    by_tap = p.transpose(p.reshape(w, shape=(channels, prod(sizes))), axes=(1, 0)).node
    weights = wrap(Node(p.stored, (by_tap,), (), by_tap.shape, by_tap.dtype, None))
    strides, low, spacings = geometry.strides, geometry.low, geometry.spacings
    return depthwise(x, weights, counts=counts, sizes=tuple(sizes), strides=strides, low=low, spacings=spacings)


def depthwise_weights_of(ct: Array, x: Array, geometry: Geometry, sizes: Shape) -> Array:
    """The cotangent of the weights ``(C, sizes, 1)`` of `depthwise_of`."""
    strides, low, spacings = geometry.strides, geometry.low, geometry.spacings
    counts, channels = ct.node.shape[1:-1], x.node.shape[-1]
    rows = depthwise_rows(ct, x, counts=counts, sizes=sizes, strides=strides, low=low, spacings=spacings)
    total = p.sum(rows, axes=tuple(range(len(sizes))))
    found = p.reshape(p.transpose(total, axes=(1, 0)), shape=(channels, *sizes, 1))
    return reversed_along(found, range(1, len(sizes) + 1)) if geometry.flip else found
