"""Products of a few rows with a matrix, in generated code that reads the matrix once and does not pack it.

Reading the matrix takes most of the time of such products. A unit of work is a strip of columns. Sums are made in the
same order as in `product`, so their bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from sys import maxsize

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu import attached
from weft.compiler.cpu.code import STEP, EmittedFunction, module_of
from weft.compiler.cpu.memory import CACHE_LINE, WRITE_SOON, keep_order, prefetch
from weft.compiler.cpu.product_packing import convert_rows
from weft.compiler.cpu.product_squares import square, terms_of_square
from weft.compiler.cpu.product_step import (
    A_INNER,
    A_ROW,
    B_COLUMN,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    SLOTS,
    Block,
    ProductStepWriter,
    Sources,
    below,
    further,
    multiply_add,
    read,
)
from weft.compiler.cpu.product_tiles import block_of
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.runtime.steps import Place

MOST_ROWS = 16
"""With more rows, it pays to pack the matrix."""
LITTLE_WORK = 1 << 15
MOST_ROWS_OF_LITTLE = 32
"""The same limit for products of at most `LITTLE_WORK` multiplications: with tiles, most of their time would be that of
choosing and packing these."""
MOST_ROWS_ACROSS = 8
"""The limit for a matrix in the cache that has to be transposed: here it is transposed for each block of rows, but
only once if it is packed. It holds outside of the cache too if the few rows are the columns of a product that is
computed as the transposed one: the kernel for blocks then computes the product itself, and need not transpose."""

SHORTEST_VECTOR = 16
"""Bytes of the shortest vectors into which narrow matrices are transposed: longer ones would be mostly empty."""

AHEAD = 16
"""How many rows ahead the matrix is prefetched where the processor would not do it."""

FEW_SUMS = 4
"""With at most this many rows, the sums of one vector of columns leave the processor idle."""
WAY_BYTES = 4096
"""Addresses at this distance are in the same set of the first cache."""

LINES_AHEAD = 4
"""How many cache lines ahead a column of the matrix is prefetched, into the second cache: often the lines of all
columns are in one set of the first cache, which does not hold so many. A matrix in a cache is read faster without."""

STACK_ELEMENTS = 1024
"""How many elements of an operand may be multiplied in one call, if they are matrices of a stack. If left operands are
converted first, more of them take longer: meanwhile nothing is read ahead in the other arrays."""

SMALL_MATRIX = 64
"""How many elements a matrix may have that is read for one block of rows while others of the stack are, then for the
next block. With larger ones, memory is read in too many places."""

ROWS_OF_NARROW_BLOCK = {64: {1: MOST_ROWS}, 32: {1: 12, 3: 4}}
"""How many rows a block has at most for a narrow matrix, by the bytes of a vector and the number of vectors of a row,
where that differs: then registers hold the sums of whole rows."""

MOST_STORES = 8
"""If more rows of sums are stored at once, their memory is prefetched."""

# The positions of the step's numbers after those that every product has.
C_ROW, C_COLUMN, STRIPS, BATCH_AXES = 13, 14, 15, 16

_KERNEL = (
    "ptr %first_a, ptr %first_b, ptr %first_c, i64 %inner, i64 %rows, i64 %columns, i1 %again, i64 %a_row, "
    "i64 %a_inner, i64 %b_step, i64 %c_row, i64 %c_column, i64 %count, i64 %next_a, i64 %next_b, i64 %next_c"
)


@dataclass(frozen=True)
class Strip(Block):
    """A block as wide as the strip of columns that is a unit of work.

    ``across``: the terms of a column are neighbours in memory, and vectors of them are transposed; otherwise columns
    are neighbours. ``apart``: columns are no neighbours in the result. ``beside``: the terms of a row are neighbours in
    memory. ``in_pairs``: terms of half precision are transposed in pairs, if there are enough for squares of these.
    ``far``: the matrix is in no cache, so lines of its columns are prefetched.
    """

    across: bool
    apart: bool
    beside: bool
    in_pairs: bool = True
    far: bool = True


def strip_of(
    dtype: Dtype,
    rows: int,
    columns: int,
    across: bool,
    apart: bool,
    beside: bool,
    side_by_side: int = 1,
    halves: int = maxsize,
    far: bool = True,
) -> Strip:
    """The strip for this processor: rows are divided evenly into as few blocks as registers allow. If ``across``, so
    many vectors may be done ``side_by_side``: see `vectors_side_by_side`. Vectors are no longer than a narrow matrix
    needs. ``halves`` is the number of terms, if the matrix has half precision."""
    vector_bytes, registers, most = (64, 24, 8) if "+avx512f" in host.current().features else (32, 12, 6)
    if not across and rows > most:
        narrow = ROWS_OF_NARROW_BLOCK[vector_bytes]
        most = narrow.get(-(-columns * dtype.size // vector_bytes), most)
    blocks = -(-rows // most)
    height = -(-rows // blocks)
    while vector_bytes > SHORTEST_VECTOR and 2 * columns * dtype.size <= vector_bytes:
        vector_bytes //= 2
    all_vectors = -(-columns * dtype.size // vector_bytes)
    if across:
        strips = max(1, -(-all_vectors // side_by_side))
        vectors = max(1, -(-all_vectors // strips))
    else:
        vectors = max(1, min(8, registers // height, all_vectors))
    in_pairs = not across or halves * dtype.size >= 2 * vector_bytes
    return Strip(dtype, int(height), int(vectors), vector_bytes, across, apart, beside, in_pairs, not across or far)


def terms_of(strip: Strip, source: Dtype) -> int:
    """How many terms of a matrix of the dtype ``source`` are transposed at once."""
    return terms_of_square(Lanes(Emitter(), strip.lanes), source, strip.in_pairs)


def vectors_side_by_side(source: Dtype, rows: int, stride: int) -> int:
    """How many vectors of columns, which are ``stride`` elements apart, are done side by side. With few rows this pays,
    as the additions of a single vector wait for each other. But each lane reads a cache line of its own: if all are in
    one set of the first cache, or in two, more than 16 lines evict each other (32 lines of float32 in one set do on
    Zen 5; with other dtypes they do not)."""
    if rows > FEW_SUMS:
        return 1
    if "+avx512f" in host.current().features:
        return 1 if source is dtypes.float32 and stride * source.size % WAY_BYTES == 0 else 2
    return 2 if stride * source.size % (WAY_BYTES // 2) == 0 else 4


@cache
def address(strip: Strip, sources: Sources) -> int:
    """The address of the step for products with a kind of strip and operands of the dtypes ``sources``."""
    name = f"few_rows_{sources.name}"
    return loading.load(f"{name} {strip}", lambda: generate(strip, sources, name), (name,))[name]


def generate(strip: Strip, sources: Sources, name: str, kind: type[FewRowsKernel] | None = None) -> str:
    """The LLVM IR of the step for products with a kind of strip and operands of the dtypes ``sources``."""
    return module_of(functions(strip, sources, name, kind))


def functions(
    strip: Strip, sources: Sources, name: str, kind: type[FewRowsKernel] | None = None, linkage: str = ""
) -> list[EmittedFunction]:
    """The function of the step, and those that it calls."""
    result = sources.result(strip.dtype)
    sizes = {"strip": (strip.vectors, False), "part": (strip.vectors, True)}
    if strip.vectors > 1:
        sizes["edge"] = 1, True
    kernels = {
        name: (kind or FewRowsKernel)(strip, sources.right, vectors, edge, result)
        for name, (vectors, edge) in sizes.items()
    }
    step = _FewRowsStep(strip, sources)
    found = [(kernel.e, kernel.function(name)) for name, kernel in kernels.items()]
    found.append(attached.caller(result.size))
    if sources.left is not strip.dtype:
        found.append(convert_rows(block_of(strip.dtype), sources.left))
    return [*found, (step.e, step.function(name, linkage))]


class FewRowsKernel:
    """Multiplies some terms of the rows with a strip of the matrix, and stores the sums or adds them to the result. If
    the ``result`` has another dtype than the sums, these must be complete; they are rounded when they are stored. It
    does so ``%count`` times, for operands and results that are ``%next_a``, ``%next_b`` and ``%next_c`` elements apart.

    A strip is as wide as some ``vectors``. At the ``edge`` of the matrix, only ``%columns`` exist, which end in the
    last vector. For complex matrices, rows, columns and terms count real numbers; a complex one has two ``parts``.
    """

    parts = 1

    def __init__(self, strip: Strip, source: Dtype, vectors: int, edge: bool, result: Dtype) -> None:
        self.strip, self.source, self.edge, self.result = strip, source, edge, result
        self.e = Emitter()
        self.L = Lanes(self.e, strip.lanes)
        self.type = self.L.type_of(strip.dtype)
        self.vectors = vectors
        self.sums = {(row, v): self.e.slot(self.type) for row in range(strip.rows) for v in range(self.vectors)}

    def function(self, name: str) -> str:
        elements = {"a": self.strip.element, "b": MEMORY_TYPES[self.source], "c": MEMORY_TYPES[self.result]}
        with self.e.loop("0", "%count") as number:
            for operand, element in elements.items():
                distance = self._times(number, f"%next_{operand}")
                self.e.emit(f"%{operand} = getelementptr {element}, ptr %first_{operand}, i64 {distance}")
            self._multiply()
        return self.e.function(name, _KERNEL, "internal ")

    def _multiply(self) -> None:
        for slot in self.sums.values():
            self.e.store(self.type, self.L.constant(0.0, self.strip.dtype).name, slot)
        if self.strip.rows > MOST_STORES:
            for row in range(self.strip.rows):
                line = further(self.e, MEMORY_TYPES[self.result], "%c", self._times(row, "%c_row"))
                prefetch(self.e, line, WRITE_SOON)
        starts = self._rows("%a", "%a_row")
        if self.strip.across:
            self._sum_across(starts)
        else:
            self._sum_along(starts)
        self._store()

    def _further(self, pointer: str, distance: str) -> str:
        """``pointer`` moved by a number of elements of an operand."""
        return further(self.e, MEMORY_TYPES[self.source], pointer, distance)

    def _read(self, L: Lanes, pointer: str, index: str, mask: str | None) -> Value:
        return read(L, self.source, pointer, index, mask, self.strip.dtype)

    def _times(self, left: str | int, right: str) -> str:
        return self.e.assign(f"mul i64 {right}, {left}")

    def _rows(self, pointer: str, stride: str) -> list[str]:
        """Pointers to the rows. For one that does not exist it is that of the last row; its sums are not stored."""
        last = self.e.assign("sub i64 %rows, 1")
        starts = [pointer]
        for row in range(1, self.strip.rows):
            distance = self._times(self._nearest(row, last), stride)
            starts.append(further(self.e, self.strip.element, pointer, distance))
        return starts

    def _nearest(self, wanted: int, last: str) -> str:
        less = self.e.assign(f"icmp slt i64 {wanted}, {last}")
        return self.e.assign(f"select i1 {less}, i64 {wanted}, i64 {last}")

    def _index_of(self, term: str) -> str:
        """The distance, in elements, of a term from the beginning of its row."""
        return term if self.strip.beside else self._times(term, "%a_inner")

    def _add(self, starts: Sequence[str], term: str, right: dict[int, str]) -> None:
        """Add the products of a term: ``right`` are vectors of the matrix, by number."""
        self._add_at(starts, self._index_of(term), right)

    def _add_at(self, starts: Sequence[str], index: str, right: dict[int, str]) -> None:
        L, dtype = self.L, self.strip.dtype
        scalar = Lanes(self.e, 1)
        for row, start in enumerate(starts):
            left = L.splat(load(scalar, dtype, Location(start, index, False), None))
            for vector, name in right.items():
                slot = self.sums[row, vector]
                total = multiply_add(L, left, Value(L, name, dtype), Value(L, self.e.load(self.type, slot), dtype))
                self.e.store(self.type, total.name, slot)

    def _masks(self) -> list[str | None]:
        """For each vector a mask of the columns that exist; None if all do."""
        masks: list[str | None] = [None] * self.vectors
        if self.edge:
            masks[-1] = below(self.L, str((self.vectors - 1) * self.strip.lanes), "%columns")
        return masks

    def _sum_along(self, starts: Sequence[str]) -> None:
        L, lanes = self.L, self.strip.lanes
        masks = self._masks()
        with self.e.loop("0", "%inner", self.parts) as term:
            row = self._further("%b", self._times(term, "%b_step"))
            later = self._further(row, self._times(AHEAD, "%b_step"))
            for vector in range(self.vectors):
                prefetch(self.e, self._further(later, str(vector * lanes)))
            right = {vector: self._read(L, row, str(vector * lanes), mask).name for vector, mask in enumerate(masks)}
            self._add(starts, term, right)

    def _sum_across(self, starts: Sequence[str]) -> None:
        e, parts = self.e, self.parts
        last = e.assign(f"sub i64 %columns, {parts}")
        numbers = range(0, self.vectors * self.strip.lanes, parts)
        columns = [self._nearest(column, last) if self.edge else str(column) for column in numbers]
        pointers = [self._further("%b", self._times(column, "%b_step")) for column in columns]
        terms = self._terms_of_square()
        rest = e.assign(f"and i64 %inner, {terms - 1}")
        whole = e.assign(f"sub i64 %inner, {rest}")
        later = self._distance_of_later() if self.strip.far else ""
        with e.loop("0", whole, terms) as term:
            if self.strip.far:
                for pointer in pointers:
                    prefetch(e, further(e, "i8", self._further(pointer, term), later))
            for vector in range(self.vectors):
                if vector > 0:
                    keep_order(e)
                for step, value in enumerate(self._square(pointers, vector, term, None)):
                    self._add(starts, e.assign(f"add i64 {term}, {step * parts}"), {vector: value.name})
        with e.when(e.assign(f"icmp ne i64 {rest}, 0")):
            self._sum_rest(starts, pointers, whole)

    def _distance_of_later(self) -> str:
        """How many bytes ahead columns are prefetched: terms of the same columns or, if these end soon, of the columns
        of the next strip."""
        strip = self.e.assign(f"mul i64 %b_step, {self.vectors * self.strip.lanes * self.source.size}")
        ends = self.e.assign(f"icmp slt i64 %inner, {DEPTH}")
        return self.e.assign(f"select i1 {ends}, i64 {strip}, i64 {LINES_AHEAD * CACHE_LINE}")

    def _terms_of_square(self) -> int:
        return terms_of_square(self.L, self.source, self.strip.in_pairs)

    def _square(self, pointers: Sequence[str], vector: int, term: str, mask: str | None) -> list[Value]:
        """A transposed square of the matrix: for each term a vector of columns."""
        count = self.strip.lanes // self.parts
        chosen = pointers[vector * count : (vector + 1) * count]
        return self._read_square(chosen, term, mask)

    def _read_square(self, lines: Sequence[str], term: str, mask: str | None) -> list[Value]:
        return square(self.L, self.source, self.strip.dtype, lines, term, mask, self.strip.in_pairs)

    def _sum_rest(self, starts: Sequence[str], pointers: Sequence[str], whole: str) -> None:
        """Add the terms after the last whole square, from a copy on the stack."""
        e, terms = self.e, self._terms_of_square() // self.parts
        copy = e.slot(f"[{terms} x {self.type}]")
        first, end = [e.assign(f"udiv i64 {number}, {self.parts}") for number in (whole, "%inner")]
        mask = below(Lanes(e, terms), first, end)
        for vector in range(self.vectors):
            for step, value in enumerate(self._square(pointers, vector, whole, mask)):
                e.store(self.type, value.name, e.assign(f"getelementptr {self.type}, ptr {copy}, i64 {step}"))
            with e.loop(first, end) as number:
                index = e.assign(f"sub i64 {number}, {first}")
                name = e.load(self.type, e.assign(f"getelementptr {self.type}, ptr {copy}, i64 {index}"))
                self._add(starts, self._times(self.parts, number), {vector: name})

    def _store(self) -> None:
        e, L, dtype = self.e, self.L, self.strip.dtype
        masks = self._masks()
        for row in range(self.strip.rows):
            with e.when(e.assign(f"icmp slt i64 {row}, %rows")):
                start = further(e, MEMORY_TYPES[self.result], "%c", self._times(row, "%c_row"))
                locations = [(self._location(start, v), self.sums[row, v], mask) for v, mask in enumerate(masks)]
                if self.result is dtype:
                    with e.when("%again"):
                        for location, slot, mask in locations:
                            total = load(L, dtype, location, mask) + Value(L, e.load(self.type, slot), dtype)
                            e.store(self.type, total.name, slot)
                for location, slot, mask in locations:
                    store(L, SumOfProducts(L, e.load(self.type, slot), self.result), self.result, location, mask)

    def _location(self, start: str, vector: int) -> Location:
        first = vector * self.strip.lanes
        if not self.strip.apart:
            return Location(start, str(first), False)
        numbers = ", ".join(f"i64 {first + lane}" for lane in range(self.strip.lanes))
        step = self.L.splat(Value(Lanes(self.e, 1), "%c_column", dtypes.int64))
        return Location(start, (Value(self.L, f"<{numbers}>", dtypes.int64) * step).name, True)


_Pointers = tuple[str, str, str]
_Counts = tuple[str, str, str, str]


class _FewRowsStep(ProductStepWriter):
    """The loops over blocks of terms and blocks of rows, for each strip."""

    def __init__(self, strip: Strip, sources: Sources) -> None:
        super().__init__(strip.dtype, sources, BATCH_AXES)
        self.strip = strip
        self.scratch = self.e.slot(f"[{MOST_ROWS_OF_LITTLE * strip.columns} x {strip.element}], align 64")
        self.converted = (
            ""
            if sources.left is strip.dtype
            else self.e.slot(f"[{MOST_ROWS_OF_LITTLE * DEPTH} x {strip.element}], align 64")
        )
        self.together = self._matrices_together()

    @property
    def left_strides(self) -> tuple[str, str]:
        """The strides of the rows that the kernels read: from row to row and from term to term."""
        if not self.converted or not self.strip.beside:
            return self.number(A_ROW), self.number(A_INNER)
        return self.either(self._is_one_row(), self.number(INNER), DEPTH), "1"

    def _is_one_row(self) -> str:
        """Whether rows to convert have no gaps in memory and few terms, so that they are converted as a single row."""
        short = self.compare("sle", self.number(INNER), DEPTH)
        if not self.strip.beside:
            return short
        beside = self.compare("eq", self.number(A_INNER), 1)
        near = self.e.assign(f"and i1 {beside}, {self.compare('eq', self.number(A_ROW), self.number(INNER))}")
        return self.e.assign(f"and i1 {near}, {short}")

    def _matrices_together(self) -> str:
        """How many matrices of a stack a kernel multiplies in one call: several if one stride leads from each to the
        next, and no other kernel is attached. Left operands that are converted must also follow each other in memory
        without gaps."""
        rows, columns, inner = [self.number(position) for position in (ROWS, COLUMNS, INNER)]
        conditions = [
            self.compare("eq", self.number(BATCH_AXES), 1),
            self.compare("eq", self.number(STRIPS), 1),
            self.compare("eq", self.of_section(attached.CODE), 0),
            self.compare("eq", self.of_section(attached.SCRATCH), 0),
        ]
        if self.converted:
            conditions += [self._is_one_row(), self.compare("eq", self._apart("a"), self.multiply(rows, inner))]
        all_hold = reduce(lambda one, other: self.e.assign(f"and i1 {one}, {other}"), conditions)
        size = self.larger(self.multiply(inner, self.larger(rows, columns)), 1)
        return self.either(all_hold, self.larger(self.divide(str(STACK_ELEMENTS), size), 1), 1)

    def _apart(self, operand: str) -> str:
        """How far the matrices of a stack with one axis are apart."""
        return self.number(BATCH_AXES + 2 + list(SLOTS).index(operand))

    def _convert(self, a: str, depth: str, count: str) -> None:
        """Convert ``depth`` terms of all rows of ``count`` left operands."""
        one, rows = self._is_one_row() if self.strip.beside else "true", self.number(ROWS)
        whole = self.multiply(self.multiply(rows, depth), count)
        extents = self.either(one, 1, rows), self.either(one, whole, depth)
        strides = f"i64 {self.number(A_ROW)}, i64 {self.number(A_INNER) if self.strip.beside else 1}"
        counts = ", ".join([f"i64 {extent}" for extent in extents])
        self.e.emit(f"call void @convert_rows(ptr {a}, {strides}, ptr {self.converted}, {counts})")

    def function(self, name: str, linkage: str) -> str:
        with self.e.loop("%begin", "%end", self.together) as unit:
            self._unit(unit, self.smaller(self.subtract("%end", unit), self.together))
        return self.e.function(name, STEP, linkage)

    def _unit(self, unit: str, count: str) -> None:
        """A unit, or ``count`` of them that are matrices of a stack."""
        e, strip = self.e, self.strip
        strips, inner = self.number(STRIPS), self.number(INNER)
        matrix, number = self.parts(unit, strips)
        matrices = self.operands(matrix)
        left = self.multiply(number, strip.columns)
        columns = self.rest(self.number(COLUMNS), left, strip.columns)
        b = self.in_operand("b", matrices["b"], self.multiply(left, self.number(B_COLUMN)))
        in_memory = self.in_result(matrices["c"], self.multiply(left, self.number(C_COLUMN)))
        c = self.made_at(in_memory, self.scratch)
        # Without terms the loop runs once all the same, to store zeros.
        no_terms = e.assign(f"icmp eq i64 {inner}, 0")
        # A kernel goes over the stack if it multiplies all rows at once, or if matrices are so small that it may do so
        # for each block of rows.
        one_block = self.compare("sle", self.number(ROWS), strip.rows)
        small = self.compare("sle", self.multiply(self.number(ROWS), inner), SMALL_MATRIX)
        at_once = self.either(e.assign(f"or i1 {one_block}, {small}"), count, 1)
        stack = [at_once, *[self._apart(operand) for operand in SLOTS]]
        elements = self.elements | {"a": self.element}
        with e.loop("0", e.assign(f"select i1 {no_terms}, i64 1, i64 {inner}"), DEPTH) as term:
            b_here = self.in_operand("b", b, self.multiply(term, self.number(B_INNER)))
            a_here = self.in_operand("a", matrices["a"], self.multiply(term, self.number(A_INNER)))
            numbers = self.rest(inner, term, DEPTH), e.assign(f"icmp ne i64 {term}, 0")
            if self.converted:
                self._convert(a_here, numbers[0], count)
                a_here = self.converted
            with e.loop("0", count, at_once) as other:
                a, right, target = [
                    self.moved(pointer, self.multiply(other, self._apart(name)), element)
                    for pointer, (name, element) in zip((a_here, b_here, c), elements.items(), strict=True)
                ]
                self._rows((a, right, target), columns, numbers, stack)
        self.call_attached((matrix, "0", self.number(ROWS), left, columns), c)

    def _rows(self, pointers: _Pointers, columns: str, numbers: tuple[str, str], stack: Sequence[str]) -> None:
        """Multiply all rows with a strip, in blocks of rows."""
        a, b, c = pointers
        with self.e.loop("0", self.number(ROWS), self.strip.rows) as row:
            left = self.further(a, self.multiply(row, self.left_strides[0]))
            target = self.in_result(c, self.multiply(row, self.number(C_ROW)))
            counts = self.rest(self.number(ROWS), row, self.strip.rows), columns, *numbers
            self._multiply((left, b, target), counts, stack)

    def _multiply(self, pointers: _Pointers, counts: _Counts, stack: Sequence[str]) -> None:
        """Multiply rows with a strip, with part of one that ends in its last vector, or with fewer vectors one by one.
        ``counts`` are rows, columns and terms, and whether to add to the result. ``stack`` says how often this is done,
        and how far operands and results are apart."""
        e, strip, (a, b, c), (rows, columns, depth, again) = self.e, self.strip, pointers, counts
        whole = e.assign(f"icmp eq i64 {columns}, {strip.columns}")
        with e.when(whole):
            self._call("strip", pointers, counts, stack)
        most = e.assign(f"icmp sgt i64 {columns}, {strip.columns - strip.lanes}")
        with e.when(e.assign(f"and i1 {most}, {self.negated(whole)}")):
            self._call("part", pointers, counts, stack)
        if strip.vectors == 1:
            return
        with e.when(self.negated(most)), e.loop("0", columns, strip.lanes) as column:
            there = self.in_operand("b", b, self.multiply(column, self.number(B_COLUMN)))
            target = self.in_result(c, self.multiply(column, self.number(C_COLUMN)))
            present = rows, self.rest(columns, column, strip.lanes), depth, again
            self._call("edge", (a, there, target), present, stack)

    def _call(self, kernel: str, pointers: _Pointers, counts: _Counts, stack: Sequence[str]) -> None:
        positions = (B_COLUMN if self.strip.across else B_INNER, C_ROW, C_COLUMN)
        strides = [*self.left_strides, *[self.number(position) for position in positions]]
        operands = ", ".join([f"ptr {pointer}" for pointer in pointers])
        rows, columns, depth, again = counts
        distances = ", ".join([f"i64 {number}" for number in (*strides, *stack)])
        arguments = f"{operands}, i64 {depth}, i64 {rows}, i64 {columns}, i1 {again}, {distances}"
        self.e.emit(f"call void @{kernel}({arguments})")


def step_numbers(
    places: Sequence[Place],
    extents: tuple[int, int, int],
    strides: Sequence[int],
    strip: Strip,
    batch: Sequence[tuple[int, int, int, int]],
    section: Sequence[int] = attached.NONE,
) -> list[int]:
    """The numbers of a step: table slot and byte offset of both operands and the result; rows, columns and terms; two
    strides of each; the number of strips; for each batch axis its extent and three strides; the section of an attached
    kernel."""
    numbers = [number for place in places for number in place]
    numbers += [*extents, *strides, -(-extents[1] // strip.columns), len(batch)]
    return [*numbers, *[number for axis in batch for number in axis], *section]
