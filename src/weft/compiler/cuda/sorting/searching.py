"""Binary search in sorted rows: each thread searches for one value."""

from __future__ import annotations

from functools import cache
from math import prod

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.sorting.elements import Elements
from weft.primitives.routine import RoutineCall, RoutineStep

THREADS = 256

# The positions of the numbers of a step: slot and offset of rows, values and result, and those below.
ROWS, VALUES, TARGET = 0, 2, 4
UNITS, EXTENT, VALUES_PER_ROW, VALUES_IN_ALL, ROUNDS = 6, 7, 8, 9, 10


@p.searchsorted.routine.on("cuda")
def _step(call: RoutineCall) -> RoutineStep:
    (sequence, values), (out,) = call.operands, call.results
    extent, per_row = sequence.shape[-1], prod(out.shape[len(sequence.shape) - 1 :])
    count, rounds = prod(out.shape), extent.bit_length()
    units = -(-count // THREADS)
    numbers = [number for operand in (sequence, values, out) for number in (operand.slot, operand.offset)]
    numbers += [units, extent, per_row, count, rounds]
    return RoutineStep(_code(Elements(sequence.dtype, True), call.params["right"]), numbers, units, 1, count * rounds)


@cache
def _code(elements: Elements, right: bool) -> RoutineCode:
    source = f"search in rows of {elements.dtype.name}, {'right' if right else 'left'}"
    return RoutineCode(source, lambda name: generate(elements, right, name), THREADS, "searchsorted")


def generate(elements: Elements, right: bool, name: str) -> str:
    """The LLVM IR of the kernel. A unit is as many values as a block has threads."""
    code = BlockCode(THREADS)
    e = code.e
    extent, per_row, count = (code.number(position) for position in (EXTENT, VALUES_PER_ROW, VALUES_IN_ALL))
    rounds = code.number(ROUNDS)
    rows, values, target = (code.global_memory(position) for position in (ROWS, VALUES, TARGET))
    low, high = e.slot("i64"), e.slot("i64")
    with code.units(code.number(UNITS)) as unit:
        number = code.add(code.multiply(unit, THREADS), code.wide(code.thread))
        with e.when(code.compare("slt", number, count)):
            row = code.moved(rows, code.multiply(code.divide(number, per_row), extent), elements.word)
            value = elements.key(code, elements.read(code, code.moved(values, number, elements.word)))
            e.store("i64", "0", low)
            e.store("i64", extent, high)
            with e.loop("0", rounds):
                bottom, top = e.load("i64", low), e.load("i64", high)
                with e.when(code.compare("slt", bottom, top)):
                    middle = e.assign(f"lshr i64 {code.add(bottom, top)}, 1")
                    other = elements.key(code, elements.read(code, code.moved(row, middle, elements.word)))
                    before: Value = other <= value if right else other < value
                    name_ = str(code.scalar.coerce(before, dtypes.bool_).name)
                    e.store("i64", code.either(name_, code.add(middle, 1), bottom), low)
                    e.store("i64", code.either(name_, top, middle), high)
            e.store("i32", code.narrow(e.load("i64", low)), code.moved(target, number, "i32"))
    return code.finished(name)
