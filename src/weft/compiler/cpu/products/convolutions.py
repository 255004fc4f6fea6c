"""How convolutions are computed on the CPU: channel by channel if each is a group, else as products of windows of the
array, which is not copied to pad it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from operator import index
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.cpu.products import depthwise
from weft.compiler.cpu.products import parts as product_parts
from weft.compiler.cpu.products.windows import elements as product_elements
from weft.compiler.cpu.products.windows import products as product_windows
from weft.compiler.cpu.products.windows.axes import MOST_FACTORS, block_over_axes
from weft.compiler.cpu.products.windows.in_memory import FEWEST_CHANNELS, MOST_AXES, WindowAxis, window_numbers
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.base import Array
from weft.primitives.convolution import rounded, widened
from weft.primitives.convolution_phases import in_phases, used_phases, weights_in_phases
from weft.primitives.convolution_products import goes_over_columns, has_few_outputs, parts_of, weights_of
from weft.primitives.convolution_windows import Geometry, reversed_along
from weft.primitives.products import leading
from weft.primitives.replacing import replaces
from weft.primitives.routine import Factors, RoutineCall, RoutineStep
from weft.primitives.windowed import windowed, windowed_weights
from weft.runtime.executor import thread_count

from .described import Product, Tiled
from .matmul import are_worth_calls, factors_of, over_axes, step_of
from .step import Block, Sources
from .tiles import DirectReading, Lying

FEWEST_EXAMPLES = 8
"""Windows of so many examples at least are side by side: no panel has more."""
REORDERING = 36
"""Making results in another order, and reading them in it, takes the time of so many multiplications for each."""
_FEWEST_WINDOWS = 32
"""Fewer windows are copied: a product of few rows reads weights where they are."""


@replaces("cpu", p.convolution)
def _convolution(node: Node, machine: Any) -> Sequence[Node] | None:
    found = depthwise.convolution(node)
    return found if found is not None else _of_windows(node)


@replaces("cpu", p.convolution_weights)
def _weights(node: Node, machine: Any) -> Sequence[Node] | None:
    found = depthwise.convolution_weights(node)
    return found if found is not None else _sums_of_windows(node)


def _of_windows(node: Node) -> Sequence[Node] | None:
    """A convolution as products of windows, if there are enough windows and channels of a group."""
    geometry = Geometry(*node.params)
    x, w = widened(node)
    counts = node.shape[1:-1]
    if not _fits(x, w.node.shape[1:], geometry, counts) or not node.size:
        return None
    if all(n == 1 for n in geometry.dilations):
        make = _by_place if _is_often_outside(x, w, geometry, counts) else windowed
        return None if has_few_outputs(w, geometry, counts) else [rounded(make(x, w, geometry, counts), node)]
    if geometry.flip:
        w, geometry = reversed_along(w, range(1, 1 + len(counts))), geometry._replace(flip=False)
    used = used_phases(x, w, geometry, counts)
    if not used or has_few_outputs(w, used[0], counts):
        return None
    return [rounded(in_phases(x, w, geometry, counts, partial(windowed, x)), node)]


def _is_often_outside(x: Array, w: Array, geometry: Geometry, counts: Shape) -> bool:
    """Whether so many elements of windows are outside of the array that skipping them saves more time than another
    order of the results takes."""
    examples, *extents, _ = x.node.shape
    if examples < FEWEST_EXAMPLES or len(counts) >= MOST_AXES:
        return False
    axes = zip(extents, counts, w.node.shape[1:-1], geometry.strides, geometry.spacings, geometry.low, strict=True)
    return worth_skipping(prod(w.node.shape[1:]), tuple(axes))


@as_a_whole
@cache
def worth_skipping(terms: int, axes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether it saves time to skip what is outside, of so many terms for each result; ``axes`` are those of
    `part_inside`."""
    return (1 - prod([part_inside(*axis) for axis in axes])) * terms > REORDERING


