"""How sorting is cut into units of work, and the scratch memory that this takes. Both depend on shapes alone."""

from __future__ import annotations

from dataclasses import dataclass

from weft.dtypes import Dtype

SHORT = 32
"""Rows of at most this many elements are sorted by a network, ..."""
MIDDLE, MANY_ROWS = 256, 8
"""... and so are longer ones of at most `MIDDLE` elements, if there are `MANY_ROWS`."""
LONG, FEW_ROWS = 1 << 14, 16
"""Rows of at least `LONG` elements are cut into blocks, if there are fewer than `FEW_ROWS`."""
SMALLEST_BLOCK, BLOCK_BYTES, FEWEST_BLOCKS = 2048, 1 << 16, 16
"""A block has `SMALLEST_BLOCK` elements, or more as long as there are `FEWEST_BLOCKS` and it moves `BLOCK_BYTES`."""
CHUNKS, FEWEST_CHUNKS = 128, 16
CHUNK_MEMORY = 1 << 26
NEAR_BYTES = 1 << 16
"""Words of a row that take at most so much memory are sorted on the stack of the thread, if rows are not cut."""
ALIGNMENT = 64
BUCKETS, SAMPLE = 64, 1024
"""Buckets into which the elements of a long row go, and how many elements decide what goes where."""
BUCKET_BYTES = 1 << 17
"""Neighbouring buckets are joined as long as their words take no more memory: then there are fewer to tell apart."""
BUFFERS = 3
PARTED_BLOCK = 1 << 14
"""Elements that a unit of work moves where rows are written in groups."""


def word_bytes(dtype: Dtype, indices: bool) -> int:
    """Bytes of what is moved: a key, or, where the index is needed, 32 bits of a key and an index."""
    return 8 if indices or dtype.is_complex else dtype.size


@dataclass(frozen=True)
class SortCut:
    """``rows`` of ``extent`` elements, for each of which ``word`` bytes are moved."""

    rows: int
    extent: int
    word: int

    @property
    def by_network(self) -> bool:
        """Whether it is a network, unless the target has something better for rows of more than `SHORT` elements."""
        return self.extent <= SHORT or (self.extent <= MIDDLE and self.rows >= MANY_ROWS)

    @property
    def by_blocks(self) -> bool:
        return self.extent >= LONG and self.rows < FEW_ROWS

    @property
    def buffer(self) -> int:
        """Bytes of the words of a row."""
        return aligned(self.extent * self.word)

    @property
    def chunks(self) -> int:
        """Rows that are sorted one after the other are a chunk, which has two buffers."""
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
        """How many neighbouring buckets are not told apart."""
        joined = 1
        while joined < BUCKETS // FEWEST_BLOCKS and 2 * joined * self.buffer <= BUCKETS * BUCKET_BYTES:
            joined *= 2
        return joined

    @property
    def row_scratch(self) -> int:
        """Scratch memory of a row that is cut into blocks: buffers, and for each block and bucket some numbers."""
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
    """How ``rows`` of ``extent`` elements of ``size`` bytes are parted, and where in the scratch memory what lies.

    The selected elements come first, then two numbers for each block, then what selecting takes.
    """

    rows: int
    extent: int
    size: int

    @property
    def is_sorted(self) -> bool:
        """Whether rows are sorted instead."""
        return self.extent <= MIDDLE

    @property
    def counts(self) -> int:
        """The first byte of the numbers."""
        return aligned(self.rows * self.size)

    @property
    def selection(self) -> int:
        """The first byte of what selecting takes."""
        return self.counts + counts_bytes(self.rows, self.extent)

    def scratch(self, word: int) -> int:
        """Bytes in all; words of ``word`` bytes are moved where rows are sorted."""
        if self.is_sorted:
            return SortCut(self.rows, self.extent, word).scratch
        return self.selection + SortCut(self.rows, self.extent, self.size).scratch


def parted_blocks(extent: int) -> int:
    """How many units of work such a row has."""
    return -(-extent // PARTED_BLOCK)


def counts_bytes(rows: int, extent: int) -> int:
    """Bytes of two numbers for each block of rows whose elements are written in groups."""
    return aligned(16 * rows * parted_blocks(extent))


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
