"""Sorting and partitioning as steps of a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import NamedTuple

import weft.primitives as p
from weft.compiler.cuda.clearing import cleared
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.sorting import distribution, rows
from weft.compiler.cuda.sorting.distribution import BesideSelected, Digits, Move, OfKeys, OfMarks, ThreadBlock
from weft.compiler.cuda.sorting.elements import Elements
from weft.compiler.cuda.threads import WARP
from weft.graph.node import Node
from weft.primitives.routine import Operand, RoutineCall, RoutineStep
from weft.primitives.sort_cuts import MIDDLE, aligned
from weft.runtime.steps import Place

LONGEST_ROW, LONGEST_WIDE_ROW = 4096, 2048
"""The most elements of a row that a single block sorts, if they have at most four bytes, or eight: more do not fit the
shared memory that a kernel may declare."""

ROW_ITEMS = 16
"""The most elements of a thread, if a single block sorts a row."""

VALUES, INTEGERS, WIDE_VALUES, INDICES = (
    ThreadBlock(256, 24, 3),
    ThreadBlock(256, 20, 4),
    ThreadBlock(256, 12, 3),
    ThreadBlock(320, 16, 2),
)
"""Blocks for tiles of long rows: for values of at most four bytes, for integers of this size (whose keys take fewer
registers), for values of eight bytes, and for indices."""

COUNTING_THREADS, COUNTED_ITEMS, COPIED_BYTES = 256, 8, 1 << 15
"""Threads and elements of a block that counts digits. It has as many copies of the counts as it has warps, or as
fit the third number of bytes."""

PARTS = 2048
"""The most parts, over all rows, in which the digits of long rows are counted."""
SHORTEST_PART = 1 << 14
"""The fewest elements of such a part."""


def longest_row(elements: Elements) -> int:
    """The most elements of a row that a single block sorts."""
    return LONGEST_ROW if elements.dtype.size <= 4 else LONGEST_WIDE_ROW


def block_of(elements: Elements) -> ThreadBlock:
    """The block for tiles of these elements."""
    if elements.dtype.size > 4:
        return WIDE_VALUES
    if elements.indices:
        return INDICES
    return VALUES if elements.dtype.is_floating else INTEGERS


class DigitCut(NamedTuple):
    """How long rows are divided, and the layout of scratch memory. Elements are ordered by ``orders`` digits, each with
    ``digits`` values, in tiles of ``tile`` elements."""

    rows: int
    extent: int
    digits: int
    orders: int
    tile: int

    @classmethod
    def of(cls, shape: tuple[int, int], elements: Elements, digits: Digits) -> DigitCut:
        block = block_of(elements)
        return cls(*shape, 1 << digits.bits, digits.orders(elements), block.threads * block.items)

    @property
    def parts(self) -> int:
        """Into how many parts a row is divided for counting."""
        return max(1, min(PARTS // max(self.rows, 1), self.extent // SHORTEST_PART))

    @property
    def tiles(self) -> int:
        """Into how many tiles a row is divided."""
        return -(-self.extent // self.tile)

    @property
    def is_wide(self) -> bool:
        """Whether counts need more than 30 bits."""
        return self.extent >= distribution.LARGEST_TOLD

    @property
    def counters(self) -> int:
        """Bytes of the counters of tiles, one for each order."""
        return aligned(8 * self.orders)

    @property
    def totals(self) -> int:
        """Bytes of the counts of whole rows."""
        return aligned(4 * self.rows * self.orders * self.digits)

    @property
    def told(self) -> int:
        """Bytes of what tiles publish for one digit."""
        return aligned((8 if self.is_wide else 4) * self.rows * self.tiles * self.digits)

    @property
    def cleared(self) -> int:
        """Bytes that have to be zero at the beginning: the counters, the totals, and what is published first."""
        return self.counters + self.totals + self.told

    @property
    def scratch(self) -> int:
        """Bytes of all scratch memory. What is published for one digit is beside what is published for the next."""
        return self.cleared + (self.told if self.orders > 1 else 0)


class _Layout:
    """Scratch memory; each request is placed after the one before."""

    def __init__(self, slot: int, offset: int) -> None:
        self.slot, self.begin, self.end = slot, offset, offset

    def taken(self, size: int) -> Place:
        place = self.slot, self.end
        self.end += aligned(size)
        return place


def _shape(node_or_operand: Node | Operand) -> tuple[int, int]:
    """How many rows there are, and how many elements each has."""
    shape = node_or_operand.shape
    return prod(shape[:-1]), shape[-1]


def _sort_scratch(rows_: int, extent: int, elements: Elements) -> int:
    layout = _Layout(0, 0)
    if extent > longest_row(elements):
        _Sort(rows_, extent, elements, layout)
    return layout.end


def _parted_scratch(rows_: int, extent: int, elements: Elements) -> int:
    layout = _Layout(0, 0)
    layout.taken(rows_ * elements.dtype.size)
    layout.taken(DigitCut.of((rows_, extent), elements, BesideSelected()).scratch)
    return layout.end + _sort_scratch(rows_, extent, Elements(elements.dtype, indices=False))


def _scratch_of_sort(indices: bool) -> Callable[[Node], int]:
    return lambda node: _sort_scratch(*_shape(node.inputs[0]), Elements(node.inputs[0].dtype, indices))


def _scratch_of_partition(indices: bool) -> Callable[[Node], int]:
    return lambda node: _parted_scratch(*_shape(node.inputs[0]), Elements(node.inputs[0].dtype, indices))


def _scratch_of_marks(node: Node) -> int:
    return DigitCut.of(_shape(node.inputs[0]), Elements(node.inputs[0].dtype, indices=True), OfMarks()).scratch


@p.sort.routine.on("cuda", scratch=_scratch_of_sort(False))
def _sort(call: RoutineCall) -> list[RoutineStep]:
    return _sorted(call, indices=False)


@p.argsort.routine.on("cuda", scratch=_scratch_of_sort(True))
def _argsort(call: RoutineCall) -> list[RoutineStep]:
    return _sorted(call, indices=True)


@p.partition.routine.on("cuda", scratch=_scratch_of_partition(False))
def _partition(call: RoutineCall) -> list[RoutineStep]:
    return _parted(call, indices=False)


@p.argpartition.routine.on("cuda", scratch=_scratch_of_partition(True))
def _argpartition(call: RoutineCall) -> list[RoutineStep]:
    return _parted(call, indices=True)


@p.marked_first.routine.on("cuda", scratch=_scratch_of_marks)
def _marked_first(call: RoutineCall) -> list[RoutineStep]:
    (x,), (out,) = call.operands, call.results
    elements = Elements(x.dtype, indices=True)
    return _grouped(x, out, elements, OfMarks(), _Layout(*call.scratch), (0, 0))


def _location(operand: Operand) -> Place:
    return operand.slot, operand.offset


def _sorted(call: RoutineCall, indices: bool) -> list[RoutineStep]:
    (x,), (out,) = call.operands, call.results
    elements, window = Elements(x.dtype, indices), (call.params["start"], call.params["count"])
    rows_, extent = _shape(x)
    if extent <= longest_row(elements):
        numbers = [*_location(x), *_location(out), rows_, extent, *window]
        work = rows_ * extent * elements.digits
        return [RoutineStep(rows_code(elements, *block_for(extent)), numbers, rows_, 1, work)]
    sort = _Sort(rows_, extent, elements, _Layout(*call.scratch))
    return sort.steps(_location(x), _location(out), window)


def _parted(call: RoutineCall, indices: bool) -> list[RoutineStep]:
    (x,), (out,) = call.operands, call.results
    rows_, extent = _shape(x)
    if extent <= MIDDLE:
        return _sorted(call._replace(params={"start": 0, "count": extent}), indices)
    layout = _Layout(*call.scratch)
    selected = layout.taken(rows_ * x.dtype.size)
    grouped = _grouped(x, out, Elements(x.dtype, indices), BesideSelected(), layout, selected)
    element = Operand((rows_, 1), x.dtype, (1, 1), *selected)
    window = {"start": call.params["kth"], "count": 1}
    found = _sorted(RoutineCall(window, (x,), (element,), (layout.slot, layout.end)), indices=False)
    return [*found, *grouped]


def _grouped(
    x: Operand, out: Operand, elements: Elements, digits: Digits, layout: _Layout, selected: Place
) -> list[RoutineStep]:
    """The steps that write elements in the order of digits, for digits that are not those of keys."""
    cut = DigitCut.of(_shape(x), elements, digits)
    distribution_ = _Distribution(cut, elements, digits, layout, selected)
    move = Move(reads_indices=False, writes_indices=elements.indices, writes_words=not elements.indices)
    places = Places(_location(x), target=_location(out), target_indices=_location(out))
    return [*distribution_.prepared(places), distribution_.moved(move, places, (0, cut.extent))]


def block_for(extent: int) -> tuple[int, int]:
    """How many threads a block has that sorts a row, and how many elements each thread has."""
    items, threads = 1, 32
    while threads * items < extent:
        if items < ROW_ITEMS // 2 or threads * items >= 128 * ROW_ITEMS // 2:
            items = min(2 * items, ROW_ITEMS)
        else:
            threads *= 2
        if items == ROW_ITEMS and threads * items < extent:
            threads *= 2
    return threads, items


class Places(NamedTuple):
    """Where elements and indices are read and written. Places that a step does not use are arbitrary."""

    source: Place = (0, 0)
    source_indices: Place = (0, 0)
    target: Place = (0, 0)
    target_indices: Place = (0, 0)


class _Distribution:
    """The steps that bring the elements of rows into the order of digits."""

    def __init__(self, cut: DigitCut, elements: Elements, digits: Digits, layout: _Layout, selected: Place) -> None:
        self.cut, self.elements, self.digits, self.selected = cut, elements, digits, selected
        self.slot, self.counters = layout.taken(cut.scratch)
        self.totals = self.counters + cut.counters
        self.told = self.totals + cut.totals

    def _numbers(self, places: Places, units: int, parts: int, order: int, window: tuple[int, int]) -> list[int]:
        cut, last = self.cut, self.cut.orders - 1
        told = [(self.slot, self.told + number % 2 * cut.told) for number in (order, order + 1)]
        memory = (*places, (self.slot, self.totals), *told, (self.slot, self.counters + 8 * order), self.selected)
        numbers = [number for place in memory for number in place]
        return [*numbers, units, cut.extent, parts, cut.orders, order, int(order == last), *window]

    def prepared(self, places: Places) -> list[RoutineStep]:
        """The steps that count all digits."""
        cut = self.cut
        units = cut.rows * cut.parts
        count = self._numbers(places, units, cut.parts, 0, (0, 0))
        return [
            cleared((self.slot, self.counters), cut.cleared // 4),
            RoutineStep(totals_code(self.elements, self.digits), count, units, 1, cut.rows * cut.extent),
        ]

    def moved(self, move: Move, places: Places, window: tuple[int, int], order: int = 0) -> RoutineStep:
        """The step that moves elements into the order of one digit. ``window`` is the first wanted position of a sorted
        row, and how many positions are wanted."""
        cut = self.cut
        units = cut.rows * cut.tiles
        code = move_code(self.elements, self.digits, move, cut.is_wide)
        numbers = self._numbers(places, units, cut.tiles, order, window)
        return RoutineStep(code, numbers, units, 1, cut.rows * cut.extent)


class _Sort:
    """The steps that sort long rows, digit by digit from the last one to the first."""

    def __init__(self, rows_: int, extent: int, elements: Elements, layout: _Layout) -> None:
        self.elements, self.extent = elements, extent
        cut = DigitCut.of((rows_, extent), elements, OfKeys())
        self.distribution = _Distribution(cut, elements, OfKeys(), layout, (0, 0))
        between = min(elements.digits - 1, 2)
        size = rows_ * extent
        self.words = [layout.taken(size * elements.dtype.size) for _ in range(between)]
        self.indices = [layout.taken(size * 4) for _ in range(between * elements.indices)]

    def steps(self, source: Place, out: Place, window: tuple[int, int]) -> list[RoutineStep]:
        indices, last = self.elements.indices, self.elements.digits - 1
        steps = self.distribution.prepared(Places(source))
        for digit in range(last + 1):
            ends = digit == last
            move = Move(indices and digit > 0, indices, not (ends and indices))
            places = Places(
                source if digit == 0 else self.words[(digit - 1) % 2],
                self.indices[(digit - 1) % 2] if move.reads_indices else (0, 0),
                out if ends else self.words[digit % 2],
                out if ends or not indices else self.indices[digit % 2],
            )
            steps.append(self.distribution.moved(move, places, window if ends else (0, self.extent), digit))
        return steps


@cache
def rows_code(elements: Elements, threads: int, items: int) -> RoutineCode:
    source = f"rows of {elements.name} sorted by blocks of {threads} threads with {items} elements"
    return RoutineCode(source, lambda name: rows.generate(elements, threads, items, name), threads, "sort")


def totals_code(elements: Elements, digits: Digits) -> RoutineCode:
    threads, items = COUNTING_THREADS, COUNTED_ITEMS
    size = 4 * digits.orders(elements) << digits.bits
    copies = max(1, min(threads // WARP, COPIED_BYTES // size))
    source = (
        f"{digits.name} of {elements.dtype.name} counted by {threads} threads with {items} elements, {copies} times"
    )
    return RoutineCode(
        source,
        lambda name: distribution.generate_totals(elements, digits, threads, items, copies, name),
        threads,
        "sort (counts)",
    )


def move_code(elements: Elements, digits: Digits, move: Move, wide: bool) -> RoutineCode:
    block = block_of(elements)
    source = f"{elements.name} moved by {digits.name}: {move.name}, wide {wide}, {block}"
    return RoutineCode(
        source,
        lambda name: distribution.generate_move(elements, digits, move, block, wide, name),
        block.threads,
        "sort (move)",
    )
