"""Sorts words in memory that fits a cache. There is a function for each size of words, and all ways to sort rows call
it.

The range from ``%start`` to ``%stop`` of the sorted words is wanted; the order of the others is undefined. Bytes are
sorted by counting how often each value occurs. Other words are parted (`partition`), or sorted digit by digit, from the
last digit of the key to the first. A digit is a byte. Words are distributed by a digit in their order, so that words
with equal digits keep it. A digit that is the same in all words is skipped.
"""

from __future__ import annotations

import re
from functools import cache, reduce

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.keys import WordForm
from weft.compiler.cpu.code import Code, EmittedFunction, read
from weft.compiler.cpu.sorting import partition
from weft.compiler.cpu.sorting.vectors import is_fast

DECLARATION = "declare void @sort_words(ptr, i64, ptr, i64, i64)"
DIGITS = 256
TABLES = 4
"""The number of tables in which bytes are counted."""


def few_declaration(form: WordForm) -> str:
    return f"declare void @sort_few(ptr, i64, ptr, i{8 * form.size})"


def provided(form: WordForm) -> dict[str, int]:
    """The addresses of ``sort_words`` and, where words are sorted with vectors, ``sort_few``."""
    words = form if form.is_double else WordForm(dtypes.uint32 if form.is_wide else form.key, form.carries)
    return _addresses(words)


@cache
def _addresses(form: WordForm) -> dict[str, int]:
    name = f"sort_words_{form.name}"
    exported = ("sort_words", "sort_few") if is_fast(form.size) else ("sort_words",)
    return loading.load(name, lambda: generate(form), exported, title=name)


def generate(form: WordForm, depth: int | None = None) -> str:
    """The LLVM IR of ``sort_words``, ``sort_few`` and the functions that they call.

    It depends on the sizes of words and keys, and on whether the keys are those of float64. Words are parted at most
    ``depth`` times; None stands for a limit that grows with their count.
    """
    if is_fast(form.size):
        functions = [by_digits(form, "by_digits"), *partition.functions(form, depth)]
    else:
        sort = by_counting if form.size == 1 else by_digits
        functions = [sort(form, "sort_words", ", i64 %start, i64 %stop")]
    texts = [
        re.sub(r"define internal void @(sort_words|sort_few)\(", r"define void @\1(", text) for _, text in functions
    ]
    return module([emitter for emitter, _ in functions], texts)


def by_digits(form: WordForm, name: str, window: str = "") -> EmittedFunction:
    """Sort ``%count`` words at ``%a``, using as much memory at ``%b``; parameters in ``window`` are not used."""
    code = Code()
    e = code.e
    digits = form.key.size
    counts = e.slot(f"[{digits * DIGITS} x i32], align 64")
    here, there = e.slot("ptr"), e.slot("ptr")
    code.cleared(counts, digits * DIGITS)
    with e.loop("0", "%count") as index:
        key = read(code.scalar, form.key, code.moved("%a", key_offset(code, form, index)))
        for number in range(digits):
            count_digit(code, counts, number, digit_of(code, form, key.name, number))
    e.store("ptr", "%a", here)
    e.store("ptr", "%b", there)
    with e.loop("0", str(digits)) as digit:
        source, target = e.load("ptr", here), e.load("ptr", there)
        mine = code.moved(counts, code.multiply(digit, DIGITS), "i32")
        position = code.add(digit, form.first_byte)
        shared = code.integer(code.moved(mine, code.integer(code.moved(source, position), "i8"), "i32"), "i32")
        with e.when(code.compare("ne", shared, "%count")):
            running_totals(code, mine)
            distribute(code, form, source, target, "%count", position, mine)
            e.store("ptr", target, here)
            e.store("ptr", source, there)
    with e.when(e.assign(f"icmp ne ptr {e.load('ptr', here)}, %a")):
        code.copied("%b", "%a", code.multiply("%count", form.size))
    return code.finished(name, f"ptr %a, i64 %count, ptr %b{window}")


