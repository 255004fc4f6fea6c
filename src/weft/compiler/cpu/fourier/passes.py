"""Passes of a Fourier transform in generated code (Stockham's order, decimation in frequency).

Each pass splits transforms of ``n`` numbers into ``radix`` times as many of ``n / radix``. With ``s`` of them so far,
it reads the numbers at ``u``, ``u + s * n / radix``, ... for each ``u = q + s * p``, transforms them, multiplies by
roots of unity that depend on ``p``, and writes them to ``q + s * radix * p``, ``q + s * (radix * p + 1)``, ... The last
pass leaves all results in order. (P. N. Swarztrauber, FFT algorithms for vector computers, 1984.)
"""

from __future__ import annotations

from functools import partial

from weft.compiler.codegen.emitter import module
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, PARAMETERS, PLANES, ComplexAccess, StageWriter
from weft.compiler.cpu.fourier.butterflies import Pair, butterfly, in_turn, times


def lanes_pass(name: str, radix: int, source: ComplexAccess, sink: ComplexAccess, has_roots: bool, width: int) -> str:
    """A pass for at least as many ``q`` as there are lanes: neighbouring lanes have neighbouring ``q``.

    From planes to planes the inner loop goes over ``count`` of them, and its last turn may repeat some; else a call
    does only the lanes that exist. Results are multiplied by roots of unity if there are any (``has_roots``).
    """
    w = StageWriter(width)
    w.prepare(source, sink)
    count, outer, inner = w.numbers("count", "outer", "inner")
    steps = w.numbers("in_outer", "in_inner", "in_next", "out_outer", "out_inner", "out_next")
    in_outer, in_inner, in_next, out_outer, out_inner, out_next = steps
    in_parts, out_parts = w.parts()
    table = w.table()
    last = w.e.assign(f"sub i64 {count}, {width}")
    with w.e.loop("0", outer) as p:
        roots = _roots_of_all(w, table, p, radix) if has_roots else []
        read, written = w.moved("%from", w.multiply(p, in_outer)), w.moved("%to", w.multiply(p, out_outer))
        with w.e.loop("0", inner) as j:
            read_here, written_here = w.moved(read, w.multiply(j, in_inner)), w.moved(written, w.multiply(j, out_inner))
            with w.e.loop("0", count, width) as q:
                start = w.smaller(q, last)
                first_in = w.moved(read_here, w.multiply(start, source.bytes))
                first_out = w.moved(written_here, w.multiply(start, sink.bytes))
                load = partial(_load_at, w, source, first_in, in_next, in_parts)
                for k, result in in_turn(w.L, radix, load):
                    product = times(w.L, result, *roots[k - 1]) if roots and k else result
                    w.store(sink, w.moved(first_out, w.multiply(out_next, k)), out_parts, product)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _load_at(w: StageWriter, source: ComplexAccess, first: str, step: str, parts: tuple[str, str], k: int) -> Pair:
    return w.load(source, w.moved(first, w.multiply(step, k)), parts)


def _roots_of_all(w: StageWriter, table: str, p: str, radix: int) -> list[Pair]:
    """The roots of unity of one ``p``, the same for all lanes."""
    pointer = w.moved(table, w.multiply(p, (radix - 1) * COMPLEX))
    roots = []
    for _ in range(radix - 1):
        roots.append((w.splat(pointer), w.splat(w.moved(pointer, FLOAT))))
        pointer = w.moved(pointer, COMPLEX)
    return roots


def spread_width(block: int, width: int) -> int:
    """How many lanes of a vector are used if ``q`` takes ``block`` values: a multiple of ``block``."""
    return width // block * block


def spread_pass(name: str, radix: int, block: int, source: ComplexAccess, width: int) -> str:
    """A pass to planes in which ``q`` takes only ``block`` values, fewer than there are lanes: lanes are neighbouring
    ``u``, and results are put in order by shuffles.

    Planes have room for a vector after their last element: what a pass writes there is overwritten or never read.
    """
    w = StageWriter(width)
    w.prepare(source, PLANES)
    used = spread_width(block, width)
    count, in_next = w.numbers("count", "in_next")
    in_parts, out_parts = w.parts()
    table = w.table()
    table_step = w.multiply(w.add(count, width), FLOAT)
    last = w.e.assign(f"sub i64 {count}, {used}")
    none = w.e.assign(f"icmp slt i64 {last}, 0")
    last = w.e.assign(f"select i1 {none}, i64 0, i64 {last}")
    with w.e.loop("0", count, used) as turn:
        u = w.smaller(turn, last)
        pointer = w.moved("%from", w.multiply(u, source.bytes))
        numbers = []
        for _ in range(radix):
            numbers.append(w.load(source, pointer, in_parts))
            pointer = w.moved(pointer, in_next)
        results = butterfly(w.L, numbers)
        roots = w.moved(table, w.multiply(u, FLOAT))
        for position in range(1, radix):
            real = w.value(w.vector(roots))
            imag_pointer = w.moved(roots, table_step)
            results[position] = times(w.L, results[position], real, w.value(w.vector(imag_pointer)))
            roots = w.moved(imag_pointer, table_step)
        written = w.moved("%to", w.multiply(u, radix * FLOAT))
        for part, distance in enumerate(out_parts):
            start = w.moved(written, distance)
            for number, vector in enumerate(in_order(w, [pair[part].name for pair in results], block, used)):
                w.store_vector(vector, w.moved(start, number * width * FLOAT))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def in_order(w: StageWriter, vectors: list[str], block: int, used: int) -> list[str]:
    """Blocks of lanes of several vectors, one block of each vector in turn, in the order in which they are stored."""
    count = len(vectors)
    if count == 1:
        return vectors
    if count % 2 == 0 and used == w.width:
        halves = [in_order(w, vectors[part::2], block, used) for part in (0, 1)]
        pairs = zip(halves[0], halves[1], strict=True)
        return [vector for even, odd in pairs for vector in _interleaved(w, even, odd, block)]
    sources = []
    for element in range(count * used):
        number, within = divmod(element, block)
        sources.append((number % count, number // count * block + within))
    return [_gathered(w, vectors, sources[start : start + w.width]) for start in range(0, len(sources), w.width)]


def _interleaved(w: StageWriter, left: str, right: str, block: int) -> list[str]:
    """Blocks of lanes, taken from two vectors in turn."""
    lanes = [
        start + part * w.width + lane for start in range(0, w.width, block) for part in (0, 1) for lane in range(block)
    ]
    return [w.shuffled(left, right, lanes[: w.width]), w.shuffled(left, right, lanes[w.width :])]


def _gathered(w: StageWriter, vectors: list[str], sources: list[tuple[int, int]]) -> str:
    """A vector of chosen lanes of several vectors."""
    sources = sources + [sources[-1]] * (w.width - len(sources))
    first = sources[0][0]
    result = w.shuffled(vectors[first], "poison", [lane if vector == first else -1 for vector, lane in sources])
    for vector in sorted({vector for vector, _ in sources} - {first}):
        chosen = [w.width + lane if number == vector else index for index, (number, lane) in enumerate(sources)]
        result = w.shuffled(result, vectors[vector], chosen)
    return result
