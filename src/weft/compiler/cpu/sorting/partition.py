"""Sorts words that fit a cache by quicksort, which parts them a vector at a time.

(C. A. R. Hoare, Quicksort, 1962; parting in vectors: B. Bramas, A novel hybrid quicksort algorithm vectorized using
AVX-512, 2017.) Parts outside of the wanted range are left unsorted. A part that was parted badly too often is sorted by
digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from operator import or_

from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Code, EmittedFunction
from weft.compiler.cpu.sorting import tiles
from weft.compiler.cpu.sorting.rows import lane_count
from weft.compiler.cpu.sorting.vectors import Vectors

Test = Callable[[Value], Value]

AT_ONCE = 4
"""How many vectors are parted in a turn of the loop."""

SAMPLES = 5
"""From how many vectors of words a pivot is chosen."""
_TURN = 0x9E3779B9
"""2^32 divided by the golden ratio. Its multiples modulo 2^32 are evenly spread, however many there are."""

_PARAMETERS = "ptr %from, i64 %count, ptr %to, ptr %rest, i64 %start, i64 %stop, i64 %depth"


def functions(form: WordForm, depth: int | None) -> list[EmittedFunction]:
    """``sort_words`` and the functions that it calls, except ``by_digits``."""
    return [*tiles.functions(form), _is_ascending(form.size), _part(form), _start(form, depth)]


def _start(form: WordForm, most: int | None) -> EmittedFunction:
    code = Code()
    zeros = code.e.call("llvm.ctlz.i64", "i64", [("i64", "%count"), ("i1", "false")])
    depth = code.multiply(code.subtract(64, zeros), 2) if most is None else str(most)
    code.e.emit(
        f"call void @part(ptr %a, i64 %count, ptr %a, ptr %b, i64 %start, i64 %stop, i64 {depth}, i{8 * form.size} 0)"
    )
    return code.finished("sort_words", "ptr %a, i64 %count, ptr %b, i64 %start, i64 %stop")


def _part(form: WordForm) -> EmittedFunction:
    """Sort ``%count`` words as far as the range from ``%start`` to ``%stop`` needs it; part them at most ``%depth``
    times.

    They are at ``%from``, which is ``%to`` or ``%rest``, and are sorted into ``%to``. Words that are not below the
    pivot are moved to ``%rest`` and sorted from there to their place, before the other words need that memory. No word
    is below ``%least``. If that is the pivot, the words that equal it are separated from those above: so if few
    different words are repeated, each of them takes one turn. Words with an index are compared by their keys alone
    here: words with equal keys are in order at the beginning, and parting keeps the order.
    """
    code = Code()
    e = code.e
    v = Vectors(code, form.size)
    with e.when(code.compare("ule", "%count", tiles.most_words(form.size))):
        e.emit(f"call void @sort_few(ptr %from, i64 %count, ptr %to, {v.element} 0)")
        e.leave()
    with e.when(code.compare("eq", "%depth", 0)):
        _copied_to_target(code, form)
        e.emit("call void @by_digits(ptr %to, i64 %count, ptr %rest)")
        e.leave()
    word = _pivot(code, v, form)
    depth = code.subtract("%depth", 1)
    with e.when(e.assign(f"icmp eq {v.element} {word}, %least")):
        last = e.assign(f"or {v.element} {word}, {_index_bits(form)}")
        largest = v.L.splat(Value(code.scalar, last, v.dtype))
        equal = moved_apart(code, v, "%from", lambda value: value <= largest, keeps=form.carries)
        if not form.carries:
            with e.loop("0", equal, v.width) as start:
                v.store(largest, "%to", start, str(v.below(code.subtract(equal, start)).name))
        _sort_rest(code, v, equal, depth, word)
        e.leave()
    pivot = v.L.splat(Value(code.scalar, word, v.dtype))
    below = moved_apart(code, v, "%from", lambda value: value < pivot, keeps=True)
    _sort_rest(code, v, below, depth, word)
    with e.when(code.compare("slt", "%start", below)):
        e.emit(
            f"call void @part(ptr %to, i64 {below}, ptr %to, ptr %rest, i64 %start, "
            f"i64 {code.smaller('%stop', below)}, i64 {depth}, {v.element} %least)"
        )
    return code.finished("part", f"{_PARAMETERS}, {v.element} %least")


def _index_bits(form: WordForm) -> int:
    """The bits of a word that are no part of its key."""
    return (1 << 8 * form.first_byte) - 1


def _copied_to_target(code: Code, form: WordForm) -> None:
    with code.e.when(code.e.assign("icmp ne ptr %from, %to")):
        code.copied("%from", "%to", code.multiply("%count", form.size), form.size)


def _sort_rest(code: Code, v: Vectors, before: str, depth: str, least: str) -> None:
    """Sort the words at ``%rest`` into ``%to``, after the first ``before`` words."""
    stop = code.subtract("%stop", before)
    with code.e.when(code.compare("sgt", stop, 0)):
        target = code.moved("%to", before, v.element)
        count = code.subtract("%count", before)
        start = code.larger(code.subtract("%start", before), "0")
        code.e.emit(
            f"call void @part(ptr %rest, i64 {count}, ptr {target}, ptr %rest, i64 {start}, i64 {stop}, i64 {depth}, "
            f"{v.element} {least})"
        )


def _pivot(code: Code, v: Vectors, form: WordForm) -> str:
    """A key from the middle of a sample: the median of medians of `SAMPLES` vectors, one from each fifth of all words.

    The position in each fifth depends on the depth, so that a periodic pattern in the words does not give a bad pivot
    again and again. If the sampled vectors are in ascending order, all words may be; then they are compared, and copied
    if so.
    """
    e = code.e
    medians = e.slot(f"{v.type}, align {v.bytes}")
    last = code.subtract("%count", v.width)
    offset = e.assign(f"and i64 {code.multiply('%depth', _TURN)}, {(1 << 32) - 1}")
    fifth = code.divide(last, SAMPLES)
    first = e.assign(f"lshr i64 {code.multiply(fifth, offset)}, 32")
    samples = [v.load("%from", code.add(first, code.multiply(fifth, number))) for number in range(SAMPLES)]
    _leave_if_ascending(code, v, form, samples)
    v.store(_median(v, samples), medians, 0)
    e.emit(f"call void @tile_2(ptr {medians}, i64 {v.width}, ptr {medians}, {v.element} 0)")
    word = e.load(v.element, code.moved(medians, v.width // 2, v.element))
    return e.assign(f"and {v.element} {word}, {~_index_bits(form)}")


def _median(v: Vectors, samples: list[Value]) -> Value:
    """The median of five words, in each lane: of two pairs, the smallest and the largest word are dropped."""
    a, b, c, d, e = (v.comparable(sample) for sample in samples)
    (a, b), (c, d) = v.in_order(a, b), v.in_order(c, d)
    low, high = v.in_order(v.in_order(a, c)[1], v.in_order(b, d)[0])
    return v.comparable(v.in_order(low, v.in_order(high, e)[0])[1])


def _leave_if_ascending(code: Code, v: Vectors, form: WordForm, samples: list[Value]) -> None:
    """Return if all words are in ascending order. They are compared only if the samples are in this order."""
    e = code.e
    descents = [lower > higher for lower, higher in pairwise(samples)]
    with e.when(code.negated(v.L.any_lane(reduce(or_, descents)))):
        answer = e.slot("i64")
        e.emit(f"call void @is_ascending(ptr %from, i64 %count, ptr {answer})")
        with e.when(code.compare("ne", code.integer(answer), 0)):
            _copied_to_target(code, form)
            e.leave()


def _is_ascending(size: int) -> EmittedFunction:
    """Answer 1 if no word is larger than the next one, else 0."""
    code = Code()
    v = Vectors(code, size)
    code.keep("0", "%answer")
    pairs = code.subtract("%count", 1)
    with code.e.loop("0", pairs, v.width) as start:
        mask = v.below(code.subtract(pairs, start))
        word, following = (v.load("%from", code.add(start, step), str(mask.name)) for step in range(2))
        with code.e.when(v.L.any_lane(word > following)):
            code.e.leave()
    code.keep("1", "%answer")
    return code.finished("is_ascending", "ptr %from, i64 %count, ptr %answer")


def moved_apart(code: Code, v: Vectors, source: str, is_first: Test, keeps: bool) -> str:
    """Move the words of ``source`` that come first to ``%to`` (if ``keeps`` is set), and all others to ``%rest``.
    Returns how many come first."""
    e = code.e
    firsts = e.slot("i64")
    code.keep("0", firsts)

    def move(start: str, count: int) -> None:
        """All loads come before the stores, which may write to the same memory."""
        before = e.load("i64", firsts)
        values = [v.load(source, code.add(start, number * v.width)) for number in range(count)]
        tests = [is_first(value) for value in values]
        for number, (value, first) in enumerate(zip(values, tests, strict=True)):
            if keeps:
                v.store(v.together(value, first), "%to", before)
            index = code.subtract(code.add(start, number * v.width), before)
            v.store(v.together(value, ~first), "%rest", index)
            before = code.add(before, lane_count(code, v.L, first))
        code.keep(before, firsts)

    whole, most = (e.assign(f"and i64 %count, {-step * v.width}") for step in (1, AT_ONCE))
    with e.loop("0", most, AT_ONCE * v.width) as start:
        move(start, AT_ONCE)
    with e.loop(most, whole, v.width) as start:
        move(start, 1)
    rest = code.subtract("%count", whole)
    with e.when(code.compare("ne", rest, 0)):
        _move_last(code, v, source, is_first, keeps, firsts, whole, rest)
    return e.load("i64", firsts)


def _move_last(
    code: Code, v: Vectors, source: str, is_first: Test, keeps: bool, firsts: str, whole: str, rest: str
) -> None:
    """Move the last ``rest`` words, which do not fill a vector."""
    inside, before = v.below(rest), code.integer(firsts)
    value = v.load(source, whole, str(inside.name))
    first = is_first(value) & inside
    found = lane_count(code, v.L, first)
    code.keep(code.add(before, found), firsts)
    if keeps:
        v.store(v.together(value, first), "%to", before, str(v.below(found).name))
    others = v.below(code.subtract(rest, found))
    v.store(v.together(value, ~first & inside), "%rest", code.subtract(whole, before), str(others.name))
