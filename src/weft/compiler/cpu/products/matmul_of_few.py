"""How matrix products of few rows or columns are computed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from sys import maxsize

from weft.compiler.codegen.lanes import HALVES
from weft.compiler.cpu.products.few_rows import rows_at_once
from weft.compiler.cpu.products.few_rows import step as few_rows
from weft.compiler.cpu.products.few_rows import strip as few_rows_strip
from weft.compiler.cpu.products.few_rows.strip import Strip, has_pairs
from weft.compiler.cpu.products.packed import pairs as product_pairs
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.runtime.executor import thread_count

from .attached import Lines, section
from .described import Product, Tiled
from .pairs_of_bfloat16 import MOST_LANES
from .tiles import SMALLEST_SHARE

_WORK_OF_READER = 1 << 19
READING = 16
"""Reading an element from memory takes the time of this many multiplications."""

KB = 1 << 10
SECOND_CACHE = 2 << 20
"""How much data of a thread is in its second cache. Where it is smaller, the next one is fast."""
CACHED = 1 << 20
"""A matrix of at most this many bytes is in the second cache."""
ROWS_OF_SINGLES, SINGLES = 64, 8
"""With more rows than the first number, one of so many vectors (the second number) may be left over by strips."""
MOST_UNEVEN = 1.15
"""The most time of the slowest thread, as a part of that of all if they have equal shares."""


def of_few(product: Product) -> Tiled | None:
    """A product of few rows or columns; None if it has too many."""
    rows, columns, _ = product.extents
    if rows <= columns:
        return _of_few_rows(product, False)
    found = _of_few_rows(product.transposed(), True)
    if found is None:
        return _of_few_rows(product, False) if _may_keep(product) else None
    address, numbers, (wide, high) = found
    return address, numbers, (high, wide)


def _of_few_rows(product: Product, transposed: bool) -> Tiled | None:
    """A product of few rows, with the result stored ``transposed``; None if there are too many rows."""
    dtype, sources, places, (rows, columns, inner), _, batch = product[:6]
    strip = strip_of(product, transposed)
    if strip is None:
        return None
    in_strips = _is_cached(product) and _adds_up_in_registers(strip, rows, sources.right)
    if in_strips and not (strip.across or strip.keeps) and strip.columns < columns:
        strip = few_rows_strip.divided(strip, sources.right, columns, _busy_with_matrix(product))
    if strip.across or strip.columns >= columns or in_strips:
        strides, behind = stored(product, transposed, strip.columns)
        numbers = few_rows.step_numbers(places, product.extents, strides, strip, batch, behind)
        return partial(few_rows.address, strip, sources), numbers, (rows, strip.columns)
    at_once = rows_at_once.rows_at_once_of(dtype, rows, strip.apart)
    width = rows_at_once.width_of(at_once.widest, columns, product.matrices, _busy(product))
    size = product.matrices * inner * columns * sources.right.size
    at_once = rows_at_once.of_strips(at_once, width, columns, sources.right, size)
    strides, behind = stored(product, transposed, width)
    numbers = rows_at_once.step_numbers(places, product.extents, strides, width, batch, behind)
    return partial(rows_at_once.address, at_once, sources), numbers, (rows, width)


def copies_rows(product: Product) -> bool:
    """Whether each call of the step for a product of few rows or columns copies these first."""
    few = product if product.extents[0] <= product.extents[1] else product.transposed()
    is_few = product.matrices == 1 and few.extents[0] <= few_rows_strip.MOST_ROWS
    return is_few and few_rows_strip.copies_rows(few.dtype, few.sources, few.extents, few.strides)


def shares_terms(product: Product) -> bool:
    """Whether threads should share the terms of a product of few rows, as `parts` does it, and not its columns.
    If the rows of the matrix have whole KB, strips of its columns are in few sets of the second cache, which then does
    not hold a thread's strip. It does hold blocks of whole rows, if these are not too long."""
    rows, columns, inner = product.extents
    _, _, far, beside = product.strides
    row, threads = far * product.sources.right.size, thread_count()
    if product.axes is not None or rows > min(columns, rows_at_once.FEWEST_ROWS) or beside != 1:
        return False
    if not columns <= far < 2 * columns:
        return False
    return row % KB == 0 and row * DEPTH <= SECOND_CACHE < row * inner <= threads * SECOND_CACHE


