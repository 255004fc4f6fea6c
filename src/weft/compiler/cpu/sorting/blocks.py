"""Sorts a few long rows, in steps whose units are blocks of a row, or buckets of its elements.

0. ``look`` finds whether each block is sorted already and, for wide keys, in which bits those of a block differ.
1. ``split`` sorts a sample of a row, and takes some of its words as splitters, which divide all words into buckets.
2. ``spread`` moves the words of each block into the order of the buckets; within a bucket they are in no order.
3. ``bounds`` finds where the words of each bucket begin in the sorted row.
4. ``finish`` collects the words of a bucket from all blocks, and sorts them.
5. ``mend`` puts elements that are out of order in place.

A step may be asked for a range of the sorted row only. Buckets outside of it are left out from step 4 on. If the row is
sorted already, step 2 writes the results, and the later steps have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Code, EmittedFunction, module_of, read, write
from weft.compiler.cpu.sorting import choosing, partition, rows, runs
from weft.compiler.cpu.sorting.vectors import Vectors, is_fast
from weft.compiler.cpu.sorting.words import DECLARATION
from weft.primitives.sort_cuts import BLOCK_BYTES, BUCKETS, BUFFERS, SAMPLE

# The positions of the numbers of all steps: slot and offset of input, result and scratch memory, and those below.
SOURCE, TARGET, SCRATCH = 0, 2, 4
ROWS, EXTENT, START, STOP, BLOCKS, BLOCK, BUFFER_BYTES, ROW_BYTES, JOINED = 6, 7, 8, 9, 10, 11, 12, 13, 14

# Byte offsets of tables after the buffers of a row.
SPLITTERS = 0
BOUNDS = SPLITTERS + BUCKETS * 8
DIFFERENCES = BOUNDS + (BUCKETS + 1) * 8
SORTED = DIFFERENCES + 8
LIKELY = SORTED + 8
RECORDS = LIKELY + 16
# Each block has a record of 64-bit numbers: a note about its elements, whether they are sorted, and where each bucket
# begins and ends in the block.
NOTE, IN_ORDER, BEGINS, RECORD = 0, 1, 2, BUCKETS + 3

USED_WITHOUT_VECTORS = 16
"""How many of the buckets are used where words are not parted in vectors."""
DEVIATIONS = 3
"""How many standard deviations beyond the wanted range the words of buckets are made."""
STACK_BYTES = 1 << 18
"""The most bytes of a bucket's words for which the other memory of the sort is on the stack, which is in a cache."""


def step_names(form: WordForm) -> list[str]:
    return [f"{name}_{form.name}" for name in _writers(form)]


def generate(form: WordForm) -> str:
    """The LLVM IR of all steps."""
    steps = [write(_Row(form), f"{name}_{form.name}") for name, write in _writers(form).items()]
    functions = [rows.is_sorted(form), rows.results_of_sorted(form), rows.make_words(form), rows.make_results(form)]
    functions += [choosing.choose_words(form), *steps]
    fast = is_fast(form.size)
    functions.append(_to_buckets_in_vectors(form) if fast else _to_buckets(form))
    if form.mends:
        functions.append(rows.mend(form))
    if form.is_wide:
        functions += [runs.differences(form), runs.sort_runs(form)]
    return module_of(functions, [DECLARATION])


