"""Few long rows: in steps whose units are blocks of a row, or buckets of its elements.

1. ``words``: the words of each block are made.
2. ``split``: of some words of a row, sorted, a few become splitters, which cut what there may be into buckets.
3. ``count``: how many words of each block belong to each bucket.
4. ``place``: where the words of a block begin in each bucket.
5. ``scatter``: the words are moved to their buckets.
6. ``finish``: each bucket is sorted.
7. ``mend``: elements that are out of order are put in place.

A bucket of which nothing was asked for is left out from step 5 on.
"""

from __future__ import annotations

from weft import dtypes
from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.sorting import partition, radix, rows
from weft.compiler.cpu.sorting.code import STEP, Code, Function
from weft.compiler.cpu.sorting.keys import Form
from weft.compiler.cpu.sorting.partition import Vectors
from weft.primitives.sort_cuts import BLOCKS, BUCKETS, SAMPLE

# The numbers of all steps: slot and offset of input, result and scratch memory, and these.
SOURCE, TARGET, SCRATCH = 0, 2, 4
ROWS, EXTENT, START, STOP, BLOCK, BUFFER_BYTES, ROW_BYTES = 6, 7, 8, 9, 10, 11, 12

# Bytes behind the two buffers of a row.
COUNTS = 0
SPLITTERS = COUNTS + BLOCKS * BUCKETS * 8
ODD = SPLITTERS + BUCKETS * 16
BOUNDS = ODD + BLOCKS * 8


def step_names(form: Form) -> list[str]:
    names = ["words", "split", "count", "place", "scatter", "finish", *(["mend"] if form.mends else [])]
    return [f"{name}_{form.name}" for name in names]


def generate(form: Form) -> str:
    """The LLVM IR of all steps."""
    writers = [_words, _split, _count, _place, _scatter, _finish, _mend]
    steps = [write(_Row(form), name) for write, name in zip(writers, step_names(form), strict=False)]
    functions = [rows.make_words(form), rows.make_results(form), *radix.sort_words(form), *steps]
    if form.mends:
        functions.append(rows.mend(form))
    return module([emitter for emitter, _ in functions], [text for _, text in functions])


class _Row:
    """What all steps know of a row: where its memory is."""

    def __init__(self, form: Form) -> None:
        self.form, self.code = form, Code()
        self.e = self.code.e
        self.word = f"i{8 * form.size}"
        self.extent = self.code.number(EXTENT)
        self.start, self.stop = self.code.number(START), self.code.number(STOP)

    def at(self, row: str) -> None:
        """Go to a row."""
        code, form = self.code, self.form
        self.source = code.moved(code.memory(SOURCE), code.multiply(row, code.multiply(self.extent, form.key.size)))
        width = code.subtract(self.stop, self.start)
        self.target = code.moved(code.memory(TARGET), code.multiply(row, code.multiply(width, form.result.size)))
        scratch = code.moved(code.memory(SCRATCH), code.multiply(row, code.number(ROW_BYTES)))
        bytes_ = code.number(BUFFER_BYTES)
        self.a, self.b = scratch, code.moved(scratch, bytes_)
        self.table = code.moved(self.b, bytes_)

    def words_at(self, buffer: str, index: str) -> str:
        return self.code.moved(buffer, index, self.word)

    def block(self, unit: str) -> tuple[str, str, str]:
        """Go to the row of a block; gives the number of the block in it, its first element and how many it has."""
        code = self.code
        self.at(code.divide(unit, BLOCKS))
        number, size = code.remainder(unit, BLOCKS), code.number(BLOCK)
        first = code.smaller(code.multiply(number, size), self.extent)
        return number, first, code.smaller(code.subtract(self.extent, first), size)

    def entry(self, place: int, index: str) -> str:
        """A number of 64 bits in the table behind the buffers."""
        return self.code.moved(self.code.moved(self.table, place), index, "i64")

    def splitter(self, bucket: str) -> str:
        """The first word that a bucket may have; the one at 0 is not used."""
        return self.code.moved(self.code.moved(self.table, SPLITTERS), bucket, self.word)

    def load_word(self, pointer: str) -> str:
        return self.e.assign(f"load {self.word}, ptr {pointer}, align {min(self.form.size, 8)}")

    def store_word(self, value: str, pointer: str) -> None:
        self.e.emit(f"store {self.word} {value}, ptr {pointer}, align {min(self.form.size, 8)}")

    def wanted(self, bucket: str) -> str:
        """Whether something of a bucket was asked for."""
        code = self.code
        low, high = (code.integer(self.entry(BOUNDS, number)) for number in (bucket, code.add(bucket, 1)))
        return code.compare("ult", code.larger(low, self.start), code.smaller(high, self.stop))


