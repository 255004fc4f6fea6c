"""Stages before, between and after the passes of a Fourier transform, in generated code.

Some bring rows of an array into lanes and back. Some make the transform of real numbers from a complex one of half the
length. Some multiply by tables, for lengths whose transforms are computed as convolutions.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.emitter import module
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, PARAMETERS, PLANES, ComplexAccess, StageWriter
from weft.compiler.cpu.fourier.butterflies import Pair, times
from weft.compiler.cpu.fourier.halves import half_of_whole, real_of_half
from weft.compiler.cpu.memory import transposed
from weft.primitives.fourier_lengths import FINE


def load_rows(name: str, source: ComplexAccess, width: int) -> str:
    """A stage that reads ``inner`` complex numbers of each of ``%lanes`` rows into planes, one row into each lane. Rows
    are ``in_next`` bytes apart. Lanes without a row get the last one."""
    w = StageWriter(width)
    w.prepare(source, PLANES)
    inner, in_next, out_next = w.numbers("inner", "in_next", "out_next")
    out_parts = w.parts()[1]
    floats = w.multiply(inner, 2)
    rows = _row_pointers(w, "%from", in_next)
    with w.e.loop("0", floats, width) as first:
        mask = _below(w, floats, first)
        distance = w.multiply(first, FLOAT)
        pointers = [w.moved(row, distance) for row in rows]
        for pointer in pointers:
            w.ask_ahead("in", pointer, width * FLOAT, False)
        vectors = [w.vector(pointer, mask) for pointer in pointers]
        columns = transposed(w.L, dtypes.float32, vectors)
        target = w.moved("%to", w.multiply(w.e.assign(f"sdiv i64 {first}, 2"), out_next))
        for number, column in enumerate(columns):
            w.store_vector(column, w.moved(target, out_parts[number % 2]))
            if number % 2:
                target = w.moved(target, out_next)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def load_blocks(name: str, width: int) -> str:
    """A stage between the two halves of a long transform: it transposes numbers and multiplies them by roots of unity.

    Memory has blocks, ``in_next`` bytes apart, each for as many ``j`` as there are lanes. A block holds for each ``k``
    a vector of these ``j``, all real parts before all imaginary parts. In the result, lanes are ``k``, from ``%first``
    on, and each of ``inner`` ``j`` is a vector. See `split_of`.
    """
    w = StageWriter(width)
    inner, in_next, out_next = w.numbers("inner", "in_next", "out_next")
    in_parts, out_parts = w.parts()
    coarse = w.moved(w.table(), w.multiply(w.multiply(w.e.assign(f"udiv i64 %first, {FINE}"), inner), COMPLEX))
    fine_real = w.moved(w.table("fine"), w.multiply(w.e.assign(f"urem i64 %first, {FINE}"), FLOAT))
    fine_imag = w.moved(fine_real, w.multiply(w.add(inner, FINE), FINE * FLOAT))
    with w.e.loop("0", inner, width) as first:
        block = w.moved("%from", w.multiply(w.e.assign(f"udiv i64 {first}, {width}"), in_next))
        parts = []
        for part in in_parts:
            rows = [w.vector(w.moved(w.moved(block, part), row * width * FLOAT)) for row in range(width)]
            parts.append(transposed(w.L, dtypes.float32, rows))
        for lane in range(width):
            j = w.add(first, lane)
            single = w.moved(coarse, w.multiply(j, COMPLEX))
            distance = w.multiply(j, FINE * FLOAT)
            many = [w.value(w.vector(w.moved(one, distance))) for one in (fine_real, fine_imag)]
            real, imag = times(w.L, (w.splat(single), w.splat(w.moved(single, FLOAT))), *many)
            numbers = times(w.L, (w.value(parts[0][lane]), w.value(parts[1][lane])), real, imag)
            w.store(PLANES, w.moved("%to", w.multiply(j, out_next)), out_parts, numbers)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def store_rows(name: str, sink: ComplexAccess, width: int) -> str:
    """A stage that writes ``inner`` complex numbers of each lane from planes to ``%lanes`` rows, ``out_next`` bytes
    apart."""
    w = StageWriter(width)
    w.prepare(PLANES, sink)
    inner, in_next, out_next = w.numbers("inner", "in_next", "out_next")
    in_parts = w.parts()[0]
    floats = w.multiply(inner, 2)
    exists = [w.e.assign(f"icmp slt i64 {lane}, %lanes") for lane in range(width)]
    with w.e.loop("0", floats, width) as first:
        mask = _below(w, floats, first)
        source = w.moved("%from", w.multiply(w.e.assign(f"sdiv i64 {first}, 2"), in_next))
        vectors = []
        for number in range(width):
            value = w.value(w.vector(w.moved(source, in_parts[number % 2])))
            vectors.append(w.scaled(value).name)
            if number % 2:
                source = w.moved(source, in_next)
        target = w.moved("%to", w.multiply(first, FLOAT))
        for row, vector in zip(exists, transposed(w.L, dtypes.float32, vectors), strict=True):
            with w.e.when(row):
                w.ask_ahead("out", target, width * FLOAT, False)
                w.store_vector(vector, target, mask)
            target = w.moved(target, out_next)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _row_pointers(w: StageWriter, start: str, step: str) -> list[str]:
    """The addresses of the rows of all lanes."""
    last = w.e.assign("sub i64 %lanes, 1")
    return [w.moved(start, w.multiply(w.smaller(str(lane), last), step)) for lane in range(w.width)]


def _below(w: StageWriter, count: str, first: str) -> str:
    """The mask of the lanes, counted from ``first``, that are below ``count``."""
    return w.below(w.e.assign(f"trunc i64 {w.e.assign(f'sub i64 {count}, {first}')} to i32"), w.width)


def product(name: str, rows: bool, source: ComplexAccess, sink: ComplexAccess, width: int) -> str:
    """A stage that multiplies ``inner`` complex numbers by those of a table, and writes zeros after them up to
    ``outer``.

    If ``rows``, lanes are neighbours in a row, and the table has all real parts before all imaginary ones; else each
    number is a vector of lanes.
    """
    w = StageWriter(width)
    w.prepare(source, sink)
    inner, outer, in_next, out_next = w.numbers("inner", "outer", "in_next", "out_next")
    in_parts, out_parts = w.parts()
    table = w.table()
    imag = w.moved(table, w.multiply(inner, FLOAT))
    with w.e.loop("0", inner, width if rows else 1) as turn:
        index = w.smaller(turn, w.e.assign(f"sub i64 {inner}, {width}")) if rows else turn
        numbers = w.load(source, w.moved("%from", w.multiply(index, in_next)), in_parts)
        factor = factor_of(w, rows, table, imag, index)
        w.store(sink, w.moved("%to", w.multiply(index, out_next)), out_parts, times(w.L, numbers, *factor))
    if sink.kind == "planes":
        zero = w.L.constant(0.0, dtypes.float32)
        with w.e.loop(inner, outer, width if rows else 1) as index:
            w.store(sink, w.moved("%to", w.multiply(index, out_next)), out_parts, (zero, zero))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def factor_of(w: StageWriter, rows: bool, real: str, imag: str, index: str) -> Pair:
    """Complex numbers of a table in planes: neighbours if ``rows``, else one number in all lanes."""
    pointers = [w.moved(part, w.multiply(index, FLOAT)) for part in (real, imag)]
    if rows:
        return w.value(w.vector(pointers[0])), w.value(w.vector(pointers[1]))
    return w.splat(pointers[0]), w.splat(pointers[1])


def halves_to_real(name: str, rows: bool, sink: ComplexAccess, width: int) -> str:
    """A stage from the transform ``z`` of ``inner`` pairs of real numbers to the first half of the transform of all of
    them.

    With ``h`` pairs, ``x[k] = (z[k] + conj(z[h - k])) / 2 - i exp(-pi i k / h) (z[k] - conj(z[h - k])) / 2``, where
    ``z[h]`` is ``z[0]``, which is copied there first. The table has the roots divided by two.
    """
    w = StageWriter(width)
    w.prepare(PLANES, sink)
    inner, in_next, out_next = w.numbers("inner", "in_next", "out_next")
    in_parts, out_parts = w.parts()
    table = w.table()
    count = w.add(inner, 1)
    imag = w.moved(table, w.multiply(count, FLOAT))
    _copy_first(w, in_parts, w.multiply(inner, in_next), rows)
    with w.e.loop("0", count, width if rows else 1) as turn:
        index = w.smaller(turn, w.e.assign(f"sub i64 {count}, {width}")) if rows else turn
        left, right = mirrored(w, PLANES, in_parts, index, inner, in_next, rows)
        result = real_of_half(w.L, left, right, factor_of(w, rows, table, imag, index))
        w.store(sink, w.moved("%to", w.multiply(index, out_next)), out_parts, result)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _copy_first(w: StageWriter, parts: tuple[str, str], end: str, rows: bool) -> None:
    """Copy the first number after the last one."""
    for part in parts:
        start = w.moved("%from", part)
        if rows:
            w.e.store("float", w.e.load("float", start), w.moved(start, end))
        else:
            w.store_vector(w.vector(start), w.moved(start, end))


def mirrored(
    w: StageWriter, source: ComplexAccess, parts: tuple[str, str], index: str, inner: str, step: str, rows: bool
) -> tuple[Pair, Pair]:
    """The numbers at ``index`` and at ``inner - index``."""
    left = w.load(source, w.moved("%from", w.multiply(index, step)), parts)
    other = w.e.assign(f"sub i64 {inner}, {index}")
    if rows:
        other = w.e.assign(f"sub i64 {other}, {w.width - 1}")
    return left, w.load(source, w.moved("%from", w.multiply(other, step)), parts, reverse=rows)


def real_to_halves(name: str, rows: bool, source: ComplexAccess, width: int) -> str:
    """A stage from the first half of a transform to numbers whose inverse transform has the real numbers as its pairs.

    ``z[k] = x[k] + conj(x[h - k]) + i exp(pi i k / h) (x[k] - conj(x[h - k]))``, where the imaginary parts of ``x[0]``
    and ``x[h]`` are taken as zero.
    """
    w = StageWriter(width)
    w.prepare(source, PLANES)
    inner, in_next, out_next = w.numbers("inner", "in_next", "out_next")
    in_parts, out_parts = w.parts()
    table = w.table()
    imag = w.moved(table, w.multiply(w.add(inner, 1), FLOAT))
    with w.e.loop("0", inner, width if rows else 1) as turn:
        index = w.smaller(turn, w.e.assign(f"sub i64 {inner}, {width}")) if rows else turn
        left, right = mirrored(w, source, in_parts, index, inner, in_next, rows)
        result, _ = half_of_whole(w.L, left, right, factor_of(w, rows, table, imag, index))
        w.store(PLANES, w.moved("%to", w.multiply(index, out_next)), out_parts, result)
    _first_of_halves(w, source, (in_parts, out_parts), w.multiply(inner, in_next), rows)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _first_of_halves(
    w: StageWriter, source: ComplexAccess, parts: tuple[tuple[str, str], tuple[str, str]], end: str, rows: bool
) -> None:
    """Write ``z[0]``, made from numbers whose imaginary parts are taken as zero."""
    in_parts, out_parts = parts
    ends = ["%from", w.moved("%from", end)]
    if rows:
        first, last = [
            w.scalar_value(w.e.load("float", one if source.kind == "row" else w.moved(one, in_parts[0])))
            for one in ends
        ]
        for part, value in zip(out_parts, (first + last, first - last), strict=True):
            w.e.store("float", value.name, w.moved("%to", part))
        return
    first, last = [w.load(source, one, in_parts)[0] for one in ends]
    w.store(PLANES, "%to", out_parts, (first + last, first - last))
