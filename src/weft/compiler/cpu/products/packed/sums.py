"""Sums of products of few terms, such as the gradient of weights that each step of a recurrent net uses.

The products of several steps are computed together: each element is first what was added up before, then the sum of the
terms of each product is added, in the order of the program. So bits are the same. A block of the result stays in the
first cache until all products are added to it, where otherwise each product would read and write the whole result. The
operands of all products are packed, as many terms together as those of one block of terms elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.cpu.code import module_of
from weft.compiler.cpu.products.step import A_INNER, A_ROW, B_COLUMN, B_INNER, INNER, SQUARE, Block, Sources, below
from weft.compiler.cpu.products.tiles import Way
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.base import Primitive
from weft.primitives.products import DEPTH, leading
from weft.primitives.routine import Routine, RoutineCall
from weft.primitives.untrusted import require

from .blocks import DTYPES, FEEDER, LEFT_WAY, RIGHT_WAY, TILE_WIDTH, Panels, TileWriter, UnitOfTiles, step_function
from .kernel import all_edges, kernel_of_sums, kernels
from .packing import pack_across, pack_along

FEWEST_ROWS = 32
"""With fewer rows or columns, products are not computed in blocks."""
FEWEST_BYTES = 1 << 16
"""A smaller result stays in a cache from one product to the next."""
MOST_TERMS = DEPTH // 4
"""The most terms of products that are computed together. Of more, a block of the result is seldom read and written."""


class AddedProducts(Primitive):
    """The sum of products of matrices, which are inputs in turn: left, right, left, right. If it ``continues`` a sum,
    the first input is what it begins with."""

    name = "sum_of_products"
    parameters = ("continues",)
    routine: Routine = Routine(
        accepts=lambda node, position, strides: _accepts(node, position, strides),
        arithmetic=lambda node: 2 * node.size * _terms(node),
        loops=lambda node: (node.shape, (_terms(node),)),
        names=("sum of products of matrices", "sums of products of matrices"),
    )

    def check(self, *inputs: Node, **params: object) -> None:
        require(False, "it is made when a graph is planned")

    def infer(self, *inputs: Node, **params: object) -> tuple[Shape, Dtype]:
        *_, left, right = inputs
        return (left.shape[0], right.shape[1]), right.dtype


sum_of_products = AddedProducts()


def _accepts(node: Node, position: int, strides: Shape) -> bool:
    stored = leading(node.inputs[position].shape, strides)
    if node.keywords["continues"] and position == 0:
        return stored == (0, node.shape[1])
    return stored is not None


def _terms(node: Node) -> int:
    return sum([right.shape[0] for right in node.inputs[len(node.inputs) % 2 + 1 :: 2]])


def room_of(terms: int) -> int:
    """How many terms the panels of a product of so many have room for."""
    return -(-terms // SQUARE) * SQUARE


def together(calls: Sequence[Node]) -> int:
    """How many products, from the first one on, are added up by one call; 1 if that takes no less time."""
    first = calls[0]
    if not _may_be_added(first):
        return 1
    terms = first.inputs[1].shape[0]
    most = min(len(calls), DEPTH // room_of(terms))
    count = 1
    while count < most and _may_be_added(calls[count]) and calls[count].inputs[1].shape[0] == terms:
        count += 1
    return count


def _may_be_added(call: Node) -> bool:
    left, right = call.inputs
    if call.ndim != 2 or call.dtype not in DTYPES or not left.dtype is right.dtype is call.dtype:
        return False
    return min(call.shape) >= FEWEST_ROWS and call.nbytes >= FEWEST_BYTES and 0 < right.shape[0] <= MOST_TERMS


def added_up(total: Node | None, calls: Sequence[Node]) -> Node:
    """The node that adds products to a total, or up."""
    operands = [x for call in calls for x in call.inputs]
    begin = () if total is None else (total,)
    first = calls[0]
    return Node(sum_of_products, (*begin, *operands), (total is not None,), first.shape, first.dtype, None)


# The step's numbers after those that every product in blocks has: how many products there are; 1 if they are added to a
# total, and its slot and offset; and where the numbers of the products begin.
_COUNT, _CONTINUES, _TOTAL, _TABLE = FEEDER + 1, FEEDER + 2, FEEDER + 3, FEEDER + 5
_BATCH_AXES = FEEDER + 6

# The numbers of each product: slots and offsets of both operands, their strides, and 1 if the terms of each element are
# neighbours in it.
_LEFT, _RIGHT = 0, 2
_OF_PRODUCT = {A_ROW: 4, A_INNER: 5, B_INNER: 6, B_COLUMN: 7, LEFT_WAY: 8, RIGHT_WAY: 9}
_LENGTH = 10


def further_numbers(call: RoutineCall, length: int) -> tuple[list[int], list[int]]:
    """The numbers after those of every product, and the table of products, which begins at number ``length``."""
    continues = bool(call.params["continues"])
    operands = call.operands[1:] if continues else call.operands
    total = (call.operands[0].slot, call.operands[0].offset) if continues else (0, 0)
    table = []
    for a, b in zip(operands[::2], operands[1::2], strict=True):
        left, right = leading(a.shape, a.strides), leading(b.shape, b.strides)
        assert left is not None
        assert right is not None
        strides = [n for by_columns, far in (left, right) for n in ((1, far) if by_columns else (far, 1))]
        ways = Way.ALONG if left[0] else Way.ACROSS, Way.ACROSS if right[0] else Way.ALONG
        table += [a.slot, a.offset, b.slot, b.offset, *strides, *ways]
    return [len(operands) // 2, int(continues), *total, length], table


@cache
def address(block: Block) -> int:
    """The address of the step for sums of products in a kind of block."""
    name = f"sum_of_products_{block.dtype.name}"
    return loading.load(f"{name} {block}", lambda: generate(block, name), (name,))[name]


def generate(block: Block, name: str) -> str:
    """The LLVM IR of the step."""
    sources = Sources(block.dtype, block.dtype)
    widths = block.rows, block.columns
    packing = [pack(block, block.dtype, width) for pack in (pack_along, pack_across) for width in widths]
    multiply = kernels(block, all_edges(block), kernel_of_sums)
    step = step_function(_TilesOfSums(block, sources, _BATCH_AXES), name)
    return module_of([*packing, *multiply, step])


class _TilesOfSums(TileWriter):
    """The loops over a unit: tiles, groups of panels of rows, panels of rows, panels of columns, products."""

    entry = ""
    """Where the numbers of the product begin whose operands are being read."""

    def __init__(self, block: Block, sources: Sources, batch_axes: int) -> None:
        super().__init__(block, sources, batch_axes)
        self.a = self.a._replace(in_lines=())  # the kernel reads panels only

    def number(self, position: int | str) -> str:
        if self.entry and position in _OF_PRODUCT:
            return self._of_product(_OF_PRODUCT[int(position)])
        return super().number(position)

    def _of_product(self, position: int) -> str:
        return self.e.load("i64", self.moved(self.entry, position, "i64"))

    @contextmanager
    def _products(self) -> Iterator[str]:
        """A loop over the products."""
        with self.e.loop("0", self.number(_COUNT)) as product:
            position = self.add(self.number(_TABLE), self.multiply(product, _LENGTH))
            self.entry = self.moved("%numbers", position, "i64")
            yield product
            self.entry = ""

    def _operand(self, position: int) -> str:
        """The address of an operand of a product."""
        entry = self.moved("%table", self._of_product(position), "ptr")
        return self.moved(self.e.load("ptr", entry), self._of_product(position + 1))

    def _pack_right(self, left: str, columns: str) -> None:
        """Pack the right operands, from a column on. A panel of all products comes after the other, so that the kernel
        reads on in memory from product to product."""
        depth, width = self.number(INNER), self.block.columns
        room, count = self.room(depth), self.number(_COUNT)
        with self._products() as product:
            operand = self._operand(_RIGHT)
            with self.e.loop("0", columns, width) as column:
                source = self.first_pointer(operand, self.b, self.add(left, column), "0")
                before = self.add(self.multiply(column, count), self.multiply(product, width))
                packed = self.further(self.b.packed, self.multiply(before, room))
                self.pack_if_needed(self.b, source, packed, depth, self.rest(columns, column, width))

    def _pack_left(self, top: str, present: str) -> None:
        """Pack a group of panels of rows of the left operands, one product after the other."""
        depth = self.number(INNER)
        with self._products() as product:
            source = self.first_pointer(self._operand(_LEFT), self.a, top, "0")
            packed = self.further(self.a.packed, self.multiply(product, self._next(self.group)))
            self.pack_if_needed(self.a, source, packed, depth, present)

    def _next(self, elements: int) -> str:
        """The distance between the panels of two products, if so many ``elements`` of a term are in between."""
        return self.multiply(self.room(self.number(INNER)), elements)

    def tile(self, unit: UnitOfTiles, across: str) -> None:
        depth = self.number(INNER)
        room = self.room(depth)
        a = Panels(self.a.packed, room, "1", str(self.a.width))
        b = Panels(self.b.packed, self.multiply(room, self.number(_COUNT)), "1", str(self.b.width))
        left, columns = self.add(unit.left, across), self.rest(unit.columns, across, self.number(TILE_WIDTH))
        ends_row = self.compare("eq", self.add(across, columns), unit.columns)
        self._pack_right(left, columns)
        with self.e.loop("0", unit.rows, self.group) as start:
            top, present = self.add(unit.top, start), self.rest(unit.rows, start, self.group)
            self._pack_left(top, present)
            target = self.in_result(unit.matrices["c"], self.add(self.multiply(start, self.c_step), across))
            continues = self.compare("ne", self.number(_CONTINUES), 0)
            with self.e.when(continues):
                self._copy_total(target, top, left, present, columns)
            with self.e.loop("0", present, self.block.rows) as row:
                self.blocks(a, b, target, row, present, columns, (depth, continues))
            with self.e.when(ends_row):
                rectangle = unit.matrix, top, present, unit.left, unit.columns
                self.call_attached(rectangle, self.in_result(unit.matrices["c"], self.multiply(start, self.c_step)))

    def rows_of(self, left: Panels, row: str, column: str) -> str:
        a = self.further(left.start, self.multiply(row, left.apart))
        between = self._next(self.group), self._next(self.block.columns)
        return f"ptr {a}, i64 {between[0]}, i64 {between[1]}, i64 {self.number(_COUNT)}"

    def _copy_total(self, target: str, top: str, left: str, rows: str, columns: str) -> None:
        """Copy what was added up before to where the result is made."""
        L, dtype = Lanes(self.e, self.block.lanes), self.block.dtype
        pitch = self.row_distance()
        total = self.in_result(self.memory(_TOTAL), self.add(self.multiply(top, pitch), left))
        rest = self.remainder(columns, L.width)
        whole, mask = self.subtract(columns, rest), below(L, "0", rest)

        def copy(source: str, made: str, column: str, mask: str | None) -> None:
            store(L, load(L, dtype, Location(source, column, False), mask), dtype, Location(made, column, False), mask)

        with self.e.loop("0", rows) as row:
            source = self.in_result(total, self.multiply(row, pitch))
            made = self.in_result(target, self.multiply(row, self.c_row))
            with self.e.loop("0", whole, L.width) as column:
                copy(source, made, column, None)
            with self.e.when(self.compare("ne", rest, 0)):
                copy(source, made, whole, mask)
