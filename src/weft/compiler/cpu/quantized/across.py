"""Decodes a quantised matrix whose codes along a row are the terms of sums: lanes are rows of the matrix.

Words and scales of as many rows as a vector has lanes are transposed into vectors on the stack. Then all lanes are
decoded in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.codegen.quantized import field, scale, scale_image, scaled
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, prefetch
from weft.compiler.cpu.product_squares import square, terms_of_square
from weft.compiler.cpu.product_step import read
from weft.compiler.cpu.quantized.codes import VectorCoding, number
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.primitives.quantized_formats import WORD

LINES_AHEAD = 4
"""How many cache lines ahead a row of words is prefetched."""

_KEEP = "ptr %from, i64 %stride, i64 %present, i64 %first, i64 %count, ptr %to"


def keeping(coding: VectorCoding, vectors: int, words: bool = True) -> list[EmittedFunction]:
    """The functions that transpose ``%count`` words, or scales, of each of ``%present`` rows into vectors; ``vectors``
    of rows are interleaved."""
    return [_Kept(coding, of_words, vectors).function() for of_words in ((True, False) if words else (False,))]


class _Kept(Integers):
    """Writes one of the functions of `keeping`. Lanes without a row repeat the last one."""

    def __init__(self, coding: VectorCoding, of_words: bool, vectors: int) -> None:
        super().__init__(Emitter())
        self.coding, self.of_words, self.vectors = coding, of_words, vectors
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
            for line in lines:
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

    def _get(self, stack: str, row: str, vector: int, dtype: Dtype) -> Value:
        return Value(self.L, self.e.load(self.L.type_of(dtype), self.pointer_to(stack, row, vector, dtype)), dtype)

    def numbers(self, term: str, group: str) -> Iterator[tuple[int, list[Value]]]:
        """The decoded numbers of some terms, from ``term`` on in the transposed words: for each term a list of
        ``vectors`` vectors. ``group`` is the position in the transposed scales."""
        return self.decoded(self.divide(self.multiply(term, self.coding.bits), WORD), group)

    def decoded(self, first: str, group: str) -> Iterator[tuple[int, list[Value]]]:
        """As `numbers`, given the position of the ``first`` word on the stack."""
        coding, vectors = self.coding, range(self.vectors)
        factors = [self._get(self.scales, group, v, coding.dtype) for v in vectors]
        offsets = [self._get(self.biases, group, v, coding.dtype) if coding.affine else None for v in vectors]
        words = [
            [self._get(self.words, self.add(first, word), v, dtypes.uint32) for word in range(coding.words)]
            for v in vectors
        ]
        for step in range(coding.terms):
            codes = [number(coding, field(words[v], step * coding.bits, coding.bits)) for v in vectors]
            yield step, [scaled(coding, codes[v], factors[v], offsets[v]) for v in vectors]
