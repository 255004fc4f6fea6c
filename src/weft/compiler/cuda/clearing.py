"""The step that sets scratch memory to zero, for steps whose blocks count or exchange something there."""

from __future__ import annotations

from functools import cache

from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import RoutineCode
from weft.primitives.routine import RoutineStep
from weft.runtime.steps import Place

THREADS, ITEMS = 256, 8

# The positions of the numbers of a step: slot and offset of the memory, and those below.
MEMORY, UNITS, WORDS = 0, 2, 3


def cleared(place: Place, words: int) -> RoutineStep:
    """The step that writes ``words`` zeros of 32 bits to a slot of the table and an offset in bytes."""
    units = -(-words // (THREADS * ITEMS))
    return RoutineStep(_code(), [*place, units, words], units, 1, words)


@cache
def _code() -> RoutineCode:
    return RoutineCode(f"zeros, {ITEMS} words of each of {THREADS} threads", generate, THREADS, "zeros")


def generate(name: str) -> str:
    """The LLVM IR of the kernel."""
    code = BlockCode(THREADS)
    memory, words = code.global_memory(MEMORY), code.number(WORDS)
    with code.units(code.number(UNITS)) as unit:
        first = code.add(code.multiply(unit, THREADS * ITEMS), code.wide(code.thread))
        for item in range(ITEMS):
            index = code.add(first, THREADS * item)
            with code.e.when(code.compare("slt", index, words)):
                code.e.store("i32", "0", code.moved(memory, index, "i32"))
    return code.finished(name)
