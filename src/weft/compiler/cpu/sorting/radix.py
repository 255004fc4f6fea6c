"""Rows that fit a cache: sorted by one digit of the key after the other, from the last to the first.

A unit of work is a chunk of rows, which are sorted one after the other in the same scratch memory. A digit is a byte.
The words of a row are distributed by it, in their order, so that equal keys stay in order; a digit that all words share
is left out.
"""

from __future__ import annotations

from weft.compiler.codegen.emitter import module
from weft.compiler.cpu.sorting import partition, rows
from weft.compiler.cpu.sorting.code import STEP, Code, Function, read
from weft.compiler.cpu.sorting.keys import Form

DIGITS = 256

# The numbers of a step: slot and offset of input, result and scratch memory, and these.
SOURCE, TARGET, SCRATCH = 0, 2, 4
ROWS, EXTENT, START, STOP, CHUNK_ROWS, BUFFER_BYTES = 6, 7, 8, 9, 10, 11


def generate(form: Form, name: str) -> str:
    """The LLVM IR of the step for rows of ``form``."""
    functions = [rows.make_words(form), rows.make_results(form), *sort_words(form), _row(form), _step(form, name)]
    if form.mends:
        functions.append(rows.mend(form))
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


def sort_words(form: Form) -> list[Function]:
    """The function that sorts words, and what it calls."""
    if not partition.is_fast(form.size):
        return [by_digits(form, "sort_words")]
    return [by_digits(form, "by_digits"), *partition.functions(form.size)]


def _step(form: Form, name: str) -> Function:
    code = Code()
    e = code.e
    count, extent = code.number(ROWS), code.number(EXTENT)
    width = code.subtract(code.number(STOP), code.number(START))
    chunk, bytes_ = code.number(CHUNK_ROWS), code.number(BUFFER_BYTES)
    source, target = code.memory(SOURCE), code.memory(TARGET)
    scratch = code.memory(SCRATCH)
    with e.loop("%begin", "%end") as unit:
        first = code.multiply(unit, chunk)
        buffer = code.moved(scratch, code.multiply(code.add(unit, unit), bytes_))
        with e.loop(first, code.smaller(code.add(first, chunk), count)) as row:
            from_ = code.moved(source, code.multiply(row, code.multiply(extent, form.key.size)))
            to = code.moved(target, code.multiply(row, code.multiply(width, form.result.size)))
            other = code.moved(buffer, bytes_)
            e.emit(
                f"call void @sort_row(ptr {from_}, i64 {extent}, ptr {to}, i64 {code.number(START)}, "
                f"i64 {code.number(STOP)}, ptr {buffer}, ptr {other})"
            )
    return code.finished(name, STEP, "")


def _row(form: Form) -> Function:
    """Sort a row of ``%count`` elements and write what the sorted one has from ``%start`` to ``%stop``."""
    code = Code()
    e = code.e
    odd = e.slot("i64")
    e.emit(f"call void @make_words(ptr %from, i64 0, i64 %count, ptr %a, ptr {odd})")
    e.emit("call void @sort_words(ptr %a, i64 %count, ptr %b)")
    first = code.moved("%a", code.multiply("%start", form.size))
    width = code.subtract("%stop", "%start")
    e.emit(f"call void @make_results(ptr {first}, i64 {width}, ptr %from, ptr %to)")
    if form.mends:
        with e.when(code.compare("ne", e.load("i64", odd), 0)):
            e.emit("call void @mend(ptr %from, i64 %count, ptr %to, i64 %start, i64 %stop)")
    return code.finished("sort_row", "ptr %from, i64 %count, ptr %to, i64 %start, i64 %stop, ptr %a, ptr %b")


def by_digits(form: Form, name: str) -> Function:
    """Sort ``%count`` words at ``%a``, with as much other memory at ``%b``."""
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
        place = code.add(digit, form.first_byte)
        shared = code.integer(code.moved(mine, code.integer(code.moved(source, place), "i8"), "i32"), "i32")
        with e.when(code.compare("ne", shared, "%count")):
            running_totals(code, mine)
            distribute(code, form, source, target, "%count", place, mine)
            e.store("ptr", target, here)
            e.store("ptr", source, there)
    with e.when(e.assign(f"icmp ne ptr {e.load('ptr', here)}, %a")):
        code.copied("%b", "%a", code.multiply("%count", form.size))
    return code.finished(name, "ptr %a, i64 %count, ptr %b")


def key_offset(code: Code, form: Form, index: str) -> str:
    """How many bytes behind the first word the key of a word is."""
    distance = code.multiply(index, form.size)
    return code.add(distance, form.first_byte) if form.first_byte else distance


def digit_of(code: Code, form: Form, key: str, digit: int) -> str:
    """A digit of a key in a register."""
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
    """Replace the count of each digit by where its first word goes."""
    e = code.e
    total = e.slot("i32")
    e.store("i32", "0", total)
    with e.loop("0", str(DIGITS)) as value:
        pointer = code.moved(counts, value, "i32")
        before, count = e.load("i32", total), e.load("i32", pointer)
        e.store("i32", before, pointer)
        e.store("i32", e.assign(f"add i32 {before}, {count}"), total)


def distribute(code: Code, form: Form, source: str, target: str, count: str, place: str, counts: str) -> None:
    """Move words to where ``counts`` says for their digit, byte ``place`` of a word."""
    e = code.e
    type_ = f"i{8 * form.size}"
    with e.loop("0", count) as index:
        pointer = code.moved(source, index, type_)
        value = e.assign(f"load {type_}, ptr {pointer}, align {min(form.size, 8)}")
        digit = code.integer(code.moved(pointer, place), "i8")
        entry = code.moved(counts, digit, "i32")
        position = e.load("i32", entry)
        goal = code.moved(target, e.assign(f"zext i32 {position} to i64"), type_)
        e.emit(f"store {type_} {value}, ptr {goal}, align {min(form.size, 8)}")
        e.store("i32", e.assign(f"add i32 {position}, 1"), entry)
