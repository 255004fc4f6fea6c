"""Wide keys: words hold 32 bits of them, and runs of words in which these are equal are then sorted by the bits below.

The first of the 32 bits is the highest one in which keys of the row differ. So at most 32 bits are below them.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Code, EmittedFunction, read
from weft.compiler.cpu.sorting import rows

SHORT = 16
"""Runs of at most this many words are sorted by insertion. Most runs are much shorter."""


def differences(form: WordForm) -> EmittedFunction:
    """The bits in which the keys of ``%count`` elements differ from the key of the element at ``%first``."""
    code = Code()
    e = code.e
    first = rows.element_key(code.scalar, form, read(code.scalar, form.key, "%first"))
    slots = {}
    for L in (code.lanes, code.scalar):
        slots[L.width] = e.slot(L.type_of(dtypes.uint64))
        e.store(L.type_of(dtypes.uint64), L.constant(0, dtypes.uint64).name, slots[L.width])

    def body(L: Lanes, start: str, mask: str | None) -> None:
        key = rows.element_key(L, form, read(L, form.key, "%from", start, mask))
        if mask is not None:
            key = L.select(Value(L, mask, dtypes.bool_), key, L.splat(first))
        type_, slot = L.type_of(dtypes.uint64), slots[L.width]
        known = Value(L, e.load(type_, slot), dtypes.uint64)
        e.store(type_, (known | (key ^ L.splat(first))).name, slot)

    rows.vectors(code, "%count", body)
    type_ = code.lanes.type_of(dtypes.uint64)
    lanes = [(type_, e.load(type_, slots[code.lanes.width]))]
    all_ = e.call(f"llvm.vector.reduce.or.v{code.lanes.width}i64", "i64", lanes)
    code.keep(e.assign(f"or i64 {all_}, {e.load('i64', slots[1])}"), "%to")
    return code.finished("differences", "ptr %from, i64 %count, ptr %first, ptr %to")


def shift_of(code: Code, differences: str) -> str:
    """How many bits are below the 32 bits that words hold."""
    zeros = code.e.call("llvm.ctlz.i64", "i64", [("i64", differences), ("i1", "false")])
    return code.larger(code.subtract(32, zeros), "0")


def sort_all(code: Code, words: str, count: str, other: str, row: str, differences: str) -> None:
    """Sort words by all bits of the keys. ``row`` is their row of elements, ``differences`` are the bits in which its
    keys differ."""
    code.e.emit(f"call void @sort_words(ptr {words}, i64 {count}, ptr {other}, i64 0, i64 {count})")
    bits = code.subtract(code.e.assign(f"shl i64 1, {shift_of(code, differences)}"), 1)
    with code.e.when(code.compare("ne", code.e.assign(f"and i64 {differences}, {bits}"), 0)):
        code.e.emit(f"call void @sort_runs(ptr {words}, i64 {count}, ptr {other}, ptr {row})")


def sort_runs(form: WordForm) -> EmittedFunction:
    """Sort each run of words with equal upper halves by the lower bits of the keys."""
    code = Code()
    e = code.e
    begin = e.slot("i64")
    code.keep("0", begin)
    with e.loop("1", code.add("%count", 1)) as stop:
        first = e.load("i64", begin)
        last = code.subtract(stop, 1)
        behind = code.integer(code.moved("%words", code.either(code.compare("eq", stop, "%count"), last, stop), "i64"))
        differs = e.assign(f"xor i64 {behind}, {code.integer(code.moved('%words', last, 'i64'))}")
        is_end = e.assign(f"or i1 {code.compare('ugt', differs, 0xFFFFFFFF)}, {code.compare('eq', stop, '%count')}")
        with e.when(is_end):
            with e.when(code.compare("ne", first, last)):
                _sort_run(code, form, first, stop)
            code.keep(stop, begin)
    return code.finished("sort_runs", "ptr %words, i64 %count, ptr %other, ptr %row")


def _sort_run(code: Code, form: WordForm, first: str, stop: str) -> None:
    e, scalar = code.e, code.scalar
    with e.loop(first, stop) as number:
        pointer = code.moved("%words", number, "i64")
        index = e.assign(f"and i64 {code.integer(pointer)}, {0xFFFFFFFF}")
        key = rows.element_key(scalar, form, read(scalar, form.key, "%row", index))
        code.keep(e.assign(f"or i64 {(key << 32).name}, {index}"), pointer)
    count = code.subtract(stop, first)
    with e.when(code.compare("ugt", count, SHORT)):
        run = code.moved("%words", first, "i64")
        e.emit(f"call void @sort_words(ptr {run}, i64 {count}, ptr %other, i64 0, i64 {count})")
    with e.when(code.compare("ule", count, SHORT)):
        _insert_each(code, first, stop)


def _insert_each(code: Code, first: str, stop: str) -> None:
    """Sort a few words: each in turn is moved before those that are larger."""
    with code.e.loop(first, stop) as number, code.e.loop(first, number) as earlier:
        pointers = [code.moved("%words", index, "i64") for index in (earlier, number)]
        pair = [("i64", code.integer(pointer)) for pointer in pointers]
        for pointer, side in zip(pointers, ("umin", "umax"), strict=True):
            code.keep(code.e.call(f"llvm.{side}.i64", "i64", pair), pointer)
