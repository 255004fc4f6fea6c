"""Matrix products of operands whose rows, columns or terms go over several axes in memory, such as windows of an array.

They are computed in blocks, as other products, and have the same bits. The kernel reads the left operand in place:
the distances at which rows and terms begin are first written to tables. Panels of the right operand are packed by such
a table too. So operands are not copied, apart from packing into panels that the caches hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, store
from weft.compiler.cpu.code import EmittedFunction, Integers, module_of
from weft.compiler.cpu.memory import prefetch
from weft.compiler.cpu.products.packed.blocks import FEEDER, RIGHT_WAY, Panels, Terms, TileWriter, step_function
from weft.compiler.cpu.products.packed.kernel import all_edges, kernel_over_axes, kernels
from weft.compiler.cpu.products.packed.packing import pack_across, pack_along
from weft.compiler.cpu.products.step import ROWS, SQUARE, Block, Sources, below, read
from weft.compiler.cpu.products.tiles import GROUP, MOST_TERMS, Way, block_of, filled
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

MOST_FACTORS = 8
"""The most axes in memory that an axis may go over."""

FEW_ROWS = 4
"""Up to this many rows have a block of their own."""

# The step's numbers after those of every product in blocks: for rows, terms of the left operand, terms of the right
# one and columns, how many axes they go over, and the extents and strides of these, innermost first.
_LENGTH = 1 + 2 * MOST_FACTORS
A_ROWS, A_TERMS, B_TERMS, B_COLUMNS = range(FEEDER + 1, FEEDER + 1 + 4 * _LENGTH, _LENGTH)
BATCH_AXES = FEEDER + 1 + 4 * _LENGTH

AxisFactors = Sequence[tuple[int, int]]
"""The axes in memory that one axis runs over, outermost first: extents and strides."""


def factor_numbers(*axes: AxisFactors) -> list[int]:
    """The numbers of a step that describe axes. Extents and strides are given outermost first."""
    found = []
    for factors in axes:
        inner_first = [number for factor in reversed(factors) for number in factor]
        found += [len(factors), *inner_first, *[0] * (_LENGTH - 1 - len(inner_first))]
    return found


def block_over_axes(dtype: Dtype, rows: int, columns: int) -> Block:
    """The block for a product with ``rows`` rows and ``columns`` columns, as by `filled`; for few rows it is wide."""
    block = block_of(dtype)
    if block.vector_bytes == 64 and rows <= FEW_ROWS:
        return Block(dtype, FEW_ROWS, 6, 64)
    return filled(block, rows, columns)


@cache
def address(block: Block) -> int:
    """The address of the step for products in a kind of block."""
    name = f"product_over_axes_{block.dtype.name}"
    return loading.load(f"{name} {block}", lambda: generate(block, name), (name,))[name]


def generate(block: Block, name: str) -> str:
    """The LLVM IR of the step."""
    multiply = kernels(block, all_edges(block), kernel_over_axes)
    step = step_function(TilesOverAxes(block), name)
    return module_of([*packing(block), *multiply, step])


def packing(block: Block) -> list[EmittedFunction]:
    """The functions that write distances and pack the right operand."""
    functions = [offsets(), _pack_over_axes(block)]
    return functions + [pack(block, block.dtype, block.columns) for pack in (pack_along, pack_across)]


class _Lines(Integers):
    """Goes from element ``%first`` on along an axis that goes over several axes in memory, described by
    ``%factors``."""

    def __init__(self) -> None:
        super().__init__(Emitter())

    def at(self, position: str | int) -> str:
        return self.e.load("i64", self.moved("%factors", position, "i64"))

    @contextmanager
    def lines(self, count: str) -> Iterator[tuple[str, str, str]]:
        """For each line along the innermost axis: its first element and the one after its last, counted from
        ``%first``, and the distance that element 0 of that count would have in this line."""
        extent = self.at(1)
        end = self.add("%first", count)
        last = self.divide(self.add(end, self.subtract(extent, 1)), extent)
        with self.e.loop(self.divide("%first", extent), last) as line:
            start = self.multiply(line, extent)
            low, high = self.larger(start, "%first"), self.smaller(self.add(start, extent), end)
            before = self.multiply(self.subtract("%first", start), self.at(2))
            yield self.subtract(low, "%first"), self.subtract(high, "%first"), self.add(self._distance(line), before)

    def _distance(self, line: str) -> str:
        """The distance at which a line begins."""
        remaining, distance = self.e.slot("i64"), self.e.slot("i64")
        self.e.store("i64", line, remaining)
        self.e.store("i64", "0", distance)
        with self.e.loop("1", self.at(0)) as axis:
            position = self.add(self.multiply(axis, 2), 1)
            extent, number = self.at(position), self.e.load("i64", remaining)
            index = self.remainder(number, extent)
            self.e.store("i64", self.divide(number, extent), remaining)
            step = self.multiply(index, self.at(self.add(position, 1)))
            self.e.store("i64", self.add(self.e.load("i64", distance), step), distance)
        return self.e.load("i64", distance)


def offsets() -> EmittedFunction:
    """A function that writes the distances of ``%count`` elements of an axis, from ``%first`` on."""
    w = _Lines()
    stride = w.at(2)
    with w.lines("%count") as (low, high, start), w.e.loop(low, high) as element:
        w.e.store("i64", w.add(start, w.multiply(element, stride)), w.moved("%to", element, "i64"))
    return w.e, w.e.function("offsets", "ptr %factors, i64 %first, i64 %count, ptr %to", "internal ")


def _pack_over_axes(block: Block) -> EmittedFunction:
    """A function that packs panels of a right operand whose columns are neighbours along lines. ``%terms`` has the
    distances at which its terms begin. The vector with the last columns is filled with zeros."""
    w = _Lines()
    L = Lanes(w.e, block.lanes)
    terms = w.rounded_up("%inner", SQUARE)

    with w.e.when(w.compare("ne", w.remainder("%present", block.lanes), 0)):
        last = w.e.assign(f"and i64 %present, {-block.lanes}")
        beside = w.remainder(last, block.columns)
        target = w.moved("%to", w.add(w.multiply(w.subtract(last, beside), terms), beside), block.element)
        with w.e.loop("0", "%inner") as term:
            location = Location(target, w.multiply(term, block.columns), False)
            store(L, L.constant(0.0, block.dtype), block.dtype, location, None)

    def pack(source: str, column: str, end: str, mask: str | None) -> None:
        """Whole vectors of a panel, up to ``end``, or one vector with a mask."""
        inside = w.remainder(column, block.columns)
        panel = w.multiply(w.subtract(column, inside), terms)
        target = w.moved("%to", w.add(panel, inside), block.element)
        with w.e.loop("0", "%inner") as term:
            distance = w.e.load("i64", w.moved("%terms", term, "i64"))
            first = w.multiply(term, block.columns)
            with w.e.loop("0", w.subtract(end, column), block.lanes) as further:
                at = w.add(distance, further)
                if mask is None:
                    # The next panel is read from after this one, at places that are far apart for each term.
                    prefetch(w.e, w.moved(source, w.add(at, block.columns), block.element))
                value = read(L, block.dtype, source, at, mask, block.dtype)
                store(L, value, block.dtype, Location(target, w.add(first, further), False), mask)

    with (
        w.lines("%present") as (low, high, start),
        w.e.loop(w.subtract(low, w.remainder(low, block.columns)), high, block.columns) as panel,
    ):
        begin, end = w.larger(panel, low), w.smaller(w.add(panel, block.columns), high)
        whole = w.rounded_up(begin, block.lanes), w.e.assign(f"and i64 {end}, {-block.lanes}")
        with w.e.when(w.compare("slt", *whole)):
            pack(w.moved("%from", w.add(start, whole[0]), block.element), *whole, None)
        # Vectors at the beginning and at the end of a line may be incomplete.
        before = w.smaller(whole[0], end)
        for first, last in ((begin, before), (w.larger(whole[1], before), end)):
            with w.e.when(w.compare("slt", first, last)):
                mask = below(L, "0", w.subtract(last, first))
                pack(w.moved("%from", w.add(start, first), block.element), first, last, mask)
    parameters = "ptr %factors, ptr %from, i64 %first, ptr %terms, ptr %to, i64 %inner, i64 %present"
    return w.e, w.e.function("pack_over_axes", parameters, "internal ")


class TilesOverAxes(TileWriter):
    """The loops over a unit, with tables of distances for axes that go over several axes in memory."""

    copies_lines = False

    def __init__(self, block: Block, batch_axes: int = BATCH_AXES) -> None:
        super().__init__(block, Sources(block.dtype, block.dtype), batch_axes)
        self.row_starts = self.e.slot(f"[{(GROUP + 1) * block.rows} x i64]")
        self.left_terms = self.e.slot(f"[{MOST_TERMS} x i64]")
        self.right_terms = self.e.slot(f"[{DEPTH} x i64]")

    def left_panels(self, operand: str, first: str, part: Terms, present: str) -> Panels:
        # The kernel prefetches the rows after those it multiplies.
        behind = self.rest(self.number(ROWS), first, (GROUP + 1) * self.block.rows)
        self._write(A_ROWS, first, behind, self.row_starts)
        return Panels(operand, "", self.row_starts, self._left_terms(part))

    def rows_of(self, left: Panels, row: str, column: str) -> str:
        return f"ptr {left.start}, ptr {self.moved(left.element, row, 'i64')}, ptr {left.term}"

    def pack_right(self, operand: str, first: str, part: Terms, columns: str, wide: str) -> None:
        self.note_terms(part)
        with self.e.when(self.compare("eq", self.number(RIGHT_WAY), Way.OVER_AXES)):
            self._write(B_TERMS, part.first, part.depth, self.right_terms)
            packed = self.further(self.b.packed, self.multiply(part.before, wide))
            arguments = f"i64 {first}, ptr {self.right_terms}, ptr {packed}, i64 {part.depth}, i64 {columns}"
            self.e.emit(f"call void @pack_over_axes(ptr {self.numbers_from(B_COLUMNS)}, ptr {operand}, {arguments})")
        super().pack_right(operand, first, part, columns, wide)

    def note_terms(self, part: Terms) -> None:
        """Write what kernels need to know about terms of the left operand."""
        self._write(A_TERMS, part.first, part.depth, self._left_terms(part))

    def _left_terms(self, part: Terms) -> str:
        """The address in the table with the distances of a block of terms."""
        return self.moved(self.left_terms, part.before, "i64")

    def numbers_from(self, position: int) -> str:
        return self.moved("%numbers", position, "i64")

    def _write(self, axis: int, first: str, count: str, table: str) -> None:
        """Write the distances of elements of an axis to a table."""
        self.e.emit(f"call void @offsets(ptr {self.numbers_from(axis)}, i64 {first}, i64 {count}, ptr {table})")
