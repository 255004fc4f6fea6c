"""Matrix products as steps of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen.lanes import HALVES
from weft.compiler.cpu.products import parts as product_parts
from weft.compiler.cpu.products import tiles
from weft.compiler.cpu.products.few_rows import complex_rows
from weft.compiler.cpu.products.few_rows import step as few_rows
from weft.compiler.cpu.products.few_rows import strip as few_rows_strip
from weft.compiler.cpu.products.packed import amx, blocks, complex_blocks
from weft.compiler.cpu.products.packed import pairs as product_pairs
from weft.compiler.cpu.products.packed import sums as product_sums
from weft.compiler.cpu.products.windows import axes as product_axes
from weft.compiler.cpu.products.windows import lines as product_lines
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.products import DEPTH, MOST_BATCH_AXES, leading
from weft.primitives.routine import CallSums, Factors, Operand, RoutineCall, RoutineStep
from weft.runtime.executor import thread_count
from weft.runtime.precision import FAST

from .attached import NONE, Lines, section
from .described import Product, Tiled
from .matmul_of_few import CACHED, READING, copies_rows, of_few, shares_terms
from .matmul_of_stacks import of_stack
from .shared_panels import shares
from .step import Block, Sources

_WORK_PER_GRAIN = 1 << 17
_STRIPS_PER_CALL = 8
"""How many strips a thread takes at once, if there are enough for all threads and each call converts few rows."""
_CALLS_THAT_COPY = 4
"""How many calls a thread makes, if there are few strips and each call copies few rows, which takes less time."""
_FED_BYTES = 1 << 22
"""The least size of an operand that a feeder makes: a smaller one stays in a cache, and is made faster as a whole."""

_WORK_PER_CALL = 1 << 15
"""The fewest multiplications for one call of an attached kernel: a call takes the time of some thousands of them."""

_ROWS_OVER_AXES = 32
"""From this many rows on, a left operand is read over several axes in memory, however many columns there are."""
_PACKED_MEANWHILE = 64
"""So many elements of a right operand are packed in the time in which a line of neighbours of the left one is copied:
short ones, such as those of the windows of a convolution of few channels, take long."""

_SIGNED: dict[Dtype, Dtype] = {dtypes.uint32: dtypes.int32, dtypes.uint64: dtypes.int64}
"""Sums of products wrap around, so unsigned integers are multiplied as signed ones, with the same bits."""


def _attaches(call: RoutineCall, whole: bool, in_memory: bool) -> bool:
    """Whether a kernel can be attached to a product. It cannot if numbers are complex, if there is little work, or if
    the kernel needs whole rows and tiles are narrower. Nor can it if columns are read line by line, if a single column
    is not computed as a row, because the lanes of the kernel go along it, or if sums are computed in parts."""
    product = _product_of(call, whole, in_memory)
    if _parts_of(call, product) > 1:
        return False
    in_own_way = product.axes is not None and (product.extents[1] == 1 or _is_of_lines(product))
    if product.dtype.is_complex or in_own_way:
        return False
    tiled = _of_tile_registers(product) if _uses_tile_registers(call) else _tiled(product)
    return tiled is not None and are_worth_calls(product, tiled, whole)


def are_worth_calls(product: Product, tiled: Tiled, whole: bool) -> bool:
    """Whether tiles have enough work for a call of an attached kernel, and whole rows if it needs them."""
    (rows, columns, inner), (_, _, (high, wide)) = product.extents, tiled
    if whole and (high < rows if columns == 1 else wide < columns):
        return False
    several = product.matrices > 1 or high < rows or wide < columns
    return not several or min(high, rows) * min(wide, columns) * inner >= _WORK_PER_CALL


def _reads(node: Node, position: int, factors: Factors) -> bool:
    """Whether a product can read an operand of which rows, columns or terms go over several axes in memory. Columns
    must be neighbours along the innermost axis; so must rows or terms of the left operand. A left operand with few rows
    and more columns is copied instead, unless that takes long: then the right one, which is larger, need not be
    packed."""
    *batch, first, last = factors
    sums = node.dtype not in HALVES and not node.dtype.is_complex
    if not sums or any(x.dtype is not node.dtype for x in node.inputs) or len(batch) > MOST_BATCH_AXES:
        return False
    if any(len(axis) > 1 for axis in batch) or max(len(first), len(last)) > product_axes.MOST_FACTORS:
        return False
    if position == 0:
        lines = [axis[-1][0] for axis in (first, last) if abs(axis[-1][1]) == 1 or axis[-1][0] == 1]
        rows, columns = node.shape[-2:]
        if not lines:
            return False
        few = rows < _ROWS_OVER_AXES and columns > 2 * rows
        return not few or (rows > 1 and columns * min(lines) <= _PACKED_MEANWHILE * rows)
    return last[-1][1] == 1 or last[-1][0] == 1


def _feeds(call: RoutineCall, position: int) -> bool:
    """Whether a kernel can make the left operand of a product. The product must be computed in blocks, in tiles as wide
    as the result, so that each element of the operand is needed once."""
    a, b = call.operands
    if position != 0 or len(a.shape) != 2 or a.dtype is not call.results[0].dtype or a.dtype.is_complex:
        return False
    if a.dtype in HALVES:
        return False
    if a.factors is not None or b.factors is not None or a.shape[0] * a.shape[1] * a.dtype.size < _FED_BYTES:
        return False
    product = _product_of(call, whole=False, in_memory=True)
    if of_few(product) is not None:
        return False
    block = _block_of(product)
    reading = tiles.reading_right(block, b.dtype, product.extents, product.strides)
    tile = tile_of(product, block, tiles.Lying(False, reading))
    return tile is not None and tile[0][1] >= product.extents[1]


def _rounds(node: Node, dtype: Dtype) -> bool:
    """Whether sums of half precision can be rounded when they are stored: they must be complete then. Those that become
    bfloat16 must be sums of products of such numbers: see `SumOfProducts`."""
    sources = [dtypes.bfloat16] if dtype is dtypes.bfloat16 else HALVES
    halves = dtype in HALVES and all(x.dtype in sources for x in node.inputs)
    complete = node.inputs[0].shape[-1] <= DEPTH and node.dtype is dtypes.float32
    return halves and complete and node.keywords["precision"] != FAST


def _parts_of(call: RoutineCall, product: Product) -> int:
    """In how many parts the sums of a product are computed. Only products in blocks have parts, and some of very
    few rows."""
    parts = _parts_for(call.results[0].dtype, product.extents, product.matrices)
    if parts == 1 or product.attached is not None or product.feeder is not None or _uses_tile_registers(call):
        return 1
    if _is_of_lines(product):
        return 1
    in_pairs = product_pairs.takes(product.dtype, product.sources, product.extents)
    if min(product.extents[:2]) <= few_rows_strip.MOST_ROWS:
        parts = parts if shares_terms(product) else 1
    elif in_pairs or (product.axes is None and (of_stack(product) is not None or of_few(product) is not None)):
        return 1
    return parts if product_parts.are_contiguous(product) else 1


def _parts_for(dtype: Dtype, extents: tuple[int, int, int], matrices: int) -> int:
    if dtype not in (dtypes.float32, dtypes.float64):
        return 1
    if min(extents[:2]) <= few_rows_strip.MOST_ROWS:
        return product_parts.count_of_few_rows(extents, matrices, thread_count())
    block = tiles.filled(tiles.block_of(dtype), *extents[:2])
    return product_parts.count_of(block, extents, matrices, thread_count(), tiles.PACKED)


def _scratch(node: Node) -> int:
    """Room for the sums of all parts."""
    *batch, rows, columns = node.shape
    parts = _parts_for(node.dtype, (rows, columns, node.inputs[0].shape[-1]), prod(batch))
    return parts * node.size * node.dtype.size if parts > 1 else 0


@p.matmul.routine.on(
    "cpu",
    scratch=_scratch,
    attaches=_attaches,
    reads=_reads,
    stacked=True,
    feeds=_feeds,
    rounds=_rounds,
    shares=shares,
    sums=CallSums(product_sums.together, product_sums.added_up),
)
def steps(call: RoutineCall) -> list[RoutineStep]:
    """The step for a matrix product; or one for the sums of parts, and one that adds these up."""
    attached = call.attached
    in_memory = attached is None or attached.in_memory
    product = _product_of(call, attached is not None and attached.whole, in_memory)
    parts = _parts_of(call, product)
    if parts > 1:
        apart = product_parts.in_parts(product, parts, call.scratch)
        tiled = _tiled_in_parts(apart)
        assert tiled is not None
        return [step_of(apart, tiled, _way(apart, False)), product_parts.adding(product, parts, call.scratch)]
    in_tiles = _uses_tile_registers(call)
    tiled = _of_tile_registers(product) if in_tiles else of_stack(product) or _tiled(product)
    assert tiled is not None
    return [step_of(product, tiled, _way(product, in_tiles))]


def _tiled_in_parts(product: Product) -> Tiled | None:
    """How the sums of all parts are computed. Of blocks, the last part may have fewer terms."""
    if product.axes:
        return over_axes(product, product.axes)
    return of_few(product) if product.parts is None else of_blocks(product)


def step_of(product: Product, tiled: Tiled, way: str = "") -> RoutineStep:
    """The step for a product that is computed in tiles."""
    rows, columns, inner = product.extents
    address, numbers, tile = tiled
    units = product.matrices * -(-rows // tile[0]) * -(-columns // tile[1])
    work = product.matrices * rows * columns * inner
    grain = _grain(tile, product.extents)
    share = -(-units // thread_count())
    if few_rows.converts_for_strips(product.sources, product.dtype, product.extents, product.matrices):
        grain = max(grain, min(_STRIPS_PER_CALL, share))
    elif copies_rows(product):
        grain = max(grain, min(_STRIPS_PER_CALL, share // _CALLS_THAT_COPY))
    return RoutineStep(address(), numbers, units, grain, work, way)


@as_a_whole
def _grain(tile: tuple[int, int], extents: tuple[int, int, int]) -> int:
    """How many tiles a thread takes at once."""
    rows, columns, inner = extents
    high, wide = min(tile[0], rows), min(tile[1], columns)
    tile_work = max(high * wide, READING * max(high, wide)) * max(inner, 1)
    return max(1, _WORK_PER_GRAIN // tile_work)


def _way(product: Product, in_tiles: bool) -> str:
    """What inspection says about how a product is computed."""
    if in_tiles:
        return "AMX"
    if product_pairs.takes(product.dtype, product.sources, product.extents) and of_few(product) is None:
        return "AVX512-BF16"
    return "over several axes" if product.axes is not None else ""


def _product_of(call: RoutineCall, whole: bool, in_memory: bool) -> Product:
    (a, b), (out,) = call.operands, call.results
    if a.factors is not None or b.factors is not None:
        return _product_over_axes(call, whole, in_memory)
    left, right = leading(a.shape[-2:], a.strides[-2:]), leading(b.shape[-2:], b.strides[-2:])
    if left is None or right is None:
        raise AssertionError(f"matmul cannot read operands with strides {a.strides} and {b.strides}")
    extents = a.shape[-2], b.shape[-1], a.shape[-1]
    batch = _merged(list(zip(out.shape[:-2], a.strides, b.strides, out.strides, strict=False)))
    places = [(operand.slot, operand.offset) for operand in (a, b, out)]
    dtype, *sources = [_SIGNED.get(x.dtype, x.dtype) for x in (out, a, b)]
    if dtype in HALVES:
        dtype, sources = dtypes.float32, [*sources, dtype]
    product = Product(dtype, Sources(*sources), places, extents, (left, right), batch, call.attached, whole, in_memory)
    product = product._replace(is_fast=call.params["precision"] == FAST)
    return product if call.feeder is None else product._replace(feeder=call.feeder[1])


def _merged(batch: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Batch axes, given as extents and strides, with neighbours merged where one stride leads through both."""
    found: list[tuple[int, int, int, int]] = []
    for extent, *strides in batch:
        if found and list(found[-1][1:]) == [extent * stride for stride in strides]:
            extent *= found.pop()[0]
        a, b, c = strides
        found.append((extent, a, b, c))
    return found


