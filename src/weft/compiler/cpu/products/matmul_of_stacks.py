"""How matrix products of stacks of small matrices are computed."""

from __future__ import annotations

from functools import partial

from weft.compiler.codegen.lanes import HALVES
from weft.compiler.cpu.products.few_rows import step as few_rows
from weft.compiler.cpu.products.few_rows import strip as few_rows_strip
from weft.compiler.cpu.products.packed import pairs as product_pairs
from weft.compiler.cpu.products.tiny import converted_stacks, single_columns
from weft.compiler.cpu.products.tiny import rows as tiny_rows
from weft.compiler.cpu.products.tiny import stacks as tiny_stacks
from weft.compiler.cpu.products.tiny.groups import Tiny
from weft.dtypes import Dtype

from .described import Product, Tiled
from .matmul_of_few import stored, strip_of
from .step import Sources


def of_stack(product: Product) -> Tiled | None:
    """A product of a stack of small matrices; None for others, or if they are multiplied faster without regard to the
    stack."""
    return _of_single_columns(product) or _of_tiny_stack(product) or _of_converted_stack(product)


def _of_single_columns(product: Product) -> Tiled | None:
    """A product of small matrices with a vector each, if they follow each other in memory: also of rows with transposed
    matrices, which is the same."""
    rows, columns, _ = product.extents
    left, right = product.sources[:2]
    if min(rows, columns) != 1 or left is not right or not _follow_each_other(product):
        return None
    if not tiny_stacks.may_take((1, 1, 1), left):
        return None
    of_column = product if columns == 1 else product.transposed()
    tiny = _tiny(of_column, left)
    if not single_columns.takes(tiny):
        return None
    return partial(tiny_stacks.address, tiny), tiny_stacks.step_numbers(of_column.places), (int(rows), int(columns))


def _of_tiny_stack(product: Product) -> Tiled | None:
    """A product of matrices so small that vectors have elements of several rows, if they follow each other in memory.
    A single column is a row of the transposed product, if it is computed row by row. Matrices of half precision that
    are not computed so may be converted in groups."""
    dtype, sources, places, (rows, columns, inner) = product[:4]
    if not tiny_stacks.may_take(product.extents, product.sources.left) or not _follow_each_other(product):
        return None
    if product_pairs.takes_of_stack(dtype, sources, product.extents):
        return None
    extents = int(rows), int(columns), int(inner)
    if rows > columns == 1:
        of_row = product.transposed()
        tiny = _tiny(of_row, sources.left)
        if sources.left is sources.right and tiny_rows.takes(tiny):
            return partial(tiny_stacks.address, tiny), tiny_stacks.step_numbers(of_row.places), extents[:2]
    tiny = _tiny(product, sources.left)
    if sources.left is sources.right and tiny_stacks.reads(tiny):
        if not tiny_stacks.takes(tiny):
            return None
        return partial(tiny_stacks.address, tiny), tiny_stacks.step_numbers(places), extents[:2]
    if sources.left not in HALVES or sources.right not in HALVES:
        return None
    tiny = _tiny(product, dtype)
    sizes = rows * inner, inner * columns, rows * columns
    group = converted_stacks.group_of(sizes, 0) // tiny.group * tiny.group
    if group == 0 or not tiny_stacks.takes_in_order(tiny):
        return None
    of_matrices = tiny_stacks.step_numbers(converted_stacks.PLACES, tiny.group)
    numbers = converted_stacks.step_numbers(places, sizes, group, 1, of_matrices)
    return partial(converted_stacks.address_of_tiny, tiny, sources), numbers, extents[:2]


def _tiny(product: Product, source: Dtype) -> Tiny:
    """The kind of stack, if operands are read as ``source``."""
    (rows, columns, inner), strides = product.extents, product.strides
    a_row, a_inner, b_inner, b_column = [int(stride) for stride in strides]
    extents = int(rows), int(columns), int(inner)
    return Tiny(source, product.sources.result(product.dtype), extents, (a_row, a_inner, b_inner, b_column))


