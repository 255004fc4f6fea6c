"""The steps of sorting and partitioning."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import NamedTuple

import weft.primitives as p
from weft.compiler.cuda.kernels import Written
from weft.compiler.cuda.sorting import distribution, rows
from weft.compiler.cuda.sorting.distribution import BesideSelected, Digits, Move, OfKeys, OfMarks
from weft.compiler.cuda.sorting.elements import DIGIT_BITS, Elements
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.routine import Operand, RoutineCall, RoutineStep
from weft.primitives.sort_cuts import MIDDLE, aligned

LONGEST_ROW = 4096
"""A block sorts rows of at most so many elements by itself."""

ITEMS = 16
"""Elements that a thread has at a time."""

COUNTED_ITEMS = 8

THREADS = 256
"""Of a block that has a part of a long row."""

CHUNKS = 2048
"""Long rows are cut into at most so many chunks in all."""


class Cut(NamedTuple):
    """How long rows are cut, and what they need of scratch memory: ``digits`` are told apart, and elements with sizes
    ``moved`` are moved to memory that is no result."""

    rows: int
    extent: int
    digits: int

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        tile = ITEMS * THREADS
        tiles = -(-self.extent // tile)
        chunks = min(tiles, max(1, CHUNKS // max(self.rows, 1)))
        return -(-tiles // chunks) * tile

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return -(-self.extent // self.chunk)

    @property
    def counts(self) -> int:
        """Bytes of the counts of chunks."""
        return aligned(4 * self.rows * self.chunks * self.digits)

    @property
    def scratch(self) -> int:
        """Bytes of all counts."""
        return self.counts + aligned(4 * self.rows * self.digits)


Place = tuple[int, int]
"""A slot of the table, and an offset in bytes."""


class _Layout:
    """Scratch memory: what is asked for next is behind what was asked for before."""

    def __init__(self, slot: int, offset: int) -> None:
        self.slot, self.begin, self.end = slot, offset, offset

    def taken(self, size: int) -> Place:
        place = self.slot, self.end
        self.end += aligned(size)
        return place


def _shape(node_or_operand: Node | Operand) -> tuple[int, int]:
    """How many rows there are, and of how many elements."""
    shape = node_or_operand.shape
    return prod(shape[:-1]), shape[-1]


def _sort_scratch(rows_: int, extent: int, elements: Elements) -> int:
    layout = _Layout(0, 0)
    if extent > LONGEST_ROW:
        _Sort(rows_, extent, elements, layout)
    return layout.end


def _parted_scratch(rows_: int, extent: int, dtype: Dtype) -> int:
    layout = _Layout(0, 0)
    layout.taken(rows_ * dtype.size)
    layout.taken(Cut(rows_, extent, 1 << BesideSelected.bits).scratch)
    return layout.end + _sort_scratch(rows_, extent, Elements(dtype, indices=False))


def _scratch_of_sort(indices: bool) -> Callable[[Node], int]:
    return lambda node: _sort_scratch(*_shape(node.inputs[0]), Elements(node.inputs[0].dtype, indices))


def _scratch_of_partition(node: Node) -> int:
    return _parted_scratch(*_shape(node.inputs[0]), node.inputs[0].dtype)


@p.sort.routine.on("cuda", scratch=_scratch_of_sort(False))
def _sort(call: RoutineCall) -> list[RoutineStep]:
    return _sorted(call, indices=False)


@p.argsort.routine.on("cuda", scratch=_scratch_of_sort(True))
def _argsort(call: RoutineCall) -> list[RoutineStep]:
    return _sorted(call, indices=True)


@p.partition.routine.on("cuda", scratch=_scratch_of_partition)
def _partition(call: RoutineCall) -> list[RoutineStep]:
    return _parted(call, indices=False)


@p.argpartition.routine.on("cuda", scratch=_scratch_of_partition)
def _argpartition(call: RoutineCall) -> list[RoutineStep]:
    return _parted(call, indices=True)


@p.marked_first.routine.on("cuda", scratch=lambda node: Cut(*_shape(node.inputs[0]), 1 << OfMarks.bits).scratch)
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
    if extent <= LONGEST_ROW:
        numbers = [*_location(x), *_location(out), rows_, extent, *window]
        work = rows_ * extent * elements.digits
        return [RoutineStep(_rows_code(elements, *_block_for(extent)), numbers, rows_, 1, work)]
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
    """Steps that write elements in the order of digits of their own."""
    cut = Cut(*_shape(x), 1 << digits.bits)
    distribution_ = _Distribution(cut, elements, digits, layout, selected)
    move = Move(reads_indices=False, writes_indices=elements.indices, writes_words=not elements.indices)
    places = Places(_location(x), target=_location(out), target_indices=_location(out))
    return distribution_.steps(move, places, (0, cut.extent))


def _block_for(extent: int) -> tuple[int, int]:
    """Threads of a block, and elements of each, for rows."""
    items, threads = 1, 32
    while threads * items < extent:
        if items < ITEMS // 2 or threads * items >= 128 * ITEMS // 2:
            items = min(2 * items, ITEMS)
        else:
            threads *= 2
        if items == ITEMS and threads * items < extent:
            threads *= 2
    return threads, items


class Places(NamedTuple):
    """Where elements and indices are read and written; what a step does not need is anywhere."""

    source: Place = (0, 0)
    source_indices: Place = (0, 0)
    target: Place = (0, 0)
    target_indices: Place = (0, 0)


class _Distribution:
    """The steps that put the elements of rows in the order of one digit."""

    def __init__(self, cut: Cut, elements: Elements, digits: Digits, layout: _Layout, selected: Place) -> None:
        self.cut, self.elements, self.digits, self.selected = cut, elements, digits, selected
        self.counts = layout.taken(cut.counts)
        self.totals = layout.taken(cut.scratch - cut.counts)

    def steps(self, move: Move, places: Places, window: tuple[int, int], shift: int = 0) -> list[RoutineStep]:
        """``window`` are the first place of the result in sorted rows, and how many there are."""
        cut, elements, digits = self.cut, self.elements, self.digits
        memory = [number for place in (*places, self.counts, self.totals, self.selected) for number in place]
        units, work = cut.rows * cut.chunks, cut.rows * cut.extent
        numbers = [*memory, units, cut.extent, cut.chunk, cut.chunks, shift, *window]
        of_sums = list(numbers)
        of_sums[distribution.UNITS] = cut.rows * cut.digits
        return [
            RoutineStep(_counts_code(elements, digits), numbers, units, 1, work),
            RoutineStep(_sums_code(), of_sums, cut.rows * cut.digits, 1, cut.counts // 4),
            RoutineStep(_move_code(elements, digits, move), numbers, units, 1, work),
        ]


class _Sort:
    """The steps that sort long rows, digit by digit from the last one on."""

    def __init__(self, rows_: int, extent: int, elements: Elements, layout: _Layout) -> None:
        self.elements, self.extent = elements, extent
        self.distribution = _Distribution(Cut(rows_, extent, 1 << DIGIT_BITS), elements, OfKeys(), layout, (0, 0))
        between = min(elements.digits - 1, 2)
        size = rows_ * extent
        self.words = [layout.taken(size * elements.dtype.size) for _ in range(between)]
        self.indices = [layout.taken(size * 4) for _ in range(between * elements.indices)]

    def steps(self, source: Place, out: Place, window: tuple[int, int]) -> list[RoutineStep]:
        steps: list[RoutineStep] = []
        indices, last = self.elements.indices, self.elements.digits - 1
        for digit in range(last + 1):
            ends = digit == last
            move = Move(indices and digit > 0, indices, not (ends and indices))
            places = Places(
                source if digit == 0 else self.words[(digit - 1) % 2],
                self.indices[(digit - 1) % 2] if move.reads_indices else (0, 0),
                out if ends else self.words[digit % 2],
                out if ends or not indices else self.indices[digit % 2],
            )
            shown = window if ends else (0, self.extent)
            steps += self.distribution.steps(move, places, shown, digit * DIGIT_BITS)
        return steps


@cache
def _rows_code(elements: Elements, threads: int, items: int) -> Written:
    source = f"rows of {elements.name} sorted by blocks of {threads} threads with {items} elements"
    return Written(source, lambda name: rows.generate(elements, threads, items, name), threads, "sort")


def _counts_code(elements: Elements, digits: Digits) -> Written:
    threads, items = THREADS, COUNTED_ITEMS
    source = f"{digits.name} of {elements.dtype.name} counted by {threads} threads with {items} elements"
    return Written(
        source,
        lambda name: distribution.generate_counts(elements, digits, threads, items, name),
        threads,
        "sort (counts)",
    )


@cache
def _sums_code() -> Written:
    return Written("sums of counts of digits", distribution.generate_sums, 32, "sort (sums)")


def _move_code(elements: Elements, digits: Digits, move: Move) -> Written:
    threads, items = THREADS, ITEMS
    source = f"{elements.name} moved by {digits.name}, by {threads} threads with {items} elements: {move.name}"
    return Written(
        source,
        lambda name: distribution.generate_move(elements, digits, move, threads, items, name),
        threads,
        "sort (move)",
    )
