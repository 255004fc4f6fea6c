"""Steps that call library routines for every matrix of a stack.

The code of a step depends on the routine, dtypes and parameters. It is written as a function of one matrix, which
copies, calls LAPACK or BLAS, and checks what they report. Around it, the loop over the matrices, their addresses and
extents, and the scratch memory are the same for all routines. All sizes are numbers of the step. Operands are stacks in
row-major order. LAPACK expects column-major order, so it sees the transposed matrices.

A unit of work is a share of the matrices, with scratch memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.cpu.code import Integers
from weft.compiler.cpu.small_matrices import steps as small
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.libraries import pointers
from weft.primitives.routine import Operand, Routine, RoutineCall, RoutineStep

MOST_UNITS = 64
MOST_SCRATCH = 1 << 28
"""The most scratch memory in bytes: if it would be more, there are fewer units, down to `FEWEST_UNITS`."""

FEWEST_UNITS = 8
_WORK_PER_GRAIN = 1 << 16
_WORK_PER_CALL = 1 << 10
_ALIGNMENT = 64
_TILE = 8
"""Rows and columns that are transposed at once: few enough for a near cache, even if rows are 4096 bytes apart."""

REALS = {dtypes.float32: "float", dtypes.float64: "double", dtypes.complex64: "float"}
LETTERS = {dtypes.float32: "s", dtypes.float64: "d", dtypes.complex64: "c"}
REAL_PART = {dtypes.float32: dtypes.float32, dtypes.float64: dtypes.float64, dtypes.complex64: dtypes.float32}

ScratchParts = dict[str, tuple[int, Dtype]]
"""The scratch memory for one matrix: for each part, how many elements it has and of which dtype."""

_MATRICES, _UNITS, _SCRATCH = 0, 1, 2
_FIRST_OPERAND = 5
_OPERAND_FIELDS = 4
_PART_FIELDS = 2


@dataclass(frozen=True)
class Stacked:
    """How the CPU computes a routine for a matrix of a stack.

    ``write`` writes the code. ``library`` names the routines of BLAS, or with a leading dot of LAPACK, that it calls,
    without the letter of the dtype. ``scratch`` gives the `ScratchParts` for the shapes of the operands, the dtype of
    the first one, and the parameters. All axes of the first operand but the last two are those of the stack, which come
    first in the other operands too.
    """

    name: str
    write: Callable[[StackWriter], None]
    library: Callable[[Dtype], Sequence[str]]
    scratch: Callable[[Sequence[Shape], Dtype, dict[str, Any]], ScratchParts] = lambda shapes, dtype, params: {}

    def on(self, routine: Routine) -> None:
        """Make this the step of a routine on the CPU."""

        def scratch(node: Node) -> int:
            first = node.inputs[0]
            if self._is_small(first.shape, first.dtype):
                return 0
            parts = self.scratch([x.shape for x in node.inputs], first.dtype, node.keywords)
            return _units(prod(first.shape[:-2]), parts) * _bytes(parts)

        routine.on("cpu", scratch)(self.step)

    def _is_small(self, shape: Shape, dtype: Dtype) -> bool:
        """Whether matrices are so small that generated code computes them."""
        return self.name in small.WRITERS and small.is_small(shape, dtype)

    def step(self, call: RoutineCall) -> RoutineStep:
        operands = [*call.operands, *call.results]
        first = operands[0]
        if self._is_small(first.shape, first.dtype):
            return small.step(self.name, call)
        parts = self.scratch([x.shape for x in call.operands], first.dtype, call.params)
        batch = len(first.shape) - 2
        matrices = prod(first.shape[:batch])
        units = _units(matrices, parts)
        numbers = [matrices, units, *call.scratch, _bytes(parts)]
        for operand in operands:
            rows, columns = (*operand.shape[batch:], 1)[:2]
            numbers += [operand.slot, operand.offset, rows, columns]
        offset = 0
        for count, dtype in parts.values():
            numbers += [offset, count]
            offset += _aligned(count * dtype.size)
        rows, columns = first.shape[batch:]
        work = rows * columns * min(rows, columns) + _WORK_PER_CALL
        grain = max(1, _WORK_PER_GRAIN * units // (work * max(matrices, 1)))
        return RoutineStep(self._address(call, list(parts)), numbers, units, grain, work * matrices)

    def _address(self, call: RoutineCall, parts: list[str]) -> int:
        operands = [*call.operands, *call.results]
        dtype = operands[0].dtype
        key = (self.name, tuple([x.dtype for x in operands]), tuple(call.params.items()))
        found = _addresses.get(key)
        if found is None:
            text = f"{self.name} {[x.dtype.name for x in operands]} {call.params}"
            provided = {}
            for routine in self.library(dtype):
                name = LETTERS[dtype] + routine.removeprefix(".")
                provided[f"library_{name}"] = (pointers.lapack if routine.startswith(".") else pointers.blas)(name)
            function = f"stack_{self.name}"

            def generate() -> str:
                return StackWriter(self, call, parts).module(function)

            found = _addresses[key] = loading.load(text, generate, (function,), provided)[function]
        return found


_addresses: dict[Any, int] = {}


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _bytes(parts: ScratchParts) -> int:
    return sum([_aligned(count * dtype.size) for count, dtype in parts.values()])


def _units(matrices: int, parts: ScratchParts) -> int:
    size = _bytes(parts)
    most = max(FEWEST_UNITS, MOST_SCRATCH // size) if size else MOST_UNITS
    return min(matrices, MOST_UNITS, most)


class Matrix:
    """An operand or result, as registers: the address of its first element, rows and columns."""

    def __init__(self, pointer: str, rows: str, columns: str, dtype: Dtype) -> None:
        self.pointer, self.rows, self.columns, self.dtype = pointer, rows, columns, dtype


class StackWriter(Integers):
    """Writes the step of a routine. ``operands`` and ``results`` are those of the current matrix."""

    operands: list[Matrix]
    results: list[Matrix]

    def __init__(self, stacked: Stacked, call: RoutineCall, parts: list[str]) -> None:
        super().__init__(Emitter())
        self.stacked = stacked
        self.params = call.params
        self.dtype = call.operands[0].dtype
        self.real = REAL_PART[self.dtype]
        self._call = call
        self._parts = {part: position for position, part in enumerate(parts)}
        self._first_part = _FIRST_OPERAND + _OPERAND_FIELDS * (len(call.operands) + len(call.results))
        self._unit = ""

    def module(self, name: str) -> str:
        e = self.e
        matrices, units = self.number(_MATRICES), self.number(_UNITS)
        bases = [self._operand(k, x) for k, x in enumerate([*self._call.operands, *self._call.results])]
        scratch = self.memory(_SCRATCH)
        size = self.number(_SCRATCH + 2)
        with e.loop("%begin", "%end") as unit:
            self._unit = self.moved(scratch, self.multiply(unit, size))
            first = e.assign(f"udiv i64 {self.multiply(unit, matrices)}, {units}")
            last = e.assign(f"udiv i64 {self.multiply(self.add(unit, 1), matrices)}, {units}")
            with e.loop(first, last) as index:
                current = [self._at(base, index) for base in bases]
                count = len(self._call.operands)
                self.operands, self.results = current[:count], current[count:]
                self.stacked.write(self)
        text = e.function(name, "ptr %numbers, ptr %table, i64 %begin, i64 %end")
        return module([e], [text])

    def _operand(self, position: int, operand: Operand) -> Matrix:
        index = _FIRST_OPERAND + _OPERAND_FIELDS * position
        return Matrix(self.memory(index), self.number(index + 2), self.number(index + 3), operand.dtype)

    def _at(self, base: Matrix, index: str) -> Matrix:
        size = self.multiply(self.multiply(base.rows, base.columns), base.dtype.size)
        return Matrix(self.moved(base.pointer, self.multiply(index, size)), base.rows, base.columns, base.dtype)

    def scratch(self, part: str) -> str:
        """The address of a part of the scratch memory."""
        position = self._first_part + _PART_FIELDS * self._parts[part]
        return self.moved(self._unit, self.number(position))

    def capacity(self, part: str) -> str:
        """How many elements a part of the scratch memory has, as the address of an integer for a library routine."""
        return self.integer(self.number(self._first_part + _PART_FIELDS * self._parts[part] + 1))

    def integer(self, value: str) -> str:
        """An integer as an argument of a library routine: the address of 32 bits."""
        slot = self.e.slot("i32")
        self.e.store("i32", self.e.assign(f"trunc i64 {value} to i32"), slot)
        return slot

    def leading(self, extent: str) -> str:
        """The distance between columns of ``extent`` elements. LAPACK requires at least 1."""
        some = self.e.assign(f"icmp sgt i64 {extent}, 1")
        return self.integer(self.e.assign(f"select i1 {some}, i64 {extent}, i64 1"))

    def letter(self, letter: str) -> str:
        slot = self.e.slot("i8")
        self.e.store("i8", str(ord(letter)), slot)
        return slot

    def scalar(self, value: float) -> str:
        """A number of the dtype, as an argument of a library routine: the address of it."""
        type_ = REALS[self.dtype]
        slot = self.e.slot(f"[2 x {type_}]")
        self.e.store(type_, f"{value:e}", slot)
        self.e.store(type_, "0.0", self.moved(slot, "1", type_))
        return slot

    def library(self, routine: str, *arguments: str) -> None:
        """Call a library routine, named without the letter of the dtype, with addresses of its arguments."""
        name = f"library_{LETTERS[self.dtype]}{routine}"
        self.e.call(name, "void", [("ptr", argument) for argument in arguments])

    def report(self) -> str:
        """The address to which a library routine reports; 0 means success."""
        slot = self.e.slot("i32")
        self.e.store("i32", "0", slot)
        return slot

    def size_of(self, matrix: Matrix) -> str:
        return self.multiply(matrix.rows, matrix.columns)

    def copy(self, source: Matrix, target: str) -> None:
        size = self.multiply(self.size_of(source), source.dtype.size)
        self.copy_bytes(source.pointer, target, size)

    def copy_bytes(self, source: str, target: str, size: str) -> None:
        self.e.declarations["memcpy"] = "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"
        self.e.emit(f"call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)")

    def transpose(self, source: tuple[str, str], rows: str, columns: str, target: tuple[str, str]) -> None:
        """Write a matrix of the dtype as its transpose. ``source`` and ``target`` are pairs of an address and the
        distance of rows in elements."""
        size = self.dtype.size
        type_ = f"i{8 * size}"
        (read, read_distance), (written, written_distance) = source, target
        with self.e.loop("0", rows, _TILE) as first_row, self.e.loop("0", columns, _TILE) as first_column:
            last_row = self.smaller(self.add(first_row, _TILE), rows)
            last_column = self.smaller(self.add(first_column, _TILE), columns)
            with self.e.loop(first_column, last_column) as column, self.e.loop(first_row, last_row) as row:
                place = self.add(self.multiply(row, read_distance), column)
                value = self.e.load(type_, self.moved(read, place, type_))
                place = self.add(self.multiply(column, written_distance), row)
                self.e.store(type_, value, self.moved(written, place, type_))

    def clear(self, pointer: str, size: str) -> None:
        """Write zeros to ``size`` bytes."""
        self.e.declarations["memset"] = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"
        self.e.emit(f"call void @llvm.memset.p0.i64(ptr {pointer}, i8 0, i64 {size}, i1 false)")

    def clear_beside(self, matrix: Matrix, upper: bool) -> None:
        """Write zeros below the diagonal of a matrix that is an upper triangle, or above that of a lower one."""
        width = self.multiply(matrix.columns, matrix.dtype.size)
        with self.e.loop("0", matrix.rows) as row:
            start = self.moved(matrix.pointer, self.multiply(row, width))
            within = self.smaller(row if upper else self.add(row, 1), matrix.columns)
            size = self.multiply(within, matrix.dtype.size)
            if upper:
                self.clear(start, size)
            else:
                self.clear(self.moved(start, size), self.subtract(width, size))

    def identity(self, matrix: Matrix) -> None:
        """Write the identity matrix."""
        type_ = REALS[matrix.dtype]
        self.clear(matrix.pointer, self.multiply(self.size_of(matrix), matrix.dtype.size))
        step = self.multiply(self.add(matrix.columns, 1), 2 if matrix.dtype.is_complex else 1)
        with self.e.loop("0", matrix.rows) as row:
            self.e.store(type_, "1.0", self.moved(matrix.pointer, self.multiply(row, step), type_))

    def went_well(self, report: str) -> str:
        return self.e.assign(f"icmp eq i32 {self.e.load('i32', report)}, 0")

    def spoil_unless(self, condition: str) -> None:
        """Set all floating-point and complex results to NaN unless a condition holds."""
        with self.e.when(self.e.assign(f"xor i1 {condition}, true")):
            for result in self.results:
                if not result.dtype.is_inexact:
                    continue
                type_ = REALS[result.dtype]
                count = self.multiply(self.size_of(result), 2 if result.dtype.is_complex else 1)
                with self.e.loop("0", count) as index:
                    self.e.store(type_, "0x7FF8000000000000", self.moved(result.pointer, index, type_))

    def is_finite(self, matrix: Matrix) -> str:
        """Whether no element of a matrix is infinite or NaN: the sum of all elements times zero is zero only then."""
        type_ = REALS[matrix.dtype]
        total = self.e.slot(type_)
        self.e.store(type_, "0.0", total)
        count = self.multiply(self.size_of(matrix), 2 if matrix.dtype.is_complex else 1)
        with self.e.loop("0", count) as index:
            value = self.e.load(type_, self.moved(matrix.pointer, index, type_))
            zero = self.e.assign(f"fmul {type_} {value}, 0.0")
            self.e.store(type_, self.e.assign(f"fadd {type_} {self.e.load(type_, total)}, {zero}"), total)
        return self.e.assign(f"fcmp oeq {type_} {self.e.load(type_, total)}, 0.0")

    def has_zero_on_diagonal(self, matrix: Matrix) -> str:
        """Whether an element of the diagonal of a square matrix is zero."""
        type_, parts = REALS[matrix.dtype], 2 if matrix.dtype.is_complex else 1
        found = self.e.slot("i1")
        self.e.store("i1", "false", found)
        step = self.multiply(self.add(matrix.columns, 1), parts)
        with self.e.loop("0", matrix.rows) as row:
            zero = "true"
            for part in range(parts):
                address = self.moved(matrix.pointer, self.add(self.multiply(row, step), part), type_)
                this = self.e.assign(f"fcmp oeq {type_} {self.e.load(type_, address)}, 0.0")
                zero = self.e.assign(f"and i1 {zero}, {this}")
            self.e.store("i1", self.e.assign(f"or i1 {self.e.load('i1', found)}, {zero}"), found)
        return self.e.load("i1", found)
