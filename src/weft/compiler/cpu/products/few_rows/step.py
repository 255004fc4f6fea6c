"""Products of a few rows with a matrix, in generated code that reads the matrix once and does not pack it.

Reading the matrix takes most of the time of such products. A unit of work is a strip of columns. Sums are made in the
same order as in `packed.blocks`, so their bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import NamedTuple

from weft.compiler.codegen import attached_calls, loading
from weft.compiler.cpu.code import STEP, EmittedFunction, module_of
from weft.compiler.cpu.products import attached
from weft.compiler.cpu.products.packed.packing import convert_rows
from weft.compiler.cpu.products.step import (
    A_INNER,
    A_ROW,
    B_COLUMN,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    SLOTS,
    ProductStepWriter,
    Sources,
)
from weft.compiler.cpu.products.tiles import block_of
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.runtime.steps import Place

from .blocks import BlocksKernel, StaggeredKernel
from .kernel import FewRowsKernel
from .lines import LinesKernel
from .strip import CONVERTED, MOST_ROWS_OF_HALVES, MOST_ROWS_OF_LITTLE, Strip, is_cut, lacks_masks

STACK_ELEMENTS = 1024
"""How many elements of an operand may be multiplied in one call, if they are matrices of a stack. If left operands are
converted first, more of them take longer: meanwhile nothing is read ahead in the other arrays."""

STRIPS_ELEMENTS = 1 << 14
"""How many elements of a matrix may be multiplied in one call, if they are strips of it."""

SMALL_MATRIX = 64
"""How many elements a matrix may have that is read for one block of rows while others of the stack are, then for the
next block. With larger ones, memory is read in too many places."""

# The positions of the step's numbers after those that every product has.
C_ROW, C_COLUMN, STRIPS, BATCH_AXES = 13, 14, 15, 16


def converts_for_strips(sources: Sources, dtype: Dtype, extents: tuple[int, int, int], matrices: int) -> bool:
    """Whether each call of a step for one matrix converts the few rows once, for all strips that it computes."""
    return sources.left is not dtype and matrices == 1 and min(extents[:2]) <= MOST_ROWS_OF_HALVES


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
    made = kind or (LinesKernel if strip.whole else FewRowsKernel)
    sizes = {"strip": (strip.vectors, False)}
    if not is_cut(strip, sources.right):
        sizes["part"] = strip.vectors, True
    if strip.vectors > 1:
        sizes["edge"] = 1, True
        if _has_single(strip, sources.right):
            sizes["single"] = 1, False
    kernels = {name: made(strip, sources.right, vectors, edge, result) for name, (vectors, edge) in sizes.items()}
    if strip.blocks > 1:
        kernels["blocks"] = BlocksKernel(strip, sources.right, result)
    if strip.staggered:
        kernels["staggered"] = StaggeredKernel(strip, sources.right, result)
    step = _FewRowsStep(strip, sources)
    found = [(kernel.e, kernel.function(name)) for name, kernel in kernels.items()]
    if strip.across:
        of_rest = made(strip, sources.right, 1, True, result)
        found.append((of_rest.e, of_rest.read_rest()))
    if sources.left is not strip.dtype or strip.copies:
        found.append(convert_rows(block_of(strip.dtype), sources.left))
    return [*found, (step.e, step.function(name, linkage))]


def _has_single(strip: Strip, source: Dtype) -> bool:
    """Whether a single vector that is whole has a kernel without masks."""
    return not strip.across and lacks_masks(source)


_Pointers = tuple[str, str, str]


class _Counts(NamedTuple):
    """Rows, columns and terms that are multiplied; whether to add to the result, and whether columns are kept."""

    rows: str
    columns: str
    terms: str
    again: str
    are_kept: str


_Multiply = Callable[[_Pointers, _Counts, Sequence[str]], None]


class _StackPart(NamedTuple):
    """What of a stack is multiplied: pointers to its first matrices, how many columns of the strip exist, how many
    matrices are in the stack and in each call, and the numbers of a kernel that describe the stack."""

    a: str
    b: str
    c: str
    columns: str
    matrices: str
    at_once: str
    stack: Sequence[str]


class _FewRowsStep(ProductStepWriter):
    """The loops over blocks of terms and blocks of rows, for each strip."""

    def __init__(self, strip: Strip, sources: Sources) -> None:
        super().__init__(strip.dtype, sources, BATCH_AXES)
        self.strip = strip
        most = MOST_ROWS_OF_HALVES if strip.keeps else MOST_ROWS_OF_LITTLE
        self.scratch = self.e.slot(f"[{most * strip.columns} x {strip.element}], align 64")
        self.kept = self.e.slot(f"[{DEPTH * strip.columns} x {strip.element}], align 64") if strip.keeps else "null"
        self.converted = ""
        self.left_strides = self.number(A_ROW), self.number(A_INNER)
        """The strides of the rows that the kernels read: from row to row and from term to term."""
        if sources.left is not strip.dtype or strip.copies:
            self._prepare_conversion()
        self.has_single = _has_single(strip, sources.right)
        self.is_cut = is_cut(strip, sources.right)
        self.together = self._matrices_together()
        self.joins = strip.across and strip.is_short and not strip.staggered
        """Whether strips are so narrow that several of a matrix are multiplied in one call."""

    def _prepare_conversion(self) -> None:
        """Decide how the left operand is converted. If there are several strips, it is as a whole, for the first one.
        Otherwise, rows that have no gaps in memory and few terms are converted as a single row."""
        rows, inner, lanes = self.number(ROWS), self.number(INNER), self.strip.lanes
        self.room = self.e.slot(f"[{CONVERTED} x {self.strip.element}], align 64")
        self.converted = self.room
        self.converted_matrix = self.e.slot("i64")
        self.e.store("i64", "-1", self.converted_matrix)
        # Rows that are a multiple of 4 KB apart would be in one set of the first cache.
        apart = self.add(self.rounded_up(inner, 2 * lanes), lanes) if self.strip.beside else inner
        fits = self.compare("sle", self.multiply(rows, apart), CONVERTED)
        self.is_whole = self.both_hold(self.compare("ne", self.number(STRIPS), 1), fits)
        short = self.compare("sle", inner, DEPTH)
        if not self.strip.beside:
            self.is_one_row = short
            return
        near = self.both_hold(
            self.compare("eq", self.number(A_INNER), 1), self.compare("eq", self.number(A_ROW), inner)
        )
        self.is_one_row = self.both_hold(self.both_hold(near, short), self.negated(self.is_whole))
        pitch = self.either(self.is_whole, apart, self.strip.blocks * DEPTH)
        self.left_strides = self.either(self.is_one_row, inner, pitch), "1"

    def _matrices_together(self) -> str:
        """How many matrices of a stack a kernel multiplies in one call: several if one stride leads from each to the
        next, and no other kernel is attached. Left operands that are converted must also follow each other in memory
        without gaps."""
        rows, columns, inner = [self.number(position) for position in (ROWS, COLUMNS, INNER)]
        conditions = [
            self.compare("eq", self.number(BATCH_AXES), 1),
            self.compare("eq", self.number(STRIPS), 1),
            self.compare("eq", self.of_section(attached_calls.CODE), 0),
            self.compare("eq", self.of_section(attached_calls.SCRATCH), 0),
        ]
        if self.converted:
            conditions += [self.is_one_row, self.compare("eq", self._apart("a"), self.multiply(rows, inner))]
        all_hold = reduce(self.both_hold, conditions)
        size = self.larger(self.multiply(inner, self.larger(rows, columns)), 1)
        return self.either(all_hold, self.larger(self.divide(str(STACK_ELEMENTS), size), 1), 1)

    def _apart(self, operand: str) -> str:
        """How far the matrices of a stack with one axis are apart."""
        return self.number(BATCH_AXES + 2 + list(SLOTS).index(operand))

    def _next(self, operand: str) -> str:
        """How far units that are multiplied in one call are apart in an operand."""
        if not self.joins:
            return self._apart(operand)
        columns = {"a": "0", "b": self.number(B_COLUMN), "c": self.number(C_COLUMN)}[operand]
        one_strip = self.compare("eq", self.number(STRIPS), 1)
        return self.either(one_strip, self._apart(operand), self.multiply(columns, self.strip.columns))

    def _convert(self, a: str, depth: str, count: str) -> None:
        """Convert ``depth`` terms of all rows of ``count`` left operands."""
        one, rows = self.is_one_row if self.strip.beside else "true", self.number(ROWS)
        whole = self.multiply(self.multiply(rows, depth), count)
        extents = self.either(one, 1, rows), self.either(one, whole, depth)
        strides = f"i64 {self.number(A_ROW)}, i64 {self.number(A_INNER) if self.strip.beside else 1}"
        counts = ", ".join([f"i64 {number}" for number in (*extents, self.left_strides[0])])
        self.e.emit(f"call void @convert_rows(ptr {a}, {strides}, ptr {self.converted}, {counts})")

    def _convert_whole(self, a: str, matrix: str) -> None:
        """Convert a left operand as a whole, unless the strip before has done it."""
        changes = self.compare("ne", self.e.load("i64", self.converted_matrix), matrix)
        with self.e.when(self.both_hold(self.is_whole, changes)):
            self._convert(a, self.number(INNER), "1")
            self.e.store("i64", matrix, self.converted_matrix)

    def _strips_together(self) -> str:
        """How many strips of a matrix a kernel multiplies in one call: several if columns are short, and no other
        kernel is attached."""
        inner = self.number(INNER)
        conditions = [
            self.compare("ne", self.number(STRIPS), 1),
            self.compare("sle", inner, DEPTH),
            self.compare("eq", self.of_section(attached_calls.CODE), 0),
            self.compare("eq", self.of_section(attached_calls.SCRATCH), 0),
        ]
        most = self.divide(str(STRIPS_ELEMENTS), self.larger(self.multiply(inner, self.strip.columns), 1))
        return self.either(reduce(self.both_hold, conditions), self.larger(most, 1), 1)

    def function(self, name: str, linkage: str) -> str:
        if self.joins:
            self._joined_units()
        else:
            with self.e.loop("%begin", "%end", self.together) as unit:
                self._unit(unit, self.smaller(self.subtract("%end", unit), self.together))
        return self.e.function(name, STEP, linkage)

    def _joined_units(self) -> None:
        """Units, of which neighbours are multiplied together if they are matrices of a stack, or whole strips of a
        matrix."""
        together, strips = self.larger(self.together, self._strips_together()), self.number(STRIPS)
        one_strip = self.compare("eq", strips, 1)
        whole = self.divide(self.number(COLUMNS), self.strip.columns)
        with self.e.loop("%begin", "%end", together) as unit:
            count = self.smaller(self.subtract("%end", unit), together)
            last = self.add(self.parts(unit, strips)[1], count)
            fits = self.e.assign(f"or i1 {one_strip}, {self.compare('sle', last, whole)}")
            at_once = self.either(fits, count, 1)
            with self.e.loop("0", count, at_once) as done:
                self._unit(self.add(unit, done), at_once)

    def _unit(self, unit: str, count: str) -> None:
        """A unit, or ``count`` of them that are matrices of a stack, or strips of a matrix."""
        e, strip = self.e, self.strip
        strips, inner = self.number(STRIPS), self.number(INNER)
        matrix, number = self.parts(unit, strips)
        matrices = self.operands(matrix)
        if self.strip.copies:
            self.converted = self.far_from(self.room, matrices["b"])
        if self.converted:
            self._convert_whole(matrices["a"], matrix)
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
        small = self.compare("sle", self.multiply(self.number(ROWS), inner), 0 if strip.keeps else SMALL_MATRIX)
        at_once = self.either(e.assign(f"or i1 {one_block}, {small}"), count, 1)
        stack = [at_once, *[self._next(operand) for operand in SLOTS]]
        part = _StackPart(matrices["a"], b, c, columns, count, at_once, stack)
        single = "0"
        if strip.staggered:
            single = self._add_staggered(part)
        if strip.blocks > 1:
            some = e.assign(f"urem i64 {inner}, {strip.blocks * DEPTH}")
            whole = e.assign(f"icmp eq i64 {columns}, {strip.columns}")
            single = self.either(whole, self.subtract(inner, some), 0)
            with e.loop("0", single, strip.blocks * DEPTH) as term:
                self._add_terms(part, term, strip.blocks * DEPTH, self._multiply_blocks)
        with e.loop(single, e.assign(f"select i1 {no_terms}, i64 1, i64 {inner}"), DEPTH) as term:
            self._add_terms(part, term, DEPTH, self._multiply)
        self.call_attached((matrix, "0", self.number(ROWS), left, columns), c)

    def _add_staggered(self, part: _StackPart) -> str:
        """Multiply all whole blocks of terms with the strip, if it is whole and if there are at least two blocks.
        Returns how many terms these are."""
        inner = self.number(INNER)
        fits = self.both_hold(
            self.compare("eq", part.columns, self.strip.columns), self.compare("sge", inner, 2 * DEPTH)
        )
        if self.converted:
            fits = self.both_hold(fits, self.is_whole)
        terms = self.either(fits, self.subtract(inner, self.e.assign(f"urem i64 {inner}, {DEPTH}")), 0)

        def multiply(pointers: _Pointers, counts: _Counts, stack: Sequence[str]) -> None:
            self._call("staggered", pointers, counts._replace(terms=terms), stack)

        with self.e.when(fits):
            self._add_terms(part, "0", DEPTH, multiply)
        return terms

    def _add_terms(self, part: _StackPart, term: str, most: int, multiply: _Multiply) -> None:
        """Multiply at most so many terms, from ``term`` on, for all matrices of a stack."""
        b_here = self.in_operand("b", part.b, self.multiply(term, self.number(B_INNER)))
        a_here = self.in_operand("a", part.a, self.multiply(term, self.number(A_INNER)))
        numbers = self.rest(self.number(INNER), term, most), self.e.assign(f"icmp ne i64 {term}, 0")
        if self.converted:
            with self.e.when(self.negated(self.is_whole)):
                self._convert(a_here, numbers[0], part.matrices)
            distance = self.either(self.is_whole, self.multiply(term, self.left_strides[1]), 0)
            a_here = self.further(self.converted, distance)
        elements = self.elements | {"a": self.element}
        with self.e.loop("0", part.matrices, part.at_once) as other:
            a, b, c = [
                self.moved(pointer, self.multiply(other, self._next(name)), element)
                for pointer, (name, element) in zip((a_here, b_here, part.c), elements.items(), strict=True)
            ]
            self._rows((a, b, c), part, numbers, multiply)

    def _rows(self, pointers: _Pointers, part: _StackPart, numbers: tuple[str, str], multiply: _Multiply) -> None:
        """Multiply all rows with a strip, in blocks of rows."""
        a, b, c = pointers
        with self.e.loop("0", self.number(ROWS), self.strip.rows) as row:
            left = self.further(a, self.multiply(row, self.left_strides[0]))
            target = self.in_result(c, self.multiply(row, self.number(C_ROW)))
            rows, are_kept = self.rest(self.number(ROWS), row, self.strip.rows), self.compare("ne", row, 0)
            multiply((left, b, target), _Counts(rows, part.columns, *numbers, are_kept), part.stack)

    def _multiply_blocks(self, pointers: _Pointers, counts: _Counts, stack: Sequence[str]) -> None:
        self._call("blocks", pointers, counts, stack)

    def _multiply(self, pointers: _Pointers, counts: _Counts, stack: Sequence[str]) -> None:
        """Multiply rows with a strip, with part of one that ends in its last vector, or with fewer vectors one by one.
        ``stack`` says how often this is done, and how far operands and results are apart."""
        e, strip, (a, b, c), columns = self.e, self.strip, pointers, counts.columns
        most = e.assign(f"icmp sgt i64 {columns}, {strip.columns - strip.lanes}")
        whole = most if self.is_cut else e.assign(f"icmp eq i64 {columns}, {strip.columns}")
        with e.when(whole):
            self._call("strip", pointers, counts, stack)
        if not self.is_cut:
            with e.when(e.assign(f"and i1 {most}, {self.negated(whole)}")):
                self._call("part", pointers, counts, stack)
        if strip.vectors == 1:
            return
        with e.when(self.negated(most)), e.loop("0", columns, strip.lanes) as column:
            there = self.in_operand("b", b, self.multiply(column, self.number(B_COLUMN)))
            target = self.in_result(c, self.multiply(column, self.number(C_COLUMN)))
            present = counts._replace(columns=self.rest(columns, column, strip.lanes))
            ends = "true"
            if self.has_single:
                ends = e.assign(f"icmp ne i64 {present.columns}, {strip.lanes}")
                with e.when(self.negated(ends)):
                    self._call("single", (a, there, target), present, stack)
            with e.when(ends):
                self._call("edge", (a, there, target), present, stack)

    def _call(self, kernel: str, pointers: _Pointers, counts: _Counts, stack: Sequence[str]) -> None:
        positions = (B_COLUMN if self.strip.across else B_INNER, C_ROW, C_COLUMN)
        strides = [*self.left_strides, *[self.number(position) for position in positions]]
        operands = ", ".join([f"ptr {pointer}" for pointer in pointers])
        distances = ", ".join([f"i64 {number}" for number in (*strides, *stack)])
        arguments = f"{operands}, i64 {counts.terms}, i64 {counts.rows}, i64 {counts.columns}, i1 {counts.again}, "
        arguments += f"{distances}, ptr {self.kept}, i1 {counts.are_kept}"
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
