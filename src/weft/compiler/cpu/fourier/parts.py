"""Stages before and after the passes of long transforms, in generated code.

Threads share the parts of a row. A call does one part: ``%lanes`` numbers, a multiple of the lanes of a vector, from
``%first`` on.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.emitter import module
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, PARAMETERS, ComplexAccess, StageWriter
from weft.compiler.cpu.fourier.butterflies import Pair, times
from weft.compiler.cpu.fourier.ends import factor_of, mirrored
from weft.compiler.cpu.fourier.halves import half_of_whole, real_of_half

PART = 4096
"""How many numbers a part has."""

_ROW = ComplexAccess("row")
_TOGETHER = ("0", "0")


def product(name: str, source: ComplexAccess, sink: ComplexAccess, width: int) -> str:
    """Multiply numbers by those of a table of ``inner`` numbers, which has all real parts before all imaginary
    parts."""
    w = StageWriter(width)
    w.prepare(source, sink)
    real = w.table()
    imag = w.moved(real, w.multiply(w.field("inner"), FLOAT))
    with w.e.loop("%first", w.add("%first", "%lanes"), width) as index:
        distance = w.multiply(index, COMPLEX)
        numbers = w.load(source, w.moved("%from", distance), _TOGETHER)
        result = times(w.L, numbers, *factor_of(w, True, real, imag, index))
        w.store(sink, w.moved("%to", distance), _TOGETHER, result)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def zeros(name: str, width: int) -> str:
    """Write zeros after the first ``inner`` numbers."""
    w = StageWriter(width)
    w.prepare(_ROW, _ROW)
    zero = w.L.constant(0.0, dtypes.float32)
    start = w.moved("%to", w.multiply(w.field("inner"), COMPLEX))
    with w.e.loop("%first", w.add("%first", "%lanes"), width) as index:
        w.store(_ROW, w.moved(start, w.multiply(index, COMPLEX)), _TOGETHER, (zero, zero))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def halves_to_real(name: str, sink: ComplexAccess, width: int) -> str:
    """See `ends.halves_to_real`. All parts write ``z[h]``, with the same value."""
    w = StageWriter(width)
    w.prepare(_ROW, sink)
    inner = w.field("inner")
    w.e.store("i64", w.e.load("i64", "%from"), w.moved("%from", w.multiply(inner, COMPLEX)))
    with w.e.loop("%first", w.add("%first", "%lanes"), width) as index:
        left, right, factor = _numbers(w, index, inner)
        w.store(sink, w.moved("%to", w.multiply(index, COMPLEX)), _TOGETHER, real_of_half(w.L, left, right, factor))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def real_to_halves(name: str, sink: ComplexAccess, width: int) -> str:
    """See `ends.real_to_halves`."""
    w = StageWriter(width)
    w.prepare(_ROW, sink)
    inner = w.field("inner")
    with w.e.loop("%first", w.add("%first", "%lanes"), width) as index:
        left, right, factor = _numbers(w, index, inner)
        result, ends = half_of_whole(w.L, left, right, factor)
        is_first = w.e.assign(f"icmp eq i64 {index}, 0")
        lane = ", ".join(["i1 true", *["i1 false"] * (width - 1)])
        chosen = w.e.assign(f"select i1 {is_first}, <{width} x i1> <{lane}>, <{width} x i1> zeroinitializer")
        both = [w.value(_selected(w, chosen, end.name, one.name)) for end, one in zip(ends, result, strict=True)]
        w.store(sink, w.moved("%to", w.multiply(index, COMPLEX)), _TOGETHER, (both[0], both[1]))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _numbers(w: StageWriter, index: str, inner: str) -> tuple[Pair, Pair, Pair]:
    """The numbers from ``index`` on, their mirror images, and the numbers of the table."""
    table = w.table()
    imag = w.moved(table, w.multiply(w.add(inner, 1), FLOAT))
    left, right = mirrored(w, _ROW, _TOGETHER, index, inner, str(COMPLEX), True)
    return left, right, factor_of(w, True, table, imag, index)


def _selected(w: StageWriter, mask: str, left: str, right: str) -> str:
    type_ = f"<{w.width} x float>"
    return w.e.assign(f"select <{w.width} x i1> {mask}, {type_} {left}, {type_} {right}")
