"""Matrix products: bilinear operations that a routine computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import agree
from weft.graph.node import Node, Shape, describe, new_node, wrap
from weft.primitives.base import Array, Primitive, Tangent, plus
from weft.primitives.routine import Routine
from weft.primitives.untrusted import check_inputs, require
from weft.runtime.devices import Stream, current_stream
from weft.runtime.precision import PRECISIONS, REPRODUCIBLE, get_matmul_precision

__all__ = [
    "Bilinear",
    "matmul",
    "matrix_transpose",
]

DEPTH = 256
"""Terms per block. Sums are computed in blocks, each in order, so the bits of results depend on this number."""


FEWEST_TERMS_OF_SUM = 32
"""A product with one row and one column and this many terms is a sum of products of elements."""


class Bilinear(Primitive):
    """Linear in each of two inputs; ``transposes`` has, for each, the function that computes its cotangent from the
    output's."""

    transposes: tuple[Any, Any]

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        (a, b), (ta, tb) = inputs, tangents
        left = None if ta is None else self(ta, b, **params)
        right = None if tb is None else self(a, tb, **params)
        return plus(left, right)

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [
            rule(cotangent, *inputs, **params) if want else None
            for rule, want in zip(self.transposes, wanted, strict=True)
        ]


MOST_BATCH_AXES = 6


def leading(shape: Shape, strides: Shape) -> tuple[int, int] | None:
    """Whether a matrix is stored by rows (0) or by columns (1), and the distance between rows or columns; None if
    neither."""
    (rows, columns), (down, across) = shape, strides
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return 0, max(down if rows > 1 else columns, columns, 1)
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return 1, max(across if columns > 1 else rows, rows, 1)
    return None


def _accepts(node: Node, position: int, strides: Shape) -> bool:
    """Whether the matrices of an operand are stored by rows or by columns."""
    shape = node.inputs[position].shape
    return leading(shape[-2:], strides[-2:]) is not None and len(shape) - 2 <= MOST_BATCH_AXES


def _multiplications(node: Node) -> int:
    return node.size * node.inputs[0].shape[-1]


def matrix_transpose(x: Array) -> Array:
    node = x.node
    *batch, rows, columns = node.shape
    axes = (*range(len(batch)), len(batch) + 1, len(batch))
    return wrap(new_node(p.transpose, (node,), (axes,), (*batch, columns, rows), node.dtype, current_stream()))


class Matmul(Bilinear):
    """Products of the matrices in the last two axes: ``(..., M, K)`` and ``(..., K, N)`` give ``(..., M, N)``.

    ``precision`` is that of `get_matmul_precision` when the product is called; nodes store it for dtypes that it
    affects. Derivatives use that of the product.
    """

    name = "matmul"
    parameters = ("precision",)
    routine: Routine = Routine(
        accepts=_accepts,
        arithmetic=lambda node: _multiplications(node) * (8 if node.dtype.is_complex else 2),
        loops=lambda node: (node.shape, node.inputs[0].shape[-1:]),
        names=("product of matrices", "products of matrices"),
    )
    transposes = (
        lambda ct, a, b, **params: matmul(ct, p.conjugate_of(matrix_transpose(b)), **params),
        lambda ct, a, b, **params: matmul(p.conjugate_of(matrix_transpose(a)), ct, **params),
    )

    def node(
        self, inputs: tuple[Node, ...], params: dict[str, Any], shape: Shape, dtype: Dtype, stream: Stream | None
    ) -> Node:
        precision = REPRODUCIBLE
        if inputs[0].dtype in (dtypes.bfloat16, dtypes.float32):
            precision = params.get("precision") or get_matmul_precision()
        self.require_step(inputs, stream)
        return Node(self, inputs, (precision,), shape, dtype, stream)

    def check(self, *inputs: Node, **params: Any) -> None:
        check_inputs(inputs, 2)
        require(params["precision"] in PRECISIONS, f"its precision is none of {', '.join(PRECISIONS)}")
        require(inputs[0].dtype is not dtypes.bool_, "it does not multiply booleans")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        a, b = inputs
        fits = a.ndim == b.ndim >= 2 and agree((*a.shape[:-2], a.shape[-1]), (*b.shape[:-2], b.shape[-2]))
        if not fits or a.dtype is not b.dtype:
            raise ValueError(
                f"[matmul] {describe(a.shape, a.dtype)} and {describe(b.shape, b.dtype)} do not fit together."
            )
        return (*a.shape[:-1], b.shape[-1]), a.dtype

    def expanded(self, node: Node) -> Node | None:
        """A product of a row and a column as a sum of products of elements: in a matrix product each addition would
        wait for the one before. Half precision is multiplied as float32 and rounded once."""
        dtype, terms = node.dtype, node.inputs[0].shape[-1]
        if node.shape[-2:] != (1, 1) or terms < FEWEST_TERMS_OF_SUM or not dtype.is_floating:
            return None
        wide = dtypes.float32 if dtype.size < 4 else dtype
        row, column = [wrap(x) if x.dtype is wide else p.cast(wrap(x), dtype=wide) for x in node.inputs]
        last = node.ndim - 1
        total = p.sum(p.squeeze(row, axes=(last - 1,)) * p.squeeze(column, axes=(last,)), axes=(last - 1,))
        found = p.expand(total, axes=(last - 1, last))
        result: Node = (found if wide is dtype else p.cast(found, dtype=dtype)).node
        return result

    def lowered(self, node: Node) -> Node | None:
        """Half precision is multiplied as float32 and rounded once, small integers as 32-bit ones; sums without terms
        are zeros. Operands converted from half precision are read unconverted."""
        shape, dtype = node.shape, node.dtype
        if node.inputs[0].shape[-1] == 0:
            return p.planned_zeros(shape, dtype)
        if dtype is dtypes.float32:
            narrow = tuple([p.before_conversion(x) for x in node.inputs])
            return None if narrow == node.inputs else Node(self, narrow, node.params, shape, dtype, None)
        if dtype.size >= 4:
            return None
        wide = dtypes.float32 if dtype.is_inexact else dtypes.int32
        product = Node(self, node.inputs, node.params, shape, wide, None)
        return Node(p.cast, (product,), (dtype,), shape, dtype, None)

    def swapped(self, node: Node) -> Node | None:
        """The product of the transposed operands in reverse order, which sums the same products in the same order. None
        for complex numbers, for which the two products of the imaginary part would change places."""
        if node.dtype.is_complex:
            return None
        last = node.ndim - 1
        axes = (*range(last - 1), last, last - 1)
        a, b = [
            Node(p.transpose, (x,), (axes,), (*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype, None)
            for x in node.inputs
        ]
        return Node(self, (b, a), node.params, (*node.shape[:-2], node.shape[-1], node.shape[-2]), node.dtype, None)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        a, b = inputs
        if axes[1] is None and a.node.ndim == 3 and axes[0] is not None:
            return self._stacked_rows(p.move_axis(a, axes[0], 0), b, **params), 0
        return self(*p.batch_first(inputs, axes), **params), 0

    def _stacked_rows(self, a: Array, b: Array, **params: Any) -> Array:
        """Several matrices times a single one, as one product of all their rows."""
        size, rows, inner = a.node.shape
        product = self(p.reshape(a, shape=(size * rows, inner)), b, **params)
        return p.reshape(product, shape=(size, rows, b.node.shape[1]))


matmul: Matmul = Matmul()
