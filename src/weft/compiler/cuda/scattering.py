"""Scattering at indices that may repeat: updates are sorted by their targets, and each element belongs to one thread.

Updates of the same element are applied in their order, as on every target: sorting keeps the order of equal indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import weft.primitives as p
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import RoutineCode
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.replacing import replaces
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.primitives.row_updates import scattered_by_rows

THREADS = 256

FEWEST_UPDATES = 128
"""Fewer updates take less time one by one than sorting them does."""

BYTES_PER_UPDATE = 1 << 18
"""How many bytes of the array can be copied in the time of one update."""

TOGETHER = 8
"""How many updates a thread reads before it applies them."""

# The positions of the numbers of a step: slot and offset of operands and result, and those below.
ROWS, UPDATES, ORDER, STARTS, TARGET = 0, 2, 4, 6, 8
UNITS, WIDTH, ELEMENTS, ROW_STRIDE, STRIDE = 10, 11, 12, 13, 14


@replaces("cuda", p.scatter)
def _by_rows(node: Node, machine: Any) -> Sequence[Node] | None:
    x, count = node.inputs[0], node.inputs[1].size
    if count < FEWEST_UPDATES + x.size * x.dtype.size // BYTES_PER_UPDATE:
        return None
    found = scattered_by_rows(node)
    return None if found is None else [found]


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
    """The LLVM IR of the kernel. A unit is as many elements as a block has threads."""
    code = BlockCode(THREADS)
    e, L = code.e, MathLanes(code.e, 1)
    width, elements, row_stride, stride = (code.number(position) for position in (WIDTH, ELEMENTS, ROW_STRIDE, STRIDE))
    rows, updates, order, starts, target = (code.global_memory(n) for n in (ROWS, UPDATES, ORDER, STARTS, TARGET))
    state = e.slot(L.type_of(dtype))

    def listed(numbers: str, index: str) -> str:
        return code.wide(e.load("i32", code.moved(numbers, index, "i32")))

    def join(first: str, count: int, lane: str) -> None:
        """Apply the updates from position ``first`` of the order on. All are read before the first one is applied."""
        found = [listed(order, code.add(first, turn)) for turn in range(count)]
        locations = [
            Location(updates, code.add(code.multiply(update, width), lane), scattered=False) for update in found
        ]
        for value in [load(L, dtype, location, None) for location in locations]:
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
            with e.loop(first, middle, TOGETHER) as update:
                join(update, TOGETHER, lane)
            with e.loop(middle, last) as update:
                join(update, 1, lane)
            value = Value(L, e.load(L.type_of(dtype), state), dtype)
            store(L, value, dtype, Location(target, number, scattered=False), None)
    return code.finished(name)


def _combined(L: MathLanes, mode: str, old: Value, new: Value) -> Value:
    combine = p.COMBINE[mode]
    if combine is None:
        return new
    value: Value = combine.lanes(L, old, new)
    return L.round_to(value, old.dtype) if old.dtype in HALVES else value
