"""Products of a few rows with a matrix whose rows are contiguous, in generated code.

Reading the matrix takes most of the time of such a product. Several rows of the matrix are read side by side, each
along a strip of columns, because memory is read fastest so. The sums of the strip stay in the first cache meanwhile.
They are made in the same order as in `packed.blocks`, so their bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import MEMORY_TYPES, Location, load, store
from weft.compiler.codegen.values import SumOfProducts, Value
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of
from weft.compiler.cpu.memory import CACHE_LINE, READ_SOON, WAY_BYTES, prefetch
from weft.compiler.cpu.products import attached
from weft.compiler.cpu.products.half_squares import SHORT_VECTOR
from weft.compiler.cpu.products.step import (
    A_INNER,
    A_ROW,
    B_INNER,
    COLUMNS,
    INNER,
    ROWS,
    ProductStepWriter,
    Sources,
    below,
    multiply_add,
    read,
)
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.runtime.steps import Place

MOST_ROWS = 8
"""With more rows, sums are made in blocks of rows."""
MOST_ROWS_IN_ALL = 16
"""With more rows, products are not computed in this way."""
FEWEST_ROWS = 3
"""With at most this many rows, long registers hold the numbers of these rows for 8 terms."""
SUMS_BYTES = 24 << 10
"""The most bytes that all sums of a strip take."""
NARROWEST = 32
"""How many columns the narrowest strip has: two cache lines of each row, which processors read together."""
READS_AHEAD = ("znver4",)
"""LLVM's names of processors with long registers that mostly read ahead faster alone."""
NEAR, FAR, ROWS_OF_FAR = 8 << 20, 20 << 20, 6
"""With more than `FEWEST_ROWS` rows, these read a matrix of at most so many bytes (the first number) faster without
prefetches; and one of at least so many bytes (the second number) for up to so many rows, if more of its rows are read
side by side."""
SHORT_STRIP = 1 << 11
"""Strips of at most this many bytes end soon after the processor has begun to read ahead."""

# The positions of the step's numbers after those that every product has.
C_ROW, C_COLUMN, STRIP, STRIPS, BATCH_AXES = range(13, 18)