class _Row:
    """The memory of a row, for all steps."""

    def __init__(self, form: WordForm) -> None:
        self.form, self.code = form, Code()
        self.e = self.code.e
        self.word = f"i{8 * form.size}"
        self.extent = self.code.number(EXTENT)
        self.start, self.stop = self.code.number(START), self.code.number(STOP)

    def at(self, row: str) -> None:
        """Select a row."""
        code, form = self.code, self.form
        self.source = code.moved(code.memory(SOURCE), code.multiply(row, code.multiply(self.extent, form.key.size)))
        width = code.subtract(self.stop, self.start)
        self.target = code.moved(code.memory(TARGET), code.multiply(row, code.multiply(width, form.result.size)))
        scratch = code.moved(code.memory(SCRATCH), code.multiply(row, code.number(ROW_BYTES)))
        bytes_ = code.number(BUFFER_BYTES)
        self.buffers = [code.moved(scratch, code.multiply(bytes_, number)) for number in range(BUFFERS)]
        self.table = code.moved(scratch, code.multiply(bytes_, BUFFERS))

    def words_at(self, buffer: str, index: str) -> str:
        return self.code.moved(buffer, index, self.word)

    def block(self, unit: str) -> tuple[str, str, str]:
        """Select the row of a block. Returns the number of the block in it, its first element and how many it has."""
        code = self.code
        blocks = code.number(BLOCKS)
        self.at(code.divide(unit, blocks))
        number = code.remainder(unit, blocks)
        return number, *self.elements_of(number)

    def elements_of(self, block: str) -> tuple[str, str]:
        """The first element of a block of the row, and how many it has."""
        code, size = self.code, self.code.number(BLOCK)
        first = code.smaller(code.multiply(block, size), self.extent)
        return first, code.smaller(code.subtract(self.extent, first), size)

    def entry(self, position: int, index: str) -> str:
        """The address of a 64-bit number in the tables after the buffers."""
        return self.code.moved(self.code.moved(self.table, position), index, "i64")

    def record(self, block: str, index: str | int) -> str:
        """The address of a number in the record of a block."""
        record = self.code.moved(self.code.moved(self.table, RECORDS), self.code.multiply(block, RECORD), "i64")
        return self.code.moved(record, index, "i64")

    def splitter(self, bucket: str) -> str:
        """The address of the smallest word that may be in a bucket. There is none after the last bucket."""
        return self.code.moved(self.code.moved(self.table, SPLITTERS), bucket, self.word)

    def differences(self) -> str:
        """The bits in which wide keys of the row differ."""
        return self.code.integer(self.entry(DIFFERENCES, "0"))

    def shift(self) -> str:
        """How many low bits of wide keys are left out of words."""
        return runs.shift_of(self.code, self.differences()) if self.form.is_wide else "0"

    def likely(self) -> tuple[str, str]:
        """The range of buckets that most likely has all wanted elements."""
        low, high = (self.code.integer(self.entry(LIKELY, number)) for number in ("0", "1"))
        return low, high

    def wanted(self, bucket: str) -> str:
        """Whether some element of a bucket is wanted."""
        code = self.code
        low, high = (code.integer(self.entry(BOUNDS, number)) for number in (bucket, code.add(bucket, 1)))
        return code.compare("ult", code.larger(low, self.start), code.smaller(high, self.stop))


def _load(code: Code, form: WordForm, pointer: str) -> str:
    return code.e.assign(f"load i{8 * form.size}, ptr {pointer}, align {form.size}")


def _store(code: Code, form: WordForm, word: str, pointer: str) -> None:
    code.e.emit(f"store i{8 * form.size} {word}, ptr {pointer}, align {form.size}")


def _look(row: _Row, name: str) -> EmittedFunction:
    code, e, form = row.code, row.e, row.form
    with e.loop("%begin", "%end") as unit:
        number, first, count = row.block(unit)
        source = code.moved(row.source, code.multiply(first, form.key.size))
        with_next = code.smaller(code.add(count, 1), code.subtract(row.extent, first))
        e.emit(f"call void @is_sorted(ptr {source}, i64 {with_next}, ptr {row.record(number, IN_ORDER)})")
        if form.is_wide:
            note = row.record(number, NOTE)
            e.emit(f"call void @differences(ptr {source}, i64 {count}, ptr {row.source}, ptr {note})")
    return code.finished(name, STEP, "")


def _collect_notes(row: _Row) -> None:
    """Combine the notes of all blocks into those of the row."""
    code, e = row.code, row.e
    differences, in_order = e.slot("i64"), e.slot("i64")
    code.keep("0", differences)
    code.keep("1", in_order)
    with e.loop("0", code.number(BLOCKS)) as block:
        for operation, index, slot in (("or", NOTE, differences), ("and", IN_ORDER, in_order)):
            note = code.integer(row.record(block, index))
            code.keep(e.assign(f"{operation} i64 {e.load('i64', slot)}, {note}"), slot)
    code.keep(e.load("i64", differences), row.entry(DIFFERENCES, "0"))
    code.keep(e.load("i64", in_order), row.entry(SORTED, "0"))