def _words(row: _Row, name: str) -> Function:
    code, e = row.code, row.e
    with e.loop("%begin", "%end") as unit:
        number, first, count = row.block(unit)
        source = code.moved(row.source, code.multiply(first, row.form.key.size))
        e.emit(
            f"call void @make_words(ptr {source}, i64 {first}, i64 {count}, ptr {row.words_at(row.a, first)}, "
            f"ptr {row.entry(ODD, number)})"
        )
    return code.finished(name, STEP, "")


def _split(row: _Row, name: str) -> Function:
    code, e = row.code, row.e
    sample, other = (e.slot(f"[{SAMPLE * row.form.size} x i8], align 64") for _ in range(2))
    with e.loop("%begin", "%end") as unit:
        row.at(unit)
        with e.loop("0", str(SAMPLE)) as number:
            index = code.divide(code.multiply(number, row.extent), SAMPLE)
            row.store_word(row.load_word(row.words_at(row.a, index)), row.words_at(sample, number))
        e.emit(f"call void @sort_words(ptr {sample}, i64 {SAMPLE}, ptr {other})")
        with e.loop("0", str(BUCKETS)) as bucket:
            index = code.multiply(bucket, SAMPLE // BUCKETS)
            row.store_word(row.load_word(row.words_at(sample, index)), row.splitter(bucket))
    return code.finished(name, STEP, "")


def _count(row: _Row, name: str) -> Function:
    code, e = row.code, row.e
    with e.loop("%begin", "%end") as unit:
        number, first, count = row.block(unit)
        counts = row.entry(COUNTS, code.multiply(number, BUCKETS))
        with e.loop("0", str(BUCKETS)) as bucket:
            code.keep("0", code.moved(counts, bucket, "i64"))
        words = row.words_at(row.a, first)
        if partition.is_fast(row.form.size):
            _count_vectors(row, words, count, counts)
        else:
            with e.loop("0", count) as index:
                pointer = code.moved(counts, _bucket_of(row, row.load_word(row.words_at(words, index))), "i64")
                code.keep(code.add(code.integer(pointer), 1), pointer)
    return code.finished(name, STEP, "")


def _bucket_of(row: _Row, word: str) -> str:
    """The bucket that a word belongs to."""
    code, bucket, distance = row.code, "0", BUCKETS // 2
    while distance:
        further = code.add(bucket, distance)
        splitter = row.load_word(row.splitter(further))
        reached = code.e.assign(f"icmp uge {row.word} {word}, {splitter}")
        bucket = code.either(reached, further, bucket)
        distance //= 2
    return bucket


def _count_vectors(row: _Row, words: str, count: str, counts: str) -> None:
    """Count the words below each splitter, which are those of all buckets before it."""
    code, e = row.code, row.e
    v = Vectors(code, row.form.size)
    splitters = [_spread(row, v, str(bucket)) for bucket in range(1, BUCKETS)]
    below = [e.slot(v.type) for _ in splitters]
    for slot in below:
        e.store(v.type, "zeroinitializer", slot)
    whole = e.assign(f"and i64 {count}, {-v.width}")

    def counted(value: Value, inside: Value | None) -> None:
        for splitter, slot in zip(splitters, below, strict=True):
            found = value < splitter
            total = v.value(e.load(v.type, slot))
            e.store(v.type, v.L.select(found if inside is None else found & inside, total + 1, total).name, slot)

    with e.loop("0", whole, v.width) as start:
        counted(v.load(words, start), None)
    inside = v.below(code.subtract(count, whole))
    counted(v.load(words, whole, str(inside.name)), inside)
    before = "0"
    for bucket, slot in enumerate(below):
        name = f"llvm.vector.reduce.add.v{v.width}{v.element}"
        total = e.call(name, v.element, [(v.type, e.load(v.type, slot))])
        total = total if v.element == "i64" else e.assign(f"zext {v.element} {total} to i64")
        code.keep(code.subtract(total, before), code.moved(counts, bucket, "i64"))
        before = total
    code.keep(code.subtract(count, before), code.moved(counts, BUCKETS - 1, "i64"))


def _spread(row: _Row, v: Vectors, bucket: str) -> Value:
    """The splitter of a bucket in every lane."""
    scalar = Lanes(row.e, 1)
    value: Value = v.L.splat(Value(scalar, row.load_word(row.splitter(bucket)), v.dtype))
    return value


def _place(row: _Row, name: str) -> Function:
    code, e = row.code, row.e
    total = e.slot("i64")
    with e.loop("%begin", "%end") as unit:
        row.at(unit)
        code.keep("0", total)
        with e.loop("0", str(BUCKETS)) as bucket:
            code.keep(e.load("i64", total), row.entry(BOUNDS, bucket))
            with e.loop("0", str(BLOCKS)) as block:
                pointer = row.entry(COUNTS, code.add(code.multiply(block, BUCKETS), bucket))
                before, count = e.load("i64", total), code.integer(pointer)
                code.keep(before, pointer)
                code.keep(code.add(before, count), total)
        code.keep(row.extent, row.entry(BOUNDS, str(BUCKETS)))
    return code.finished(name, STEP, "")


def _scatter(row: _Row, name: str) -> Function:
    code, e = row.code, row.e
    with e.loop("%begin", "%end") as unit:
        number, first, count = row.block(unit)
        places = row.entry(COUNTS, code.multiply(number, BUCKETS))
        words = row.words_at(row.a, first)
        if partition.is_fast(row.form.size):
            _scatter_vectors(row, words, count, places)
        else:
            with e.loop("0", count) as index:
                word = row.load_word(row.words_at(words, index))
                bucket = _bucket_of(row, word)
                pointer = code.moved(places, bucket, "i64")
                place = code.integer(pointer)
                row.store_word(word, row.words_at(row.b, place))
                code.keep(code.add(place, 1), pointer)
    return code.finished(name, STEP, "")


def _scatter_vectors(row: _Row, words: str, count: str, places: str) -> None:
    """Move the words of each bucket that is wanted together, to the end of what the bucket has got."""
    code, e = row.code, row.e
    v = Vectors(code, row.form.size)
    lowest, behind = e.slot("i64"), e.slot("i64")
    code.keep(str(BUCKETS), lowest)
    code.keep("0", behind)
    with e.loop("0", str(BUCKETS)) as bucket, e.when(row.wanted(bucket)):
        code.keep(code.smaller(e.load("i64", lowest), bucket), lowest)
        code.keep(code.add(bucket, 1), behind)
    low, high = e.load("i64", lowest), e.load("i64", behind)
    splitters = e.slot(f"[{BUCKETS + 1} x {v.type}], align 64")
    masks = v.L.type_of(dtypes.bool_)
    with e.loop("0", str(BUCKETS)) as bucket:
        v.store(_spread(row, v, bucket), splitters, code.multiply(bucket, v.width))
    v.store(v.L.constant(0, v.dtype), splitters, 0)
    before = e.slot(masks)
    whole = e.assign(f"and i64 {count}, {-v.width}")

    def moved(value: Value, inside: Value | None) -> None:
        below = value < v.load(splitters, code.multiply(low, v.width))
        e.store(masks, (below if inside is None else below | ~inside).name, before)
        with e.loop(low, high) as bucket:
            following = code.add(bucket, 1)
            is_last = Value(code.scalar, code.compare("eq", following, BUCKETS), dtypes.bool_)
            less = (value < v.load(splitters, code.multiply(following, v.width))) | v.L.splat(is_last)
            mine = less & ~Value(v.L, e.load(masks, before), dtypes.bool_)
            e.store(masks, (less if inside is None else less | ~inside).name, before)
            pointer = code.moved(places, bucket, "i64")
            place, found = code.integer(pointer), rows.lane_count(code, v.L, mine)
            v.store(v.together(value, mine), row.b, place, str(v.below(found).name))
            code.keep(code.add(place, found), pointer)

    with e.loop("0", whole, v.width) as start:
        moved(v.load(words, start), None)
    inside = v.below(code.subtract(count, whole))
    moved(v.load(words, whole, str(inside.name)), inside)


def _finish(row: _Row, name: str) -> Function:
    code, e, form = row.code, row.e, row.form
    with e.loop("%begin", "%end") as unit:
        row.at(code.divide(unit, BUCKETS))
        bucket = code.remainder(unit, BUCKETS)
        with e.when(row.wanted(bucket)):
            low, high = (code.integer(row.entry(BOUNDS, number)) for number in (bucket, code.add(bucket, 1)))
            size = code.subtract(high, low)
            e.emit(f"call void @sort_words(ptr {row.words_at(row.b, low)}, i64 {size}, ptr {row.words_at(row.a, low)})")
            first, stop = code.larger(low, row.start), code.smaller(high, row.stop)
            target = code.moved(row.target, code.multiply(code.subtract(first, row.start), form.result.size))
            e.emit(
                f"call void @make_results(ptr {row.words_at(row.b, first)}, i64 {code.subtract(stop, first)}, "
                f"ptr {row.source}, ptr {target})"
            )
    return code.finished(name, STEP, "")


def _mend(row: _Row, name: str) -> Function:
    code, e = row.code, row.e
    odd = e.slot("i64")
    with e.loop("%begin", "%end") as unit:
        row.at(unit)
        code.keep("0", odd)
        with e.loop("0", str(BLOCKS)) as block:
            code.keep(code.add(e.load("i64", odd), code.integer(row.entry(ODD, block))), odd)
        with e.when(code.compare("ne", e.load("i64", odd), 0)):
            e.emit(
                f"call void @mend(ptr {row.source}, i64 {row.extent}, ptr {row.target}, i64 {row.start}, "
                f"i64 {row.stop})"
            )
    return code.finished(name, STEP, "")
