"""Makes only those words of elements that are in a range."""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Code, EmittedFunction, write
from weft.compiler.cpu.sorting.rows import WordWriter, lane_count
from weft.compiler.cpu.sorting.vectors import Vectors, is_fast

AT_ONCE = 4
"""How many vectors one iteration of the loop reads."""


def choose_words(form: WordForm) -> EmittedFunction:
    """Write the words that are at least ``%low``, and below ``%high`` if ``%end`` is set.

    ``%below`` receives how many words are below ``%low``, ``%chosen`` how many were written. Whole vectors are written;
    the unused lanes of the last one hold anything.
    """
    code = Code()
    writer = WordWriter(code, form)
    counts = {name: code.e.slot("i64") for name in ("%below", "%chosen")}
    for slot in counts.values():
        code.keep("0", slot)
    choose = _choose_lanes if is_fast(form.size) else _choose_each
    choose(code, form, writer, counts["%below"], counts["%chosen"])
    for name, slot in counts.items():
        code.keep(code.integer(slot), name)
    writer.finish()
    word = f"i{8 * form.size}"
    return code.finished(
        "choose_words", f"{WordWriter.PARAMETERS}, {word} %low, {word} %high, i1 %end, ptr %below, ptr %chosen"
    )


def _choose_lanes(code: Code, form: WordForm, writer: WordWriter, below: str, chosen: str) -> None:
    v, e = Vectors(code, form.size), code.e
    low, high = (Value(code.scalar, name, v.dtype) for name in ("%low", "%high"))
    largest = code.scalar.constant(-1, v.dtype)
    first = v.L.splat(low)
    last = v.L.splat(code.scalar.select(Value(code.scalar, "%end", dtypes.bool_), high - 1, largest))

    def choose(start: str, inside: Value | None) -> None:
        words = writer.words(v.L, start, None if inside is None else str(inside.name))
        is_below, wanted = words < first, (words >= first) & (words <= last)
        if inside is not None:
            is_below, wanted = is_below & inside, wanted & inside
        v.store(v.together(words, wanted), "%to", code.integer(chosen))
        for slot, lanes in ((below, is_below), (chosen, wanted)):
            code.keep(code.add(code.integer(slot), lane_count(code, v.L, lanes)), slot)

    most = e.assign(f"and i64 %count, {-AT_ONCE * v.width}")
    with e.loop("0", most, AT_ONCE * v.width) as start:
        for number in range(AT_ONCE):
            choose(code.add(start, number * v.width), None)
    v.each("%count", choose, most)


def _choose_each(code: Code, form: WordForm, writer: WordWriter, below: str, chosen: str) -> None:
    """Write each word after those chosen before; if it is not chosen, the next word overwrites it."""
    L, e = code.scalar, code.e
    with e.loop("0", "%count") as start:
        word = writer.words(L, start, None)
        low, high = (Value(L, name, word.dtype) for name in ("%low", "%high"))
        is_below, is_above = word < low, (word >= high) & Value(L, "%end", dtypes.bool_)
        wanted = ~(is_below | is_above)
        write(L, word, "%to", code.integer(chosen))
        for slot, found in ((below, is_below), (chosen, wanted)):
            code.keep(code.add(code.integer(slot), lane_count(code, L, found)), slot)
