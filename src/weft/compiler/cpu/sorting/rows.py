"""Functions on a single row: they make words, turn sorted words into results, and put some elements in place."""

from __future__ import annotations

from collections.abc import Callable

from weft import dtypes
from weft.compiler.codegen import host, keys
from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import WIDTH, Code, EmittedFunction, read, write
from weft.compiler.cpu.sorting.vectors import Vectors, is_fast


def vectors(code: Code, count: str, body: Callable[[Lanes, str, str | None], None]) -> None:
    """Call ``body(L, start, mask)`` for all elements, in vectors. Those at the end that do not fill a vector are done
    with a mask, or one at a time where masks are slow."""
    whole = code.e.assign(f"and i64 {count}, {-WIDTH}")
    with code.e.loop("0", whole, WIDTH) as start:
        body(code.lanes, start, None)
    if "+avx512bw" in host.current().features.split(","):
        rest = code.subtract(count, whole)
        with code.e.when(code.compare("ne", rest, 0)):
            body(code.lanes, whole, str(code.below(code.lanes, rest).name))
    else:
        with code.e.loop(whole, count) as start:
            body(code.scalar, start, None)


def word(L: Lanes, form: WordForm, key: Value, index: Value) -> list[Value]:
    """The words of an element: its key; key and index in one word; or a word for each."""
    if not form.carries:
        return [key]
    if form.key.size == 8:
        return [key, Value(L, index.name, dtypes.uint64)]
    return [(L.convert(key, dtypes.uint64) << 32) | Value(L, index.name, dtypes.uint64)]


def element_key(L: Lanes, form: WordForm, raw: Value) -> Value:
    """The key of elements. It tells -0 from 0 so that the element can be restored, unless an index goes with it: then
    equal elements must have equal keys."""
    return keys.equal(L, raw, form.dtype) if form.carries else keys.ordered(L, raw, form.dtype)


def is_sorted(form: WordForm) -> EmittedFunction:
    """Answer 1 if no element is larger than the next one, else 0."""
    code = Code()
    e = code.e
    code.keep("0", "%answer")

    def body(L: Lanes, start: str, mask: str | None) -> None:
        element, following = (
            keys.equal(L, read(L, form.key, "%from", code.add(start, step), mask), form.dtype) for step in range(2)
        )
        with e.when(L.any_lane(element > following)):
            e.leave()

    vectors(code, code.subtract("%count", 1), body)
    code.keep("1", "%answer")
    return code.finished("is_sorted", "ptr %from, i64 %count, ptr %answer")


def results_of_sorted(form: WordForm) -> EmittedFunction:
    """Write the results from ``%start`` to ``%stop`` of a row that is already sorted."""
    code = Code()
    count = code.subtract("%stop", "%start")
    if form.indices:

        def body(L: Lanes, start: str, mask: str | None) -> None:
            index = Value(L, code.counting(L, code.add("%start", start)).name, dtypes.uint64)
            write(L, L.convert(index, dtypes.uint32), "%to", start, mask)

        vectors(code, count, body)
    else:
        size = form.result.size
        code.copied(code.moved("%row", code.multiply("%start", size)), "%to", code.multiply(count, size), size)
    return code.finished("results_of_sorted", "ptr %row, i64 %start, i64 %stop, ptr %to")


class WordWriter:
    """Makes the words of the elements at ``%from``, of which the first has index ``%first``.

    The ``%shift`` lowest bits of wide keys are left out. `finish` writes to ``%odd`` whether some elements are out of
    order.
    """

    PARAMETERS = "ptr %from, i64 %first, i64 %count, ptr %to, ptr %odd, i64 %shift"

    def __init__(self, code: Code, form: WordForm) -> None:
        self.code, self.form, self.e = code, form, code.e
        self.odd = self.e.slot("i1")
        self.e.store("i1", "false", self.odd)

    def words(self, L: Lanes, start: str, mask: str | None) -> Value:
        """The words of the elements from ``start`` on, one in each lane."""
        code, e, form = self.code, self.e, self.form
        raw = read(L, form.key, "%from", start, mask)
        if form.mends:
            found = L.any_lane(keys.out_of_order(L, raw, form.dtype))
            e.store("i1", e.assign(f"or i1 {e.load('i1', self.odd)}, {found}"), self.odd)
        words = word(L, form, element_key(L, form, raw), code.counting(L, code.add("%first", start)))
        if not form.is_wide:
            return words[0]
        key, index = words
        upper: Value = (key >> L.splat(Value(code.scalar, "%shift", dtypes.uint64))) << 32
        return upper | index

    def finish(self) -> None:
        self.code.keep(self.e.assign(f"zext i1 {self.e.load('i1', self.odd)} to i64"), "%odd")


def make_words(form: WordForm) -> EmittedFunction:
    """Write the words of ``%count`` elements."""
    code = Code()
    writer = WordWriter(code, form)
    vectors(code, "%count", lambda L, start, mask: write(L, writer.words(L, start, mask), "%to", start, mask))
    writer.finish()
    return code.finished("make_words", WordWriter.PARAMETERS)


