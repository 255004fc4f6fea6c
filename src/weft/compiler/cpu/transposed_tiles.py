"""Reads tiles of operands that are contiguous along the rows of a kernel, and writes them along its lanes.

A tile is read by a function for each size of elements, in cells: 16 bytes of each of some lanes, as many as fill
vectors of 32 bytes. Each half of a vector is read from a lane, and the steps that remain of a transposition interleave
vectors, in one instruction each. Squares of small or wide elements would need masks that few processors have, or many
more registers than there are. Whole cache lines of the operand are read one after the other, and a row of a tile is a
cache line or more, so that results are written by cache lines too.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.cpu.code import Code, EmittedFunction
from weft.compiler.cpu.memory import CACHE_LINE, prefetch
from weft.compiler.kernel import VIRTUAL_LANES

READ_BYTES = 16
"""How many bytes of a lane a cell has: in longer blocks, instructions do not shuffle elements."""
CELLS_AT_ONCE = {1: 1, 2: 1, 4: 2, 8: 4}
"""How many cells beside each other the code in a loop transposes, by the size of elements."""
SHORTEST_SIDE, MOST_TILE_BYTES = 16, 1 << 14
"""Tiles have at least this many rows and lanes. Larger ones have at most this many bytes, all of a kernel together:
more would leave no room for results in the first cache."""

_PARAMETERS = "ptr noalias readonly %source, i64 %step, i64 %rows, i64 %lanes, ptr noalias %tile"


def side_of(sizes: Sequence[int]) -> int:
    """How many rows and lanes tiles have, for operands with elements of ``sizes``: a cache line of each."""
    shortest = max(SHORTEST_SIDE, lanes_at_once(min(sizes)))
    side = max(shortest, CACHE_LINE // max(sizes))
    while side > shortest and side * side * sum(sizes) > MOST_TILE_BYTES:
        side //= 2
    return side


def bytes_of(size: int, side: int) -> int:
    """The memory of a tile. Whole vectors of lanes are loaded from it, also where its last row ends within one."""
    return (side * side + VIRTUAL_LANES) * size


def rows_at_once(size: int) -> int:
    """How many rows of elements of ``size`` bytes are read at once."""
    return READ_BYTES // size * CELLS_AT_ONCE[size]


def lanes_at_once(size: int) -> int:
    """How many lanes of elements of ``size`` bytes are read at once."""
    return 2 * READ_BYTES // size


def name_of(size: int) -> str:
    return f"read_tile_{size}"


def reading(size: int, side: int) -> EmittedFunction:
    """A function that reads ``%rows`` elements of each of ``%lanes`` lanes, which are ``%step`` bytes apart, and writes
    them to rows of ``side`` elements.

    The last group of rows or lanes overlaps the one before. What is smaller than a group is read by elements."""
    code = Code()
    tile = _Transposition(code, size, side)
    rows, lanes = rows_at_once(size), lanes_at_once(size)
    enough = code.both_hold(code.compare("sge", "%rows", rows), code.compare("sge", "%lanes", lanes))
    with code.e.when(code.negated(enough)):
        whole = code.e.assign(f"and i64 %lanes, {-tile.within}")
        with code.e.loop("0", "%rows") as row:
            with code.e.loop("0", whole, tile.within) as lane:
                tile.copy(row, lane, tile.within)
            with code.e.loop(whole, "%lanes") as lane:
                tile.copy(row, lane, 1)
        code.e.leave()
    last_row, last_lane = code.subtract("%rows", rows), code.subtract("%lanes", lanes)
    with code.e.loop("0", "%lanes", lanes) as lane:
        first_lane = code.smaller(lane, last_lane)
        tile.ask_for_next(lane)
        with code.e.loop("0", "%rows", rows) as row:
            tile.transpose(code.smaller(row, last_row), first_lane)
    return code.finished(name_of(size), _PARAMETERS)


class _Transposition:
    """Writes the code that reads parts of a tile."""

    def __init__(self, code: Code, size: int, side: int) -> None:
        self.code, self.size, self.side = code, size, side
        self.element = f"i{8 * size}"
        self.within = READ_BYTES // size
        self.type = f"<{2 * self.within} x {self.element}>"

    def source(self, row: str, lane: str) -> str:
        first = self.code.moved("%source", self.code.multiply(lane, "%step"))
        return self.code.moved(first, row, self.element)

    def place(self, row: str, lane: str) -> str:
        return self.code.moved("%tile", self.code.add(self.code.multiply(row, self.side), lane), self.element)

    def ask_for_next(self, lane: str) -> None:
        """Prefetch lanes of the tile beside this one. Where cache lines begin between its rows, the tiles before had
        the first of them."""
        pointer = self.source("0", self.code.add(lane, self.side))
        for _ in range(lanes_at_once(self.size)):
            for end in range(CACHE_LINE, self.side * self.size + 1, CACHE_LINE):
                prefetch(self.code.e, self.code.moved(pointer, end - 1))
            pointer = self.code.moved(pointer, "%step")

    def copy(self, row: str, lane: str, count: int) -> None:
        """Elements of a row, one by one. They are put into a vector, because what is stored in parts is not soon loaded
        as a whole."""
        type_, pointer = f"<{count} x {self.element}>", self.source(row, lane)
        vector = "poison"
        for number in range(count):
            pointer = self.code.moved(pointer, "%step") if number else pointer
            element = self.code.e.assign(f"load {self.element}, ptr {pointer}, align {min(self.size, 4)}")
            vector = self.code.e.assign(f"insertelement {type_} {vector}, {self.element} {element}, i32 {number}")
        self.code.e.emit(f"store {type_} {vector}, ptr {self.place(row, lane)}, align {self.size}")

    def transpose(self, row: str, lane: str) -> None:
        """Cells beside each other, from a row and a lane on."""
        pointers = [self.source(row, lane)]
        while len(pointers) < 2 * self.within:
            pointers.append(self.code.moved(pointers[-1], "%step"))
        for cell in range(CELLS_AT_ONCE[self.size]):
            vectors = [self.joined(pointers[k], pointers[k + self.within], cell) for k in range(self.within)]
            place = self.place(row, lane)
            for number, vector in enumerate(self.interleaved(vectors), cell * self.within):
                target = self.code.moved(place, number * self.side, self.element)
                self.code.e.emit(f"store {self.type} {vector}, ptr {target}, align {self.size}")

    def joined(self, first: str, second: str, cell: int) -> str:
        """A cell's elements of two lanes as one vector."""
        type_, halves = f"<{self.within} x {self.element}>", []
        for pointer in (first, second):
            place = self.code.moved(pointer, cell * READ_BYTES)
            halves.append(self.code.e.assign(f"load {type_}, ptr {place}, align {min(self.size, 4)}"))
        return self.shuffled(type_, halves[0], halves[1], range(2 * self.within))

    def interleaved(self, vectors: list[str]) -> list[str]:
        """``vectors`` of rows within a lane as vectors of lanes within a row, in both halves of each."""
        half, steps = len(vectors) // 2, len(vectors).bit_length() - 1
        for _ in range(steps):
            pairs = zip(vectors[:half], vectors[half:], strict=True)
            vectors = [self.mixed(one, other, upper) for one, other in pairs for upper in (False, True)]
        return vectors

    def mixed(self, one: str, other: str, upper: bool) -> str:
        """The lower or upper elements of each 16 bytes of two vectors, in turns."""
        first = self.within // 2 if upper else 0
        chosen = [
            block + first + number + source
            for block in (0, self.within)
            for number in range(self.within // 2)
            for source in (0, 2 * self.within)
        ]
        return self.shuffled(self.type, one, other, chosen)

    def shuffled(self, type_: str, one: str, other: str, chosen: Sequence[int]) -> str:
        numbers = ", ".join([f"i32 {number}" for number in chosen])
        text = f"shufflevector {type_} {one}, {type_} {other}, <{len(chosen)} x i32> <{numbers}>"
        return self.code.e.assign(text)
