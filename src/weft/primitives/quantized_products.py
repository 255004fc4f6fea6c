"""Products with quantised matrices, computed by a routine that never has the whole unquantised matrix in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import AnyExtent, agree
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array, Primitive, Tangent, plus
from weft.primitives.batching import batch_size, with_batch
from weft.primitives.chosen_products import sorted_rows
from weft.primitives.quantized_formats import QuantizedFormat
from weft.primitives.routine import Routine
from weft.primitives.untrusted import require
from weft.runtime.precision import REPRODUCIBLE

__all__ = ["quantized_matmul", "rounded_product"]


_DTYPES = (dtypes.float32, dtypes.float64)

_SORTED = 4
"""From this many rows for each matrix on, sorting them takes less time than it saves."""


class _Operands(NamedTuple):
    """The inputs by name, as nodes, handles or anything that corresponds to them. Affine modes have biases; a stack of
    matrices has an index."""

    x: Any
    words: Any
    scales: Any
    biases: Any
    index: Any

    @property
    def matrix(self) -> list[Any]:
        """The parts of the quantised matrices."""
        return [part for part in (self.words, self.scales, self.biases) if part is not None]

    def inputs(self) -> list[Any]:
        return [self.x, *self.matrix, *([] if self.index is None else [self.index])]


def _named(inputs: Sequence[Any], affine: bool) -> _Operands:
    index = inputs[-1] if len(inputs) > 3 + affine else None
    x, words, scales = inputs[:3]
    return _Operands(x, words, scales, inputs[3] if affine else None, index)


def _merged(x: Array) -> Array:
    """The first two axes as one."""
    first, second, *rest = x.node.shape
    return p.reshape(x, shape=(first * second, *rest))


def _chosen(x: Array, index: Array) -> Array:
    """The entries of a stack at an index."""
    found = p.gather(x, index, axes=(0,), slice_sizes=(1, *x.node.shape[1:]))
    return p.squeeze(found, axes=(1,))


def _multiplications(node: Node) -> int:
    return node.size * node.inputs[0].shape[-1]


class QuantizedMatmul(Primitive):
    """``x @ w.T``, or ``x @ w`` if not ``transpose``, with a matrix ``w`` of codes: ``(M, K)`` and words of ``(N, K)``
    or ``(K, N)`` codes give ``(M, N)``.

    From a stack ``(E, N, K)``, an index ``(B,)`` chooses the matrix for each matrix of ``x``, ``(B, M, K)``; an index
    out of range becomes the nearest one. The product is that of `matmul` with the numbers of `dequantize` in the dtype
    of ``x``, float32 or float64; or of a few rows that `weft.compiler.codegen.integer_sums` defines.
    """

    name = "quantized_matmul"
    parameters = (*QuantizedFormat._fields, "transpose")
    routine: Routine = Routine(
        arithmetic=lambda node: 2 * _multiplications(node),
        loops=lambda node: (node.shape, node.inputs[0].shape[-1:]),
        names=("product with a quantised matrix", "products with quantised matrices"),
    )

    def check(self, *inputs: Node, **params: Any) -> None:
        kind, _ = _split(params)
        kind.check()
        require(type(params["transpose"]) is bool, "transpose is True or False")
        count = 3 + kind.affine
        require(len(inputs) in (count, count + 1), f"it has {len(inputs)} inputs")
        require(inputs[0].ndim == 2 + (len(inputs) > count), "it has a wrong number of axes")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        kind, transpose = _split(params)
        named = _named(inputs, kind.affine)
        x, index = named.x, named.index
        *stack, high, wide = kind.shape(named.words.shape)
        columns, inner = (high, wide) if transpose else (wide, high)
        fits = x.ndim == named.words.ndim and agree(x.shape[-1], inner)
        fits = fits and x.dtype in _DTYPES and kind.fits(named.words, named.scales, named.biases, x.dtype)
        if index is None:
            fits = fits and not stack
        else:
            fits = fits and index.dtype is dtypes.int64 and agree(index.shape, x.shape[:-2])
        if not fits:
            operands = " and ".join([describe(one.shape, one.dtype) for one in inputs])
            raise ValueError(f"quantized_matmul: {operands} do not fit together in the mode {kind.mode}")
        return (*x.shape[:-1], columns), x.dtype

    def expanded(self, node: Node) -> Node | None:
        """Many rows that choose among few matrices are sorted first: neighbours with the same matrix are multiplied
        together."""
        named = _named([wrap(x) for x in node.inputs], node.keywords["mode"] == "affine")
        matrices = named.words.node.shape[0]
        if named.index is None or not named.x.node.size or named.index.node.size < _SORTED * matrices:
            return None
        order = sorted_rows(named.index, matrices)
        index = p.cast(order.matrix, dtype=dtypes.int64)
        products = self(*named._replace(x=order.filled(named.x), index=index).inputs(), **node.keywords)
        found: Node = order.emptied(products, named.x.node.shape[1]).node
        return found

    def lowered(self, node: Node) -> Node | None:
        """Sums without terms are zeros."""
        return p.planned_zeros(node.shape, node.dtype) if node.inputs[0].shape[-1] == 0 else None

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        """The result is linear in ``x``, and in scales and biases together."""
        affine = params["mode"] == "affine"
        named, moved = _named(inputs, affine), _named(tangents, affine)
        total = None if moved.x is None else self(*named._replace(x=moved.x).inputs(), **params)
        if moved.scales is None and moved.biases is None:
            return total
        scales = p.zeros_like(named.scales) if moved.scales is None else moved.scales
        biases = p.zeros_like(named.biases) if affine and moved.biases is None else moved.biases
        return plus(total, self(*named._replace(scales=scales, biases=biases).inputs(), **params))

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        kind, transpose = _split(params)
        named, asked = _named(inputs, kind.affine), _named(wanted, kind.affine)
        x = scales = biases = None
        if asked.x:
            x = self(*named._replace(x=cotangent).inputs(), **{**params, "transpose": not transpose})
        if asked.scales or asked.biases:
            left, right = (cotangent, named.x) if transpose else (named.x, cotangent)
            groups = kind.in_groups(p.matmul(p.matrix_transpose(left), right))
            if asked.scales:
                parts = [named.words, named.scales]
                words, like = parts if named.index is None else [_chosen(part, named.index) for part in parts]
                codes = kind.in_groups(kind.codes(words, like, groups.node.dtype))
                scales = _sums(groups * codes, named.scales, named.index)
            if asked.biases:
                biases = _sums(groups, named.biases, named.index)
        found = [x, None, scales, *([biases] if kind.affine else []), None]
        return found[: len(inputs)]

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        affine = params["mode"] == "affine"
        named, mapped = _named(inputs, affine), _named(axes, affine)
        size = batch_size(inputs, axes)
        x = with_batch(named.x, mapped.x, 0, size)
        if named.index is None:
            if all(axis is None for axis in axes[1:]):
                # Several matrices times a single one: their rows become one matrix.
                out = self(*named._replace(x=_merged(x)).inputs(), **params)
                return p.reshape(out, shape=(*x.node.shape[:2], out.node.shape[-1])), 0
            index = p.iota(shape=(size,), axis=0, dtype=dtypes.int64)
            return self(x, *_with_batch(inputs[1:], axes[1:], size), index, **params), 0
        index, parts = with_batch(named.index, mapped.index, 0, size), named.matrix
        if any(axis is not None for axis in axes[1:-1]):
            parts = _with_batch(parts, axes[1:-1], size)
            count = parts[0].node.shape[1]
            parts = [_merged(part) for part in parts]
            first = p.iota(shape=index.node.shape, axis=0, dtype=dtypes.int64) * count
            index = first + p.minimum(p.maximum(index, 0), count - 1)
        out = self(_merged(x), *parts, p.reshape(index, shape=(index.node.size,)), **params)
        return p.reshape(out, shape=(*x.node.shape[:-1], out.node.shape[-1])), 0


quantized_matmul = QuantizedMatmul()


def rounded_product(node: Node) -> Node | None:
    """An ordinary product in place of a quantised one, with the matrix's numbers rounded to the half precision from
    which ``x`` was converted. None if ``x`` was not converted, or if an index chooses matrices."""
    kind, transpose = _split(node.keywords)
    named = _named(node.inputs, kind.affine)
    x = p.before_conversion(named.x)
    if x is named.x or named.index is not None or node.dtype is not dtypes.float32:
        return None
    numbers = p.dequantize(*map(wrap, named.matrix), **kind._asdict(), dtype=x.dtype)
    matrix = p.matrix_transpose(numbers) if transpose else numbers
    return Node(p.matmul, (x, matrix.node), (REPRODUCIBLE,), node.shape, node.dtype, None)


def _split(params: dict[str, Any]) -> tuple[QuantizedFormat, bool]:
    return QuantizedFormat(*[params[name] for name in QuantizedFormat._fields]), params["transpose"]


def _with_batch(parts: Sequence[Array], axes: Sequence[int | None], size: AnyExtent) -> list[Array]:
    return [with_batch(part, axis, 0, size) for part, axis in zip(parts, axes, strict=True)]


def _sums(groups: Array, like: Array, index: Array | None) -> Array:
    """Sums over groups, for scales or biases; an entry that an index chooses several times gets the sum of all of
    these."""
    total = p.sum(groups, axes=(groups.node.ndim - 1,))
    if index is not None:
        zeros = p.full(like.node.shape, 0, total.node.dtype)
        total = p.scatter(zeros, index, p.expand(total, axes=(1,)), axes=(0,), mode="add", outside="nearest")
    return total if total.node.dtype is like.node.dtype else p.cast(total, dtype=like.node.dtype)
