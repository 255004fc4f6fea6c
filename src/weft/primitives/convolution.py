"""Convolutions: sums of products of the elements in windows of an array with weights.

They are planned as matrix products, of which one operand is a view that shows the windows. Their derivatives are
convolutions too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, derived, named
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array
from weft.primitives.batching import move_axis
from weft.primitives.convolution_products import convolved, weights_of
from weft.primitives.convolution_windows import Geometry, spread
from weft.primitives.products import Bilinear
from weft.primitives.untrusted import LARGEST, check_inputs, check_number, check_numbers, require

__all__ = ["convolution", "convolution_weights"]

HALVES = (dtypes.float16, dtypes.bfloat16)


class Convolution(Bilinear):
    """``(N, ..., C)`` and weights ``(O, ..., C / groups)`` give ``(N, ..., O)``: each element is the sum of products
    with the weights over a window and the channels of a group."""

    name = "convolution"
    parameters = Geometry._fields
    transposes = (
        lambda ct, x, w, **params: _for_array(ct, x, w, Geometry(**params)),
        lambda ct, x, w, **params: convolution_weights(ct, x, sizes=w.node.shape[1:-1], **params),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, w = inputs
        geometry = Geometry(**params)
        fits = x.ndim == w.ndim >= 2 and x.dtype is w.dtype and agree(w.shape[0] % geometry.groups, 0)
        if not fits or not agree(x.shape[-1], w.shape[-1] * geometry.groups):
            raise ValueError(
                f"convolution: {describe(x.shape, x.dtype)} and {describe(w.shape, w.dtype)} do not fit together in "
                f"{geometry.groups} groups"
            )
        return (x.shape[0], *geometry.results(x.shape[1:-1], w.shape[1:-1]), w.shape[0]), x.dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 2)
        _check_geometry(inputs[0], Geometry(**params))

    def expanded(self, node: Node) -> Node | None:
        """Products of a view that shows the windows, or sums over windows. Half precision is computed in float32 and
        rounded once."""
        x, w = widened(node)
        return rounded(convolved(x, w, Geometry(*node.params), node.shape[1:-1]), node)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        """Mapped examples become rows of one convolution; mapped weights become further outputs; if both are mapped,
        groups."""
        (x, w), (x_axis, w_axis) = inputs, axes
        if w_axis is None:
            assert x_axis is not None
            moved = move_axis(x, x_axis, 0)
            size, count, *rest = moved.node.shape
            out = self(p.reshape(moved, shape=(size * count, *rest)), w, **params)
            return p.reshape(out, shape=(size, count, *out.node.shape[1:])), 0
        groups = params["groups"]
        moved = move_axis(w, w_axis, 0)
        size, outputs, *rest = moved.node.shape
        if x_axis is None:
            apart = p.reshape(moved, shape=(size, groups, outputs // groups, *rest))
            every = p.reshape(move_axis(apart, 1, 0), shape=(size * outputs, *rest))
            out = self(x, every, **params)
            shape = out.node.shape[:-1]
            by_group = p.reshape(out, shape=(*shape, groups, size, outputs // groups))
            together = move_axis(by_group, len(shape) + 1, 0)
            return p.reshape(together, shape=(size, *shape, outputs)), 0
        every = p.reshape(moved, shape=(size * outputs, *rest))
        last = move_axis(x, x_axis, x.node.ndim - 2)
        *outer, _, channels = last.node.shape
        x = p.reshape(last, shape=(*outer, size * channels))
        out = self(x, every, **{**params, "groups": groups * size})
        shape = out.node.shape[:-1]
        return move_axis(p.reshape(out, shape=(*shape, size, outputs)), len(shape), 0), 0


convolution = Convolution()


class ConvolutionWeights(Bilinear):
    """The cotangent of a convolution's weights: the result's cotangent ``(N, ..., O)`` and the array ``(N, ..., C)``
    give ``(O, sizes, C / groups)``. Each element is the sum, over windows, of the products of one element of the window
    with the window's cotangent."""

    name = "convolution_weights"
    parameters = ("sizes", *Geometry._fields)
    transposes = (
        lambda v, ct, x, sizes, **params: convolution(x, v, **params),
        lambda v, ct, x, sizes, **params: _for_array(ct, x, v, Geometry(**params)),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        ct, x = inputs
        sizes, geometry = params.pop("sizes"), Geometry(**params)
        fits = ct.ndim == x.ndim == len(sizes) + 2 and ct.dtype is x.dtype and agree(ct.shape[0], x.shape[0])
        channels, outputs = x.shape[-1], ct.shape[-1]
        if not fits or not agree((channels % geometry.groups, outputs % geometry.groups), (0, 0)):
            raise ValueError(
                f"convolution_weights: {describe(ct.shape, ct.dtype)} and {describe(x.shape, x.dtype)} do not fit "
                f"together in {geometry.groups} groups"
            )
        if not agree(ct.shape[1:-1], geometry.results(x.shape[1:-1], sizes)):
            raise ValueError(f"convolution_weights: {describe(ct.shape, ct.dtype)} is no result of such a convolution")
        return (outputs, *sizes, channels // geometry.groups), ct.dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        sizes = params.pop("sizes")
        check_inputs(inputs, 2)
        check_numbers(sizes, inputs[1].ndim - 2, lowest=0)
        _check_geometry(inputs[1], Geometry(**params))

    def expanded(self, node: Node) -> Node | None:
        """Products of a view that shows the windows. Half precision is computed in float32 and rounded once."""
        ct, x = widened(node)
        sizes, *geometry = node.params
        return rounded(weights_of(ct, x, Geometry(*geometry), sizes), node)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        """Mapped examples become further channels or outputs of each group or, if both are mapped, further groups."""
        (ct, x), (ct_axis, x_axis) = inputs, axes
        groups = params["groups"]
        if ct_axis is None:
            assert x_axis is not None
            out = self(ct, _in_groups(x, x_axis, groups), **params)
            *outer, channels = out.node.shape
            size = x.node.shape[x_axis]
            return p.reshape(out, shape=(*outer, size, channels // size)), len(outer)
        size = ct.node.shape[ct_axis]
        if x_axis is None:
            out = self(_in_groups(ct, ct_axis, groups), x, **params)
            outputs, *rest = out.node.shape
            by_group = p.reshape(out, shape=(groups, size, outputs // (groups * size), *rest))
            return p.reshape(move_axis(by_group, 1, 0), shape=(size, outputs // size, *rest)), 0
        out = self(_in_groups(ct, ct_axis, 1), _in_groups(x, x_axis, 1), **{**params, "groups": size * groups})
        outputs, *rest = out.node.shape
        return p.reshape(out, shape=(size, outputs // size, *rest)), 0


convolution_weights: ConvolutionWeights = ConvolutionWeights()


def _in_groups(x: Array, axis: int, groups: int) -> Array:
    """Merge an axis into the channels, as the outer part of each group."""
    moved = move_axis(x, axis, x.node.ndim - 2)
    *outer, size, channels = moved.node.shape
    apart = p.reshape(moved, shape=(*outer, size, groups, channels // groups))
    return p.reshape(move_axis(apart, len(outer), len(outer) + 1), shape=(*outer, size * channels))


def widened(node: Node) -> list[Array]:
    """The inputs, with half precision converted to float32."""
    inputs = [wrap(source) for source in node.inputs]
    return [p.cast(x, dtype=dtypes.float32) for x in inputs] if node.dtype in HALVES else inputs


def rounded(x: Array, node: Node) -> Node:
    """The value computed in place of a node, in the node's dtype."""
    found: Node = (p.cast(x, dtype=node.dtype) if node.dtype in HALVES else x).node
    return found


def _check_geometry(x: Node, geometry: Geometry) -> None:
    rank = x.ndim - 2
    require(x.dtype.is_inexact, "it takes floating and complex numbers")
    require(rank >= 0, "it has less than two axes")
    for numbers in (geometry.strides, geometry.spacings, geometry.dilations):
        check_numbers(numbers, rank, lowest=1)
    for numbers in (geometry.low, geometry.high):
        check_numbers(numbers, rank, lowest=-LARGEST)
    check_number(geometry.groups, lowest=1)
    require(type(geometry.flip) is bool, "flip is True or False")


def _for_array(ct: Array, x: Array, w: Array, geometry: Geometry) -> Array:
    """The cotangent of the array: a convolution with the weights reversed, because each element is in the windows that
    cover it."""
    strides, low, _, spacings, dilations, groups, flip = geometry
    outputs, *sizes, channels = w.node.shape
    before = tuple([derived(spread, n, apart) - 1 - m for n, apart, m in zip(sizes, spacings, low, strict=True)])
    behind = tuple(
        [
            derived(_behind, *axis)
            for axis in zip(
                x.node.shape[1:-1], dilations, sizes, spacings, ct.node.shape[1:-1], strides, before, strict=True
            )
        ]
    )
    apart = p.reshape(w, shape=(groups, outputs // groups, *sizes, channels))
    turned = move_axis(move_axis(apart, apart.node.ndim - 1, 1), 2, apart.node.ndim - 1)
    weights = p.reshape(turned, shape=(groups * channels, *sizes, outputs // groups))
    return convolution(
        ct, weights, **Geometry(dilations, before, behind, spacings, strides, groups, not flip)._asdict()
    )


@named
def _behind(results: int, step: int, size: int, spacing: int, extent: int, dilation: int, low: int) -> int:
    """How many zeros must follow an axis so that it has ``results`` windows."""
    return (results - 1) * step + spread(size, spacing) - spread(extent, dilation) - low
