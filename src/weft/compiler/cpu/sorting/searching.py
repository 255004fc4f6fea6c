"""Binary search in sorted rows, for a vector of values at once."""

from __future__ import annotations

from functools import cache
from math import prod

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen import keys, loading
from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Code, read, write
from weft.compiler.cpu.sorting import rows
from weft.dtypes import Dtype
from weft.primitives.routine import RoutineCall, RoutineStep

UNIT = 1024
"""How many values a unit of work has."""

_WORK_PER_GRAIN = 1 << 15

# The positions of the numbers of a step: slot and offset of rows, values and result, and those below.
ROWS, VALUES, TARGET = 0, 2, 4
EXTENT, VALUES_PER_ROW, UNITS_PER_ROW, ROUNDS = 6, 7, 8, 9


@p.searchsorted.routine.on("cpu")
def _step(call: RoutineCall) -> RoutineStep:
    (sequence, values), (out,) = call.operands, call.results
    extent, count = sequence.shape[-1], prod(sequence.shape[:-1])
    per_row = prod(out.shape[len(sequence.shape) - 1 :])
    units, rounds = -(-per_row // UNIT), extent.bit_length()
    numbers = [number for operand in (sequence, values, out) for number in (operand.slot, operand.offset)]
    numbers += [extent, per_row, units, rounds]
    work = max(rounds, 1) * min(per_row, UNIT)
    address = _address(sequence.dtype, call.params["right"])
    return RoutineStep(address, numbers, count * units, max(1, _WORK_PER_GRAIN // max(work, 1)), work * count * units)


@cache
def _address(dtype: Dtype, right: bool) -> int:
    name = f"search_{dtype.name}_{'right' if right else 'left'}"
    return loading.load(name, lambda: generate(dtype, right, name), (name,))[name]


def generate(dtype: Dtype, right: bool, name: str) -> str:
    """The LLVM IR of the step."""
    code = Code()
    e, key = code.e, dtypes.UNSIGNED[dtype.size]
    extent, per_row, units = code.number(EXTENT), code.number(VALUES_PER_ROW), code.number(UNITS_PER_ROW)
    rounds = code.number(ROUNDS)
    all_rows, values, target = code.memory(ROWS), code.memory(VALUES), code.memory(TARGET)
    with e.loop("%begin", "%end") as unit:
        row = code.divide(unit, units)
        first = code.multiply(code.remainder(unit, units), UNIT)
        before = code.add(code.multiply(row, per_row), first)
        sequence = code.moved(all_rows, code.multiply(code.multiply(row, extent), key.size))
        wanted = code.moved(values, code.multiply(before, key.size))
        found = code.moved(target, before, "i32")

        def search(
            L: Lanes,
            start: str,
            mask: str | None,
            sequence: str = sequence,
            wanted: str = wanted,
            found: str = found,
        ) -> None:
            value = keys.equal(L, read(L, key, wanted, start, mask), dtype)
            type_ = L.type_of(dtypes.int64)
            low, high = e.slot(type_), e.slot(type_)
            e.store(type_, L.constant(0, dtypes.int64).name, low)
            e.store(type_, L.splat(Value(code.scalar, extent, dtypes.int64)).name, high)
            with e.loop("0", rounds):
                bottom, top = (Value(L, e.load(type_, slot), dtypes.int64) for slot in (low, high))
                middle = (bottom + top) >> 1
                open_ = bottom < top
                raw: Value = load(L, key, Location(sequence, str(middle.name), L.width > 1), str(open_.name))
                other = keys.equal(L, raw, dtype)
                before = (other <= value if right else other < value) & open_
                e.store(type_, L.select(before, middle + 1, bottom).name, low)
                e.store(type_, L.select(~before & open_, middle, top).name, high)
            write(L, L.convert(Value(L, e.load(type_, low), dtypes.int64), dtypes.uint32), found, start, mask)

        rows.vectors(code, code.smaller(code.subtract(per_row, first), UNIT), search)
    emitter, text = code.finished(name, STEP, "")
    return module([emitter], [text])
