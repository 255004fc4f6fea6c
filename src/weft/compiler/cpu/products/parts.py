"""Products with many terms, whose threads share the terms: of few rows and columns, or of very few rows.

If threads shared the result, each would have a small tile, and read and pack large parts of both operands for it; or it
would read pieces of all rows of a matrix, which are in few sets of its caches and in all pages. Instead the sums of
each block of ``DEPTH`` terms are computed apart, as a *part* of its own, in scratch memory. A second step adds up the
parts in the order of the terms, as it is done elsewhere block by block. So bits are the same.
"""

from __future__ import annotations

from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Integers, module_of
from weft.compiler.cpu.products import tiles
from weft.compiler.cpu.products.few_rows import rows_at_once
from weft.compiler.open_numbers import as_a_whole
from weft.dtypes import Dtype
from weft.primitives.products import DEPTH
from weft.primitives.routine import RoutineStep
from weft.runtime.steps import Place

from .described import Product
from .step import Block, below

BYTES_OF_THREAD = 1 << 20
"""The most bytes of parts for each thread: its second cache holds them until they are added up."""
MANY_TERMS = 4
"""There must be so many times as many terms as rows, or columns."""
BYTES_OF_WINDOWS, MOST_BYTES = 4 << 20, 64 << 20
"""The most bytes of parts for each thread, and for all, of sums over windows. Windows are not packed: each tile of the
result reads those of all terms from caches that are further away than those of parts."""
READING_WINDOWS = 1.15
"""How much longer sums over windows therefore take than `tiles.time_of` says, if they are not computed in parts."""
SECOND_STEP = 1 << 18
"""Beginning the second step takes the time of this many multiplications."""
MOST_ROWS = rows_at_once.FEWEST_ROWS
"""With at most so many rows, products are not computed in blocks."""
FEWEST_PARTS = 4
"""In so many parts the sums of few rows are computed at least."""
OF_UNIT = 512
"""How many elements of the result the second step computes as a unit."""
BYTES_PER_GRAIN = 1 << 16
"""How many bytes of parts a thread adds up at once: that takes some microseconds."""


@as_a_whole
@cache
def count_of(block: Block, extents: tuple[int, int, int], matrices: int, threads: int, lying: tiles.Lying) -> int:
    """In how many parts the sums of a product are computed; 1 if that takes no longer."""
    rows, columns, inner = extents
    count = -(-inner // DEPTH)
    results = matrices * rows * columns
    of_windows = lying.left
    if threads == 1 or count < 2 or (inner < MANY_TERMS * max(rows, columns) and not of_windows):
        return 1
    most = min(threads * BYTES_OF_WINDOWS, MOST_BYTES) if of_windows else threads * BYTES_OF_THREAD
    if count * results * block.dtype.size > most:
        return 1
    whole, _ = tiles.time_of(block, extents, matrices, threads, lying)
    whole *= READING_WINDOWS if of_windows else 1.0
    apart, busy = tiles.time_of(block, (rows, columns, DEPTH), count * matrices, threads, lying)
    adding = SECOND_STEP + 2 * tiles.PASSING * count * results / busy
    return count if apart + adding < whole else 1


@as_a_whole
def count_of_few_rows(extents: tuple[int, int, int], matrices: int, threads: int) -> int:
    """In how many parts the sums of a product of few rows are computed, if its threads share the terms at all: see
    `matmul_of_few.shares_terms`. There is one part for each block of terms, and all threads have equally many."""
    rows, _, inner = extents
    count = inner // DEPTH
    if rows > MOST_ROWS or matrices > 1 or threads == 1 or inner % DEPTH or count < FEWEST_PARTS:
        return 1
    return int(count) if count % threads == 0 or threads % count == 0 else 1


def are_contiguous(product: Product) -> bool:
    """Whether all results of a product are in memory without gaps, as the second step writes them."""
    rows, columns, _ = product.extents
    size = rows * columns
    for extent, _, _, apart in reversed(product.batch):
        if apart != size:
            return False
        size *= extent
    return True


def in_parts(product: Product, count: int, scratch: Place) -> Product:
    """The products of all parts, in scratch memory."""
    rows, columns, inner = product.extents
    matrices, (_, left, right, _) = product.matrices, product.strides
    apart = product._replace(extents=(rows, columns, DEPTH), places=[*product.places[:2], scratch])
    if rows <= MOST_ROWS:
        return apart._replace(batch=[(count, DEPTH * left, DEPTH * right, rows * columns)])
    batch = [(count, 0, 0, matrices * rows * columns), *product.batch]
    return apart._replace(batch=batch, parts=(inner, matrices))


def adding(product: Product, count: int, scratch: Place) -> RoutineStep:
    """The step that adds up the parts of a product."""
    rows, columns, _ = product.extents
    size = product.matrices * rows * columns
    numbers = [*scratch, *product.places[2], count, size]
    grain = max(1, BYTES_PER_GRAIN // (count * OF_UNIT * product.dtype.size))
    return RoutineStep(_address(product.dtype), numbers, -(-size // OF_UNIT), grain, count * size)


@cache
def _address(dtype: Dtype) -> int:
    name = f"add_parts_{dtype.name}"
    return loading.load(name, lambda: _generate(dtype, name), (name,))[name]


def _generate(dtype: Dtype, name: str) -> str:
    block = tiles.block_of(dtype)
    w = Integers(Emitter())
    L = Lanes(w.e, block.lanes)

    def number(position: int) -> str:
        return w.e.load("i64", w.moved("%numbers", position, "i64"))

    def place(position: int) -> str:
        base = w.e.load("ptr", w.moved("%table", number(position), "ptr"))
        return w.moved(base, number(position + 1))

    parts, result, count, size = place(0), place(2), number(4), number(5)
    total = w.e.slot(L.type_of(dtype))

    def add(element: str, mask: str | None) -> None:
        start = w.moved(parts, element, block.element)
        w.e.store(L.type_of(dtype), load(L, dtype, Location(start, "0", False), mask).name, total)
        with w.e.loop("1", count) as part:
            there = load(L, dtype, Location(start, w.multiply(part, size), False), mask)
            before = Value(L, w.e.load(L.type_of(dtype), total), dtype)
            w.e.store(L.type_of(dtype), (before + there).name, total)
        finished = Value(L, w.e.load(L.type_of(dtype), total), dtype)
        store(L, finished, dtype, Location(result, element, False), mask)

    first, last = w.multiply("%begin", OF_UNIT), w.smaller(w.multiply("%end", OF_UNIT), size)
    whole = w.subtract(last, w.remainder(w.subtract(last, first), block.lanes))
    with w.e.loop(first, whole, block.lanes) as element:
        add(element, None)
    with w.e.when(w.compare("slt", whole, last)):
        add(whole, below(L, whole, last))
    return module_of([(w.e, w.e.function(name, STEP))])
