"""Decodes quantised matrices into memory, row by row."""

from __future__ import annotations

from functools import cache
from math import prod

import weft.primitives as p
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Integers
from weft.compiler.cpu.quantized.along import Along
from weft.compiler.cpu.quantized.codes import VectorCoding, coding_of
from weft.dtypes import Dtype
from weft.primitives.conversions import wide_dtype
from weft.primitives.quantized_formats import WORD, QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep

_NUMBERS_PER_GRAIN = 1 << 15

# The numbers of a step: slots and byte offsets of operands and result; how many groups a row has, and numbers a group.
WORDS, SCALES, BIASES, RESULT, GROUPS, SIZE = 0, 2, 4, 6, 8, 9


@p.dequantize.routine.on("cpu")
def step(call: RoutineCall) -> RoutineStep:
    """The step that decodes matrices; a unit is a row."""
    params = dict(call.params)
    dtype = params.pop("dtype")
    kind = QuantizedFormat(**params)
    words, scales, *biases = call.operands
    places = [n for one in (words, scales, (biases or [scales])[0], call.results[0]) for n in (one.slot, one.offset)]
    rows, groups = prod(scales.shape[:-1]), scales.shape[-1]
    address = _address(coding_of(kind, scales.dtype, wide_dtype(dtype)), dtype)
    columns = groups * kind.group_size
    grain = max(1, _NUMBERS_PER_GRAIN // max(columns, 1))
    return RoutineStep(address, [*places, groups, kind.group_size], rows, grain, rows * columns)


@cache
def _address(coding: VectorCoding, dtype: Dtype) -> int:
    name = f"dequantize_{coding.mode}"
    return loading.load(f"{name} {coding} {dtype.name}", lambda: generate(coding, dtype, name), (name,))[name]


def generate(coding: VectorCoding, dtype: Dtype, name: str) -> str:
    """The LLVM IR of the step for a format; decoded numbers are rounded to a dtype."""
    w = Integers(Emitter())
    decoder, scale = Along(coding, w), MEMORY_TYPES[coding.scales]
    groups, size = w.number(GROUPS), w.number(SIZE)
    with w.e.loop(w.multiply("%begin", groups), w.multiply("%end", groups)) as group:
        scales, biases = (w.moved(w.memory(position), group, scale) for position in (SCALES, BIASES))
        factor = decoder.scale(scales, "0")
        offset = decoder.scale(biases, "0") if coding.affine else None
        first = w.multiply(group, size)
        words = w.moved(w.memory(WORDS), w.divide(w.multiply(first, coding.bits), WORD), "i32")
        result = w.moved(w.memory(RESULT), first, MEMORY_TYPES[dtype])
        with w.e.loop("0", size, coding.terms) as index:
            here = w.moved(words, w.divide(w.multiply(index, coding.bits), WORD), "i32")
            for behind, value in decoder.numbers(here, factor, offset):
                rounded = Value(decoder.L, value.name, dtype)
                store(decoder.L, rounded, dtype, Location(result, w.add(index, behind), False), None)
    return module([w.e], [w.e.function(name, STEP)])
