"""Decodes a quantised matrix whose codes along a row are the terms of sums: lanes are rows of the matrix.

Words and scales of as many rows as a vector has lanes are transposed into vectors on the stack. Then all lanes are
decoded in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.codegen.quantized import field, scale, scale_image, scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, prefetch
from weft.compiler.cpu.products.step import read
from weft.compiler.cpu.products.term_squares import square, terms_of_square
from weft.compiler.cpu.quantized import float4
from weft.compiler.cpu.quantized.codes import VectorCoding, number
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

LINES_AHEAD = 4
"""How many cache lines ahead a row of words is prefetched."""

AHEAD = 1 << 15
"""At least this many bytes of the matrix are between words and those that are prefetched meanwhile."""

_KEEP = "ptr %from, i64 %stride, i64 %present, i64 %first, i64 %count, ptr %to"


class WeightRows(NamedTuple):
    """Registers that describe rows of a matrix: the addresses of the words, scales and biases of the first row; the
    numbers of words (``per_row``) and groups of a row; the binary logarithm of the number of terms of a group
    (``shift``); and the number of rows (``present``)."""

    words: str
    scales: str
    biases: str
    per_row: str
    groups: str
    shift: str
    present: str


def keeping(coding: VectorCoding, vectors: int, words: bool = True, ahead: bool = True) -> list[EmittedFunction]:
    """The functions that transpose ``%count`` words, or scales, of each of ``%present`` rows into vectors; ``vectors``
    of rows are interleaved. If ``ahead``, they prefetch the same rows."""
    return [_Kept(coding, of_words, vectors, ahead).function() for of_words in ((True, False) if words else (False,))]


class _Kept(Integers):
    """Writes one of the functions of `keeping`. Lanes without a row repeat the last one."""

    def __init__(self, coding: VectorCoding, of_words: bool, vectors: int, ahead: bool) -> None:
        super().__init__(Emitter())
        self.coding, self.of_words, self.vectors, self.ahead = coding, of_words, vectors, ahead
        self.L, self.scalar = Lanes(self.e, coding.lanes), Lanes(self.e, 1)
        self.source: Dtype = dtypes.uint32 if of_words else coding.scales
        self.image: Dtype = dtypes.uint32 if of_words else scale_image(coding)

    def function(self) -> EmittedFunction:
        last, terms = self.subtract("%present", 1), terms_of_square(self.L, self.source)
        rows = [self.smaller(str(lane), last) for lane in range(self.L.width)]
        lines = [self._further("%from", self.add(self.multiply(row, "%stride"), "%first")) for row in rows]
        rest = self.remainder("%count", terms)
        whole = self.subtract("%count", rest)
        with self.e.loop("0", whole, terms) as start:
            for line in lines if self.ahead else ():
                ahead = self.moved(self._further(line, start), LINES_AHEAD * CACHE_LINE)
                prefetch(self.e, ahead, READ_SOON)
            for step, value in enumerate(square(self.L, self.source, self.image, lines, start, None)):
                self._put(value, self.add(start, step))
        with self.e.loop(whole, "%count") as start:
            self._put(self._joined(lines, start), start)
        return self.e, self.e.function("keep_words" if self.of_words else "keep_scales", _KEEP, "internal ")

    def _further(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, MEMORY_TYPES[self.source])

    def _joined(self, lines: Sequence[str], index: str) -> Value:
        """The words, or scales, at an index of each row, read one by one."""
        type_, element, name = self.L.type_of(self.image), REGISTER_TYPES[self.image], "poison"
        for lane, line in enumerate(lines):
            value = read(self.scalar, self.source, line, index, None, self.image)
            name = self.e.assign(f"insertelement {type_} {name}, {element} {value.name}, i64 {lane}")
        return Value(self.L, name, self.image)

    def _put(self, value: Value, row: str) -> None:
        found = value if self.of_words else scale(self.coding, value)
        type_ = self.L.type_of(found.dtype)
        self.e.store(type_, found.name, self.moved("%to", self.multiply(row, self.vectors), type_))


class Across(Integers):
    """Writes code that goes along the rows of a matrix, ``vectors`` of rows at once, with the functions of
    `keeping`."""

    def __init__(self, coding: VectorCoding, vectors: int, w: Integers) -> None:
        super().__init__(w.e)
        self.coding, self.vectors = coding, vectors
        self.L = Lanes(self.e, coding.lanes)
        self.groups = max(terms_of_square(self.L, coding.scales), DEPTH // coding.terms)
        self.words = self._stack(self.rows_of_words(), dtypes.uint32)
        self.scales = self._stack(self.groups, coding.dtype)
        self.biases = self._stack(self.groups, coding.dtype) if coding.affine else ""

    def rows_of_words(self) -> int:
        """The number of words of a row for which there is room on the stack."""
        return DEPTH * self.coding.bits // WORD

    def _stack(self, rows: int, dtype: Dtype) -> str:
        return self.e.slot(f"[{rows * self.vectors} x {self.L.type_of(dtype)}], align 64")

    def keep_words(self, start: str, stride: str, present: str, first: str, count: str) -> None:
        """Transpose ``count`` words, from ``first`` on, of each of the ``present`` rows to the stack."""
        self._keep("words", (start, stride, present), (first, count), self.words)

    def keep_scales(self, scales: str, biases: str, stride: str, present: str, first: str, count: str) -> None:
        """Transpose scales and biases of ``count`` groups, from ``first`` on, of each of the ``present`` rows to the
        stack."""
        self._keep("scales", (scales, stride, present), (first, count), self.scales)
        if self.coding.affine:
            self._keep("scales", (biases, stride, present), (first, count), self.biases)

    def _keep(self, kind: str, rows: tuple[str, str, str], span: tuple[str, str], stack: str) -> None:
        (start, stride, present), (first, count) = rows, span
        dtype, element = self.coding.dtype, MEMORY_TYPES[self.coding.scales]
        if kind == "words":
            dtype, element = dtypes.uint32, MEMORY_TYPES[dtypes.uint32]
        last = self.subtract(present, 1)
        for vector in range(self.vectors):
            skipped = self.smaller(str(vector * self.L.width), last)
            line = self.moved(start, self.multiply(skipped, stride), element)
            there = self.subtract(present, skipped)
            operands = f"ptr {line}, i64 {stride}, i64 {there}, i64 {first}, i64 {count}"
            self.e.emit(f"call void @keep_{kind}({operands}, ptr {self.pointer_to(stack, '0', vector, dtype)})")

    def pointer_to(self, stack: str, row: str, vector: int | str, dtype: Dtype) -> str:
        """The address of a vector of rows, in a row of one of the stacks."""
        return self.moved(stack, self.add(self.multiply(row, self.vectors), vector), self.L.type_of(dtype))

    def prefetch_next(self, rows: WeightRows, term: str) -> None:
        """Prefetch what follows ``rows`` in memory, in the order in which it lies there, because it is probably needed
        next: as much as belongs to the terms of ``rows`` that are decoded at once, from ``term`` on."""
        count, dtype = self.vectors * self.L.width, self.coding.scales
        word = self.divide(self.multiply(term, self.coding.bits * count), WORD)
        distance = self.larger(self.multiply(rows.per_row, count), AHEAD * 8 // WORD)
        self._prefetch(
            rows.words, MEMORY_TYPES[dtypes.uint32], self.add(distance, word), count * self.coding.words * WORD // 8
        )
        group = self.e.assign(f"lshr i64 {self.multiply(term, count)}, {rows.shift}")
        later = self.add(self.multiply(rows.groups, count), group)
        for start in (rows.scales, rows.biases) if self.coding.affine else (rows.scales,):
            self._prefetch(start, MEMORY_TYPES[dtype], later, count * dtype.size)

    def _prefetch(self, start: str, element: str, distance: str, size: int) -> None:
        """Prefetch ``size`` bytes, but at least a cache line."""
        here = self.moved(start, distance, element)
        for line in range(max(1, size // CACHE_LINE)):
            prefetch(self.e, self.moved(here, line * CACHE_LINE))

    def _get(self, stack: str, row: str, vector: int, dtype: Dtype) -> Value:
        return Value(self.L, self.e.load(self.L.type_of(dtype), self.pointer_to(stack, row, vector, dtype)), dtype)

    def numbers(self, term: str, group: str) -> Iterator[tuple[int, list[Value]]]:
        """The decoded numbers of some terms, from ``term`` on in the transposed words; see `decoded`."""
        return self.decoded(self.divide(self.multiply(term, self.coding.bits), WORD), group)

    def decoded(self, first: str, group: str) -> Iterator[tuple[int, list[Value]]]:
        """The decoded numbers of the words on the stack from ``first`` on that are decoded at once: for each term a
        list of ``vectors`` vectors. ``group`` is the position in the transposed scales."""
        coding, vectors = self.coding, range(self.vectors)
        factors = [self.scale_at(group, v) for v in vectors]
        offsets = [self.bias_at(group, v) if coding.affine else None for v in vectors]
        rows = [self.words_at(self.add(first, word)) for word in range(coding.words)]
        words = [[row[v] for row in rows] for v in vectors]
        for step, codes in enumerate(zip(*[self._numbers(words[v]) for v in vectors], strict=True)):
            yield step, [scaled(coding, codes[v], factors[v], offsets[v]) for v in vectors]

    def _numbers(self, words: Sequence[Value]) -> Iterator[Value]:
        """The numbers, without their scale, of neighbouring words."""
        coding = self.coding
        if float4.takes(coding):
            for word in words:
                yield from float4.numbers(word)
            return
        for step in range(coding.terms):
            yield number(coding, field(words, step * coding.bits, coding.bits))

    def words_at(self, word: str) -> list[Value]:
        """The vectors of words at a position on the stack."""
        return [self._get(self.words, word, v, dtypes.uint32) for v in range(self.vectors)]

    def scale_at(self, group: str, vector: int) -> Value:
        return self._get(self.scales, group, vector, self.coding.dtype)

    def bias_at(self, group: str, vector: int) -> Value:
        return self._get(self.biases, group, vector, self.coding.dtype)
