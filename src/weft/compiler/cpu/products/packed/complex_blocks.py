"""Products of complex matrices, computed as products of real ones. Packing makes the real matrices.

A row of the left matrix is taken as real numbers: the parts of a complex number are neighbouring terms. In the right
matrix a number x + iy of column n becomes four: x, y in columns 2n, 2n + 1 of one term; and -y, x, which is the number
times i, in these columns of the next term. The product is the result as it is stored in memory. So the real part of an
element is a sum of terms ``re(a) * re(b)``, ``-im(a) * im(b)``, the imaginary part one of ``re(a) * im(b)``,
``im(a) * re(b)``, in the order of all products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, image
from weft.compiler.cpu.code import EmittedFunction, Integers
from weft.compiler.cpu.memory import transposed
from weft.compiler.cpu.products.step import SQUARE, Block, below
from weft.compiler.cpu.products.tiles import keeps_columns

from .packing import PARAMETERS, pack_lines, pack_turned


def packing(block: Block) -> list[EmittedFunction]:
    """The functions that pack both operands, for each order in memory. Strides, terms and elements are those of the
    real matrices; strides along parts of numbers are half of those between numbers."""
    return [
        _pack_left_turned(block) if keeps_columns(block) else _pack_left_along(block),
        pack_lines(block, dtypes.float32),
        _pack_right_along(block),
        _pack_right_across(block),
    ]


def real_strides(strides: Sequence[int]) -> list[int]:
    """The strides of the real matrices, in real numbers: rows of the left one are twice as far apart as those of the
    complex one; the other strides are the same, as their axes are counted in parts."""
    a_row, *others = strides
    return [2 * a_row, *others]


class _ComplexPacking(Integers):
    """Writes how panels of ``width`` real numbers are packed, ``lanes`` complex numbers at a time."""

    def __init__(self, block: Block, width: int, lanes: int) -> None:
        super().__init__(Emitter())
        self.width = width
        self.L = Lanes(self.e, lanes)
        self.numbers = f"<{lanes} x i64>"
        self.parts = f"<{2 * lanes} x float>"

    def further(self, pointer: str, distance: str) -> str:
        return self.moved(pointer, distance, "float")

    def read(self, pointer: str, mask: str | None) -> str:
        """The bits of neighbouring complex numbers."""
        return image(self.L, dtypes.complex64, Location(pointer, "0", False), mask)

    def as_parts(self, numbers: str) -> str:
        return self.e.assign(f"bitcast {self.numbers} {numbers} to {self.parts}")

    def chosen(self, first: str, second: str, lanes: Sequence[int]) -> str:
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        operands = f"{self.parts} {first}, {self.parts} {second}"
        return self.e.assign(f"shufflevector {operands}, <{len(lanes)} x i32> <{mask}>")

    def write(self, values: str, count: int, pointer: str) -> None:
        self.e.emit(f"store <{count} x float> {values}, ptr {pointer}, align 4")

    def write_right(self, parts: str, panel: str, term: str) -> None:
        """Write complex numbers, and in the next term the same numbers times i."""
        count = 2 * self.L.width
        negative = self.e.assign(f"fneg {self.parts} {parts}")
        turned = [count + lane + 1 if lane % 2 == 0 else lane - 1 for lane in range(count)]
        first = self.further(panel, self.multiply(term, self.width))
        self.write(parts, count, first)
        self.write(self.chosen(parts, negative, turned), count, self.further(first, str(self.width)))

    def write_left(self, parts: str, panel: str, term: str) -> None:
        """Write the real parts of complex numbers, and in the next term their imaginary parts."""
        count = self.L.width
        for part in range(2):
            values = self.chosen(parts, "poison", range(part, 2 * count, 2))
            self.write(values, count, self.further(panel, self.multiply(self.add(term, part), self.width)))

    def panel(self, element: str) -> str:
        """The address of an element of the first term."""
        inside = self.remainder(element, self.width)
        return self.further(
            "%to", self.add(self.multiply(self.subtract(element, inside), self.rounded_up("%inner", SQUARE)), inside)
        )


def _pack_left_along(block: Block) -> EmittedFunction:
    """Pack a left operand in which the rows of a term are neighbours."""
    lanes = gcd(block.rows, block.lanes)
    w = _ComplexPacking(block, block.rows, lanes)
    with w.e.loop("0", "%inner", 2) as term, w.e.loop("0", "%present", lanes) as row:
        line = w.further("%from", w.add(w.multiply(term, "%stride"), w.multiply(row, 2)))
        numbers = w.read(line, below(w.L, row, "%present"))
        w.write_left(w.as_parts(numbers), w.panel(row), term)
    return w.e, w.e.function(f"pack_along_{block.rows}", PARAMETERS, "internal ")


def _pack_left_turned(block: Block) -> EmittedFunction:
    """Copy such an operand to lines. Its numbers are moved as elements of their size."""
    return pack_turned(replace(block, dtype=dtypes.float64), dtypes.float64, parts=2)


def _pack_right_along(block: Block) -> EmittedFunction:
    """Pack a right operand in which the columns of a term are neighbours."""
    w = _ComplexPacking(block, block.columns, block.lanes // 2)
    whole = w.subtract("%present", w.remainder("%present", block.lanes))

    def copy(term: str, column: str, mask: str | None) -> None:
        numbers = w.read(w.further("%from", w.add(w.multiply(term, "%stride"), column)), mask)
        w.write_right(w.as_parts(numbers), w.panel(column), term)

    with w.e.loop("0", "%inner", 2) as term:
        with w.e.loop("0", whole, block.lanes) as column:
            copy(term, column, None)
        with w.e.when(w.compare("slt", whole, "%present")):
            copy(term, whole, below(w.L, w.divide(whole, 2), w.divide("%present", 2)))
    return w.e, w.e.function(f"pack_along_{block.columns}", PARAMETERS, "internal ")


def _pack_right_across(block: Block) -> EmittedFunction:
    """Pack a right operand in which the terms of a column are neighbours: squares are transposed. For columns that do
    not exist the last one is copied; the results are not stored."""
    w = _ComplexPacking(block, block.columns, block.lanes // 2)
    square = w.L.width
    last = w.subtract("%present", 2)
    rest = w.remainder("%inner", 2 * square)
    whole = w.subtract("%inner", rest)

    def copy(lines: Sequence[str], panel: str, first: str, mask: str | None) -> None:
        vectors = [w.read(w.further(line, first), mask) for line in lines]
        for step, vector in enumerate(transposed(w.L, dtypes.complex64, vectors)):
            w.write_right(w.as_parts(vector), panel, w.add(first, 2 * step))

    with w.e.loop("0", "%present", 2 * square) as column:
        wanted = [w.smaller(w.add(column, 2 * step), last) for step in range(square)]
        lines = [w.further("%from", w.multiply(one, "%stride")) for one in wanted]
        panel = w.panel(column)
        with w.e.loop("0", whole, 2 * square) as term:
            copy(lines, panel, term, None)
        with w.e.when(w.compare("ne", rest, 0)):
            copy(lines, panel, whole, below(w.L, "0", w.divide(rest, 2)))
    return w.e, w.e.function(f"pack_across_{block.columns}", PARAMETERS, "internal ")
