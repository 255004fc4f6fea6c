"""Sorts a few words in registers: a tile of vectors, one below the other.

A network of comparators sorts the columns. Then neighbouring columns are merged in pairs, until the tile is in order
row by row. To merge two sorted groups of columns, each row of the left one is compared with a row of the right one: the
first with the last and so on, and read backwards. That leaves the smaller words in the upper half of the rows and the
larger ones in the lower half. Each half is compared in the same way, and at the end the words of each row.
(K. E. Batcher, Sorting networks and their applications, 1968; the tile is that of J. Wassenberg et al., Vectorized and
performance-portable Quicksort, 2022.)
"""

from __future__ import annotations

from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import Code, EmittedFunction
from weft.compiler.cpu.sorting.network import comparators
from weft.compiler.cpu.sorting.vectors import NumberVectors, Vectors, vector_bytes

WordPosition = tuple[int, int]
"""The position of a word: one of two rows, and a lane."""


def tiles_of(size: int) -> tuple[int, ...]:
    """The numbers of vectors for which there is a function.

    LLVM takes long for large ones, most of all with small words, which have many lanes. With AVX-512 there are
    registers for 24 vectors and what is moved between them.
    """
    if size == 2:
        return (2, 4, 8, 16)
    return (2, 4, 8, 12, 16, 24) if vector_bytes(size) == 64 else (2, 4, 8, 12, 16)


def functions(form: WordForm) -> list[EmittedFunction]:
    """``sort_few``, and the functions that it calls."""
    return [*[_tile(form, rows) for rows in tiles_of(form.size)], _few(form.size)]


def _few(size: int) -> EmittedFunction:
    """Sort at most as many words as the largest tile holds.

    If words are integers, the bits of ``%flip`` are inverted before sorting and again afterwards. So elements that
    differ from their keys only in these bits need not be converted to keys and back in steps of their own.
    """
    code = Code()
    v = Vectors(code, size)
    for rows in tiles_of(size):
        with code.e.when(code.compare("ule", "%count", rows * v.width)):
            code.e.emit(f"call void @tile_{rows}(ptr %from, i64 %count, ptr %to, {v.element} %flip)")
            code.e.leave()
    return code.finished("sort_few", _parameters(size))


def _parameters(size: int) -> str:
    return f"ptr %from, i64 %count, ptr %to, i{8 * size} %flip"


def most_words(size: int) -> int:
    """How many words of ``size`` bytes ``sort_few`` can sort at most."""
    return tiles_of(size)[-1] * vector_bytes(size) // size


def _tile(form: WordForm, count: int) -> EmittedFunction:
    """Sort up to ``count`` vectors of words. Missing words count as the largest ones."""
    code = Code()
    v = NumberVectors(code) if form.is_double else Vectors(code, form.size)
    smaller = max([rows for rows in tiles_of(form.size) if rows < count], default=0)
    present = [v.below(code.subtract("%count", row * v.width)) for row in range(smaller, count)]
    masks: list[str | None] = [None] * smaller + [str(mask.name) for mask in present]
    rows = [v.load("%from", row * v.width, mask) for row, mask in enumerate(masks)]
    flip = v.L.splat(Value(code.scalar, "%flip", v.dtype))
    if not form.is_double:
        rows = [row ^ flip for row in rows]
    for row, inside in enumerate(present, smaller):
        rows[row] = v.L.select(inside, rows[row], v.L.constant(-1, v.dtype))
    rows = [v.comparable(row) for row in rows]
    for low, high in comparators(count):
        rows[low], rows[high] = v.in_order(rows[low], rows[high])
    group = 2
    while group <= v.width:
        _merge_rows(v, rows, group)
        for row in range(0, count, 2):
            rows[row : row + 2] = _merge_lanes(v, rows[row], rows[row + 1], group)
        group *= 2
    for row, value in enumerate(rows):
        word = v.comparable(value)
        v.store(word if form.is_double else word ^ flip, "%to", row * v.width, masks[row])
    return code.finished(f"tile_{count}", _parameters(form.size))


def _merge_rows(v: Vectors, rows: list[Value], group: int) -> None:
    """Compare rows until each row has the right words, in groups of ``group`` lanes whose halves are sorted.

    Missing rows count as the largest words, which stay where they are.
    """
    backwards = [lane ^ (group - 1) for lane in range(v.width)]
    span = 1 << (len(rows) - 1).bit_length()
    while span > 1:
        for base in range(0, len(rows), span):
            for low in range(base, base + span // 2):
                high = 2 * base + span - 1 - low
                if high < len(rows):
                    backward = v.shuffled(rows[high], rows[high], backwards)
                    rows[low], rows[high] = v.in_order(rows[low], backward)
        span //= 2


def _merge_lanes(v: Vectors, first: Value, second: Value, group: int) -> list[Value]:
    """Sort each group of lanes in two rows, each row by itself.

    One comparator for both rows takes half the instructions: before it, those words that should become the smaller ones
    of their pairs are moved to one vector, and the others to the other vector.
    """
    vectors = [first, second]
    held: list[list[WordPosition]] = [[(row, lane) for lane in range(v.width)] for row in range(2)]
    bit, partner = group // 2, group - 1
    while bit:
        low = [_without(held, lane, bit) for lane in range(v.width)]
        high = [(row, lane ^ partner) for row, lane in low]
        vectors = list(v.in_order(*[_arranged(v, vectors, held, wanted) for wanted in (low, high)]))
        held = [low, high]
        bit = partner = bit // 2
    return [_arranged(v, vectors, held, [(row, lane) for lane in range(v.width)]) for row in range(2)]


def _without(held: list[list[WordPosition]], lane: int, bit: int) -> WordPosition:
    """The word that is moved to a lane: one whose lane has ``bit`` not set. Words for lanes with ``bit`` set are taken
    from the second vector, others from the first, so that moves are short."""
    vector = held[1] if lane & bit else held[0]
    row, nearby = vector[lane & ~bit]
    return (row, nearby) if not nearby & bit else vector[lane | bit]


def _arranged(v: Vectors, vectors: list[Value], held: list[list[WordPosition]], wanted: list[WordPosition]) -> Value:
    """A vector with the words ``wanted``, from two vectors whose words are ``held``."""
    where = {word: number for number, word in enumerate([*held[0], *held[1]])}
    return v.shuffled(vectors[0], vectors[1], [where[word] for word in wanted])
