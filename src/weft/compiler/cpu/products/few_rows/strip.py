"""Strips of columns, which are the units of work of products of a few rows with a matrix: how many rows and vectors of
columns are computed together on a processor, and in what order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from sys import maxsize

from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import HALVES, Lanes
from weft.compiler.cpu.memory import WAY_BYTES
from weft.compiler.cpu.products.half_squares import SHORT_VECTOR
from weft.compiler.cpu.products.step import Block, Sources
from weft.compiler.cpu.products.term_squares import terms_of_square
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH

MOST_ROWS = 16
"""With more rows, it pays to pack the matrix."""
LITTLE_WORK = 1 << 15
MOST_ROWS_OF_LITTLE = 32
"""The same limit for products of at most `LITTLE_WORK` multiplications: with tiles, most of their time would be that of
choosing and packing these."""
MOST_ROWS_OF_HALVES = 128
"""The same limit for a matrix of half precision, whose columns are converted for the first block of rows."""
MOST_ROWS_ACROSS = 8
"""The limit for a matrix in the cache that has to be transposed: here it is transposed for each block of rows, but
only once if it is packed. It holds outside of the cache too if the few rows are the columns of a product that is
computed as the transposed one: the kernel for blocks then computes the product itself, and need not transpose."""

LONG_VECTOR = 64
"""The bytes of the vectors of processors whose registers hold three half squares."""
SHORTEST_VECTOR = 16
"""Bytes of the shortest vectors into which narrow matrices are transposed: longer ones would be mostly empty."""

FEW_SUMS = 4
"""With at most this many rows, the sums of one vector of columns leave the processor idle."""
MOST_STAGGERED = 3
"""With more rows, their additions keep the processor busy while a single vector of columns is done."""
SHORT_COLUMN = 1 << 10
"""Columns of fewer bytes end before a processor has noticed that it should read ahead in them."""
MOST_CACHED, MOST_NEAR = 32 << 20, 3 << 17
"""Matrices of at most so many bytes are in some cache, or in one so near that nothing is worth a prefetch."""
CONVERTED = 130 << 10
"""A left operand of at most this many elements, with gaps between its rows, is converted or copied once for all strips,
others are converted a block of terms at a time for each strip."""
COPIED_FOR = 64
"""With at least so many columns, copying the rows takes little of the time."""
LINES_OF_SET = {"znver4": 8}
"""How many lines a set of the first cache holds, by LLVM's names of processors with long registers. Others that were
measured hold more."""

ROWS_OF_NARROW_BLOCK = {64: {1: MOST_ROWS}, 32: {1: 12, 3: 4}}
"""How many rows a block has at most for a narrow matrix, by the bytes of a vector and the number of vectors of a row,
where that differs: then registers hold the sums of whole rows."""

BLOCKS_OF_KEPT = {24: ((8, 3), (6, 4), (5, 5), (8, 2), (12, 2)), 12: ((6, 2), (4, 3))}
"""Blocks of rows and vectors for columns of half precision that are kept for several blocks of rows, by how many sums
registers hold."""

FEW_STRIPS = 4
"""Of at most so many strips, a single vector that is left over takes much of the time."""


def has_short_registers() -> bool:
    """Whether the processor has registers of 32 bytes, and half as many as others have."""
    return "+avx512f" not in host.current().features


@dataclass(frozen=True)
class Strip(Block):
    """A block as wide as the strip of columns that is a unit of work.

    ``across``: the terms of a column are neighbours in memory, and vectors of them are transposed; otherwise columns
    are neighbours. ``apart``: columns are no neighbours in the result. ``beside``: the terms of a row are neighbours in
    memory. ``in_pairs``: terms of half precision are transposed in pairs, if there are enough for squares of these.
    ``far``: lines of columns are prefetched (see `is_far`). ``blocks``: so many blocks of terms are summed side by
    side; then the strip is one vector. ``keeps``: columns are converted for the first block of rows, and
    kept for the others. ``staggered``: the second one of two vectors of columns is a block of terms behind the first.
    ``copies``: the rows are copied first (see `copies_rows`). ``whole``: squares are read as whole lines.
    """

    across: bool
    apart: bool
    beside: bool
    in_pairs: bool = True
    far: bool = True
    blocks: int = 1
    keeps: bool = False
    staggered: bool = False
    copies: bool = False
    whole: bool = False

    @property
    def is_short(self) -> bool:
        """Whether vectors fill registers, and these are short."""
        return self.vector_bytes == SHORT_VECTOR and has_short_registers()


def lacks_masks(source: Dtype) -> bool:
    """Whether the processor has no masks for elements of half precision: then it takes long to read part of a
    vector."""
    return source in HALVES and "+avx512bw" not in host.current().features


def adds_halves(dtype: Dtype, source: Dtype) -> bool:
    """Whether numbers of ``source`` are transposed and added half a square at a time on processors with short
    registers. Complex numbers and those of float16 have squares of their own."""
    return source is dtypes.bfloat16 or (source is dtype and not dtype.is_complex)


def is_cut(strip: Strip, source: Dtype) -> bool:
    """Whether the kernel of whole strips computes part of one, too, which ends in its last vector: this then overlaps
    the one before. It must not be the only one, and pairs of vectors are as wide as two."""
    return strip.vectors > 1 and not has_pairs(strip, source)


def has_pairs(strip: Strip, source: Dtype) -> bool:
    """Whether pairs of neighbouring columns are read and stored together: then bfloat16 becomes float32, and the other
    way round, in fewer instructions."""
    return source is dtypes.bfloat16 and not strip.across and not strip.apart


def strip_of(
    dtype: Dtype,
    rows: int,
    columns: int,
    across: bool,
    apart: bool,
    beside: bool,
    side_by_side: int = 1,
    halves: int = maxsize,
    far: bool = True,
    threads: int = 1,
) -> Strip:
    """The strip for this processor: rows are divided evenly into as few blocks as registers allow. If ``across``, so
    many vectors may be done ``side_by_side``: see `vectors_side_by_side`. Vectors are no longer than a narrow matrix
    needs. ``halves`` is the number of terms, if the matrix has half precision; ``threads`` then share its strips."""
    vector_bytes, registers = (SHORT_VECTOR, 12) if has_short_registers() else (64, 24)
    most = _most_rows_of_block(across)
    if not across and rows > most:
        narrow = ROWS_OF_NARROW_BLOCK[vector_bytes]
        most = narrow.get(-(-columns * dtype.size // vector_bytes), most)
    height = _height(rows, most)
    while vector_bytes > SHORTEST_VECTOR and 2 * columns * dtype.size <= vector_bytes:
        vector_bytes //= 2
    all_vectors = -(-columns * dtype.size // vector_bytes)
    if across:
        strips = max(1, -(-all_vectors // side_by_side))
        vectors = max(1, -(-all_vectors // strips))
    else:
        vectors = max(1, min(8, registers // height, all_vectors))
    keeps = halves < maxsize and not across and height < rows
    if keeps:
        height, vectors = _block_of_kept(rows, all_vectors, BLOCKS_OF_KEPT[registers], threads)
        keeps = height < rows
    in_pairs = not across or halves * dtype.size >= 2 * vector_bytes
    far = not across or far
    return Strip(dtype, int(height), int(vectors), vector_bytes, across, apart, beside, in_pairs, far, keeps=keeps)


def _most_rows_of_block(across: bool) -> int:
    """How many rows a block has at most, so that registers hold its sums, and also half a square of terms if ``across``
    (with more than `FEW_SUMS`, a single vector of each row)."""
    return 6 if has_short_registers() and not across else 8


def _height(rows: int, most: int) -> int:
    """The height of blocks if rows are divided evenly into as few as possible."""
    return int(-(-rows // -(-rows // most)))


@as_a_whole
def _block_of_kept(rows: int, vectors: int, blocks: Sequence[tuple[int, int]], threads: int) -> tuple[int, int]:
    """Rows and vectors of a block that leaves few rows and vectors over, and few strips to the slowest thread."""

    def time(block: tuple[int, int]) -> float:
        height, wide = block
        strips, single = divmod(vectors, wide)
        of_strip, of_single = height * wide + 2, single * (1.5 * height + 2)
        of_slowest = -(-(strips + min(single, 1)) // max(threads, 1)) * of_strip
        return -(-rows // height) * (strips * of_strip + of_single if threads <= 1 else of_slowest)

    return min([(_height(rows, height), min(wide, vectors)) for height, wide in blocks], key=time)


def of_pairs(strip: Strip, columns: int) -> Strip:
    """The strip for pairs of bfloat16: with an even number of vectors, if there are few strips and none is cut then."""
    even = replace(strip, vectors=max(1, strip.vectors - strip.vectors % 2))
    is_better = strip.columns < columns <= FEW_STRIPS * strip.columns and columns % even.columns == 0
    return even if is_better else strip


def divided(strip: Strip, source: Dtype, columns: int, pieces: int) -> Strip:
    """The strip, or a narrower one, for at least so many ``pieces`` of columns, if there are so many vectors."""
    width = _width_of(columns, strip.lanes, strip.vectors, pieces, has_pairs(strip, source))
    return replace(strip, vectors=int(width))


@as_a_whole
def _width_of(columns: int, lanes: int, most: int, pieces: int, in_pairs: bool) -> int:
    """How many vectors of columns a strip has, so that there are as few strips as possible, and then as few vectors
    that are left over; these are strips of their own."""
    vectors = -(-columns // lanes)
    widest = max(1, min(most, vectors // max(pieces, 1)))
    step = 2 if in_pairs and widest % 2 == 0 else 1
    widths = range(widest, widest // 2, -step)
    return min(widths, key=lambda width: (vectors // width + vectors % width, vectors % width))


def terms_of(strip: Strip, source: Dtype) -> int:
    """How many terms of a matrix of the dtype ``source`` are transposed at once."""
    return terms_of_square(Lanes(Emitter(), strip.lanes), source, strip.in_pairs)


def vectors_side_by_side(dtype: Dtype, source: Dtype, rows: int, inner: int, stride: int) -> int:
    """How many vectors of columns, which are ``stride`` elements apart, are done side by side. With few rows this pays,
    as the additions of a single vector wait for each other. But each lane reads a cache line of its own: if all are in
    one set of the first cache, or in two, more than 16 lines evict each other (32 lines of float32 in one set do on
    Zen 5; with other dtypes they do not). Two short vectors are enough if half a square is added at a time; their 16
    lines evict each other in one set, but not in two."""
    if _height(rows, _most_rows_of_block(True)) > FEW_SUMS:
        return 1
    if not has_short_registers():
        return 1 if source is dtypes.float32 and _are_apart(source, stride, WAY_BYTES) else 2
    if not source.is_complex and _are_apart(source, stride, WAY_BYTES):
        return 2 if staggers(dtype, source, rows, inner, stride) else 1
    few = _are_apart(source, stride, WAY_BYTES // 2) or adds_halves(dtype, source)
    return 2 if few else 4


def staggers(dtype: Dtype, source: Dtype, rows: int, inner: int, stride: int) -> bool:
    """Whether the second one of two short vectors of columns is a block of terms behind the first one, so that lines of
    both are in other sets."""
    takes = has_short_registers() and (source in HALVES or adds_halves(dtype, source))
    return takes and rows <= MOST_STAGGERED and inner >= 2 * DEPTH and _are_apart(source, stride, WAY_BYTES)


def for_first_cache(strip: Strip, source: Dtype, rows: int, stride: int, is_cached: bool) -> Strip:
    """The strip, or a narrower one, for columns that are ``stride`` elements apart: of one vector if the first cache
    does not hold the lines of several. If it does not even hold those of one, lines are read as a whole instead of one
    half and then the other one. Matrices in the second cache, which ``is_cached`` says, are read faster by halves if
    they have half precision; and with two blocks of terms side by side, if lines of one vector stay."""
    if strip.far or strip.vector_bytes < LONG_VECTOR or rows > FEW_SUMS:
        return strip
    kept = _lines_kept(source, stride)
    if strip.lanes > kept and not (is_cached and source in HALVES):
        return replace(strip, vectors=1, whole=True)
    return strip if is_cached or strip.columns <= kept else replace(strip, vectors=1)


def _lines_kept(source: Dtype, stride: int) -> int:
    """How many columns, ``stride`` elements apart, have a line each in the first cache, as far as is known."""
    of_set = LINES_OF_SET.get(host.current().name, maxsize)
    if _are_apart(source, stride, WAY_BYTES):
        return of_set
    return 2 * of_set if _are_apart(source, stride, WAY_BYTES // 2) else maxsize


def copies_rows(dtype: Dtype, sources: Sources, extents: tuple[int, int, int], strides: Sequence[int]) -> bool:
    """Whether rows are copied for all strips, to a place where their lines are not in the sets of the first cache that
    hold lines of the columns: these sets are full if columns are a multiple of `WAY_BYTES` apart. A single row
    has few lines."""
    rows, columns, inner = extents
    takes = has_short_registers() and sources.left is dtype and sources.right is dtype and not dtype.is_complex
    # Rows are some vectors longer there, and begin less than `WAY_BYTES` after the beginning of the memory.
    room = WAY_BYTES // dtype.size + rows * (inner + 3 * SHORT_VECTOR // dtype.size)
    fits = room <= CONVERTED and columns >= COPIED_FOR and rows > 1
    return takes and fits and strides[1] == 1 and inner >= 2 * DEPTH and _are_apart(dtype, strides[3], WAY_BYTES)


def is_far(source: Dtype, elements: int, stride: int) -> bool:
    """Whether columns, which are ``stride`` elements apart, of matrices with so many ``elements`` are prefetched: if
    the matrices are in no cache, or columns are short and vectors, too."""
    is_near = elements * source.size <= MOST_NEAR
    is_short = has_short_registers() and stride * source.size < SHORT_COLUMN
    return elements * source.size > MOST_CACHED or (is_short and not is_near)


def _are_apart(source: Dtype, stride: int, size: int) -> bool:
    """Whether columns are a multiple of ``size`` bytes apart."""
    return stride * source.size % size == 0


def blocks_side_by_side(source: Dtype, rows: int, inner: int, stride: int) -> int:
    """How many blocks of terms of a matrix in the second cache are summed side by side in place of vectors of columns:
    two, if columns are in one set of the first cache, or in two, so that the lines of more than 16 columns evict each
    other. Those of another block are in other sets. From further away, they would come later than lines of columns."""
    crowded = not has_short_registers() and _are_apart(source, stride, WAY_BYTES // 2)
    return 2 if crowded and rows <= FEW_SUMS and inner >= 2 * DEPTH else 1
