"""How convolutions are computed on the CPU: channel by channel if each is a group, else as products of windows of the
array, which is not copied to pad it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.cpu import depthwise, product_windows
from weft.compiler.cpu.matmul import Product, Tiled, are_worth_calls, factors_of, over_axes, step_of
from weft.compiler.cpu.product_axes import MOST_FACTORS
from weft.compiler.cpu.product_step import Sources
from weft.compiler.cpu.product_windows import FEWEST_CHANNELS, MOST_AXES, WindowAxis, window_numbers
from weft.graph.node import Node, Shape
from weft.primitives.base import Array
from weft.primitives.convolution import rounded, widened
from weft.primitives.convolution_products import Geometry, has_few_outputs, in_phases, reversed_along, used_phases
from weft.primitives.products import leading
from weft.primitives.replacing import replaces
from weft.primitives.routine import Factors, RoutineCall, RoutineStep
from weft.primitives.windowed import windowed

_FEWEST_WINDOWS = 32
"""Fewer windows are copied: a product of few rows reads weights where they are."""


@replaces("cpu", p.convolution)
def _convolution(node: Node, machine: Any) -> Sequence[Node] | None:
    found = depthwise.convolution(node)
    return found if found is not None else _of_windows(node)


@replaces("cpu", p.convolution_weights)
def _weights(node: Node, machine: Any) -> Sequence[Node] | None:
    return depthwise.convolution_weights(node)


def _of_windows(node: Node) -> Sequence[Node] | None:
    """A convolution as products of windows, if there are enough windows and channels of a group."""
    geometry = Geometry(*node.params)
    x, w = widened(node)
    counts = node.shape[1:-1]
    if not _fits(x, w, geometry, counts):
        return None
    if all(n == 1 for n in geometry.dilations):
        return None if has_few_outputs(w, geometry, counts) else [rounded(windowed(x, w, geometry, counts), node)]
    if geometry.flip:
        w, geometry = reversed_along(w, range(1, 1 + len(counts))), geometry._replace(flip=False)
    used = used_phases(x, w, geometry, counts)
    if not used or has_few_outputs(w, used[0], counts):
        return None
    return [rounded(in_phases(x, w, geometry, counts, partial(windowed, x)), node)]


def _fits(x: Array, w: Array, geometry: Geometry, counts: Shape) -> bool:
    """Whether products of windows are worth it. Windows of one element that are not apart are rows of a matrix."""
    sizes, channels = w.node.shape[1:-1], w.node.shape[-1]
    if x.node.dtype not in (dtypes.float32, dtypes.float64) or not 0 < len(sizes) <= MOST_AXES:
        return False
    if channels < FEWEST_CHANNELS or x.node.shape[0] * prod(counts) < _FEWEST_WINDOWS or not prod(sizes):
        return False
    apart = any(n != 1 for n in (*geometry.strides, *geometry.dilations))
    return prod(sizes) > 1 or apart or any(geometry.low) or any(geometry.high)


def _product_of(call: RoutineCall, whole: bool, in_memory: bool) -> Product:
    """The product of windows with the matrices of all groups."""
    (x, matrices), (out,) = call.operands, call.results
    *batch, inner, columns = matrices.shape
    axes = factors_of(matrices)
    channels = inner // prod(call.params["sizes"])
    groups = [(batch[0], channels, axes[0][0][1], columns)] if batch else []
    stored = (0, 0) if matrices.factors is not None else leading(matrices.shape[-2:], matrices.strides[-2:])
    assert stored is not None
    places = [(operand.slot, operand.offset) for operand in (x, matrices, out)]
    extents, storage = (out.shape[0], columns, inner), ((0, 0), stored)
    alone = ((1, 0),)
    of_columns = (alone, alone, axes[-2], axes[-1])
    sources = Sources(x.dtype, x.dtype)
    return Product(x.dtype, sources, places, extents, storage, groups, call.attached, whole, in_memory, of_columns)


def _tiled(call: RoutineCall, product: Product) -> Tiled | None:
    x, params = call.operands[0], call.params
    rank = len(x.shape) - 2
    fields = [params["counts"], x.shape[1:-1], *[params[name] for name in ("sizes", "strides", "spacings", "low")]]
    axes = [WindowAxis(*[field[axis] for field in (*fields, x.strides[1:-1])]) for axis in range(rank)]
    channels = product.extents[2] // prod(params["sizes"])
    numbers = window_numbers(call.results[0].shape[-1], channels, x.strides[0], axes)
    assert product.axes is not None
    return over_axes(product, product.axes, product_windows.address, numbers)


def _attaches(call: RoutineCall, whole: bool, in_memory: bool) -> bool:
    """Whether a kernel can be attached: it must not need whole rows if these are of several groups, nor a single
    column."""
    product = _product_of(call, whole, in_memory)
    if product.extents[1] == 1 or (whole and product.matrices > 1):
        return False
    tiled = _tiled(call, product)
    return tiled is not None and are_worth_calls(product, tiled, whole)


def _reads(node: Node, position: int, factors: Factors) -> bool:
    """Whether the matrices can be read if their terms or columns go over several axes in memory: columns must be
    neighbours along the innermost one."""
    *batch, terms, columns = factors
    if position == 0 or any(len(axis) > 1 for axis in batch) or max(len(terms), len(columns)) > MOST_FACTORS:
        return False
    return columns[-1][1] == 1 or columns[-1][0] == 1


@p.windowed_matmul.routine.on("cpu", attaches=_attaches, reads=_reads)
def _step(call: RoutineCall) -> RoutineStep:
    """The step for products of windows, computed in tiles that threads share."""
    attached = call.attached
    in_memory = attached is None or attached.in_memory
    product = _product_of(call, attached is not None and attached.whole, in_memory)
    tiled = _tiled(call, product)
    assert tiled is not None
    return step_of(product, tiled)
