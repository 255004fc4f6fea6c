"""Panels of a right operand that several products of a program read.

A product packs its right operand block by block, into memory of a thread. If several products of few rows multiply with
the same matrix, as the steps of a recurrent net do, packing would take a good part of their time. Then a step of its
own packs the whole matrix once, into a temporary, and the products read the panels there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.codegen.memory import MEMORY_TYPES
from weft.compiler.cpu.code import STEP, EmittedFunction, Integers, module_of
from weft.compiler.cpu.products import tiles
from weft.compiler.cpu.products.few_rows import strip as few_rows_strip
from weft.compiler.cpu.products.packed import pairs as product_pairs
from weft.compiler.cpu.products.packed.packing import pack_across, pack_along, panels_at
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives.base import Primitive
from weft.primitives.products import DEPTH, leading
from weft.primitives.routine import Routine, RoutineCall, RoutineStep
from weft.primitives.untrusted import require
from weft.runtime.precision import FAST

from .matmul_of_few import CACHED
from .step import SQUARE, Block, Sources

MOST_ROWS = 256
"""With more rows, packing takes less than about a tenth of the time of a product."""
FEWEST_ROWS_ACROSS = 5
"""From so many rows on, panels are read faster than squares of a matrix are transposed in registers."""
TRANSPOSING = 6
"""Transposing an element in registers takes about the time of this many multiplications more than reading a panel."""
WORTH_MEMORY = 4
"""Panels must save so many times the time of packing them. They take memory from the first product to the last: a net
that is applied to two inputs, one after the other, would need the memory of its weights once more."""

_PANELS_OF_UNIT = 4
"""How many panels are packed at once: enough to read whole cache lines of rows."""
_ELEMENTS_PER_GRAIN = 1 << 14


class _OfPlans(Primitive):
    def check(self, *inputs: Node, **params: Any) -> None:
        require(False, "it is made when a graph is planned")


class SharedPanels(_OfPlans):
    """The panels of a matrix for products in a kind of ``block``. A block of ``DEPTH`` terms has all its panels of
    columns one after the other, before the next block of terms begins."""

    name = "pack"
    parameters = ("block",)
    routine: Routine = Routine(
        accepts=lambda node, position, strides: leading(node.inputs[0].shape, strides) is not None,
        arithmetic=lambda node: 0,
        loops=lambda node: (node.inputs[0].shape, ()),
        names=("packing of a matrix", "packings of matrices"),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        (inner, columns), block = inputs[0].shape, params["block"]
        wide = -(-columns // block.columns) * block.columns
        return (wide * (-(-inner // SQUARE) * SQUARE),), block.dtype


class MatmulInPanels(_OfPlans):
    """A matrix times one of which there are `SharedPanels` for a kind of ``block``."""

    name = "matmul"
    parameters = ("block", "columns")
    routine: Routine = Routine(
        accepts=lambda node, position, strides: position == 1 or leading(node.inputs[0].shape, strides) is not None,
        arithmetic=lambda node: 2 * node.size * node.inputs[0].shape[-1],
        loops=lambda node: (node.shape, node.inputs[0].shape[-1:]),
        names=("product of matrices", "products of matrices"),
    )

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        return (inputs[0].shape[0], params["columns"]), params["block"].dtype


panels = SharedPanels()
matmul_in_panels = MatmulInPanels()


def shares(calls: Sequence[Node], strides: Shape) -> Callable[[Node], Node | None] | None:
    """What is planned instead of the products ``calls``, which have the same right operand with these ``strides``, if
    panels that are packed once save enough time."""
    saved = {call: _saved(call, strides) for call in calls}
    chosen = [call for call in calls if saved[call] > 0]
    if sum([saved[call] for call in chosen]) < WORTH_MEMORY * tiles.PACKING:
        return None
    block = _block_for(chosen)
    packed: list[Node] = []

    def instead(call: Node) -> Node | None:
        if saved[call] <= 0:
            return None
        left, right = call.inputs
        if not packed:
            packed.append(Node(panels, (right,), (block,), *panels.infer(right, block=block), None))
        return Node(matmul_in_panels, (left, packed[0]), (block, call.shape[1]), call.shape, call.dtype, None)

    return instead


def _block_for(calls: Sequence[Node]) -> Block:
    """The block for products that share panels. Of few rows, many may be missing in the last block."""
    block = tiles.block_of(_sums(calls[0].dtype))
    filled = tiles.filled(block, *calls[0].shape)
    heights = [sum([-(-call.shape[0] // kind.rows) * kind.rows for call in calls]) for kind in (filled, block)]
    return filled if heights[0] <= heights[1] else block


def _sums(dtype: Dtype) -> Dtype:
    """The dtype of sums that become ``dtype``."""
    return dtypes.float32 if dtype in HALVES else dtype


def _saved(call: Node, strides: Shape) -> float:
    """How much time a product saves for each element of the right operand, in multiplications, if it need not pack or
    transpose it; 0 if it would not be computed in blocks of panels."""
    left, right = call.inputs
    dtype = _sums(call.dtype)
    if right.ndim != 2 or dtype not in (dtypes.float32, dtypes.float64):
        return 0
    stored = leading(right.shape, strides)
    (rows, inner), columns = left.shape, right.shape[1]
    if stored is None or rows > min(MOST_ROWS, columns) or inner * columns * dtype.size <= tiles.LITTLE:
        return 0
    if left.dtype is right.dtype is dtypes.bfloat16 and call.keywords["precision"] == FAST:
        return 0  # tile registers have panels of their own
    if product_pairs.takes(dtype, Sources(left.dtype, right.dtype), (rows, columns, inner)):
        return 0
    across, far = stored
    cached = inner * columns * right.dtype.size <= CACHED
    if across:
        few = few_rows_strip.MOST_ROWS_ACROSS if cached else few_rows_strip.MOST_ROWS
        if rows <= few:
            return TRANSPOSING if rows >= FEWEST_ROWS_ACROSS else 0
        return tiles.PACKING
    if rows <= few_rows_strip.MOST_ROWS or (
        right.dtype in HALVES and cached and rows <= few_rows_strip.MOST_ROWS_OF_HALVES
    ):
        return 0
    block = tiles.block_of(dtype)
    reading = tiles.reading_right(block, right.dtype, (rows, columns, inner), (inner, 1, far, 1))
    if reading is tiles.DirectReading.AS_PANELS:
        return 0
    return rows * tiles.READING_IN_PLACE if reading is tiles.DirectReading.IN_FEW_ROWS else tiles.PACKING


# The numbers of a step: slots and offsets of the matrix and the panels, terms, columns, the strides of both, and
# whether terms are neighbours.
_MATRIX, _PANELS, _INNER, _COLUMNS, _TERM, _COLUMN, _ACROSS = 0, 2, 4, 5, 6, 7, 8


@panels.routine.on("cpu")
def _step(call: RoutineCall) -> RoutineStep:
    """The step that packs a matrix; a unit is a few panels of a block of terms."""
    (matrix,), (out,), block = call.operands, call.results, call.params["block"]
    stored = leading(matrix.shape, matrix.strides)
    assert stored is not None
    across, far = stored
    strides = (1, far) if across else (far, 1)
    inner, columns = matrix.shape
    numbers = [matrix.slot, matrix.offset, out.slot, out.offset, inner, columns, *strides, across]
    wide = _PANELS_OF_UNIT * block.columns
    units = -(-inner // DEPTH) * -(-columns // wide)
    grain = max(1, _ELEMENTS_PER_GRAIN // (DEPTH * wide))
    return RoutineStep(_address(block, matrix.dtype), numbers, units, grain, inner * columns)


@cache
def _address(block: Block, source: Dtype) -> int:
    name = f"pack_panels_{source.name}"
    return loading.load(f"{name} {block}", lambda: _generate(block, source, name), (name,))[name]


def _generate(block: Block, source: Dtype, name: str) -> str:
    width = block.columns
    packing = [pack_along(block, source, width), pack_across(block, source, width)]
    return module_of([*packing, _Packing(block, source).function(name)])


class _Packing(Integers):
    def __init__(self, block: Block, source: Dtype) -> None:
        super().__init__(Emitter())
        self.block, self.element = block, MEMORY_TYPES[source]

    def function(self, name: str) -> EmittedFunction:
        inner, columns = self.number(_INNER), self.number(_COLUMNS)
        wide = _PANELS_OF_UNIT * self.block.columns
        beside = self.divide(self.add(columns, wide - 1), wide)
        with self.e.loop("%begin", "%end") as unit:
            term = self.multiply(self.divide(unit, beside), DEPTH)
            first = self.multiply(self.remainder(unit, beside), wide)
            depth = self.smaller(self.subtract(inner, term), DEPTH)
            present = self.smaller(self.subtract(columns, first), wide)
            self._pack(term, first, depth, present, columns)
        return self.e, self.e.function(name, STEP)

    def _pack(self, term: str, first: str, depth: str, present: str, columns: str) -> None:
        of_term, of_column = self.number(_TERM), self.number(_COLUMN)
        distance = self.add(self.multiply(term, of_term), self.multiply(first, of_column))
        source = self.moved(self.memory(_MATRIX), distance, self.element)
        target = panels_at(self, self.memory(_PANELS), self.block, columns, first, term, depth)
        across = self.compare("ne", self.number(_ACROSS), 0)
        for condition, way, stride in ((across, "across", of_column), (self.negated(across), "along", of_term)):
            arguments = f"ptr {source}, i64 {stride}, ptr {target}, i64 {depth}, i64 {present}"
            with self.e.when(condition):
                self.e.emit(f"call void @pack_{way}_{self.block.columns}({arguments})")
