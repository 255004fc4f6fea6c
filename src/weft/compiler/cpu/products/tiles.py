"""Tiles of matrix products: how large they are, how many terms are packed at once, and which operands are read in
place. Results do not depend on any of this."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from sys import maxsize
from typing import NamedTuple

from weft.compiler.codegen import host
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

from .step import SQUARE, Block, Sources

TILE_BYTES = 640 << 10
"""The most bytes of the right operand that are packed at once: the second cache holds them."""
GROUP = 8
"""How many panels of the left operand are packed at once: enough to read whole cache lines."""

# A model of the time that tiles take, in multiplications.
SMALLEST_SHARE = 1 << 17
"""The least work of each thread."""
PACKING = 24
"""Packing an element takes the time of this many multiplications."""
READING = 12
"""Reading an element from a cache that is further away takes the time of this many multiplications."""
FLAT_BLOCKS = 4, 2
"""With at most this many blocks of rows (the first number), few blocks use a packed panel of columns, so only
a few panels (the second number) are packed at once."""
UNEVEN = 0.5
"""Threads end at different times; this part of a tile is added for it. Processors that also do other work are slower,
and with small tiles the faster ones take over tiles that are left."""
SINGLE_TILE_WORK = 1 << 25, 1 << 27
"""If each of two threads has this much work (from the first number to the second one) and a single tile, half of that
part is added. In so short a time they are seldom disturbed, and with two tiles for each they could hardly ever take
over one, since by then all are begun. With less work it matters that a thread may begin late. Of many threads some are
disturbed: with 16, matrices of 1024 took a fifth more time in single tiles."""
UNEVEN_OF_TWO = 0.25
"""The part of a tile that is added if each of two threads has more work than that: with smaller tiles, the right
operand would be packed so often that it takes a twentieth of the time."""
FEW_UNITS, EVENER = 16, 0.94
"""If two threads have much work and at most so many units, those at the edges may be so much smaller that one thread
ends early. Then other tiles are used, if they take less than this part of the time."""
MOST_CUTS = 24
"""A side of the result is cut into at most this many parts."""
UNITS_PER_THREAD = 4
"""But a tall one is cut into more, if each thread would have fewer tiles of the least width than this."""

WAITING_BYTES = 64 << 10
"""The most bytes of a result that stay in the second cache while more terms are packed. With more, memory of the left
operand is left for long before the next terms of its rows are read."""
MOST_TERMS = 1 << 12
"""The most terms that are packed at once."""

SCRATCH_BYTES = 1 << 19
"""The most bytes of a result that is made in scratch memory."""
ROWS_BYTES = 1 << 20
"""The most bytes of rows that an attached kernel needs whole, if they are made of several tiles."""
PASSING = 16
"""Storing an element, and reading it again, each take the time of this many multiplications."""

LITTLE = 32 << 10
"""At most this many bytes are read in place: the first cache holds them."""
LITTLE_LEFT = 64 << 10
"""The same for a left operand that is stored by columns, and used for few panels of columns."""
OFTEN = 6
"""With this many panels of columns or more, packing a panel of rows is worth it."""
NEAR = 1 << 20
"""At most this many bytes of the right operand are read in place by tiles of few rows: the second cache holds them."""
FEW_SETS = 2 << 10
"""Terms that are a multiple of so many bytes apart are in few sets of both caches, which do not hold a panel of them
then: a panel that would be read from the first cache again and again is packed."""
FEW_ROWS = 256
"""The most rows of such tiles."""
SELDOM_BLOCKS, SELDOM_BYTES = 8, 4 << 20
"""Products of at most so many blocks of rows use the right operand so seldom that packing it takes longer than reading
it in place, if it has at most so many bytes. From memory, panels are read faster when they are packed."""
MISSING = 19, 20
"""Wide blocks of short vectors are used if they have less than this part of the elements that high ones would have."""
READING_IN_PLACE = 1 / 16
"""The part by which a kernel is slower if it reads the right operand in place."""


class Way(IntEnum):
    """How a kernel gets an operand: in place; packed, from elements or from terms that are neighbours; packed from
    several axes in memory; from memory to which a feeder writes; converted, with the elements of a group of panels as
    neighbours; or from panels in memory, which several products share."""

    IN_PLACE = 0
    ALONG = 1
    ACROSS = 2
    OVER_AXES = 3
    FED = 4
    CONVERTED = 5
    IN_PANELS = 6


@cache
def block_of(dtype: Dtype) -> Block:
    """The block for this processor: for 32 registers of 64 bytes if it has them, else for 16 of 32 bytes."""
    return Block(dtype, 8, 3, 64) if "+avx512f" in host.current().features else Block(dtype, 4, 3, 32)


def filled(block: Block, rows: int, columns: int) -> Block:
    """The block for a product with ``rows`` rows and ``columns`` columns. With long vectors it differs from ``block``
    if that avoids a single vector at the end, which takes longer alone than with others. With short ones it is higher
    and narrower, unless blocks would then have too many rows or columns that do not exist."""
    if block == Block(block.dtype, 8, 3, 64):
        vectors = -(-columns // block.lanes)
        return Block(block.dtype, 6, 4, 64) if vectors % 3 == 1 and vectors % 4 != 1 else block
    high = Block(block.dtype, 6, 2, 32)
    areas = [-(-rows // one.rows) * one.rows * -(-columns // one.columns) * one.columns for one in (block, high)]
    part, whole = MISSING
    return block if whole * areas[0] < part * areas[1] else high


class DirectReading(IntEnum):
    """Which tiles read the right operand in place: none, those of few rows, or all, because it is stored as a panel
    is."""

    NOWHERE = 0
    IN_FEW_ROWS = 1
    AS_PANELS = 2


class Lying(NamedTuple):
    """Whether the left operand is always read in place, and which tiles read the right one in place."""

    left: bool
    right: DirectReading


PACKED = Lying(False, DirectReading.NOWHERE)


class _Costs:
    """A model of the time that tiles take, as multiplications for each term of the sums."""

    def __init__(self, block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying) -> None:
        rows, columns, inner = extents
        self.block = block
        self.matrices = matrices
        self.lying = lying
        self.columns = -(-columns // block.lanes) * block.lanes
        self.busy = max(1, min(threads, matrices * rows * self.columns * inner // SMALLEST_SHARE))
        least, most = SINGLE_TILE_WORK
        work = matrices * rows * columns * inner / 2 if self.busy == 2 else 0
        self.takes_single_tiles = least <= work <= most
        self.takes_large_tiles = work > most
        self.down = max(1, -(-rows // self.block.rows))
        self.across = max(1, -(-columns // self.block.columns))
        square = SQUARE * block.terms
        terms = -(-max(1, min(inner, DEPTH)) // square) * square
        widest = max(1, TILE_BYTES * block.terms // (terms * block.columns * block.dtype.size))
        self.widest = FLAT_BLOCKS[1] * block.terms if self.down <= FLAT_BLOCKS[0] else widest
        if lying.right is DirectReading.AS_PANELS:
            self.widest = maxsize  # nothing is packed

    def time(self, tile: tuple[int, int], span: int = 1) -> float:
        """The time for all units, as if those at the edges of the result were whole. A unit is ``span`` tiles side by
        side; the extents of a tile are in blocks."""
        units = self.matrices * -(-self.down // tile[0]) * -(-self.across // (tile[1] * span))
        return self.time_of_units(tile, -(-units // self.busy)) * span

    def time_with_edges(self, tile: tuple[int, int]) -> float:
        """The time for all units, of which those at the edges of the result are smaller. Threads take them in order."""
        high, wide = tile[0], min(tile[1] * self.block.columns, self.columns)
        down = [min(high, self.down - top) / high for top in range(0, self.down, high)]
        across = [min(wide, self.columns - left) / wide for left in range(0, self.columns, wide)]
        ends = [0.0] * self.busy
        for _ in range(self.matrices):
            for height in down:
                for width in across:
                    first = ends.index(min(ends))
                    ends[first] += height * width
        return self.time_of_units(tile, max(ends))

    def time_of_units(self, tile: tuple[int, int], units_of_thread: float) -> float:
        """The time for as many tiles as one thread computes."""
        high, wide = tile[0] * self.block.rows, min(tile[1] * self.block.columns, self.columns)
        uneven = UNEVEN if self.busy > 1 else 0.0
        if units_of_thread == 1 and self.takes_single_tiles:
            uneven /= 2
        if self.takes_large_tiles:
            uneven = UNEVEN_OF_TWO
        left = READING * high if self.lying.left else PACKING * high
        right: float = PACKING * wide
        if self.lying.right is DirectReading.AS_PANELS:
            right = READING * wide
        elif self.lying.right is DirectReading.IN_FEW_ROWS and high <= FEW_ROWS:
            right = READING_IN_PLACE * high * wide + READING * wide
        return (units_of_thread + uneven) * (high * wide + left + right)

    def elements(self, tile: tuple[int, int]) -> int:
        return tile[0] * self.block.rows * tile[1] * self.block.columns

    def heights(self) -> list[int]:
        """The heights that tiles may have, in blocks."""
        narrowest = max(1, self.matrices * self.across)
        return _parts(self.down, self.down, max(MOST_CUTS, -(-UNITS_PER_THREAD * self.busy // narrowest)))

    def widths(self) -> list[int]:
        """The widths that tiles may have, in blocks."""
        return _parts(self.across, self.widest, MOST_CUTS)

    def tiles(self) -> list[tuple[int, int]]:
        return [(high, wide) for high in self.heights() for wide in self.widths()]

    def few_tiles(self) -> list[tuple[int, int]]:
        """Tiles so large that there are few units."""
        most = FEW_UNITS // self.matrices
        return [(h, w) for h, w in self.tiles() if -(-self.down // h) * -(-self.across // w) <= most]

    def best(self) -> tuple[int, int]:
        """The tile that takes the least time."""
        found = min(self.tiles(), key=self.time)
        few = self.few_tiles() if self.takes_large_tiles else []
        if found not in few:
            return found
        other = min(few, key=self.time_with_edges)
        return other if self.time_with_edges(other) < EVENER * self.time_with_edges(found) else found


@as_a_whole
@cache
def tile_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying = PACKED
) -> tuple[int, int]:
    """Rows and columns of a tile: with large tiles each operand is packed less often, with several all threads are
    busy."""
    costs = _Costs(block, extents, matrices, threads, lying)
    high, wide = costs.best()
    return high * block.rows, wide * block.columns


@cache
def time_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying = PACKED
) -> tuple[float, int]:
    """The time that products take in the best tiles, as multiplications of a thread; and how many threads are busy."""
    costs = _Costs(block, extents, matrices, threads, lying)
    return min(map(costs.time, costs.tiles())) * extents[2], costs.busy


@as_a_whole
@cache
def row_tile_of(
    block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: Lying
) -> tuple[int, int, int] | None:
    """Rows and columns of a tile, and how many tiles side by side make whole rows, which are a unit. None if that takes
    longer than storing the result and reading it again."""
    rows, columns, inner = extents
    costs = _Costs(block, extents, matrices, threads, lying)
    passing = 2 * PASSING * matrices * rows * columns / costs.busy / max(inner, 1)
    found = []
    for wide in costs.widths():
        span = -(-costs.across // wide)
        limit = ROWS_BYTES // block.dtype.size if span > 1 else maxsize
        heights = [high for high in costs.heights() if span * costs.elements((high, wide)) <= limit]
        found += [(costs.time((high, wide), span), high, wide, span) for high in heights]
    if not found:
        return None
    time, high, wide, span = min(found, key=lambda one: one[0])
    if time > costs.time(costs.best()) + passing:
        return None
    return high * block.rows, wide * block.columns, span


def _parts(whole: int, most: int, sizes: int) -> list[int]:
    """Sizes of equal parts of a whole, each at most ``most``; the largest size first, and at most so many ``sizes``."""
    fewest = -(-whole // most)
    return sorted({-(-whole // pieces) for pieces in range(fewest, fewest + sizes)}, reverse=True)


def terms_of(block: Block, extents: tuple[int, int, int], tile: tuple[int, int]) -> int:
    """How many terms are packed at once. If caches hold the result, it stays there while the next block of terms is
    packed. For a larger one more terms are packed, so that each group of panels is finished, as far as there is
    room."""
    rows, columns, inner = extents
    high, wide = min(tile[0], rows), min(tile[1], columns)
    if inner <= DEPTH or high * wide * block.dtype.size <= WAITING_BYTES:
        return DEPTH
    room = TILE_BYTES // (-(-wide // block.columns) * block.columns * block.dtype.size)
    return max(DEPTH, min(room, MOST_TERMS) // DEPTH * DEPTH)


def scratch_of(block: Block, inner: int, terms: int, tile: tuple[int, int], span: int) -> tuple[int, bool]:
    """How many bytes of scratch memory a unit needs for its result, and whether each group of panels uses the same
    memory: it does if it is finished before the next one."""
    at_once = inner <= terms and span == 1
    rows = min(tile[0], GROUP * block.rows) if at_once else tile[0]
    return rows * tile[1] * span * block.dtype.size, at_once


def ways_of(
    block: Block, sources: Sources, extents: tuple[int, int, int], strides: Sequence[int], tile: tuple[int, int]
) -> tuple[Way, Way]:
    """How the kernel gets both operands. ``strides`` are those of the left one from row to row and from term to term,
    and of the right one from term to term and from column to column. The kernel needs its own dtype, and columns of a
    term that are neighbours; apart from that, the way is chosen to save time."""
    rows, columns, inner = extents
    _, a_inner, _, b_column = strides
    left, right = (Way.ACROSS if a_inner == 1 else Way.ALONG), (Way.ALONG if b_column == 1 else Way.ACROSS)
    size = block.dtype.size
    seldom = tile[1] < OFTEN * block.columns or inner < DEPTH
    is_little = rows * inner * size <= (LITTLE_LEFT if seldom else LITTLE)
    if sources.left is block.dtype:
        if is_little or (left is Way.ACROSS and seldom):
            left = Way.IN_PLACE
    elif left is Way.ALONG and is_little and converts_whole_lines(block, sources):
        left = Way.CONVERTED
    if sources.right is block.dtype and right is Way.ALONG:
        reading = reading_right(block, sources.right, extents, strides)
        if (
            inner * columns * size <= LITTLE
            or reading is DirectReading.AS_PANELS
            or (reading is DirectReading.IN_FEW_ROWS and tile[0] <= FEW_ROWS)
        ):
            right = Way.IN_PLACE
    return left, right


def keeps_columns(block: Block) -> bool:
    """Whether the first cache has room for a panel of columns, beside one of rows: it has if vectors are short. Then
    each panel of columns is multiplied with a group of panels of rows, so it is read from caches further away once for
    the group."""
    return block.vector_bytes < 64


def converts_whole_lines(block: Block, sources: Sources) -> bool:
    """Whether a left operand may be converted in whole lines of elements that are neighbours."""
    return sources.left is not block.dtype and not sources.left.is_complex and block.terms == 1


def fed_strides(block: Block, turned: bool) -> tuple[int, int]:
    """The strides of rows and terms of a left operand that a feeder makes; it is stored by columns if ``turned``."""
    return (1, GROUP * block.rows) if turned else (DEPTH, 1)


def reading_right(block: Block, source: Dtype, extents: tuple[int, int, int], strides: Sequence[int]) -> DirectReading:
    """Which tiles read the right operand in place. One that is stored as a panel is need not be packed."""
    rows, columns, inner = extents
    if source is not block.dtype or strides[3] != 1:
        return DirectReading.NOWHERE
    if columns <= strides[2] <= block.columns:
        return DirectReading.AS_PANELS
    if keeps_columns(block) and strides[2] * source.size % FEW_SETS == 0:
        return DirectReading.NOWHERE
    most = SELDOM_BYTES if rows <= SELDOM_BLOCKS * block.rows else NEAR
    return DirectReading.IN_FEW_ROWS if inner * columns * source.size <= most else DirectReading.NOWHERE