def part_inside(extent: int, count: int, size: int, step: int, spacing: int, low: int) -> float:
    """The part of the elements of windows that is inside of an axis."""
    inside = 0
    for element in range(size):
        first = element * spacing - low
        # The windows whose element is inside: those after the ones before the array, and before the ones behind it.
        before, until = max(0, -(first // step)), min(count, -((first - extent) // step))
        inside += max(0, until - before)
    return inside / (count * size)


def _by_place(x: Array, w: Array, geometry: Geometry, counts: Shape) -> Array:
    """The convolution as one along an axis of some examples, too, which is the last one: neighbouring windows are those
    of these examples in one place, so elements outside of the array are so for all of them."""
    examples, *extents, channels = x.node.shape
    together, rank = examples_together(examples), len(counts)
    x = p.reshape(x, shape=(examples // together, together, *extents, channels))
    x = p.transpose(x, axes=(0, *range(2, 2 + rank), 1, 2 + rank))
    outputs, *sizes, of_group = w.node.shape
    w = p.reshape(w, shape=(outputs, *sizes, 1, of_group))
    further = Geometry(
        (*geometry.strides, 1),
        (*geometry.low, 0),
        (*geometry.high, 0),
        (*geometry.spacings, 1),
        (*geometry.dilations, 1),
        geometry.groups,
        geometry.flip,
    )
    found = windowed(x, w, further, (*counts, together))
    found = p.transpose(found, axes=(0, 1 + rank, *range(1, 1 + rank), 2 + rank))
    return p.reshape(found, shape=(examples, *counts, outputs))


@as_a_whole
@cache
def examples_together(examples: int) -> int:
    """How many examples have their windows side by side: a part of all, because the windows of few ones overlap in a
    cache."""
    return next(count for count in range(FEWEST_EXAMPLES, examples + 1) if examples % count == 0)


def _sums_of_windows(node: Node) -> Sequence[Node] | None:
    """The cotangents of weights as sums over windows, under the same conditions."""
    sizes, *numbers = node.params
    geometry = Geometry(*numbers)
    ct, x = widened(node)
    counts, outputs, channels = ct.node.shape[1:-1], ct.node.shape[-1], node.shape[-1]
    if not _fits(x, (*sizes, channels), geometry, counts) or not outputs:
        return None

    def weights(ct: Array, x: Array, one: Geometry, sizes: Shape) -> Array:
        terms = prod(ct.node.shape[:-1])
        in_parts = one.groups == 1 and parts_of(ct.node.shape[0], terms, prod(sizes) * channels * outputs) > 1
        make = weights_of if in_parts or not goes_over_columns(terms, outputs) else windowed_weights
        return make(ct, x, one, sizes)

    if all(n == 1 for n in geometry.dilations):
        return [rounded(weights(ct, x, geometry, sizes), node)]
    if geometry.flip:
        found = weights_in_phases(ct, x, geometry._replace(flip=False), sizes, weights)
        return [rounded(reversed_along(found, range(1, 1 + len(sizes))), node)]
    return [rounded(weights_in_phases(ct, x, geometry, sizes, weights), node)]


def _fits(x: Array, window: Shape, geometry: Geometry, counts: Shape) -> bool:
    """Whether products of windows are worth it, if a ``window`` has these elements and channels of a group. Windows of
    one element that are not apart are rows of a matrix."""
    *sizes, channels = window
    if x.node.dtype not in (dtypes.float32, dtypes.float64) or not 0 < len(sizes) <= MOST_AXES:
        return False
    if channels < FEWEST_CHANNELS or x.node.shape[0] * prod(counts) < _FEWEST_WINDOWS or not prod(sizes):
        return False
    apart = any(n != 1 for n in (*geometry.strides, *geometry.dilations))
    return prod(sizes) > 1 or apart or any(geometry.low) or any(geometry.high)


def _product_of(call: RoutineCall, whole: bool, in_memory: bool) -> Product:
    """The product of windows, or of their elements, with the matrices of all groups."""
    (x, matrices), (out,) = call.operands, call.results
    *batch, inner, columns = matrices.shape
    axes = factors_of(matrices)
    rows, apart = out.shape[-2], out.strides[0] if len(out.shape) > 2 else columns
    groups = [(batch[0], _channels(call), axes[0][0][1], apart)] if batch else []
    stored = (0, 0) if matrices.factors is not None else leading(matrices.shape[-2:], matrices.strides[-2:])
    assert stored is not None
    places = [(operand.slot, operand.offset) for operand in (x, matrices, out)]
    extents, storage = (rows, columns, inner), ((0, 0), stored)
    alone = ((1, 0),)
    of_columns = (alone, alone, axes[-2], axes[-1])
    sources = Sources(x.dtype, x.dtype)
    return Product(x.dtype, sources, places, extents, storage, groups, call.attached, whole, in_memory, of_columns)


def _channels(call: RoutineCall) -> int:
    """How many channels a group has."""
    x, matrices = call.operands
    found: int = x.shape[-1] // prod(matrices.shape[:-2])
    return found


CodeOf = Callable[[RoutineCall, Block], int]
"""Returns the address of the code for a call in a kind of block."""


def _code_for_windows(call: RoutineCall, block: Block) -> int:
    return product_windows.address(block, _edge(call, block))


def _code_for_sums(call: RoutineCall, block: Block) -> int:
    return product_elements.address(block, _edge(call, block), _channels(call) % block.rows == 0)


def _edge(call: RoutineCall, block: Block) -> int:
    """How many vectors of columns are left over beside blocks."""
    return index(-(-(call.operands[1].shape[-1] % block.columns) // block.lanes))


def _tiled(call: RoutineCall, product: Product, code: CodeOf) -> Tiled | None:
    x, params = call.operands[0], call.params
    rank = len(x.shape) - 2
    fields = [params["counts"], x.shape[1:-1], *[params[name] for name in ("sizes", "strides", "spacings", "low")]]
    axes = [WindowAxis(*[field[axis] for field in (*fields, x.strides[1:-1])]) for axis in range(rank)]
    numbers = window_numbers(call.results[0].shape[-1], _channels(call), x.strides[0], _skips(axes), axes)
    assert product.axes is not None
    return over_axes(product, product.axes, partial(code, call), numbers)


def _skips(axes: Sequence[WindowAxis]) -> bool:
    """Whether neighbouring windows are in the same place along all axes but one: see `_by_place`."""
    return axes[-1].size == 1 and axes[-1].counts >= FEWEST_EXAMPLES


def _parts_of(product: Product) -> int:
    """In how many parts sums over windows are computed."""
    if not product_parts.are_contiguous(product):
        return 1
    return _parts_for(product.dtype, product.extents, product.matrices)


def _parts_for(dtype: Dtype, extents: tuple[int, int, int], matrices: int) -> int:
    lying = Lying(True, DirectReading.NOWHERE)
    return product_parts.count_of(block_over_axes(dtype, *extents[:2]), extents, matrices, thread_count(), lying)


def _scratch_for_parts(node: Node) -> int:
    *batch, rows, columns = node.shape
    parts = _parts_for(node.dtype, (rows, columns, node.inputs[1].shape[-2]), prod(batch))
    return parts * node.size * node.dtype.size if parts > 1 else 0


def _attaches(call: RoutineCall, whole: bool, in_memory: bool, code: CodeOf) -> bool:
    """Whether a kernel can be attached: it must not need whole rows if these are of several groups, nor a single
    column."""
    product = _product_of(call, whole, in_memory)
    if product.extents[1] == 1 or (whole and product.matrices > 1):
        return False
    tiled = _tiled(call, product, code)
    return tiled is not None and are_worth_calls(product, tiled, whole)


def _attaches_to_sums(call: RoutineCall, whole: bool, in_memory: bool) -> bool:
    """The same for sums over windows, which must not be computed in parts."""
    return _parts_of(_product_of(call, whole, in_memory)) == 1 and _attaches(call, whole, in_memory, _code_for_sums)


def _reads(node: Node, position: int, factors: Factors) -> bool:
    """Whether the matrices can be read if their terms or columns go over several axes in memory: columns must be
    neighbours along the innermost one."""
    *batch, terms, columns = factors
    if position == 0 or any(len(axis) > 1 for axis in batch) or max(len(terms), len(columns)) > MOST_FACTORS:
        return False
    return columns[-1][1] == 1 or columns[-1][0] == 1


@p.windowed_matmul.routine.on("cpu", attaches=partial(_attaches, code=_code_for_windows), reads=_reads)
def _step(call: RoutineCall) -> RoutineStep:
    """The step for products of windows."""
    return _step_of(call, _product_for(call), _code_for_windows)


@p.windowed_sums.routine.on("cpu", scratch=_scratch_for_parts, attaches=_attaches_to_sums, reads=_reads)
def _steps_of_sums(call: RoutineCall) -> list[RoutineStep]:
    """The step for sums over windows; or one for the sums of parts, and one that adds these up."""
    product = _product_for(call)
    parts = _parts_of(product)
    if parts == 1:
        return [_step_of(call, product, _code_for_sums)]
    apart = product_parts.in_parts(product, parts, call.scratch)
    return [_step_of(call, apart, _code_for_sums), product_parts.adding(product, parts, call.scratch)]


def _product_for(call: RoutineCall) -> Product:
    """The product for a step, with the kernel that is attached to it."""
    attached = call.attached
    return _product_of(call, attached is not None and attached.whole, attached is None or attached.in_memory)


def _step_of(call: RoutineCall, product: Product, code: CodeOf) -> RoutineStep:
    """A step that computes its result in tiles, which threads share."""
    tiled = _tiled(call, product, code)
    assert tiled is not None
    return step_of(product, tiled)
