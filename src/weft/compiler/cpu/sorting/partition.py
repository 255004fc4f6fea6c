"""Words that fit a cache, sorted by parting them in two and each part again, a vector at a time.

(C. A. R. Hoare, Quicksort, 1962; the parting in vectors is that of B. Bramas, A novel hybrid quicksort algorithm
vectorized using AVX-512, 2017.) Parts of which nothing was asked for are left as they are. What would take too long,
because it is parted badly again and again, is sorted by digits.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Code, Function
from weft.compiler.cpu.sorting import tiles
from weft.compiler.cpu.sorting.rows import lane_count
from weft.compiler.cpu.sorting.vectors import Vectors

Test = Callable[[Value], Value]

AT_ONCE = 4
"""How many vectors are parted in one turn of the loop."""

_PARAMETERS = "ptr %from, i64 %count, ptr %to, ptr %rest, i64 %start, i64 %stop, i64 %depth"


def functions(size: int, depth: int | None) -> list[Function]:
    """``sort_words``, which needs ``by_digits``, and what it calls."""
    return [*tiles.functions(size), _part(size), _start(depth)]


def _start(most: int | None) -> Function:
    code = Code()
    zeros = code.e.call("llvm.ctlz.i64", "i64", [("i64", "%count"), ("i1", "false")])
    depth = code.multiply(code.subtract(64, zeros), 2) if most is None else str(most)
    code.e.emit(f"call void @part(ptr %a, i64 %count, ptr %a, ptr %b, i64 %start, i64 %stop, i64 {depth})")
    return code.finished("sort_words", "ptr %a, i64 %count, ptr %b, i64 %start, i64 %stop")


def _part(size: int) -> Function:
    """Sort ``%count`` words as far as those from ``%start`` to ``%stop`` need it; part them at most ``%depth`` times.

    They are at ``%from``, which is ``%to`` or ``%rest``, and end at ``%to``. Words that are not below the pivot are
    moved to ``%rest``, and sorted from there to where they belong before the others need that memory.
    """
    code = Code()
    e = code.e
    v = Vectors(code, size)
    with e.when(code.compare("ule", "%count", tiles.tiles_of(size)[-1] * v.width)):
        e.emit("call void @few(ptr %from, i64 %count, ptr %to)")
        e.leave()
    with e.when(code.compare("eq", "%depth", 0)):
        with e.when(e.assign("icmp ne ptr %from, %to")):
            code.copied("%from", "%to", code.multiply("%count", size))
        e.emit("call void @by_digits(ptr %to, i64 %count, ptr %rest)")
        e.leave()
    pivot = _pivot(code, v)
    below = moved_apart(code, v, "%from", lambda value: value < pivot, keeps=True)
    depth = code.subtract("%depth", 1)
    with e.when(code.compare("ne", below, 0)):
        _sort_rest(code, v, below, depth)
        with e.when(code.compare("slt", "%start", below)):
            e.emit(
                f"call void @part(ptr %to, i64 {below}, ptr %to, ptr %rest, i64 %start, "
                f"i64 {code.smaller('%stop', below)}, i64 {depth})"
            )
        e.leave()
    # No word is below the pivot, and all are at %rest. Those that equal it come first, and are in order.
    equal = moved_apart(code, v, "%rest", lambda value: value <= pivot, keeps=False)
    with e.loop("0", equal, v.width) as start:
        v.store(pivot, "%to", start, str(v.below(code.subtract(equal, start)).name))
    _sort_rest(code, v, equal, depth)
    return code.finished("part", _PARAMETERS)


def _sort_rest(code: Code, v: Vectors, before: str, depth: str) -> None:
    """Sort the words at ``%rest`` to behind those that come ``before`` them."""
    stop = code.subtract("%stop", before)
    with code.e.when(code.compare("sgt", stop, 0)):
        target = code.moved("%to", before, v.element)
        count = code.subtract("%count", before)
        start = code.larger(code.subtract("%start", before), "0")
        code.e.emit(
            f"call void @part(ptr %rest, i64 {count}, ptr {target}, ptr %rest, i64 {start}, i64 {stop}, i64 {depth})"
        )


def _pivot(code: Code, v: Vectors) -> Value:
    """The median of medians of three words, which are from both ends and the middle; in every lane.

    If these are equal, all words may be.
    """
    e = code.e
    medians = e.slot(f"[2 x {v.type}], align {v.bytes}")
    last = code.subtract("%count", 2 * v.width)
    middle = e.assign(f"lshr i64 {last}, 1")
    for row in (0, v.width):
        first, second, third = (v.load("%from", code.add(start, row)) for start in ("0", middle, last))
        low, high = v.in_order(first, second)
        v.store(v.in_order(low, v.in_order(high, third)[0])[1], medians, row)
    e.emit(f"call void @tile_2(ptr {medians}, i64 {2 * v.width}, ptr {medians})")
    smallest, word, largest = (
        e.load(v.element, code.moved(medians, lane, v.element)) for lane in (0, v.width, 2 * v.width - 1)
    )
    pivot = v.L.splat(Value(code.scalar, word, v.dtype))
    with e.when(e.assign(f"icmp eq {v.element} {smallest}, {largest}")):
        _leave_if_equal(code, v, pivot)
    return pivot


def _leave_if_equal(code: Code, v: Vectors, pivot: Value) -> None:
    """Return if all words equal the pivot."""
    e = code.e
    found = e.slot("i64")
    code.keep("0", found)
    with e.loop("0", "%count", v.width) as start:
        inside = v.below(code.subtract("%count", start))
        equal = v.L.equal(v.load("%from", start, str(inside.name)), pivot) & inside
        code.keep(code.add(e.load("i64", found), lane_count(code, v.L, equal)), found)
    with e.when(code.compare("eq", e.load("i64", found), "%count")):
        with e.when(e.assign("icmp ne ptr %from, %to")):
            code.copied("%from", "%to", code.multiply("%count", v.dtype.size), v.dtype.size)
        e.leave()


def moved_apart(code: Code, v: Vectors, source: str, is_first: Test, keeps: bool) -> str:
    """Move those words at ``source`` that come first to ``%to`` (if they are kept), and all others to ``%rest``; gives
    the number of the former."""
    e = code.e
    firsts = e.slot("i64")
    code.keep("0", firsts)

    def move(start: str, count: int) -> None:
        """All loads come before the stores, which may be to the same memory."""
        before = e.load("i64", firsts)
        values = [v.load(source, code.add(start, number * v.width)) for number in range(count)]
        tests = [is_first(value) for value in values]
        for number, (value, first) in enumerate(zip(values, tests, strict=True)):
            if keeps:
                v.store(v.together(value, first), "%to", before)
            place = code.subtract(code.add(start, number * v.width), before)
            v.store(v.together(value, ~first), "%rest", place)
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
    """Move the ``rest`` words that do not fill a vector."""
    inside, before = v.below(rest), code.integer(firsts)
    value = v.load(source, whole, str(inside.name))
    first = is_first(value) & inside
    found = lane_count(code, v.L, first)
    code.keep(code.add(before, found), firsts)
    if keeps:
        v.store(v.together(value, first), "%to", before, str(v.below(found).name))
    others = v.below(code.subtract(rest, found))
    v.store(v.together(value, ~first & inside), "%rest", code.subtract(whole, before), str(others.name))
