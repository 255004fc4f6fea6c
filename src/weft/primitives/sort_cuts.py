"""How sorting is cut into units of work, and the scratch memory that it needs. Both depend on shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from weft.dtypes import Dtype

SHORT = 32
"""Rows of at most this many elements are sorted by a network, ..."""
MIDDLE, MANY_ROWS = 256, 8
"""... and so are longer rows of at most `MIDDLE` elements, if there are at least `MANY_ROWS`."""
LONG, FEW_ROWS = 1 << 14, 16
"""Rows of at least `LONG` elements are cut into blocks, if there are fewer than `FEW_ROWS`."""
SMALLEST_BLOCK, BLOCK_BYTES, FEWEST_BLOCKS = 2048, 1 << 16, 16
"""A block is the `FEWEST_BLOCKS`-th part of a row, but at least `SMALLEST_BLOCK` elements and at most `BLOCK_BYTES`."""
CHUNKS, FEWEST_CHUNKS = 128, 16
CHUNK_MEMORY = 1 << 26
NEAR_BYTES = 1 << 16
"""Rows that are not cut and whose words take at most this many bytes are sorted on the stack of the thread."""
ALIGNMENT = 64
BUCKETS, SAMPLE = 64, 1024
"""The number of buckets for the elements of a long row, and how many sampled elements determine their borders."""
BUCKET_BYTES = 1 << 17
"""Neighbouring buckets are joined while their words take at most this many bytes, because fewer buckets are faster."""
BUFFERS = 3
PARTED_BLOCK = 1 << 15
"""How many elements a unit of work moves where the elements of rows are written in groups."""


def word_bytes(dtype: Dtype, indices: bool) -> int:
    """The bytes that are moved per element: its key or, if its index is needed, 32 bits of the key and the index."""
    return 8 if indices or dtype.is_complex else dtype.size


@dataclass(frozen=True)
class SortCut:
    """How ``rows`` of ``extent`` elements are sorted, of which ``word`` bytes are moved per element."""

    rows: int
    extent: int
    word: int

    @property
    def by_network(self) -> bool:
        """Whether rows are sorted by a network, unless the target has something better for more than `SHORT`
        elements."""
        return self.extent <= SHORT or (self.extent <= MIDDLE and self.rows >= MANY_ROWS)

    @property
    def by_blocks(self) -> bool:
        return self.extent >= LONG and self.rows < FEW_ROWS

    @property
    def buffer(self) -> int:
        """The bytes of the words of a row."""
        return aligned(self.extent * self.word)

    @property
    def chunks(self) -> int:
        """How many chunks rows are divided into; the rows of a chunk are sorted one after the other, in two buffers."""
        fitting = CHUNK_MEMORY // (2 * self.buffer)
        return min(self.rows, max(FEWEST_CHUNKS, min(CHUNKS, fitting)))

    @property
    def block(self) -> int:
        """Elements of a block."""
        return min(max(SMALLEST_BLOCK, self.extent // FEWEST_BLOCKS), BLOCK_BYTES // self.word)

    @property
    def blocks(self) -> int:
        return -(-self.extent // self.block)

    @property
    def joined_buckets(self) -> int:
        """How many neighbouring buckets are treated as one."""
        joined = 1
        while joined < BUCKETS // FEWEST_BLOCKS and 2 * joined * self.buffer <= BUCKETS * BUCKET_BYTES:
            joined *= 2
        return joined

    @property
    def row_scratch(self) -> int:
        """The scratch memory of a row that is cut into blocks: buffers, and counts for each block and bucket."""
        return BUFFERS * self.buffer + aligned(8 * (2 * BUCKETS + 5 + self.blocks * (BUCKETS + 3)))

    @property
    def scratch(self) -> int:
        if self.extent <= SHORT or not self.rows:
            return 0
        if self.by_blocks:
            return self.rows * self.row_scratch
        return self.chunks * 2 * self.buffer if self.buffer > NEAR_BYTES else 0


@dataclass(frozen=True)
class PartedCut:
    """How ``rows`` of ``extent`` elements of ``size`` bytes are partitioned, and the layout of the scratch memory.

    The selected elements come first, then two counts for each block if there are several, then the memory for
    selecting.
    """

    rows: int
    extent: int
    size: int

    @property
    def is_sorted(self) -> bool:
        """Whether rows are sorted instead of partitioned."""
        return self.extent <= MIDDLE

    @property
    def is_counted(self) -> bool:
        """Whether the elements of each group are counted in each block, before any are written."""
        return self.extent > PARTED_BLOCK

    @property
    def counts(self) -> int:
        """The first byte of the counts."""
        return aligned(self.rows * self.size)

    @property
    def selection(self) -> int:
        """The first byte of the memory for selecting."""
        return self.counts + (counts_bytes(self.rows, self.extent) if self.is_counted else 0)

    def scratch(self, word: int) -> int:
        """The bytes of the scratch memory; ``word`` is that of `SortCut` where rows are sorted."""
        if self.is_sorted:
            return SortCut(self.rows, self.extent, word).scratch
        return self.selection + SortCut(self.rows, self.extent, self.size).scratch


def parted_blocks(extent: int) -> int:
    """How many units of work a partitioned row has."""
    return -(-extent // PARTED_BLOCK)


def counts_bytes(rows: int, extent: int) -> int:
    """The bytes of two counts for each block of rows whose elements are written in groups."""
    return aligned(16 * rows * parted_blocks(extent))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