@dataclass(frozen=True)
class RowsAtOnce:
    """``terms`` rows of the matrix are read side by side, for up to ``rows`` rows of the result. If ``apart``, columns
    of the result are no neighbours in memory. If ``ahead``, the next rows are prefetched."""

    dtype: Dtype
    rows: int
    terms: int
    vector_bytes: int
    apart: bool
    ahead: bool = True

    @property
    def lanes(self) -> int:
        return self.vector_bytes // self.dtype.size

    @property
    def widest(self) -> int:
        """How many columns the widest strip has."""
        return widest_of(self.rows, self.dtype)

    @property
    def apart_in_sets(self) -> int:
        """How many bytes the sets of the first cache that hold sums of neighbouring rows are apart: the sums for a
        column are in sets that are evenly apart."""
        return WAY_BYTES // self.rows // CACHE_LINE * CACHE_LINE

    @property
    def pitch(self) -> int:
        """How far the sums of a row are from those of the next one."""
        ways = -(-self.widest * self.dtype.size // WAY_BYTES)
        return (ways * WAY_BYTES + self.apart_in_sets) // self.dtype.size


def rows_at_once_of(dtype: Dtype, rows: int, apart: bool) -> RowsAtOnce:
    """How many rows are read at once on this processor. Rows are divided evenly into as few blocks as possible."""
    height = int(-(-rows // -(-rows // MOST_ROWS)))
    if "+avx512f" in host.current().features:
        return RowsAtOnce(dtype, height, 8 if height <= FEWEST_ROWS else 4, 64, apart)
    return RowsAtOnce(dtype, height, 4, 32, apart)


def of_strips(at_once: RowsAtOnce, width: int, columns: int, source: Dtype, size: int) -> RowsAtOnce:
    """The same for strips of a ``width`` of matrices that have ``size`` bytes: without prefetches if strips are long
    and a single row is multiplied, or if they are whole rows. With short vectors, processors read these ahead
    themselves, and prefetches take more time than they save, in a matrix of 16 MB twice as much as the rest."""
    if at_once.vector_bytes > SHORT_VECTOR:
        return _read_ahead_alone(at_once, source, size) if host.current().name in READS_AHEAD else at_once
    fast = at_once.rows == 1 or columns <= width
    if not fast or min(width, columns) * source.size <= SHORT_STRIP:
        return at_once
    return replace(at_once, ahead=False, terms=8 if at_once.rows == 1 else at_once.terms)


def _read_ahead_alone(at_once: RowsAtOnce, source: Dtype, size: int) -> RowsAtOnce:
    """The same for a processor with long registers that mostly reads ahead faster alone."""
    if at_once.rows <= FEWEST_ROWS or size <= NEAR:
        return replace(at_once, ahead=False)
    is_far = size >= FAR and source is at_once.dtype and at_once.rows <= ROWS_OF_FAR
    return replace(at_once, ahead=False, terms=8) if is_far else at_once


def widest_of(rows: int, dtype: Dtype) -> int:
    """How many columns the widest strip has, if sums of this dtype are made for this many rows."""
    return SUMS_BYTES // (rows * dtype.size * NARROWEST) * NARROWEST


def width_of(widest: int, columns: int, matrices: int, threads: int) -> int:
    """How many columns a strip has: as many as possible, so that each thread has a strip."""
    pieces = max(-(-threads // max(matrices, 1)), -(-columns // widest))
    return max(1, -(-columns // (pieces * NARROWEST))) * NARROWEST


@cache
def address(at_once: RowsAtOnce, sources: Sources) -> int:
    """The address of the step for products of this many rows at once, with operands of the dtypes ``sources``."""
    name = f"rows_at_once_{sources.name}"
    return loading.load(f"{name} {at_once}", lambda: generate(at_once, sources, name), (name,))[name]


def generate(at_once: RowsAtOnce, sources: Sources, name: str) -> str:
    """The LLVM IR of the step for products of this many rows at once, with operands of the dtypes ``sources``."""
    result = sources.result(at_once.dtype)
    functions = [
        _add_terms(at_once, sources, at_once.terms),
        _add_terms(at_once, sources, 1),
        _store_sums(at_once, result),
        _RowsAtOnceStep(at_once, sources).function(name),
    ]
    return module_of(functions)


class _Part(Integers):
    """Writes a function with a loop over the vectors of a strip."""

    def __init__(self, at_once: RowsAtOnce) -> None:
        super().__init__(Emitter())
        self.at_once, self.dtype = at_once, at_once.dtype
        self.element = MEMORY_TYPES[self.dtype]
        self.L = Lanes(self.e, at_once.lanes)

    def further(self, pointer: str, distance: str | int) -> str:
        return self.moved(pointer, distance, self.element)

    def sums(self, row: int) -> str:
        return self.further("%sums", row * self.at_once.pitch)

    def read_sums(self, row: int, start: str) -> Value:
        return read(self.L, self.dtype, self.sums(row), start, None, self.dtype)


def _add_terms(at_once: RowsAtOnce, sources: Sources, terms: int) -> EmittedFunction:
    """A function that adds the products of some terms to the sums of a strip."""
    code = _Part(at_once)
    scalar, last = Lanes(code.e, 1), code.subtract("%rows", 1)

    def further(pointer: str, distance: str) -> str:
        return code.moved(pointer, distance, MEMORY_TYPES[sources.right])

    def in_left(distance: str) -> str:
        return code.moved("%a", distance, MEMORY_TYPES[sources.left])

    lines = [further("%b", code.multiply("%b_step", term)) for term in range(terms)]
    later = [further(line, code.multiply("%b_step", terms)) for line in lines]
    # For a row that does not exist the last one is read; its sums are not stored.
    indices = [code.smaller(str(row), last) for row in range(at_once.rows)]
    factors = [
        [
            code.L.splat(read(scalar, sources.left, row, code.multiply("%a_inner", term), None, code.dtype))
            for term in range(terms)
        ]
        for row in [in_left(code.multiply("%a_row", index)) for index in indices]
    ]

    def add(start: str, mask: str | None) -> None:
        vectors = [read(code.L, sources.right, line, start, mask, code.dtype) for line in lines]
        for line in later if at_once.ahead else ():
            prefetch(code.e, further(line, start), READ_SOON)
        for row in range(at_once.rows):
            total = code.read_sums(row, start)
            for factor, vector in zip(factors[row], vectors, strict=True):
                total = multiply_add(code.L, factor, vector, total)
            store(code.L, total, code.dtype, Location(code.sums(row), start, False), None)

    rest = code.remainder("%columns", at_once.lanes)
    whole = code.subtract("%columns", rest)
    with code.e.loop("0", whole, at_once.lanes) as start:
        add(start, None)
    with code.e.when(code.compare("ne", rest, 0)):
        add(whole, below(code.L, "0", rest))
    parameters = "ptr %a, i64 %a_row, i64 %a_inner, ptr %b, i64 %b_step, ptr %sums, i64 %rows, i64 %columns"
    return code.e, code.e.function(f"add_{terms}", parameters, "internal ")


def _store_sums(at_once: RowsAtOnce, result: Dtype) -> EmittedFunction:
    """A function that stores the sums of a strip, or adds them to the result if ``%again``. If the ``result`` has
    another dtype than the sums, these must be complete; they are rounded when they are stored."""
    code = _Part(at_once)
    L, again = code.L, code.L.splat(Value(Lanes(code.e, 1), "%again", dtypes.bool_))
    for row in range(at_once.rows):
        with code.e.when(code.compare("slt", str(row), "%rows")), code.e.loop("0", "%columns", at_once.lanes) as start:
            mask = Value(L, below(L, start, "%columns"), dtypes.bool_)
            location = _location(code, row, start, MEMORY_TYPES[result])
            sums = code.read_sums(row, start)
            if result is code.dtype:
                before = load(L, code.dtype, location, (again & mask).name)
                sums = L.select(again, before + sums, sums)  # not 0 + sums, which would turn a sum of -0 into 0
            store(L, SumOfProducts(L, sums.name, result), result, location, mask.name)
    parameters = "ptr %sums, ptr %c, i64 %c_row, i64 %c_column, i64 %rows, i64 %columns, i1 %again"
    return code.e, code.e.function("store_sums", parameters, "internal ")


def _location(code: _Part, row: int, start: str, element: str) -> Location:
    """The location of a vector of the result."""
    line, L = code.moved("%c", code.multiply("%c_row", row), element), code.L
    if not code.at_once.apart:
        return Location(line, start, False)
    numbers = Value(L, f"<{', '.join(f'i64 {lane}' for lane in range(L.width))}>", dtypes.int64)
    step = L.splat(Value(Lanes(code.e, 1), "%c_column", dtypes.int64))
    return Location(code.moved(line, code.multiply(start, "%c_column"), element), (numbers * step).name, True)


class _RowsAtOnceStep(ProductStepWriter):
    """The loops over a strip: blocks of terms, groups of terms that are read side by side."""

    def __init__(self, at_once: RowsAtOnce, sources: Sources) -> None:
        super().__init__(at_once.dtype, sources, BATCH_AXES)
        self.at_once = at_once
        size = at_once.rows * at_once.widest
        room = at_once.rows * at_once.pitch + WAY_BYTES // at_once.dtype.size
        self.room = self.sums = self.e.slot(f"[{room} x {self.element}], align 64")
        blocks = -(-MOST_ROWS_IN_ALL // at_once.rows)
        self.scratch = self.e.slot(f"[{blocks * size} x {self.element}], align 64")

    def function(self, name: str) -> EmittedFunction:
        with self.e.loop("%begin", "%end") as unit:
            self._unit(unit)
        return self.e, self.e.function(name, STEP)

    def _unit(self, unit: str) -> None:
        strips, width, inner = self.number(STRIPS), self.number(STRIP), self.number(INNER)
        matrix = self.divide(unit, strips)
        matrices = self.operands(matrix)
        left = self.multiply(self.remainder(unit, strips), width)
        columns = self.rest(self.number(COLUMNS), left, width)
        b = self.in_operand("b", matrices["b"], left)
        self.sums = self.far_from(self.room, b, self.at_once.apart_in_sets // 2)
        in_memory = self.in_result(matrices["c"], self.multiply(left, self.number(C_COLUMN)))
        c = self.made_at(in_memory, self.scratch)
        # Without terms the loop runs once all the same, to store zeros.
        with self.e.loop("0", self.larger(inner, "1"), DEPTH) as first:
            stop = self.add(first, self.rest(inner, first, DEPTH))
            with self.e.loop("0", self.number(ROWS), self.at_once.rows) as row:
                rows = self.rest(self.number(ROWS), row, self.at_once.rows)
                a = self.in_operand("a", matrices["a"], self.multiply(row, self.number(A_ROW)))
                self._clear(columns)
                self._sum(a, b, first, stop, f"i64 {rows}, i64 {columns}")
                target = self.in_result(c, self.multiply(row, self.number(C_ROW)))
                strides = f"i64 {self.number(C_ROW)}, i64 {self.number(C_COLUMN)}"
                counts = f"i64 {rows}, i64 {columns}, i1 {self.compare('ne', first, 0)}"
                self.e.emit(f"call void @store_sums(ptr {self.sums}, ptr {target}, {strides}, {counts})")
        self.call_attached((matrix, "0", self.number(ROWS), left, columns), c)

    def _sum(self, a: str, b: str, first: str, stop: str, counts: str) -> None:
        """Add the terms of a block to the sums."""
        a_inner, b_inner = self.number(A_INNER), self.number(B_INNER)
        whole = self.subtract(stop, self.remainder(self.subtract(stop, first), self.at_once.terms))
        for start, end, terms in ((first, whole, self.at_once.terms), (whole, stop, 1)):
            with self.e.loop(start, end, terms) as term:
                left = self.in_operand("a", a, self.multiply(term, a_inner))
                right = self.in_operand("b", b, self.multiply(term, b_inner))
                operands = f"ptr {left}, i64 {self.number(A_ROW)}, i64 {a_inner}, ptr {right}, i64 {b_inner}"
                self.e.emit(f"call void @add_{terms}({operands}, ptr {self.sums}, {counts})")

    def _clear(self, columns: str) -> None:
        L = Lanes(self.e, self.at_once.lanes)
        zeros = L.constant(0.0, self.at_once.dtype)
        with self.e.loop("0", columns, L.width) as start:
            for row in range(self.at_once.rows):
                location = Location(self.sums, self.add(start, row * self.at_once.pitch), False)
                store(L, zeros, self.at_once.dtype, location, None)


def step_numbers(
    places: Sequence[Place],
    extents: tuple[int, int, int],
    strides: Sequence[int],
    strip: int,
    batch: Sequence[tuple[int, int, int, int]],
    section: Sequence[int] = attached.NONE,
) -> list[int]:
    """The numbers of a step: table slot and byte offset of both operands and the result; rows, columns and terms; two
    strides of each; the columns of a strip; the number of strips; for each batch axis its extent and three strides; and
    the section of an attached kernel."""
    numbers = [number for place in places for number in place]
    numbers += [*extents, *strides, strip, -(-extents[1] // strip), len(batch)]
    return [*numbers, *[number for axis in batch for number in axis], *section]
