"""Adds up the sums of blocks of terms, in order; a thread has one result."""

from __future__ import annotations

from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.numbered import NumberedCode
from weft.dtypes import Dtype
from weft.primitives.routine import Operand, RoutineStep

THREADS = 256

# The positions of the step's numbers: units; slots and byte offsets of sums and result; how many results there are; how
# many sums each has.
_SUMS, _RESULT, _SIZE, _BLOCKS = 1, 3, 5, 6


def step(sums: tuple[int, int], result: Operand, size: int, blocks: int) -> RoutineStep:
    """The step that adds up the sums of ``blocks`` blocks, which follow each other from a slot and offset on."""
    units = -(-size // THREADS)
    numbers = [units, *sums, result.slot, result.offset, size, blocks]
    return RoutineStep(_code(result.dtype), numbers, units, 1, size * blocks)


def _code(dtype: Dtype) -> RoutineCode:
    title = f"sums of blocks of {dtype.name}"
    return RoutineCode(title, lambda name: _text(dtype, name), THREADS, title)


def _text(dtype: Dtype, name: str) -> str:
    w = NumberedCode(THREADS, _BLOCKS + 1)
    L, element = Lanes(w.e, 1), MEMORY_TYPES[dtype]
    total, size = w.e.slot(element), w.number(_SIZE)
    sums, result = w.global_memory(_SUMS), w.global_memory(_RESULT)
    with w.each_unit() as unit:
        index = w.add(w.multiply(unit, THREADS), w.position)
        with w.e.when(w.compare("slt", index, size)):
            w.e.store(element, load(L, dtype, Location(sums, index, False), None).name, total)
            with w.e.loop("1", w.number(_BLOCKS)) as block:
                found = load(L, dtype, Location(sums, w.add(w.multiply(block, size), index), False), None)
                w.e.store(element, (Value(L, w.e.load(element, total), dtype) + found).name, total)
            store(L, Value(L, w.e.load(element, total), dtype), dtype, Location(result, index, False), None)
    return w.finished(name)