def _busy(product: Product) -> int:
    """How many threads have enough to read."""
    _, columns, inner = product.extents
    return min(thread_count(), product.matrices * inner * columns * READING // _WORK_OF_READER)


def _busy_with_matrix(product: Product) -> int:
    """How many of these threads share a matrix of a stack."""
    return -(-_busy(product) // max(product.matrices, 1))


def _adds_up_in_registers(strip: Strip, rows: int, source: Dtype) -> bool:
    """Whether a matrix in the second cache is multiplied faster in strips whose sums are in registers: with several
    rows, or if elements are converted in long vectors, or in pairs."""
    fast = has_pairs(strip, source) or strip.lanes == MOST_LANES
    return (source in HALVES and fast) or rows > rows_at_once.FEWEST_ROWS


def _is_cached(product: Product) -> bool:
    """Whether the right operand is in the second cache."""
    _, columns, inner = product.extents
    return inner * columns * product.sources.right.size <= CACHED


def strip_of(product: Product, transposed: bool) -> Strip | None:
    """The strip for a product of few rows; None if there are too many rows."""
    dtype, sources, _, (rows, columns, inner) = product[:4]
    across, apart = product.strides[3] != 1, transposed and rows > 1
    most = few_rows_strip.MOST_ROWS_ACROSS if across and (_is_cached(product) or apart) else few_rows_strip.MOST_ROWS
    if not across and not transposed and rows * columns * inner <= few_rows_strip.LITTLE_WORK:
        most = few_rows_strip.MOST_ROWS_OF_LITTLE
    in_pairs = product_pairs.takes(dtype, sources, product.extents) and not apart
    if in_pairs:
        most = product_pairs.most_rows(product.extents, across)
    few = rows <= most
    if not few and (across or transposed or in_pairs or not _may_keep(product)):
        return None
    # Elements that are converted first are neighbours then: the rows of a term if they were, without gaps, else
    # the terms of a row.
    converted = sources.left is not dtype
    beside = product.strides[1] == 1 or (converted and (product.strides[0] != 1 or product.strides[1] != rows))
    side_by_side = few_rows_strip.vectors_side_by_side(dtype, sources.right, rows, inner, product.strides[3])
    halves = inner if sources.right in HALVES else maxsize
    far = few_rows_strip.is_far(sources.right, product.matrices * inner * columns, product.strides[3])
    threads = _busy_with_matrix(product)
    strip = few_rows_strip.strip_of(dtype, rows, columns, across, apart, beside, side_by_side, halves, far, threads)
    if not few and not _fills_strips(product, strip):
        return None
    if has_pairs(strip, sources.right) and not strip.keeps:
        return few_rows_strip.of_pairs(strip, columns)
    if across and few_rows_strip.copies_rows(dtype, sources, product.extents, product.strides):
        strip = replace(strip, copies=True)
    if across and strip.vectors > 1 and few_rows_strip.staggers(dtype, sources.right, rows, inner, product.strides[3]):
        return replace(strip, staggered=True)
    if not across:
        return strip
    strip = few_rows_strip.for_first_cache(strip, sources.right, rows, product.strides[3], _is_cached(product))
    if strip.whole or not _is_cached(product):
        return strip
    blocks = few_rows_strip.blocks_side_by_side(sources.right, rows, inner, product.strides[3])
    return replace(strip, vectors=1, blocks=blocks) if blocks > 1 else strip


def _may_keep(product: Product) -> bool:
    """Whether columns of a matrix in a cache may be converted for some rows, and kept for more of them."""
    halves = product.sources.right in HALVES and product.extents[0] <= few_rows_strip.MOST_ROWS_OF_HALVES
    return halves and not product.whole and _is_cached(product)


def _fills_strips(product: Product, strip: Strip) -> bool:
    """Whether strips are shared well, and few of the vectors of many rows are left over, and done one by one."""
    rows, columns, _ = product.extents
    vectors = -(-columns // strip.lanes)
    if rows > ROWS_OF_SINGLES and SINGLES * (vectors % strip.vectors) > vectors:
        return False
    return _have_equal_shares(product.extents, product.matrices, strip.columns, thread_count())


@as_a_whole
def _have_equal_shares(extents: tuple[int, int, int], matrices: int, width: int, threads: int) -> bool:
    """Whether threads have about equally much work if they share strips of a ``width``: tiles may be cut into rows,
    too."""
    rows, columns, inner = extents
    busy = max(1, min(threads, matrices * rows * columns * inner // SMALLEST_SHARE))
    strips = matrices * columns / width
    return busy == 1 or -(-strips // busy) * busy <= MOST_UNEVEN * strips


def stored(product: Product, transposed: bool, width: int) -> tuple[list[int], tuple[int, ...]]:
    """All strides of a product of few rows in strips, and the section of an attached kernel."""
    rows, columns, _ = product.extents
    pitch = rows if transposed else columns if product.in_memory else width
    result = (1, pitch) if transposed else (pitch, 1)
    turned = transposed and rows > 1
    return [*product.strides, *result], section(product.attached, Lines(columns if turned else rows, turned, pitch))
