"""Products with matrices of a stack that indices choose, as in layers of experts, and the sums that are their
derivatives.

If many rows are multiplied with few matrices, copying the chosen matrix for each row takes most of the time. Rows that
choose the same matrix are put side by side instead, into blocks of a fixed height, so that a matrix is copied once for
each block. Blocks are filled up with zeros, which nothing reads. Only extents decide how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree, values_of
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array, Primitive, Tangent, conjugate_of, plus
from weft.primitives.batching import batch_size, with_batch
from weft.primitives.planned_matrices import filled, zeros
from weft.primitives.products import matrix_transpose
from weft.primitives.untrusted import check_inputs, require
from weft.runtime.precision import PRECISIONS, get_matmul_precision

__all__ = ["chosen_matmul", "summed_products"]

_LEAST, _MOST = 16, 128
"""The fewest rows of a block, with which a product is no longer bound by memory, and the most: more would save little,
and fill more of the last block of each matrix with zeros."""


class SortedRows(NamedTuple):
    """Where rows are in blocks: for each row its place among the rows of all blocks; for each of these the row that is
    there, or a number beyond the last row; for each block its matrix."""

    place: Array
    source: Array
    matrix: Array

    def filled(self, x: Array) -> Array:
        """Blocks with the rows of ``x``, ``(R, M, K)``, in their places, and zeros in others."""
        count = self.matrix.node.shape[0]
        _, high, inner = x.node.shape
        rows = p.gather(x, self.source, axes=(0,), slice_sizes=(1, high, inner), outside="nowhere")
        return p.reshape(rows, shape=(count, rows.node.shape[0] // count * high, inner))

    def emptied(self, x: Array, high: int) -> Array:
        """The rows in blocks, ``(R, M, K)`` with ``M`` of ``high``."""
        count, rows, inner = x.node.shape
        return _taken(p.reshape(x, shape=(count * rows // high, high, inner)), self.place)


def _height(rows: int, matrices: int, high: int) -> int:
    """How many of ``rows``, which are matrices of ``high`` rows, a block has."""
    height = _LEAST
    while 2 * height <= min(_MOST, rows // max(matrices, 1)):
        height *= 2
    return height // max(high, 1)


def _count(rows: int, matrices: int, height: int) -> int:
    """How many blocks there are at most, whichever matrices are chosen."""
    return (rows + matrices * (height - 1)) // height


def blocks_of_rows(index: Array, matrices: int, x: Array) -> SortedRows | None:
    """The blocks of the rows of ``x``, ``(R, M, K)``, that choose among some matrices; None if there are too few rows
    for each."""
    rows, high, _ = x.node.shape
    height = _height(rows, matrices, high)
    if 0 in (rows, high, height) or 2 * rows < 3 * _count(rows, matrices, height):
        return None
    return _blocks_of(_inside(index, matrices), matrices, height)


def sorted_rows(index: Array, matrices: int) -> SortedRows:
    """The order in which rows that choose the same matrix are neighbours."""
    return _blocks_of(_inside(index, matrices), matrices, 1)


def _blocks_of(index: Array, matrices: int, height: int) -> SortedRows:
    (rows,) = index.node.shape
    count, kind = _count(rows, matrices, height), dtypes.int32
    chosen = p.cast(index, dtype=kind)
    table = (rows, matrices)
    ours = p.equal(_spread(chosen, table, 1), p.iota(shape=table, axis=1, dtype=kind))
    seen = p.cumsum(p.cast(ours, dtype=kind), axis=0, reverse=False, inclusive=True)
    number = p.iota(shape=(rows,), axis=0, dtype=kind)
    rank = p.gather(seen, number, chosen, axes=(0, 1), slice_sizes=(1, 1))
    totals = p.slice_(seen, starts=(rows - 1, 0), sizes=(1, matrices), steps=(1, 1))
    totals = p.reshape(totals, shape=(matrices,))
    needed = p.floor_divide(totals + filled(height - 1, totals), filled(height, totals))
    ends = p.cumsum(needed, axis=0, reverse=False, inclusive=True)
    rank = p.reshape(rank, shape=(rows,)) - filled(1, chosen)
    place = p.reshape(_taken(ends - needed, chosen), shape=(rows,)) * filled(height, chosen) + rank
    beyond = filled(rows, p.iota(shape=(count * height,), axis=0, dtype=kind))
    updates = p.reshape(number, shape=(rows, 1))
    source = p.scatter(beyond, place, updates, axes=(0,), mode="set", outside="nowhere")
    # Blocks after the last one that is needed have the last matrix; no row is there.
    over = p.less_equal(_spread(ends, (count, matrices), 0), p.iota(shape=(count, matrices), axis=0, dtype=kind))
    matrix = p.sum(p.cast(over, dtype=kind), axes=(1,))
    return SortedRows(place, source, _inside(matrix, matrices))


def _inside(index: Array, matrices: int) -> Array:
    """An index in which numbers out of range are the nearest ones inside."""
    return p.minimum(p.maximum(index, filled(0, index)), filled(max(matrices - 1, 0), index))


def _spread(x: Array, shape: Shape, axis: int) -> Array:
    return p.broadcast(p.expand(x, axes=(axis,)), shape=shape)


def _taken(x: Array, index: Array) -> Array:
    """The entries of a stack at an index."""
    found = p.gather(x, index, axes=(0,), slice_sizes=(1, *x.node.shape[1:]))
    return p.squeeze(found, axes=(1,))


class _ByIndex(Primitive):
    """Linear in each of the first two inputs; the third is an index."""

    parameters: tuple[str, ...] = ("precision",)

    def __call__(self, *operands: Any, **params: Any) -> Array:
        return super().__call__(*operands, **{"precision": get_matmul_precision(), **params})

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 3)
        require(params["precision"] in PRECISIONS, f"its precision is none of {', '.join(PRECISIONS)}")
        require(all(x.ndim == 3 for x in inputs[:2]) and inputs[2].ndim == 1, "it has a wrong number of axes")
        require(inputs[0].dtype is not dtypes.bool_, "it does not multiply booleans")

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        (a, b, index), (of_a, of_b, _) = inputs, tangents
        left = None if of_a is None else self(of_a, b, index, **params)
        right = None if of_b is None else self(a, of_b, index, **params)
        return plus(left, right)

    def _misfit(self, inputs: Sequence[Node]) -> ValueError:
        operands = " and ".join([describe(x.shape, x.dtype) for x in inputs])
        return ValueError(f"{self.name}: {operands} do not fit together")


def _merged(x: Array) -> Array:
    """The first two axes as one."""
    first, second, *rest = x.node.shape
    return p.reshape(x, shape=(first * second, *rest))


class ChosenMatmul(_ByIndex):
    """``(R, M, K)`` times those of the matrices ``(E, K, N)`` that an index ``(R,)`` chooses: ``(R, M, N)``. An index
    out of range becomes the nearest one. The sums are those of `matmul`."""

    name = "chosen_matmul"

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, matrices, index = inputs
        fits = agree((x.shape[0], x.shape[2]), (index.shape[0], matrices.shape[1])) and index.dtype.is_integer
        if not fits or x.dtype is not matrices.dtype:
            raise self._misfit(inputs)
        return (*x.shape[:2], matrices.shape[2]), x.dtype

    def expanded(self, node: Node) -> Node | None:
        x, matrices, index = map(wrap, node.inputs)
        high, count = x.node.shape[1], matrices.node.shape[0]
        blocks = blocks_of_rows(index, count, x)
        if blocks is None:
            products = p.matmul(x, _taken(matrices, _inside(index, count)), **node.keywords)
        else:
            in_blocks = p.matmul(blocks.filled(x), _taken(matrices, blocks.matrix), **node.keywords)
            products = blocks.emptied(in_blocks, high)
        found: Node = products.node
        return found

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        x, matrices, index = inputs
        of_x = of_matrices = None
        if wanted[0]:
            of_x = self(cotangent, conjugate_of(matrix_transpose(matrices)), index, **params)
        if wanted[1]:
            count = matrices.node.shape[0]
            of_matrices = summed_products(conjugate_of(x), cotangent, index, count=count, **params)
        return [of_x, of_matrices, None]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        size = batch_size(inputs, axes)
        x, index = (with_batch(inputs[i], axes[i], 0, size) for i in (0, 2))
        matrices = inputs[1]
        if axes[1] is not None:
            matrices = with_batch(matrices, axes[1], 0, size)
            index = _apart(index, matrices.node.shape[1])
            matrices = _merged(matrices)
        out = self(_merged(x), matrices, _merged(index), **params)
        return p.reshape(out, shape=(*x.node.shape[:3], out.node.shape[-1])), 0


def _apart(index: Array, count: Any) -> Array:
    """Indices ``(B, R)`` into stacks of ``count`` matrices as indices into all of these."""
    first = p.iota(shape=index.node.shape, axis=0, dtype=index.node.dtype) * count
    return first + p.minimum(p.maximum(index, 0), count - 1)


class SummedProducts(_ByIndex):
    """For each of ``count`` numbers, the sum of ``x[r].T @ y[r]`` over the rows ``r`` in which the index, ``(R,)``, is
    this number: ``(R, M, K)`` and ``(R, M, N)`` give ``(count, K, N)``."""

    name = "summed_products"
    parameters = ("precision", "count")

    def check(self, *inputs: Node, **params: Any) -> None:
        super().check(*inputs, **params)
        (count,) = values_of((params["count"],))
        require(type(count) is int and 0 <= count < 1 << 62, "its count is no number of matrices")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        x, y, index = inputs
        fits = agree(x.shape[:2], y.shape[:2]) and agree(x.shape[0], index.shape[0]) and index.dtype.is_integer
        if not fits or x.dtype is not y.dtype:
            raise self._misfit(inputs)
        return (params["count"], x.shape[2], y.shape[2]), x.dtype

    def expanded(self, node: Node) -> Node | None:
        x, y, index = map(wrap, node.inputs)
        precision, count = node.params
        blocks = blocks_of_rows(index, count, x)
        index = _inside(index, count)
        if blocks is not None:
            x, y, index = blocks.filled(x), blocks.filled(y), blocks.matrix
        products = p.matmul(matrix_transpose(x), y, precision=precision)
        updates = p.expand(products, axes=(1,))
        none = zeros(node.shape, node.dtype)
        found: Node = p.scatter(none, index, updates, axes=(0,), mode="add", outside="nearest").node
        return found

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        x, y, index = inputs
        precision = params["precision"]
        of_x = of_y = None
        if wanted[0]:
            of_x = chosen_matmul(conjugate_of(y), matrix_transpose(cotangent), index, precision=precision)
        if wanted[1]:
            of_y = chosen_matmul(conjugate_of(x), cotangent, index, precision=precision)
        return [of_x, of_y, None]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        size, count = batch_size(inputs, axes), params["count"]
        x, y, index = (with_batch(one, axis, 0, size) for one, axis in zip(inputs, axes, strict=True))
        merged = _merged(x), _merged(y), _merged(_apart(index, count))
        out = self(*merged, **{**params, "count": size * count})
        return p.reshape(out, shape=(size, count, *out.node.shape[1:])), 0


chosen_matmul = ChosenMatmul()
summed_products = SummedProducts()