def make_results(form: WordForm) -> EmittedFunction:
    """Turn ``%count`` words into results; ``%row`` is the row of the input that they are from."""
    code = Code()

    def body(L: Lanes, start: str, mask: str | None) -> None:
        if not form.carries:
            write(L, keys.restored(L, read(L, form.key, "%from", start, mask), form.dtype), "%to", start, mask)
            return
        index = read(L, dtypes.uint64, "%from", start, mask) & 0xFFFFFFFF
        if form.indices:
            write(L, L.convert(index, dtypes.uint32), "%to", start, mask)
        else:
            write(L, load(L, form.key, Location("%row", index.name, L.width > 1), mask), "%to", start, mask)

    vectors(code, "%count", body)
    return code.finished("make_results", "ptr %from, i64 %count, ptr %row, ptr %to")


def mend(form: WordForm) -> EmittedFunction:
    """Copy the zeros and NaNs of a row, in order, to the positions of zeros and NaNs in the sorted row.

    ``%to`` holds the elements from ``%start`` up to, but without, ``%stop`` of the sorted row.
    """
    code = Code()
    e, dtype = code.e, form.dtype
    zero, nan = e.slot("i64"), e.slot("i64")
    code.keep("0", zero)
    code.keep("%count", nan)

    def count(L: Lanes, start: str, mask: str | None) -> None:
        raw = read(L, form.key, "%from", start, mask)
        for slot, found, sign in (
            (zero, keys.is_negative(L, raw, dtype), 1),
            (nan, keys.is_nan(raw, dtype), -1),
        ):
            total = lane_count(code, L, found)
            code.keep(code.add(e.load("i64", slot), code.multiply(total, sign)), slot)

    vectors(code, "%count", count)

    if is_fast(form.key.size):
        _put_lanes(code, form, zero, nan)
    else:
        vectors(code, "%count", lambda L, start, mask: _put_each(code, form, zero, nan, (L, start, mask)))
    return code.finished("mend", "ptr %from, i64 %count, ptr %to, i64 %start, i64 %stop")


def _put_lanes(code: Code, form: WordForm, zero: str, nan: str) -> None:
    """Write the zeros of a vector together at position ``zero``, and its NaNs together at position ``nan``."""
    e, dtype = code.e, form.dtype
    v = Vectors(code, form.key.size)
    found = e.slot(f"{v.type}, align {v.bytes}")

    def put(start: str, inside: Value | None) -> None:
        raw = read(v.L, form.key, "%from", start, None if inside is None else str(inside.name))
        with e.when(v.L.any_lane(keys.is_zero_or_nan(v.L, raw, dtype))):
            for slot, lanes in ((zero, keys.is_zero(v.L, raw, dtype)), (nan, keys.is_nan(raw, dtype))):
                lanes = lanes if inside is None else lanes & inside
                target, number = code.integer(slot), lane_count(code, v.L, lanes)
                code.keep(code.add(target, number), slot)
                first = code.larger(code.subtract("%start", target), "0")
                wanted = code.subtract(code.smaller(code.subtract("%stop", target), number), first)
                v.store(v.together(raw, lanes), found, 0)
                to = code.moved("%to", code.subtract(code.add(target, first), "%start"), v.element)
                mask = str(v.below(wanted).name)
                v.store(v.load(found, first, mask), to, 0, mask)

    v.each("%count", put)


def _put_each(code: Code, form: WordForm, zero: str, nan: str, part: tuple[Lanes, str, str | None]) -> None:
    """Write zeros and NaNs one by one, at the positions ``zero`` and ``nan``."""
    e, dtype, (L, start, mask) = code.e, form.dtype, part
    raw = read(L, form.key, "%from", start, mask)
    end = code.smaller(code.add(start, L.width), "%count")
    with e.when(L.any_lane(keys.is_zero_or_nan(L, raw, dtype))), e.loop(start, end) as index:
        element = read(code.scalar, form.key, "%from", index)
        for slot, test in (
            (zero, keys.is_zero(code.scalar, element, dtype)),
            (nan, keys.is_nan(element, dtype)),
        ):
            with e.when(test.name):
                target = e.load("i64", slot)
                code.keep(code.add(target, 1), slot)
                inside = e.assign(
                    f"and i1 {code.compare('sge', target, '%start')}, {code.compare('slt', target, '%stop')}"
                )
                with e.when(inside):
                    write(code.scalar, element, "%to", code.subtract(target, "%start"))


def lane_count(code: Code, L: Lanes, found: Value) -> str:
    """In how many lanes a condition holds."""
    if L.width == 1:
        return code.e.assign(f"zext i1 {found.name} to i64")
    bits = code.e.assign(f"bitcast <{L.width} x i1> {found.name} to i{L.width}")
    total = code.e.call(f"llvm.ctpop.i{L.width}", f"i{L.width}", [(f"i{L.width}", bits)])
    return code.e.assign(f"zext i{L.width} {total} to i64")