def _product_over_axes(call: RoutineCall, whole: bool, in_memory: bool) -> Product:
    """A product with an operand that goes over several axes in memory."""
    (a, b), (out,) = call.operands, call.results
    left, right = factors_of(a), factors_of(b)
    extents = a.shape[-2], b.shape[-1], a.shape[-1]
    outer = zip(out.shape[:-2], left, right, out.strides, strict=False)
    batch = [(extent, x[0][1], y[0][1], stride) for extent, x, y, stride in outer]
    places = [(operand.slot, operand.offset) for operand in (a, b, out)]
    stored = (0, 0) if b.factors is not None else leading(b.shape[-2:], b.strides[-2:])
    assert stored is not None
    dtype = _SIGNED.get(out.dtype, out.dtype)
    axes = (left[-2], left[-1], right[-2], right[-1])
    storage = ((0, 0), stored)
    return Product(dtype, Sources(dtype, dtype), places, extents, storage, batch, call.attached, whole, in_memory, axes)


def factors_of(operand: Operand) -> Factors:
    """The axes in memory that the axes of an operand go over."""
    if operand.factors is not None:
        return operand.factors
    return tuple([((extent, stride),) for extent, stride in zip(operand.shape, operand.strides, strict=True)])


def _tiled(product: Product) -> Tiled | None:
    """The step of a product; None if its result cannot be made in scratch memory as it has to be."""
    if product.axes is not None:
        return over_axes(product, product.axes)
    if product.dtype.is_complex:
        return _of_complex(product)
    if product.feeder is not None:
        return of_blocks(product)
    return of_few(product) or of_blocks(product)


