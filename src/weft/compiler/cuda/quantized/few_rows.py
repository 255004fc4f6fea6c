"""Products of a few rows with a transposed quantised matrix, as steps of a plan."""

from __future__ import annotations

from math import prod

from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.quantized.codes import coding_of
from weft.compiler.cuda.quantized.operands import numbers_of
from weft.compiler.cuda.quantized.strips import NARROW, WIDE, QuantizedWarpStrip, strip_of
from weft.compiler.cuda.quantized.sums_of_integers import SumsOfIntegers
from weft.compiler.cuda.quantized.sums_of_numbers import SumsOfNumbers
from weft.compiler.cuda.threads import WARP
from weft.primitives.conversions import wide_dtype
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import RoutineCall, RoutineStep

MOST_ROWS = 8


def step(call: RoutineCall, kind: QuantizedFormat) -> RoutineStep:
    """The step for a product."""
    *batch, rows, columns = call.results[0].shape
    inner = call.operands[0].shape[-1]
    x, _, scales = [operand.dtype for operand in call.operands[:3]]
    result = call.results[0].dtype
    coding, wide = coding_of(kind, scales, wide_dtype(x)), NARROW if rows == 1 else WIDE
    early = all(operand.slot < call.inputs for operand in call.operands[1:])
    strip = strip_of(QuantizedWarpStrip(coding, x, result, kind.group_size, rows, wide, 1, early), inner)
    across = -(-columns // strip.columns)
    units = prod(batch) * across
    return RoutineStep(
        code(strip), numbers_of(call, kind, units, across), units, 1, prod(call.results[0].shape) * inner
    )


def code(strip: QuantizedWarpStrip) -> RoutineCode:
    title = f"product of few rows with a quantised matrix, {strip.coding.mode}"
    writer = SumsOfIntegers if strip.coding.adds_integers else SumsOfNumbers
    return RoutineCode(
        f"{title}: {strip}",
        lambda name: writer(strip).text(name),
        strip.warps * WARP,
        title,
        strip.shared,
    )
