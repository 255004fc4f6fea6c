"""Products of the windows of an array with a matrix, which are convolutions.

They are computed in blocks, as other products, and have the same bits. The kernel reads elements of windows where they
are in the array: tables have the address of each element of each window of a group of panels. For elements outside of
the array these are addresses of zeros, so the array is not copied to pad it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.cpu.code import EmittedFunction, Integers, module_of
from weft.compiler.cpu.products.packed.blocks import RIGHT_WAY, Panels, Terms, UnitOfTiles, step_function
from weft.compiler.cpu.products.packed.kernel import edges_of, kernels
from weft.compiler.cpu.products.step import COLUMNS, ROWS, Block
from weft.compiler.cpu.products.tiles import GROUP, Way, keeps_columns
from weft.primitives.products import DEPTH

from .axes import BATCH_AXES as WINDOWS
from .axes import TilesOverAxes, packing
from .in_memory import (
    AT_ONCE,
    CHANNELS,
    FEWEST_CHANNELS,
    NUMBERS,
    PITCH,
    SKIPS,
    room_for,
    write_addresses,
    write_windows,
)
from .kernel import ROWS_AHEAD, kernel_of_windows

BATCH_AXES = WINDOWS + NUMBERS
"""The numbers that describe windows are after those of products over axes."""
_INFINITY = {dtypes.float32: 0x7F800000, dtypes.float64: 0x7FF0000000000000}
"""Infinity as an integer: as such, it is larger than all finite numbers."""


@cache
def address(block: Block, edge: int) -> int:
    """The address of the step for products in a kind of block, if ``edge`` vectors of columns are left over."""
    name = f"product_of_windows_{block.dtype.name}"
    return loading.load(f"{name} {block} {edge}", lambda: generate(block, edge, name), (name,))[name]


def generate(block: Block, edge: int, name: str) -> str:
    """The LLVM IR of the step."""
    windows = windows_of(block)
    functions = [*packing(block), write_windows(block, windows), write_addresses(block, windows, windows)]
    functions.append(check_finite(block))
    functions += kernels(block, edges_of([edge] if edge else []), partial(kernel_of_windows, between=windows))
    functions.append(step_function(_TilesOfWindows(block, edge), name))
    return module_of(functions)


def windows_of(block: Block) -> int:
    """How many windows tables have: those of a group of panels, and those after them, which are prefetched."""
    return -(-(GROUP * block.rows + ROWS_AHEAD) // AT_ONCE) * AT_ONCE


def check_finite(block: Block) -> EmittedFunction:
    """A function that writes a null pointer to ``%skipped`` if numbers in panels, of ``%inner`` terms and ``%columns``
    columns in whole vectors, are not all finite. Panels have room for ``%room`` terms."""
    w = Integers(Emitter())
    e, bits, lanes, width = w.e, 8 * block.dtype.size, block.lanes, block.columns
    type_, name = f"<{lanes} x i{bits}>", f"v{lanes}i{bits}"
    most = e.slot(type_)
    e.store(type_, "zeroinitializer", most)
    with e.loop("0", "%columns", width) as column:
        panel = w.moved("%panels", w.multiply(column, "%room"), block.element)
        beside = w.smaller(w.subtract("%columns", column), width)
        with e.loop("0", "%inner") as term, e.loop("0", beside, lanes) as lane:
            address = w.moved(panel, w.add(w.multiply(term, width), lane), block.element)
            loaded = e.assign(f"load {type_}, ptr {address}")
            size = e.assign(f"and {type_} {loaded}, splat (i{bits} {(1 << (bits - 1)) - 1})")
            e.store(type_, e.call(f"llvm.umax.{name}", type_, [(type_, e.load(type_, most)), (type_, size)]), most)
    largest = e.call(f"llvm.vector.reduce.umax.{name}", f"i{bits}", [(type_, e.load(type_, most))])
    with e.when(e.assign(f"icmp uge i{bits} {largest}, {_INFINITY[block.dtype]}")):
        e.store("ptr", "null", "%skipped")
    return e, e.function("check_finite", "ptr %panels, i64 %room, i64 %inner, i64 %columns, ptr %skipped", "internal ")


class _TilesOfWindows(TilesOverAxes):
    """The loops over a unit, with tables of the addresses of elements of windows. In each row, the result has columns
    of all groups."""

    def __init__(self, block: Block, edge: int) -> None:
        super().__init__(block, BATCH_AXES)
        self.edges = edges_of([edge] if edge else [])
        self.columns_first = keeps_columns(block)
        self.count = windows_of(block)
        elements = -(-DEPTH // FEWEST_CHANNELS) + 1
        self.windows = self.e.slot(f"{room_for(self.count)}, align 64")
        self.addresses = self.e.slot(f"[{elements * self.count} x ptr], align 64")
        self.zeros = self.e.slot(f"[{DEPTH} x {block.element}], align 64")
        self.e.emit(f"store [{DEPTH} x {block.element}] zeroinitializer, ptr {self.zeros}")
        self.skipped = self.e.slot("ptr")

    def tile(self, unit: UnitOfTiles, across: str) -> None:
        packed = self.compare("ne", self.number(RIGHT_WAY), Way.IN_PLACE)
        skips = self.both_hold(packed, self.compare("ne", self.number(WINDOWS + SKIPS), 0))
        self.e.store("ptr", self.e.assign(f"select i1 {skips}, ptr {self.zeros}, ptr null"), self.skipped)
        super().tile(unit, across)

    def pack_right(self, operand: str, first: str, part: Terms, columns: str, wide: str) -> None:
        super().pack_right(operand, first, part, columns, wide)
        with self.e.when(self.e.assign(f"icmp ne ptr {self.e.load('ptr', self.skipped)}, null")):
            panels = self.further(self.b.packed, self.multiply(part.before, wide))
            present = self.rounded_up(columns, self.block.lanes)
            terms = f"i64 {self.room(part.depth)}, i64 {part.depth}"
            self.e.emit(f"call void @check_finite(ptr {panels}, {terms}, i64 {present}, ptr {self.skipped})")

    def row_distance(self) -> str:
        return self.number(WINDOWS + PITCH)

    def left_panels(self, operand: str, first: str, part: Terms, present: str) -> Panels:
        numbers, channels = self.numbers_from(WINDOWS), self.number(WINDOWS + CHANNELS)
        # Blocks of terms that are packed together are added to the same rows, one after the other.
        with self.e.when(self.compare("eq", part.before, 0)):
            rows = f"i64 {first}, i64 {self.number(ROWS)}, i64 {self.count}"
            self.e.emit(f"call void @write_windows(ptr {numbers}, {rows}, ptr {self.windows})")
        terms = f"i64 {part.first}, i64 {part.depth}, i64 {self.count}"
        tables = f"ptr {self.windows}, ptr {operand}, {terms}, ptr {self.zeros}, ptr {self.addresses}"
        self.e.emit(f"call void @write_addresses(ptr {numbers}, {tables})")
        return Panels(self.addresses, "", channels, self.remainder(part.first, channels))

    def rows_of(self, left: Panels, row: str, column: str) -> str:
        asks = self.compare("eq", column, 0)
        skipped = self.e.load("ptr", self.skipped)
        windows = f"ptr {self.moved(left.start, row, 'ptr')}, i64 {left.element}, i64 {left.term}"
        return f"{windows}, i1 {asks}, ptr {skipped}"

    def note_terms(self, part: Terms) -> None:
        pass

    def call_attached(self, rectangle: Sequence[str], made: str) -> None:
        group, row, rows, column, columns = rectangle
        column = self.add(column, self.multiply(group, self.number(COLUMNS)))
        super().call_attached(("0", row, rows, column, columns), made)