def of_blocks(product: Product) -> Tiled | None:
    """A product of many rows and columns; None if its result has to be made in scratch memory and does not fit
    there."""
    return _blocks_of(product, product.strides)


def _uses_tile_registers(call: RoutineCall) -> bool:
    """Whether a product may use tile registers, which round bfloat16 in their own way, and is large enough for them."""
    rows, columns = call.results[0].shape[-2:]
    may_use = call.params["precision"] == FAST and all(x.dtype is dtypes.bfloat16 for x in call.operands)
    return may_use and amx.is_worth_it(rows, columns) and amx.is_available()


def _of_tile_registers(product: Product) -> Tiled | None:
    """A product of bfloat16 in tile registers; None if no kernel can be attached to it as it has to be."""
    _, _, places, extents, _, batch, kernel, whole, in_memory = product[:9]
    tile = amx.tile_of(extents, product.matrices, thread_count(), whole, in_memory)
    if tile is None:
        return None
    numbers = amx.numbers_of(places, extents, product.strides, tile, batch, kernel)
    return amx.address, numbers, tile[:2]


def _of_complex(product: Product) -> Tiled | None:
    """A product of complex numbers, as one of real numbers."""
    rows, columns, _ = product.extents
    if columns == 1 and rows > 1:
        address, numbers, (_, wide) = _of_few_complex_rows(product.transposed(), of_column=True)
        return address, numbers, (wide // 2, 1)
    cached = product.extents[2] * columns * product.dtype.size <= CACHED
    few = few_rows_strip.MOST_ROWS_ACROSS if product.strides[3] != 1 and cached else few_rows_strip.MOST_ROWS
    tiled = _of_few_complex_rows(product) if rows <= min(few, columns) else _blocks_of(*_of_parts(product))
    if tiled is None:
        return None
    address, numbers, (high, wide) = tiled
    return address, numbers, (high, wide // 2)


def _of_parts(product: Product) -> tuple[Product, list[int]]:
    """The product of real numbers that computes a product of complex ones, and its strides."""
    rows, columns, inner = product.extents
    batch = [(extent, 2 * left, 2 * right, 2 * out) for extent, left, right, out in product.batch]
    real = product._replace(dtype=dtypes.float32, extents=(rows, 2 * columns, 2 * inner), batch=batch)
    return real, complex_blocks.real_strides(product.strides)


def _of_few_complex_rows(product: Product, of_column: bool = False) -> Tiled:
    """A product of few rows of complex numbers; or, transposed, of a matrix with a column."""
    real, strides = _of_parts(product)
    rows, columns, inner = real.extents
    side_by_side = few_rows_strip.vectors_side_by_side(product.dtype, product.dtype, rows, inner, strides[3])
    strip = few_rows_strip.strip_of(real.dtype, rows, columns, strides[3] != 1, False, strides[1] == 1, side_by_side)
    numbers = few_rows.step_numbers(real.places, real.extents, [*strides, columns, 1], strip, real.batch)
    return partial(complex_rows.address, strip, of_column), numbers, (rows, strip.columns)


def over_axes(
    product: Product,
    axes: Sequence[product_axes.AxisFactors],
    code: Callable[[Block], int] = product_axes.address,
    further: Sequence[int] = (),
) -> Tiled | None:
    """A product with an operand that goes over several axes. A left one is read in place. ``code`` returns the address
    of the step for a kind of block; ``further`` are numbers after those that describe axes."""
    dtype, sources, places, extents, _, batch = product[:6]
    if _is_of_lines(product):
        return _of_lines(product, axes)
    block, strides = product_axes.block_over_axes(dtype, *extents[:2]), product.strides
    several = len(axes[2]) > 1 or len(axes[3]) > 1 or not strides[2]
    reading = tiles.reading_right(block, sources.right, extents, strides)
    tile = tile_of(product, block, tiles.Lying(True, tiles.DirectReading.NOWHERE if several else reading))
    if tile is None:
        return None
    (high, wide, span), behind = tile
    right = tiles.Way.OVER_AXES if several else tiles.ways_of(block, sources, extents, strides, (high, wide))[1]
    if right is tiles.Way.IN_PLACE and extents[1] % block.lanes:
        right = tiles.Way.ALONG  # kernels read whole vectors
    ways = tiles.Way.IN_PLACE, right
    terms = tiles.terms_of(block, extents, (high, wide))
    factors = [*product_axes.factor_numbers(*axes), *further]
    numbers = blocks.step_numbers(
        places, extents, strides, (high, wide), ways, batch, behind, span, terms, factors, parts=product.parts
    )
    return partial(code, block), numbers, (high, wide * span)


def _is_of_lines(product: Product) -> bool:
    """Whether few rows are multiplied with columns that are read in place, line by line."""
    return product.axes is not None and product_lines.takes(product.extents[0], product.axes[3])


def _of_lines(product: Product, axes: Sequence[product_axes.AxisFactors]) -> Tiled:
    """A product of few rows with lines of columns."""
    (rows, columns, _), matrices = product.extents, product.matrices
    length = axes[3][-1][0]
    lines = columns // length
    of_unit = product_lines.lines_of_unit(lines, matrices, thread_count())
    numbers = product_lines.step_numbers(product.places, product.extents, (lines, of_unit), axes, product.batch)
    pieces = product_lines.pieces_of(product.dtype, rows, length)
    return partial(product_lines.address, pieces), numbers, (rows, of_unit * length)


def _block_of(product: Product) -> Block:
    """The block for a product of many rows and columns."""
    dtype, sources, _, extents = product[:4]
    if product.panels is not None:
        return product.panels
    if product_pairs.takes(dtype, sources, extents):
        return product_pairs.block_of(extents[1])
    block = tiles.block_of(dtype)
    if sources.left.is_complex and block.vector_bytes == 64:
        return block
    return tiles.filled(block, *extents[:2])


def _blocks_of(product: Product, strides: Sequence[int]) -> Tiled | None:
    dtype, sources, places, extents, _, batch = product[:6]
    in_pairs = product_pairs.takes(dtype, sources, product.extents)
    block = _block_of(product)
    reading = tiles.reading_right(block, sources.right, extents, strides)
    if product.panels is not None:
        reading = tiles.DirectReading.AS_PANELS
    tile = tile_of(product, block, tiles.Lying(False, reading))
    if tile is None:
        return None
    (high, wide, span), behind = tile
    ways, feeder = tiles.ways_of(block, sources, extents, strides, (high, wide)), NONE
    if product.feeder is not None:
        turned = bool(product.storage[0][0])
        fed = tiles.fed_strides(block, turned)
        strides, ways = [*fed, *strides[2:]], (tiles.Way.FED, ways[1])
        feeder = section(product.feeder, Lines(extents[2] if turned else extents[0], turned, max(fed)))
    if product.panels is not None:
        ways = ways[0], tiles.Way.IN_PANELS
    terms = tiles.terms_of(block, extents, (high, wide))
    least = [product_pairs.ALWAYS if product.is_fast else product_pairs.EXACT] if in_pairs else []
    numbers = blocks.step_numbers(
        places, extents, strides, (high, wide), ways, batch, behind, span, terms, least, feeder, product.parts
    )
    address = partial(product_pairs.address if in_pairs else blocks.address, block, sources)
    return address, numbers, (high, wide * span)


def tile_of(product: Product, block: Block, lying: tiles.Lying) -> tuple[tuple[int, int, int], tuple[int, ...]] | None:
    """Rows and columns of a tile, how many tiles side by side are a unit, and the section of an attached kernel. None
    if the result has to be made in scratch memory and does not fit there."""
    extents = product.extents
    work = extents, product.matrices, thread_count(), lying
    found = tiles.row_tile_of(block, *work) if product.whole else None
    high, wide, span = found or (*tiles.tile_of(block, *work), 1)
    terms = tiles.terms_of(block, extents, (high, wide))
    scratch, reused = tiles.scratch_of(block, extents[2], terms, (high, wide), span)
    if not product.in_memory and scratch > tiles.SCRATCH_BYTES:
        return None
    return (high, wide, span), section(product.attached, Lines(extents[0], False, wide * span, reused))
