"""Both passes of Fourier transforms of short rows, of which several share a vector, in generated code.

With a length of ``radix * rest``, the first pass has ``rest`` neighbours of each row in its lanes, the second ``radix``
of them; both numbers divide the lanes of a vector. Between the passes the rows stand one behind the other in planes.
"""

from __future__ import annotations

from weft.compiler.codegen.emitter import module
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, PARAMETERS, PLANES, Access, Writer
from weft.compiler.cpu.fourier.butterflies import butterfly, times
from weft.compiler.cpu.fourier.passes import in_order


def first_pass(name: str, radix: int, rest: int, source: Access, width: int) -> str:
    """From ``%lanes`` rows, ``in_next`` bytes apart, to planes. The table has the roots of all lanes."""
    w = Writer(width)
    w.prepare(source, PLANES)
    together = width // rest
    in_next, table = w.field("in_next"), w.table()
    out_parts = w.parts()[1]
    with w.e.loop("0", "%lanes", together) as row:
        start = w.moved("%from", w.multiply(row, in_next))
        rows = [w.moved(start, w.multiply(in_next, number)) for number in range(together)]
        numbers = []
        for k in range(radix):
            pointers = [w.moved(one, k * rest * COMPLEX) for one in rows]
            for pointer in pointers:
                w.ask_ahead("in", pointer, rest * COMPLEX, False)
            whole = _joined(w, [w.vector(pointer, width=2 * rest) for pointer in pointers], 2 * rest)
            lanes = range(0, 2 * width, 2)
            parts = [
                w.value(w.shuffled(whole, "poison", [lane + part for lane in lanes], 2 * width)) for part in (0, 1)
            ]
            numbers.append((parts[source.swapped], parts[not source.swapped]))
        results = butterfly(w.L, numbers)
        for k in range(1, radix):
            place = w.moved(table, (k - 1) * 2 * width * FLOAT)
            roots = w.value(w.vector(place)), w.value(w.vector(w.moved(place, width * FLOAT)))
            results[k] = times(w.L, results[k], *roots)
        target = w.moved("%to", w.multiply(row, radix * rest * FLOAT))
        for part, distance in enumerate(out_parts):
            place = w.moved(target, distance)
            for number, vector in enumerate(in_order(w, [pair[part].name for pair in results], 1, width)):
                w.store_vector(vector, w.moved(place, number * width * FLOAT))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def second_pass(name: str, radix: int, done: int, sink: Access, width: int) -> str:
    """From planes to ``%lanes`` rows, ``out_next`` bytes apart; ``done`` is the radix of the first pass."""
    w = Writer(width)
    w.prepare(PLANES, sink)
    together, length = width // done, radix * done
    out_next = w.field("out_next")
    in_parts = w.parts()[0]
    with w.e.loop("0", "%lanes", together) as row:
        start = w.moved("%from", w.multiply(row, length * FLOAT))
        numbers = []
        for k in range(radix):
            parts = []
            for distance in in_parts:
                first = w.moved(w.moved(start, distance), k * done * FLOAT)
                pieces = [w.vector(w.moved(first, number * length * FLOAT), width=done) for number in range(together)]
                parts.append(w.value(_joined(w, pieces, done)))
            numbers.append((parts[0], parts[1]))
        target = w.moved("%to", w.multiply(row, out_next))
        for k, pair in enumerate(butterfly(w.L, numbers)):
            real, imag = [w.scaled(part).name for part in (pair if not sink.swapped else pair[::-1])]
            whole = w.shuffled(real, imag, [lane + part * width for lane in range(width) for part in (0, 1)])
            for number in range(together):
                place = w.moved(w.moved(target, w.multiply(out_next, number)), k * done * COMPLEX)
                w.ask_ahead("out", place, done * COMPLEX, False)
                lanes = list(range(2 * done * number, 2 * done * (number + 1)))
                w.store_vector(w.shuffled(whole, "poison", lanes, 2 * width), place, width=2 * done)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _joined(w: Writer, pieces: list[str], width: int) -> str:
    """Vectors of ``width``, a power of two of them, one behind the other."""
    while len(pieces) > 1:
        lanes = list(range(2 * width))
        pieces = [w.shuffled(left, right, lanes, width) for left, right in zip(pieces[::2], pieces[1::2], strict=True)]
        width *= 2
    return pieces[0]
