"""Scattering at indices that may repeat: updates are sorted by where they go, and threads have rows of their own.

Updates of one location happen in their order, as everywhere, because sorting keeps the order of equal indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import RoutineCode
from weft.dtypes import Dtype
from weft.graph.node import Node, wrap
from weft.primitives.replacing import replaces
from weft.primitives.routine import RoutineCall, RoutineStep

THREADS = 256

FEWEST_UPDATES = 128
"""Fewer updates are done one after the other in less time than it takes to sort them."""

BYTES_PER_UPDATE = 1 << 18
"""Of an array that is copied, in the time that one update takes."""

TOGETHER = 8
"""Updates that a thread reads before it joins them."""

# The numbers of a step: slot and offset of operands and result, and these.
ROWS, UPDATES, ORDER, STARTS, TARGET = 0, 2, 4, 6, 8
UNITS, WIDTH, ELEMENTS, ROW_STRIDE, STRIDE = 10, 11, 12, 13, 14


@replaces("cuda", p.scatter)
def _by_rows(node: Node, machine: Any) -> Sequence[Node] | None:
    x, *indices, updates = node.inputs
    axes, mode, outside = node.params
    if not _pays(x, indices, updates, axes):
        return None
    sizes, count = x.shape[: len(axes)], indices[0].size
    rows, width = prod(sizes), prod(x.shape[len(axes) :])
    numbers = p.row_numbers(*[wrap(index) for index in indices], sizes=sizes, outside=outside)
    number = p.reshape(numbers, shape=(count,))
    order = p.argsort(number, start=0, count=count)
    found = p.gather(number, order, axes=(0,), slice_sizes=(1,), outside="nearest")
    every = p.iota(shape=(rows + 1,), axis=0, dtype=dtypes.uint32)
    starts = p.searchsorted(p.reshape(found, shape=(count,)), every, right=False)
    given = [p.reshape(wrap(part), shape=shape) for part, shape in ((x, (rows, width)), (updates, (count, width)))]
    return [p.reshape(p.row_updates(*given, order, starts, mode=mode), shape=x.shape).node]


def _pays(x: Node, indices: Sequence[Node], updates: Node, axes: Sequence[int]) -> bool:
    """Whether the updates are whole rows, and so many that it pays to sort them."""
    count, slices = indices[0].size, updates.shape[indices[0].ndim :]
    whole = (*[1] * len(axes), *x.shape[len(axes) :])
    if tuple(axes) != tuple(range(len(axes))) or slices != whole or x.dtype.is_complex or not x.size:
        return False
    if any(_counts(index) for index in indices) or max(count, prod(x.shape[: len(axes)])) >= p.LARGEST_INDEX:
        return False
    return count >= FEWEST_UPDATES + x.size * x.dtype.size // BYTES_PER_UPDATE


def _counts(index: Node) -> bool:
    """Whether an index counts along an axis: then a kernel does its updates side by side."""
    while index.primitive is not None and p.is_view(index):
        index = index.inputs[0]
    return index.primitive is p.iota


@p.row_updates.routine.on("cuda")
def _step(call: RoutineCall) -> RoutineStep:
    x, updates, _, _ = call.operands
    (out,) = call.results
    width, elements = x.shape[1], prod(x.shape)
    units = -(-elements // THREADS)
    numbers = [number for operand in (*call.operands, out) for number in (operand.slot, operand.offset)]
    numbers += [units, width, elements, *x.strides]
    return RoutineStep(_code(x.dtype, call.params["mode"]), numbers, units, 1, elements + prod(updates.shape))


@cache
def _code(dtype: Dtype, mode: str) -> RoutineCode:
    source = f"rows of {dtype.name} updated ({mode})"
    return RoutineCode(source, lambda name: generate(dtype, mode, name), THREADS, f"scatter ({mode})")


def generate(dtype: Dtype, mode: str, name: str) -> str:
    """The LLVM IR of the kernel: a unit are as many elements as there are threads."""
    code = BlockCode(THREADS)
    e, L = code.e, MathLanes(code.e, 1)
    width, elements, row_stride, stride = (code.number(place) for place in (WIDTH, ELEMENTS, ROW_STRIDE, STRIDE))
    rows, updates, order, starts, target = (code.global_memory(n) for n in (ROWS, UPDATES, ORDER, STARTS, TARGET))
    state = e.slot(L.type_of(dtype))

    def listed(numbers: str, index: str) -> str:
        return code.wide(e.load("i32", code.moved(numbers, index, "i32")))

    def join(first: str, count: int, lane: str) -> None:
        """The updates whose places in the order are from ``first`` on: all are read before the first one is joined."""
        found = [listed(order, code.add(first, turn)) for turn in range(count)]
        places = [Location(updates, code.add(code.multiply(update, width), lane), scattered=False) for update in found]
        for value in [load(L, dtype, place, None) for place in places]:
            old = Value(L, e.load(L.type_of(dtype), state), dtype)
            e.store(L.type_of(dtype), _combined(L, mode, old, value).name, state)

    with code.units(code.number(UNITS)) as unit:
        number = code.add(code.multiply(unit, THREADS), code.wide(code.thread))
        with e.when(code.compare("slt", number, elements)):
            row = code.divide(number, width)
            lane = code.subtract(number, code.multiply(row, width))
            index = code.add(code.multiply(row, row_stride), code.multiply(lane, stride))
            old = load(L, dtype, Location(rows, index, scattered=False), None)
            e.store(L.type_of(dtype), old.name, state)
            first, last = listed(starts, row), listed(starts, code.add(row, 1))
            whole = code.multiply(code.divide(code.subtract(last, first), TOGETHER), TOGETHER)
            middle = code.add(first, whole)
            with e.loop(first, middle, TOGETHER) as place:
                join(place, TOGETHER, lane)
            with e.loop(middle, last) as place:
                join(place, 1, lane)
            value = Value(L, e.load(L.type_of(dtype), state), dtype)
            store(L, value, dtype, Location(target, number, scattered=False), None)
    return code.finished(name)


def _combined(L: MathLanes, mode: str, old: Value, new: Value) -> Value:
    combine = p.COMBINE[mode]
    if combine is None:
        return new
    value: Value = combine.lanes(L, old, new)
    return L.round_to(value, old.dtype) if old.dtype in HALVES else value