def by_counting(form: WordForm, name: str, window: str) -> EmittedFunction:
    """Write the wanted range of the sorted bytes.

    Neighbouring bytes are counted in different tables. In a single table, counting a byte that is equal to its
    neighbour would have to wait until the neighbour is counted.
    """
    code = Code()
    e = code.e
    counts = e.slot(f"[{TABLES * DIGITS} x i32], align 64")
    code.cleared(counts, TABLES * DIGITS)
    whole = e.assign(f"and i64 %count, {-TABLES}")

    def count(index: str, table: int) -> None:
        key = read(code.scalar, form.key, "%a", index)
        count_digit(code, counts, table, digit_of(code, form, key.name, 0))

    with e.loop("0", whole, TABLES) as index:
        for table in range(TABLES):
            count(code.add(index, table), table)
    with e.loop(whole, "%count") as index:
        count(index, 0)
    behind = e.slot("i64")
    code.keep("0", behind)
    with e.loop("0", str(DIGITS)) as value:
        found = [
            code.integer(code.moved(counts, code.add(value, table * DIGITS), "i32"), "i32") for table in range(TABLES)
        ]
        begin = e.load("i64", behind)
        end = reduce(code.add, found, begin)
        code.keep(end, behind)
        first, last = code.larger(begin, "%start"), code.smaller(end, "%stop")
        with e.when(code.compare("slt", first, last)):
            byte = e.assign(f"trunc i64 {value} to i8")
            count_ = code.subtract(last, first)
            e.emit(f"call void @llvm.memset.p0.i64(ptr {code.moved('%a', first)}, i8 {byte}, i64 {count_}, i1 false)")
    return code.finished(name, f"ptr %a, i64 %count, ptr %b{window}")


def key_offset(code: Code, form: WordForm, index: str) -> str:
    """The distance in bytes of a word's key from the first word."""
    distance = code.multiply(index, form.size)
    return code.add(distance, form.first_byte) if form.first_byte else distance


def digit_of(code: Code, form: WordForm, key: str, digit: int) -> str:
    """A digit of a key that is in a register."""
    bits = 8 * form.key.size
    shifted = code.e.assign(f"lshr i{bits} {key}, {8 * digit}") if digit else key
    if bits == 8:
        return code.e.assign(f"zext i8 {shifted} to i64")
    byte = code.e.assign(f"trunc i{bits} {shifted} to i8")
    return code.e.assign(f"zext i8 {byte} to i64")


def count_digit(code: Code, counts: str, digit: int, value: str) -> None:
    pointer = code.moved(counts, code.add(value, digit * DIGITS) if digit else value, "i32")
    code.e.store("i32", code.e.assign(f"add i32 {code.e.load('i32', pointer)}, 1"), pointer)


def running_totals(code: Code, counts: str) -> None:
    """Replace the count of each digit by the position of its first word."""
    e = code.e
    total = e.slot("i32")
    e.store("i32", "0", total)
    with e.loop("0", str(DIGITS)) as value:
        pointer = code.moved(counts, value, "i32")
        before, count = e.load("i32", total), e.load("i32", pointer)
        e.store("i32", before, pointer)
        e.store("i32", e.assign(f"add i32 {before}, {count}"), total)


def distribute(code: Code, form: WordForm, source: str, target: str, count: str, byte: str, counts: str) -> None:
    """Move words to the positions that ``counts`` has for their digit, byte ``byte`` of a word."""
    e = code.e
    type_ = f"i{8 * form.size}"
    with e.loop("0", count) as index:
        pointer = code.moved(source, index, type_)
        value = e.assign(f"load {type_}, ptr {pointer}, align {form.size}")
        digit = code.integer(code.moved(pointer, byte), "i8")
        entry = code.moved(counts, digit, "i32")
        position = e.load("i32", entry)
        goal = code.moved(target, e.assign(f"zext i32 {position} to i64"), type_)
        e.emit(f"store {type_} {value}, ptr {goal}, align {form.size}")
        e.store("i32", e.assign(f"add i32 {position}, 1"), entry)
