"""Tiles of matrix products: how large they are, how many terms of operands are packed at once, and which operands are
read where they lie. None of it changes what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from sys import maxsize
from typing import NamedTuple

from weft.compiler.codegen import host
from weft.compiler.cpu.product_step import SQUARE, Block, Sources
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

TILE_BYTES = 640 << 10
"""The most of the right operand that is packed at once, for the second cache to hold."""
GROUP = 8
"""How many panels of the left operand are packed at once: enough to read whole lines of memory."""

# What decides about tiles. Work is counted in multiplications.
SMALLEST_SHARE = 1 << 18
"""A thread more has to have so much to do."""
PACKING = 24
"""Packing an element takes the time of so many multiplications."""
READING = 12
"""Reading an element from a cache that is further away takes the time of so many multiplications."""
FLAT_BLOCKS = 4, 2
"""For at most so many blocks of rows, so many panels of columns are packed at once: they are soon used up."""
UNEVEN = 0.5
"""Threads end at different times: this part of a tile apart. Processors of a machine that does other work, too, are not
equally fast, and tiles that are left are taken by those which are."""
MOST_CUTS = 24

WAITING_BYTES = 256 << 10
"""The most of a result that waits in the second cache for more terms."""
MOST_TERMS = 1 << 12
"""The most terms that are packed at once."""

SCRATCH_BYTES = 1 << 19
"""The most of a result that is made in scratch memory."""
ROWS_BYTES = 1 << 20
"""The most that rows take that an attached kernel needs whole, if they are made of several tiles."""
PASSING = 16
"""To store an element and read it again takes the time of so many multiplications twice."""

LITTLE = 32 << 10
"""So many bytes are read where they lie: the first cache holds them."""
OFTEN = 6
"""So many panels of columns are worth packing a panel of rows for."""
NEAR = 512 << 10
"""So many bytes of the right operand are read where they lie by tiles of few rows: the second cache holds them."""
FEW_ROWS = 256
FEW_VECTORS = 16
"""Of more vectors of columns, one that is left over alone does not count."""
READING_IN_PLACE = 1 / 16
"""By this part a kernel takes longer that reads the right operand where it lies."""


class Way(IntEnum):
    """How a kernel gets an operand: where it lies, or packed, with the elements or the terms as neighbours, or over
    several axes, or where another kernel has made it."""

    IN_PLACE = 0
    ALONG = 1
    ACROSS = 2
    OVER_AXES = 3
    FED = 4


@cache
def block_of(dtype: Dtype) -> Block:
    """The block for this processor: with 32 registers of 64 bytes, or with fewer (or shorter) ones."""
    return Block(dtype, 8, 3, 64) if "+avx512f" in host.current().features else Block(dtype, 4, 3, 32)


def filled(block: Block, columns: int, most: int = maxsize) -> Block:
    """The block for a product with so many columns: another one if that leaves no vector over, which takes longer alone
    than with others, and there are at most so many vectors."""
    vectors = -(-columns // block.lanes)
    if vectors > most:
        return block
    if block == Block(block.dtype, 8, 3, 64):
        return Block(block.dtype, 6, 4, 64) if vectors % 3 == 1 and vectors % 4 != 1 else block
    return Block(block.dtype, 6, 2, 32) if vectors % 3 and vectors % 2 == 0 else block


class DirectReading(IntEnum):
    """Which tiles read the right operand where it lies: none, those of few rows, or all."""

    NOWHERE = 0
    IN_FEW_ROWS = 1
    AS_PANELS = 2


class Lying(NamedTuple):
    """Whether the left operand is always read where it lies, and which tiles read the right one there."""

    left: bool
    right: DirectReading


PACKED = Lying(False, DirectReading.NOWHERE)


class _Costs:
    """A model of what tiles cost, as multiplications for each term of the sums."""

    def __init__(self, block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying) -> None:
        rows, columns, inner = extents
        self.block = block
        self.matrices = matrices
        self.lying = lying
        self.busy = max(1, min(threads, matrices * rows * columns * inner // SMALLEST_SHARE))
        self.down = max(1, -(-rows // self.block.rows))
        self.across = max(1, -(-columns // self.block.columns))
        square = SQUARE * block.terms
        terms = -(-max(1, min(inner, DEPTH)) // square) * square
        widest = max(1, TILE_BYTES * block.terms // (terms * block.columns * block.dtype.size))
        self.widest = FLAT_BLOCKS[1] * block.terms if self.down <= FLAT_BLOCKS[0] else widest

    def time(self, tile: tuple[int, int], span: int = 1) -> float:
        """The time for all units, of so many tiles side by side, whose extents are given in blocks."""
        units = self.matrices * -(-self.down // tile[0]) * -(-self.across // (tile[1] * span))
        high, wide = tile[0] * self.block.rows, tile[1] * self.block.columns
        uneven = UNEVEN if self.busy > 1 else 0.0
        left = READING * high if self.lying.left else PACKING * high
        right: float = PACKING * wide
        if self.lying.right is DirectReading.AS_PANELS:
            right = READING * wide
        elif self.lying.right is DirectReading.IN_FEW_ROWS and high <= FEW_ROWS:
            right = READING_IN_PLACE * high * wide
        return (-(-units // self.busy) + uneven) * span * (high * wide + left + right)

    def elements(self, tile: tuple[int, int]) -> int:
        return tile[0] * self.block.rows * tile[1] * self.block.columns

    def best(self) -> tuple[int, int]:
        """The tile that takes the least time."""
        return min(
            ((h, w) for h in _parts(self.down, self.down) for w in _parts(self.across, self.widest)), key=self.time
        )


@as_a_whole
@cache
def tile_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying = PACKED
) -> tuple[int, int]:
    """Rows and columns of a tile: large ones pack each operand less often, several of a size keep threads busy."""
    costs = _Costs(block, extents, matrices, threads, lying)
    high, wide = costs.best()
    return high * block.rows, wide * block.columns


@as_a_whole
@cache
def row_tile_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying
) -> tuple[int, int, int] | None:
    """Rows and columns of a tile, and how many side by side make whole rows, which are a unit. None if that takes
    longer than to store the result and read it again."""
    rows, columns, inner = extents
    costs = _Costs(block, extents, matrices, threads, lying)
    passing = 2 * PASSING * matrices * rows * columns / costs.busy / max(inner, 1)
    found = []
    for wide in _parts(costs.across, costs.widest):
        span = -(-costs.across // wide)
        limit = ROWS_BYTES // block.dtype.size if span > 1 else maxsize
        heights = [high for high in _parts(costs.down, costs.down) if span * costs.elements((high, wide)) <= limit]
        found += [(costs.time((high, wide), span), high, wide, span) for high in heights]
    if not found:
        return None
    time, high, wide, span = min(found, key=lambda one: one[0])
    if time > costs.time(costs.best()) + passing:
        return None
    return high * block.rows, wide * block.columns, span


def _parts(whole: int, most: int) -> list[int]:
    """What comes of cutting a whole into equal parts of at most ``most``: the largest first, and only some."""
    fewest = -(-whole // most)
    return sorted({-(-whole // pieces) for pieces in range(fewest, fewest + MOST_CUTS)}, reverse=True)


def terms_of(block: Block, extents: tuple[int, int, int], tile: tuple[int, int]) -> int:
    """How many terms are packed at once. Results that a cache holds wait there for the next block of terms; of larger
    ones each group of panels is finished as far as the panels of the right operand fit the room for them."""
    rows, columns, inner = extents
    high, wide = min(tile[0], rows), min(tile[1], columns)
    if inner <= DEPTH or high * wide * block.dtype.size <= WAITING_BYTES:
        return DEPTH
    room = TILE_BYTES // (-(-wide // block.columns) * block.columns * block.dtype.size)
    return max(DEPTH, min(room, MOST_TERMS) // DEPTH * DEPTH)


def scratch_of(block: Block, inner: int, terms: int, tile: tuple[int, int], span: int) -> tuple[int, bool]:
    """How many bytes of scratch memory a unit needs for its result, and whether each group of panels uses it again: it
    does, if it is finished at once."""
    at_once = inner <= terms and span == 1
    rows = min(tile[0], GROUP * block.rows) if at_once else tile[0]
    return rows * tile[1] * span * block.dtype.size, at_once


def ways_of(
    block: Block, sources: Sources, extents: tuple[int, int, int], strides: Sequence[int], tile: tuple[int, int]
) -> tuple[Way, Way]:
    """How the kernel gets both operands, of which the strides are given: from row to row, term to term; term to term,
    column to column. It needs its own dtype, and neighbours in the columns of a term; all else saves time."""
    rows, columns, inner = extents
    _, a_inner, _, b_column = strides
    left, right = (Way.ACROSS if a_inner == 1 else Way.ALONG), (Way.ALONG if b_column == 1 else Way.ACROSS)
    size = block.dtype.size
    if sources.left is block.dtype:
        seldom = tile[1] < OFTEN * block.columns or inner < DEPTH
        if rows * inner * size <= LITTLE or (left is Way.ACROSS and seldom):
            left = Way.IN_PLACE
    if sources.right is block.dtype and right is Way.ALONG:
        reading = reading_right(block, sources.right, extents, strides)
        little = inner * columns * size <= LITTLE
        if (
            little
            or reading is DirectReading.AS_PANELS
            or (reading is DirectReading.IN_FEW_ROWS and tile[0] <= FEW_ROWS)
        ):
            right = Way.IN_PLACE
    return left, right


def fed_strides(block: Block, turned: bool) -> tuple[int, int]:
    """How rows and terms of a left operand lie where a kernel makes it, by columns if it is ``turned``."""
    return (1, GROUP * block.rows) if turned else (DEPTH, 1)


def reading_right(block: Block, source: Dtype, extents: tuple[int, int, int], strides: Sequence[int]) -> DirectReading:
    """Which tiles read the right operand where it lies. One that lies there as in a panel need not be packed."""
    _, columns, inner = extents
    if source is not block.dtype or strides[3] != 1:
        return DirectReading.NOWHERE
    if columns <= strides[2] <= block.columns:
        return DirectReading.AS_PANELS
    return DirectReading.IN_FEW_ROWS if inner * columns * source.size <= NEAR else DirectReading.NOWHERE