def _split(row: _Row, name: str) -> EmittedFunction:
    code, e, form = row.code, row.e, row.form
    chosen = e.slot(f"[{SAMPLE * form.key.size} x i8], align 64")
    words, other = (e.slot(f"[{SAMPLE * form.size} x i8], align 64") for _ in range(2))
    odd = e.slot("i64")
    with e.loop("%begin", "%end") as unit:
        row.at(unit)
        _collect_notes(row)
        with e.loop("0", str(SAMPLE)) as number:
            index = code.divide(code.multiply(number, row.extent), SAMPLE)
            element = read(code.scalar, form.key, row.source, index)
            write(code.scalar, element, chosen, number)
        e.emit(f"call void @make_words(ptr {chosen}, i64 0, i64 {SAMPLE}, ptr {words}, ptr {odd}, i64 {row.shift()})")
        e.emit(f"call void @sort_words(ptr {words}, i64 {SAMPLE}, ptr {other}, i64 0, i64 {SAMPLE})")
        with e.loop("0", str(BUCKETS)) as bucket:
            index = code.multiply(bucket, SAMPLE // BUCKETS)
            word = _load(code, form, row.words_at(words, index))
            if form.carries:  # words with equal upper halves must be in the same bucket
                word = e.assign(f"and i64 {word}, {-1 << 32}")
            _store(code, form, word, row.splitter(bucket))
        _store(code, form, "0", row.splitter("0"))
        _choose_buckets(row)
    return code.finished(name, STEP, "")


def _choose_buckets(row: _Row) -> None:
    """Note the range of buckets that most likely has all wanted elements.

    The sample predicts the position of an element in the sorted row with a standard deviation of at most one bucket. If
    several splitters are equal, all words that equal them are in the last of their buckets, so the range is extended to
    it.
    """
    code, e = row.code, row.e
    step = 1 if is_fast(row.form.size) else BUCKETS // USED_WITHOUT_VECTORS
    low, high = (code.divide(code.multiply(index, BUCKETS), row.extent) for index in (row.start, row.stop))
    low, high = code.subtract(low, DEVIATIONS), code.add(high, DEVIATIONS + step)
    low, high = (code.e.assign(f"and i64 {bucket}, {-step}") for bucket in (low, high))
    code.keep(code.larger(low, "0"), row.entry(LIKELY, "0"))
    end = row.entry(LIKELY, "1")
    code.keep(code.smaller(high, BUCKETS), end)
    with e.loop(high, str(BUCKETS), step) as bucket:
        words = [_load(code, row.form, row.splitter(one)) for one in (bucket, code.subtract(bucket, 1))]
        is_same = e.assign(f"icmp eq {row.word} {words[0]}, {words[1]}")
        reached = e.assign(f"and i1 {is_same}, {code.compare('eq', code.integer(end), bucket)}")
        with e.when(reached):
            code.keep(code.add(bucket, step), end)


def _spread(row: _Row, name: str) -> EmittedFunction:
    code, e = row.code, row.e
    other = e.slot(f"[{BLOCK_BYTES} x i8], align 64")
    total = e.slot("i64")
    with e.loop("%begin", "%end") as unit:
        number, first, count = row.block(unit)
        code.keep("0", row.record(number, NOTE))
        with e.loop("0", str(BUCKETS + 1)) as bucket:
            code.keep("0", code.moved(row.record(number, BEGINS), bucket, "i64"))
        is_sorted = code.compare("ne", code.integer(row.entry(SORTED, "0")), 0)
        with e.when(is_sorted):
            _write_sorted(row, first, count)
        with e.when(code.negated(is_sorted)):
            _spread_words(row, number, first, count, other)
        code.keep("0", total)
        with e.loop("0", str(BUCKETS)) as bucket:
            counted = code.moved(row.record(number, BEGINS + 1), bucket, "i64")
            code.keep(code.add(e.load("i64", total), code.integer(counted)), total)
            code.keep(e.load("i64", total), counted)
    return code.finished(name, STEP, "")


def _write_sorted(row: _Row, first: str, count: str) -> None:
    """Write the wanted elements of a block. Its buckets stay empty."""
    code = row.code
    start = code.larger(first, row.start)
    stop = code.larger(code.smaller(code.add(first, count), row.stop), start)
    target = code.moved(row.target, code.multiply(code.subtract(start, row.start), row.form.result.size))
    row.e.emit(f"call void @results_of_sorted(ptr {row.source}, i64 {start}, i64 {stop}, ptr {target})")


def _spread_words(row: _Row, number: str, first: str, count: str, other: str) -> None:
    code, e, form = row.code, row.e, row.form
    below, chosen = e.slot("i64"), e.slot("i64")
    counts = row.record(number, BEGINS + 1)
    low, high = row.likely()
    all_ = code.compare("eq", code.subtract(high, low), BUCKETS)
    with e.when(all_):
        source = code.moved(row.source, code.multiply(first, form.key.size))
        e.emit(
            f"call void @make_words(ptr {source}, i64 {first}, i64 {count}, ptr {other}, "
            f"ptr {row.record(number, NOTE)}, i64 {row.shift()})"
        )
        code.keep("0", below)
        code.keep(count, chosen)
    with e.when(code.negated(all_)):
        _choose(row, (low, high), (first, count), other, row.record(number, NOTE), (below, chosen))
    before = code.integer(below)
    words = row.words_at(row.buffers[0], code.add(first, before))
    e.emit(
        f"call void @to_buckets(ptr {other}, i64 {code.integer(chosen)}, ptr {words}, ptr {other}, i64 {low}, "
        f"i64 {high}, i64 {code.number(JOINED)}, ptr {row.splitter('0')}, ptr {counts})"
    )
    behind = code.subtract(code.subtract(count, before), code.integer(chosen))
    for bucket, omitted in ((code.subtract(low, 1), before), (high, behind)):
        with e.when(code.compare("ne", omitted, 0)):
            code.keep(omitted, code.moved(counts, bucket, "i64"))


def _choose(
    row: _Row, buckets: tuple[str, str], elements: tuple[str, str], to: str, odd: str, counts: tuple[str, str]
) -> None:
    """Make only the words of a range of buckets, from ``count`` elements of a row from ``first`` on."""
    code, (low, high), (first, count), (below, chosen) = row.code, buckets, elements, counts
    source = code.moved(row.source, code.multiply(first, row.form.key.size))
    words = [_load(code, row.form, row.splitter(bucket)) for bucket in (low, high)]
    row.e.emit(
        f"call void @choose_words(ptr {source}, i64 {first}, i64 {count}, ptr {to}, ptr {odd}, i64 {row.shift()}, "
        f"{row.word} {words[0]}, {row.word} {words[1]}, i1 {code.compare('ne', high, BUCKETS)}, ptr {below}, "
        f"ptr {chosen})"
    )


_TO_BUCKETS = (
    "ptr %from, i64 %count, ptr %to, ptr %rest, i64 %first, i64 %behind, i64 %joined, ptr %splitters, ptr %counts"
)


def _to_buckets_in_vectors(form: WordForm) -> EmittedFunction:
    """Part words, which are at ``%to`` or ``%rest``, again and again, until those of each bucket are together at
    ``%to``.

    Up to ``%joined`` neighbouring buckets are not separated: the first of them gets all their words.
    """
    code = Code()
    e = code.e
    v = Vectors(code, form.size)
    with e.when(code.compare("sle", code.subtract("%behind", "%first"), "%joined")):
        code.keep("%count", code.moved("%counts", "%first", "i64"))
        with e.when(e.assign("icmp ne ptr %from, %to")):
            _copied(code, form, "%from", "%to", "%count")
        e.leave()
    middle = e.assign(f"lshr i64 {code.add('%first', '%behind')}, 1")
    word = _load(code, form, code.moved("%splitters", middle, v.element))
    _leave_out_empty_half(code, form, word, "%first", middle, "%behind")
    _leave_out_empty_half(code, form, word, "%behind", "%first", middle)
    splitter = v.L.splat(Value(code.scalar, word, v.dtype))
    below = partition.moved_apart(code, v, "%from", lambda value: value < splitter, keeps=True)
    target, rest = code.moved("%to", below, v.element), code.subtract("%count", below)
    for from_, count, to, first, behind in (
        ("%rest", rest, target, middle, "%behind"),
        ("%to", below, "%to", "%first", middle),
    ):
        e.emit(
            f"call void @to_buckets(ptr {from_}, i64 {count}, ptr {to}, ptr %rest, i64 {first}, i64 {behind}, "
            "i64 %joined, ptr %splitters, ptr %counts)"
        )
    return code.finished("to_buckets", _TO_BUCKETS)


def _leave_out_empty_half(code: Code, form: WordForm, word: str, border: str, first: str, behind: str) -> None:
    """If many words are equal, splitters are equal too. If the splitter in the middle equals that at a border, one half
    of the buckets is empty: all words belong to those from ``first`` to ``behind``."""
    e = code.e
    has_splitter = code.compare("ult", code.subtract(border, 1), BUCKETS - 1)
    with e.when(has_splitter):
        other = _load(code, form, code.moved("%splitters", border, f"i{8 * form.size}"))
        with e.when(e.assign(f"icmp eq i{8 * form.size} {word}, {other}")):
            e.emit(
                f"call void @to_buckets(ptr %from, i64 %count, ptr %to, ptr %rest, i64 {first}, i64 {behind}, "
                "i64 %joined, ptr %splitters, ptr %counts)"
            )
            e.leave()


def _to_buckets(form: WordForm) -> EmittedFunction:
    """Count the words of each bucket, and move them together at ``%to``."""
    code = Code()
    e = code.e
    positions = e.slot(f"[{BUCKETS} x i64]")
    total = e.slot("i64")
    with e.loop("0", "%count") as index:
        bucket = _bucket_of(code, form, _load(code, form, code.moved("%from", index, f"i{8 * form.size}")))
        pointer = code.moved("%counts", bucket, "i64")
        code.keep(code.add(code.integer(pointer), 1), pointer)
    code.keep("0", total)
    with e.loop("0", str(BUCKETS)) as bucket:
        before = e.load("i64", total)
        code.keep(before, code.moved(positions, bucket, "i64"))
        code.keep(code.add(before, code.integer(code.moved("%counts", bucket, "i64"))), total)
    with e.loop("0", "%count") as index:
        word = _load(code, form, code.moved("%from", index, f"i{8 * form.size}"))
        pointer = code.moved(positions, _bucket_of(code, form, word), "i64")
        position = code.integer(pointer)
        _store(code, form, word, code.moved("%to", position, f"i{8 * form.size}"))
        code.keep(code.add(position, 1), pointer)
    return code.finished("to_buckets", _TO_BUCKETS)


def _bucket_of(code: Code, form: WordForm, word: str) -> str:
    """The bucket of a word, by arithmetic, because no processor could predict a branch here.

    Only some of the buckets are used: telling all apart would take more time than it saves when their words are sorted.
    """
    bucket, distance = "0", BUCKETS // 2
    while distance >= BUCKETS // USED_WITHOUT_VECTORS:
        further = code.add(bucket, distance)
        splitter = _load(code, form, code.moved("%splitters", further, f"i{8 * form.size}"))
        reached = code.e.assign(f"icmp uge i{8 * form.size} {word}, {splitter}")
        bucket = code.add(bucket, code.multiply(code.e.assign(f"zext i1 {reached} to i64"), distance))
        distance //= 2
    return bucket


def _bounds(row: _Row, name: str) -> EmittedFunction:
    code, e = row.code, row.e
    total = e.slot("i64")
    with e.loop("%begin", "%end") as unit:
        row.at(unit)
        code.keep("0", total)
        with e.loop("0", str(BUCKETS)) as bucket:
            code.keep(e.load("i64", total), row.entry(BOUNDS, bucket))
            with e.loop("0", code.number(BLOCKS)) as block:
                count, _ = _piece(row, block, bucket)
                code.keep(code.add(e.load("i64", total), count), total)
        code.keep(e.load("i64", total), row.entry(BOUNDS, str(BUCKETS)))
    return code.finished(name, STEP, "")


def _finish(row: _Row, name: str) -> EmittedFunction:
    code, e, form = row.code, row.e, row.form
    near = e.slot(f"[{STACK_BYTES} x i8], align 64")
    with e.loop("%begin", "%end") as unit:
        row.at(code.divide(unit, BUCKETS))
        bucket = code.remainder(unit, BUCKETS)
        with e.when(row.wanted(bucket)):
            low, high = (code.integer(row.entry(BOUNDS, number)) for number in (bucket, code.add(bucket, 1)))
            first, stop = code.larger(low, row.start), code.smaller(high, row.stop)
            count, width = code.subtract(high, low), code.subtract(stop, first)
            target = code.moved(row.target, code.multiply(code.subtract(first, row.start), form.result.size))
            words, far = (row.words_at(buffer, low) for buffer in row.buffers[1:])
            if not form.carries:  # a whole bucket is sorted in the memory of the result
                words = e.assign(f"select i1 {code.compare('eq', width, count)}, ptr {target}, ptr {words}")
            fits = code.compare("ule", count, STACK_BYTES // form.size)
            other = e.assign(f"select i1 {fits}, ptr {near}, ptr {far}")
            _collect(row, bucket, words, near)
            if form.is_wide:
                runs.sort_all(code, words, count, other, row.source, row.differences())
            else:
                window = f"i64 {code.subtract(first, low)}, i64 {code.subtract(stop, low)}"
                e.emit(f"call void @sort_words(ptr {words}, i64 {count}, ptr {other}, {window})")
            results = row.words_at(words, code.subtract(first, low))
            e.emit(f"call void @make_results(ptr {results}, i64 {width}, ptr {row.source}, ptr {target})")
    return code.finished(name, STEP, "")


def _piece(row: _Row, block: str, bucket: str) -> tuple[str, str]:
    """How many words of a block are in a bucket, and the position of the first one."""
    code = row.code
    begin, end = (code.integer(row.record(block, code.add(bucket, BEGINS + side))) for side in range(2))
    return code.subtract(end, begin), code.add(code.multiply(block, code.number(BLOCK)), begin)


def _collect(row: _Row, bucket: str, words: str, near: str) -> None:
    """Copy the words of a bucket from all blocks. Words of a bucket outside of the likely range are made first."""
    code, e = row.code, row.e
    done, odd, below, chosen = (e.slot("i64") for _ in range(4))
    code.keep("0", done)
    low, high = row.likely()
    is_made = e.assign(f"and i1 {code.compare('sge', bucket, low)}, {code.compare('slt', bucket, high)}")
    bounds = (
        code.either(code.compare("slt", bucket, low), "0", high),
        code.either(code.compare("slt", bucket, low), low, BUCKETS),
    )
    with e.loop("0", code.number(BLOCKS)) as block:
        count, position = _piece(row, block, bucket)
        before = e.load("i64", done)
        target = row.words_at(words, before)
        with e.when(is_made):
            _copied(code, row.form, row.words_at(row.buffers[0], position), target, count)
        with e.when(code.negated(is_made)):
            _choose(row, bounds, row.elements_of(block), near, odd, (below, chosen))
            _copied(code, row.form, near, target, count)
        code.keep(code.add(before, count), done)


def _copied(code: Code, form: WordForm, source: str, target: str, count: str) -> None:
    """Copy words."""
    if not is_fast(form.size):
        code.copied(source, target, code.multiply(count, form.size), form.size)
        return
    v = Vectors(code, form.size)
    with code.e.loop("0", count, v.width) as start:
        mask = str(v.below(code.subtract(count, start)).name)
        v.store(v.load(source, start, mask), target, start, mask)


def _mend(row: _Row, name: str) -> EmittedFunction:
    code, e = row.code, row.e
    odd = e.slot("i64")
    with e.loop("%begin", "%end") as unit:
        row.at(unit)
        code.keep("0", odd)
        with e.loop("0", code.number(BLOCKS)) as block:
            code.keep(code.add(e.load("i64", odd), code.integer(row.record(block, NOTE))), odd)
        with e.when(code.compare("ne", e.load("i64", odd), 0)):
            e.emit(
                f"call void @mend(ptr {row.source}, i64 {row.extent}, ptr {row.target}, i64 {row.start}, "
                f"i64 {row.stop})"
            )
    return code.finished(name, STEP, "")


def _writers(form: WordForm) -> dict[str, Callable[[_Row, str], EmittedFunction]]:
    """The functions that write the steps, in order."""
    steps: dict[str, Callable[[_Row, str], EmittedFunction]] = {
        "look": _look,
        "split": _split,
        "spread": _spread,
        "bounds": _bounds,
        "finish": _finish,
    }
    return {**steps, "mend": _mend} if form.mends else steps
