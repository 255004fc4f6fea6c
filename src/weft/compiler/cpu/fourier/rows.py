"""The two passes of Fourier transforms of short rows, in generated code. Several rows share a vector.

For a length of ``radix * rest``, the lanes of the first pass are ``rest`` neighbours of each row, those of the second
one ``radix`` neighbours; both numbers divide the number of lanes. Between the passes, the rows follow each other in
planes. Transforms of real numbers are complex ones of half the length; they are converted in registers, in the second
pass, or in the first pass of the inverse transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from weft.compiler.codegen.emitter import module
from weft.compiler.cpu.fourier.access import COMPLEX, FLOAT, PARAMETERS, PLANES, ComplexAccess, StageWriter
from weft.compiler.cpu.fourier.butterflies import Pair, butterfly, in_turn, times
from weft.compiler.cpu.fourier.halves import half_of_whole, real_of_half
from weft.compiler.cpu.fourier.passes import in_order

Load = Callable[[list[str], int], Pair]
Store = Callable[[Iterator[tuple[int, Pair]], list[str]], None]


def first_pass(name: str, radix: int, rest: int, source: ComplexAccess, width: int) -> str:
    """From ``%lanes`` rows, ``in_next`` bytes apart, to planes. The table has a root for each lane."""
    w = StageWriter(width)
    w.prepare(source, PLANES)

    def number(rows: list[str], k: int) -> Pair:
        return _swapped(source, _neighbours(w, rows, k * rest, rest))

    return _first_pass(w, name, radix, rest, number)


def first_pass_of_halves(name: str, radix: int, rest: int, source: ComplexAccess, width: int) -> str:
    """As `first_pass`, from the first halves of transforms of real numbers: see `ends.real_to_halves`. The second table
    is `tables.row_half_roots`."""
    w = StageWriter(width)
    w.prepare(source, PLANES)
    halves = w.table("fine")

    def number(rows: list[str], k: int) -> Pair:
        left = _neighbours(w, rows, k * rest, rest)
        right = _neighbours(w, rows, (radix - 1 - k) * rest + 1, rest, reverse=True)
        result, ends = half_of_whole(w.L, left, right, _factors(w, halves, k))
        if k == 0:  # a number that is its own mirror image has no imaginary part
            lanes = [lane + width * (lane % rest == 0) for lane in range(width)]
            result = _blended(w, result, ends, lanes)
        return result[1], result[0]

    return _first_pass(w, name, radix, rest, number)


def _first_pass(w: StageWriter, name: str, radix: int, rest: int, number: Load) -> str:
    width = w.width
    together = width // rest
    in_next, table = w.field("in_next"), w.table()
    out_parts = w.parts()[1]
    with w.e.loop("0", "%lanes", together) as row:
        rows = _rows(w, w.moved("%from", w.multiply(row, in_next)), in_next, together)
        results = butterfly(w.L, [number(rows, k) for k in range(radix)])
        for k in range(1, radix):
            results[k] = times(w.L, results[k], *_factors(w, table, k - 1))
        target = w.moved("%to", w.multiply(row, radix * rest * FLOAT))
        for part, distance in enumerate(out_parts):
            pointer = w.moved(target, distance)
            for position, vector in enumerate(in_order(w, [pair[part].name for pair in results], 1, width)):
                w.store_vector(vector, w.moved(pointer, position * width * FLOAT))
    return module([w.e], [w.e.function(name, PARAMETERS)])


def second_pass(name: str, radix: int, done: int, sink: ComplexAccess, width: int) -> str:
    """From planes to ``%lanes`` rows, ``out_next`` bytes apart; ``done`` is the radix of the first pass."""
    w = StageWriter(width)
    w.prepare(PLANES, sink)

    def store(results: Iterator[tuple[int, Pair]], rows: list[str]) -> None:
        for k, pair in results:
            _store_neighbours(w, rows, k * done, done, _swapped(sink, pair))

    return _second_pass(w, name, radix, done, store)


def second_pass_to_real(name: str, radix: int, done: int, sink: ComplexAccess, width: int) -> str:
    """As `second_pass`, to first halves of transforms of real numbers: see `ends.halves_to_real`. The second table is
    `tables.row_half_roots`."""
    w = StageWriter(width)
    w.prepare(PLANES, sink)
    halves = w.table("fine")
    together = width // done

    def store(results: Iterator[tuple[int, Pair]], rows: list[str]) -> None:
        found = dict(results)
        numbers = [found[k] for k in range(radix)]
        for k, left in enumerate(numbers):
            right = _mirrored(w, numbers, k, done)
            result = real_of_half(w.L, left, right, _factors(w, halves, k))
            _store_neighbours(w, rows, k * done, done, result)
        last = w.moved(halves, radix * 2 * width * FLOAT)
        factor = w.splat(last), w.splat(w.moved(last, FLOAT))
        real, imag = (w.scaled(part).name for part in real_of_half(w.L, numbers[0], numbers[0], factor))
        for number in range(together):
            one = w.shuffled(real, imag, [number * done, number * done + width])
            w.store_vector(one, w.moved(rows[number], radix * done * COMPLEX), width=2)

    return _second_pass(w, name, radix, done, store)


def _second_pass(w: StageWriter, name: str, radix: int, done: int, store: Store) -> str:
    together, length = w.width // done, radix * done
    out_next = w.field("out_next")
    in_parts = w.parts()[0]
    with w.e.loop("0", "%lanes", together) as row:
        start = w.moved("%from", w.multiply(row, length * FLOAT))

        def number(k: int, start: str = start) -> Pair:
            parts = []
            for distance in in_parts:
                planes = w.moved(w.moved(start, distance), k * done * FLOAT)
                pieces = [w.vector(w.moved(planes, one * length * FLOAT), width=done) for one in range(together)]
                parts.append(w.value(_joined(w, pieces, done)))
            return parts[0], parts[1]

        rows = _rows(w, w.moved("%to", w.multiply(row, out_next)), out_next, together)
        store(in_turn(w.L, radix, number), rows)
    return module([w.e], [w.e.function(name, PARAMETERS)])


def _rows(w: StageWriter, start: str, step: str, count: int) -> list[str]:
    return [w.moved(start, w.multiply(step, number)) for number in range(count)]


def _swapped(access: ComplexAccess, pair: Pair) -> Pair:
    return (pair[1], pair[0]) if access.swapped else pair


def _neighbours(w: StageWriter, rows: list[str], start: int, count: int, reverse: bool = False) -> Pair:
    """A vector of ``count`` complex numbers of each row; with ``reverse``, those of each row are in reverse order."""
    pointers = [w.moved(row, start * COMPLEX) for row in rows]
    for pointer in pointers:
        w.ask_ahead("in", pointer, count * COMPLEX, False)
    whole = _joined(w, [w.vector(pointer, width=2 * count) for pointer in pointers], 2 * count)
    lanes = list(range(0, 2 * w.width, 2))
    if reverse:
        lanes = [lane for first in range(0, w.width, count) for lane in lanes[first : first + count][::-1]]
    real, imag = [w.value(w.shuffled(whole, "poison", [lane + part for lane in lanes], 2 * w.width)) for part in (0, 1)]
    return real, imag


def _store_neighbours(w: StageWriter, rows: list[str], start: int, count: int, pair: Pair) -> None:
    """Write a vector of ``count`` complex numbers of each row."""
    real, imag = [w.scaled(part).name for part in pair]
    whole = w.shuffled(real, imag, [lane + part * w.width for lane in range(w.width) for part in (0, 1)])
    for number, row in enumerate(rows):
        pointer = w.moved(row, start * COMPLEX)
        w.ask_ahead("out", pointer, count * COMPLEX, False)
        lanes = list(range(2 * count * number, 2 * count * (number + 1)))
        w.store_vector(w.shuffled(whole, "poison", lanes, 2 * w.width), pointer, width=2 * count)


def _factors(w: StageWriter, table: str, position: int) -> Pair:
    """Complex numbers, one for each lane, from a position of a table that has real before imaginary parts."""
    pointer = w.moved(table, position * 2 * w.width * FLOAT)
    return w.value(w.vector(pointer)), w.value(w.vector(w.moved(pointer, w.width * FLOAT)))


def _mirrored(w: StageWriter, numbers: list[Pair], k: int, block: int) -> Pair:
    """The numbers at ``length - index`` for ``index = q + block * k``, where ``q`` counts along lanes."""
    others, first = numbers[len(numbers) - 1 - k], numbers[-k % len(numbers)]
    lanes = [lane + block - 2 * (lane % block) if lane % block else lane + w.width for lane in range(w.width)]
    return _blended(w, others, first, lanes)


def _blended(w: StageWriter, left: Pair, right: Pair, lanes: list[int]) -> Pair:
    real, imag = [w.value(w.shuffled(left[part].name, right[part].name, lanes)) for part in (0, 1)]
    return real, imag


def _joined(w: StageWriter, pieces: list[str], width: int) -> str:
    """Several vectors of ``width``, a power of two of them, joined to one."""
    while len(pieces) > 1:
        lanes = list(range(2 * width))
        pieces = [w.shuffled(left, right, lanes, width) for left, right in zip(pieces[::2], pieces[1::2], strict=True)]
        width *= 2
    return pieces[0]