def _follow_each_other(product: Product) -> bool:
    """Whether matrices are a stack without gaps, with no kernel attached."""
    if product.axes is not None or product.attached is not None or product.feeder is not None:
        return False
    (rows, columns, inner), (left, right) = product.extents, product.storage
    sizes = rows * inner, inner * columns, rows * columns
    if len(product.batch) != 1 or product.batch[0][1:] != sizes:
        return False
    return left[1] == (rows if left[0] else inner) and right[1] == (inner if right[0] else columns)


def _of_converted_stack(product: Product) -> Tiled | None:
    """A product whose operands and result are converted, or its right operand transposed, in groups of matrices; None
    if that is not possible or takes longer."""
    alone = product.attached is None and product.feeder is None
    if len(product.batch) != 1 or product.axes is not None or product.dtype.is_complex or not alone:
        return None
    turned = _is_turned(product)
    few = product.transposed() if turned else product
    (rows, columns, inner), transposes = few.extents, _is_transposed_first(few, turned)
    if few.sources.right is few.dtype and not transposes:
        return None
    plain = few._replace(sources=Sources(few.dtype, few.dtype), places=converted_stacks.PLACES)
    if transposes:
        plain = plain._replace(storage=[few.storage[0], (0, columns)])
    strip = strip_of(plain, turned)
    if strip is None or not (transposes or converted_stacks.is_worth_it(strip, few.sources, few.extents)):
        return None
    if not _may_be_converted(few):
        return None
    ((extent, *apart),) = few.batch
    room = 0
    if transposes:
        pitch = converted_stacks.pitch_of(strip, columns)
        room = inner * pitch
        batch = [(extent, apart[0], room, apart[2])]
        plain = plain._replace(storage=[few.storage[0], (0, pitch)], batch=batch)
    group = converted_stacks.group_of((rows * inner, inner * columns, rows * columns), room)
    if group == 0:
        return None
    strides, behind = stored(plain, turned, strip.columns)
    of_matrices = few_rows.step_numbers(plain.places, plain.extents, strides, strip, plain.batch, behind)
    numbers = converted_stacks.step_numbers(few.places, apart, group, -(-columns // strip.columns), of_matrices)
    multiplied = converted_stacks.multiplied(strip, few.sources, int(columns))
    address = partial(converted_stacks.address, strip, few.sources, multiplied, transposes)
    return address, numbers, product.extents[:2]


def _is_turned(product: Product) -> bool:
    """Whether matrices of a stack are computed as transposed ones, if they are multiplied in groups: if they have more
    rows than columns, unless the right operand is transposed first and the left one would be, or there are many columns
    to store."""
    (rows, columns, _), turned = product.extents, product.transposed()
    if rows <= columns or not _is_transposed_first(product, False):
        return rows > columns
    return turned.strides[3] == 1 and columns <= few_rows_strip.MOST_ROWS_ACROSS


def _is_transposed_first(product: Product, turned: bool) -> bool:
    """Whether the right operand is transposed first, if matrices of a stack are multiplied in groups: unless whole
    squares of it are transposed in registers, once for all rows."""
    rows, columns, inner = product.extents
    if product.strides[3] == 1 or min(columns, inner) < converted_stacks.LANES_OF_SQUARE:
        return False
    strip = strip_of(product, turned)
    return strip is None or rows > strip.rows or inner % few_rows_strip.terms_of(strip, product.sources.right) != 0


def _may_be_converted(product: Product) -> bool:
    """Whether matrices of a stack can be converted or transposed in groups: if those that are follow each other in
    memory. Half precision is converted; other operands have the dtype of the sums."""
    (rows, columns, inner), (left, right), sources = product.extents, product.storage, product.sources
    if product_pairs.takes(product.dtype, sources, product.extents):
        return False
    ((_, *apart),) = product.batch
    beside = apart[1] == inner * columns and right[1] == (inner if right[0] else columns)
    if sources == Sources(product.dtype, product.dtype):
        return beside
    all_beside = beside and apart[0] == rows * inner and left[1] == (rows if left[0] else inner)
    return sources.left in HALVES and sources.right in HALVES and all_beside and apart[2] == rows * columns
