"""Sorts rows that fit a cache: a unit of work is a chunk of rows, which are sorted one by one in the same memory."""

from __future__ import annotations

from weft.compiler.codegen import keys
from weft.compiler.codegen.keys import WordForm
from weft.compiler.cpu.code import STEP, Code, EmittedFunction, module_of
from weft.compiler.cpu.sorting import choosing, narrowing, rows, runs, tiles, words
from weft.compiler.cpu.sorting.vectors import is_fast
from weft.primitives.sort_cuts import NEAR_BYTES

# The positions of the numbers of a step: slot and offset of input, result and scratch memory, and those below.
SOURCE, TARGET, SCRATCH = 0, 2, 4
ROWS, EXTENT, START, STOP, CHUNK_ROWS, BUFFER_BYTES = 6, 7, 8, 9, 10, 11


def generate(form: WordForm, name: str) -> str:
    """The LLVM IR of the step for rows of ``form``."""
    functions = [rows.is_sorted(form), rows.results_of_sorted(form), rows.make_words(form), rows.make_results(form)]
    functions += [_row(form), _step(form, name)]
    if form.mends:
        functions.append(rows.mend(form))
    if _narrows(form):
        functions += [choosing.choose_words(form), narrowing.narrow(form)]
    if form.is_wide:
        functions += [runs.differences(form), runs.sort_runs(form)]
    declarations = [words.DECLARATION, *([words.few_declaration(form)] if _are_flipped(form) else [])]
    return module_of(functions, declarations)


def _step(form: WordForm, name: str) -> EmittedFunction:
    code = Code()
    e = code.e
    count, extent = code.number(ROWS), code.number(EXTENT)
    width = code.subtract(code.number(STOP), code.number(START))
    chunk, bytes_ = code.number(CHUNK_ROWS), code.number(BUFFER_BYTES)
    source, target = code.memory(SOURCE), code.memory(TARGET)
    scratch = code.memory(SCRATCH)
    near = e.slot(f"[{2 * NEAR_BYTES} x i8], align 64")
    is_near = code.compare("ule", bytes_, NEAR_BYTES)
    with e.loop("%begin", "%end") as unit:
        first = code.multiply(unit, chunk)
        far = code.moved(scratch, code.multiply(code.add(unit, unit), bytes_))
        buffer = e.assign(f"select i1 {is_near}, ptr {near}, ptr {far}")
        with e.loop(first, code.smaller(code.add(first, chunk), count)) as row:
            from_ = code.moved(source, code.multiply(row, code.multiply(extent, form.key.size)))
            to = code.moved(target, code.multiply(row, code.multiply(width, form.result.size)))
            other = code.moved(buffer, bytes_)
            e.emit(
                f"call void @sort_row(ptr {from_}, i64 {extent}, ptr {to}, i64 {code.number(START)}, "
                f"i64 {code.number(STOP)}, ptr {buffer}, ptr {other})"
            )
    return code.finished(name, STEP, "")


def _row(form: WordForm) -> EmittedFunction:
    """Sort a row of ``%count`` elements, and write its results from ``%start`` to ``%stop``."""
    code = Code()
    e = code.e
    answer, odd = e.slot("i64"), e.slot("i64")
    shift = differences = "0"
    e.emit(f"call void @is_sorted(ptr %from, i64 %count, ptr {answer})")
    with e.when(code.compare("ne", code.integer(answer), 0)):
        e.emit("call void @results_of_sorted(ptr %from, i64 %start, i64 %stop, ptr %to)")
        e.leave()
    if _are_flipped(form):
        _leave_if_few(code, form)
    if _narrows(form):
        _leave_if_narrow(code, form, odd)
    if form.is_wide:
        e.emit(f"call void @differences(ptr %from, i64 %count, ptr %from, ptr {odd})")
        differences = e.load("i64", odd)
        shift = runs.shift_of(code, differences)
    first, width = code.multiply("%start", form.size), code.subtract("%stop", "%start")
    words = "%a"
    if not form.carries:  # a whole row is sorted in the memory of the result
        words = e.assign(f"select i1 {code.compare('eq', width, '%count')}, ptr %to, ptr %a")
    e.emit(f"call void @make_words(ptr %from, i64 0, i64 %count, ptr {words}, ptr {odd}, i64 {shift})")
    if form.is_wide:
        runs.sort_all(code, words, "%count", "%b", "%from", differences)
    else:
        e.emit(f"call void @sort_words(ptr {words}, i64 %count, ptr %b, i64 %start, i64 %stop)")
    e.emit(f"call void @make_results(ptr {code.moved(words, first)}, i64 {width}, ptr %from, ptr %to)")
    _mend(code, form, odd)
    return code.finished("sort_row", "ptr %from, i64 %count, ptr %to, i64 %start, i64 %stop, ptr %a, ptr %b")


def _are_flipped(form: WordForm) -> bool:
    """Whether elements are sorted with vectors and are equal to their keys, except perhaps for the sign bit."""
    return not form.carries and not form.mends and is_fast(form.size)


def _leave_if_few(code: Code, form: WordForm) -> None:
    """If the whole sorted row is wanted and has few integers, sort it from the input to the result, and return."""
    e = code.e
    is_few = code.compare("ule", "%count", tiles.most_words(form.size))
    is_whole = code.compare("eq", code.subtract("%stop", "%start"), "%count")
    with e.when(e.assign(f"and i1 {is_few}, {is_whole}")):
        flip = keys.ordered(code.scalar, code.scalar.constant(0, form.key), form.dtype)
        e.emit(f"call void @sort_few(ptr %from, i64 %count, ptr %to, i{8 * form.size} {flip.name})")
        e.leave()


def _mend(code: Code, form: WordForm, odd: str) -> None:
    if form.mends:
        with code.e.when(code.compare("ne", code.integer(odd), 0)):
            code.e.emit("call void @mend(ptr %from, i64 %count, ptr %to, i64 %start, i64 %stop)")


def _narrows(form: WordForm) -> bool:
    """Whether leaving out words saves time. Counting single bytes takes no more time than choosing some of them."""
    return not form.carries and form.size > 1


def _leave_if_narrow(code: Code, form: WordForm, odd: str) -> None:
    """If only a small part of a long sorted row is wanted, sort only the words around that part, and return."""
    e = code.e
    below, chosen = e.slot("i64"), e.slot("i64")
    width = code.subtract("%stop", "%start")
    is_long = code.compare("uge", "%count", narrowing.FEWEST)
    is_little = code.compare("ule", code.multiply(width, narrowing.LARGEST_PART), "%count")
    with e.when(e.assign(f"and i1 {is_long}, {is_little}")):
        e.emit(
            f"call void @narrow(ptr %from, i64 %count, i64 %start, i64 %stop, ptr %a, ptr {odd}, ptr {below}, "
            f"ptr {chosen})"
        )
        before, count = code.integer(below), code.integer(chosen)
        start, stop = (code.subtract(index, before) for index in ("%start", "%stop"))
        with e.when(e.assign(f"and i1 {code.compare('sge', start, 0)}, {code.compare('sle', stop, count)}")):
            e.emit(f"call void @sort_words(ptr %a, i64 {count}, ptr %b, i64 {start}, i64 {stop})")
            words = code.moved("%a", code.multiply(start, form.size))
            e.emit(f"call void @make_results(ptr {words}, i64 {width}, ptr %from, ptr %to)")
            _mend(code, form, odd)
            e.leave()
