"""Sums of products of several arrays, whose axes are labelled with numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.graph.extents import identical, joint_extent, product
from weft.graph.node import Node, Shape, describe, wrap
from weft.primitives.base import Array, Primitive, Tangent, conjugate_of, plus
from weft.primitives.batching import move_axis
from weft.primitives.contraction_order import Labels, best_path
from weft.primitives.untrusted import require

__all__ = ["contract", "contracted", "label_extents"]

Term = tuple[Array, Labels]


def label_extents(terms: Sequence[Labels], shapes: Sequence[Shape]) -> dict[int, int]:
    """The extent of each label. Axes with a label have that extent, or extent 1, which is broadcast.

    Raises:
        ValueError: two axes do not fit.
    """
    extents: dict[int, int] = {}
    for labels, shape in zip(terms, shapes, strict=True):
        for label, extent in zip(labels, shape, strict=True):
            extents[label] = joint_extent(extents.get(label, 1), extent)
    return extents


def contracted(terms: Sequence[Term], result: Labels, path: Iterable[Sequence[int]]) -> Array:
    """The sum of products of ``terms``, multiplied in the order of ``path``."""
    remaining = list(terms)
    for step in path:
        chosen = [remaining[position] for position in step]
        remaining = [term for position, term in enumerate(remaining) if position not in step]
        needed = {*result, *[label for _, labels in remaining for label in labels]}
        remaining.append(_from_left(chosen, needed))
    ((x, labels),) = remaining
    return p.transpose(x, axes=tuple([labels.index(label) for label in result]))


def _from_left(terms: Sequence[Term], needed: set[int]) -> Term:
    """The product of terms from left to right, summed over the labels that are not needed."""
    result, labels = terms[0]
    for number, (x, others) in enumerate(terms[1:], 1):
        later = {*needed, *[label for _, labels in terms[number + 1 :] for label in labels]}
        result, labels = _summed(result, labels, {*later, *others})
        result, labels = _joined(result, labels, x, others, later)
    return _summed(result, labels, needed)


def _summed(x: Array, labels: Labels, needed: set[int]) -> Term:
    axes = tuple([axis for axis, label in enumerate(labels) if label not in needed])
    if not axes:
        return x, labels
    return p.sum(x, axes=axes), tuple([label for label in labels if label in needed])


def _joined(x: Array, left: Labels, y: Array, right: Labels, needed: set[int]) -> Term:
    """The product of two terms, summed over the labels of both that are not ``needed`` later."""
    y, right = _summed(y, right, {*left, *needed})
    shared = [label for label in left if label in right]
    inner = [label for label in shared if label not in needed]
    outer = [label for label in shared if label in needed]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]
    extents = label_extents((left, right), (x.node.shape, y.node.shape))
    if inner and not rows and not columns and x.node.dtype.is_inexact:
        x, y = _arranged(x, left, left, extents), _arranged(y, right, left, extents)
        axes = tuple([axis for axis, label in enumerate(left) if label in inner])
        return p.sum_of_products(x, y, axes), tuple(outer)
    x = _arranged(x, left, [*outer, *rows, *inner], extents)
    y = _arranged(y, right, [*outer, *inner, *columns], extents)
    batch, m, k, n = [[extents[label] for label in labels] for labels in (outer, rows, inner, columns)]
    x = p.reshape(x, shape=(*batch, product(m), product(k)))
    y = p.reshape(y, shape=(*batch, product(k), product(n)))
    if inner:
        result = p.matmul(x, y)
    else:
        shape = (*batch, product(m), product(n))
        result = p.multiply(_broadcast(x, shape), _broadcast(y, shape))
    return p.reshape(result, shape=(*batch, *m, *n)), (*outer, *rows, *columns)


def _broadcast(x: Array, shape: Shape) -> Array:
    return x if identical(x.node.shape, shape) else p.broadcast(x, shape=shape)


def _arranged(x: Array, labels: Labels, wanted: Sequence[int], extents: dict[int, int]) -> Array:
    ordered = p.transpose(x, axes=tuple([labels.index(label) for label in wanted]))
    return _broadcast(ordered, tuple([extents[label] for label in wanted]))


class Contraction(Primitive):
    """The sum of products of arrays over the labels that are not in ``result``.

    ``terms`` labels the axes of each array, without repetition within an array. The order of multiplication is decided
    during planning, by the extents: one trace of ``compile(shapeless=True)`` serves all shapes.
    """

    name = "contract"
    parameters = ("terms", "result")

    def infer(self, *inputs: Node, **params: Any) -> tuple[Shape, Dtype]:
        dtype = inputs[0].dtype
        if any(x.dtype is not dtype for x in inputs):
            raise TypeError(f"contract: dtypes differ: {', '.join(describe(x.shape, x.dtype) for x in inputs)}")
        extents = label_extents(params["terms"], [x.shape for x in inputs])
        return tuple([extents[label] for label in params["result"]]), dtype

    def check(self, *inputs: Node, **params: Any) -> None:
        terms, result = params["terms"], params["result"]
        require(type(terms) is tuple and len(terms) == len(inputs) > 0, "it has not one term for each input")
        for labels in (*terms, result):
            require(type(labels) is tuple and all(type(label) is int for label in labels), "labels are numbers")
            require(len(set(labels)) == len(labels), f"{labels} name a label twice")
        require(all(len(labels) == x.ndim for labels, x in zip(terms, inputs, strict=True)), "labels do not fit axes")
        require(set(result) <= set().union(*terms), "the result has labels of its own")

    def expanded(self, node: Node) -> Node | None:
        """Products of pairs. Half precision is computed in float32 and rounded once."""
        terms, result = node.params
        extents = label_extents(terms, [x.shape for x in node.inputs])
        path = best_path(terms, result, tuple(extents.items()))
        wide = dtypes.float32 if node.dtype in (dtypes.float16, dtypes.bfloat16) else node.dtype
        arrays = [wrap(x) if x.dtype is wide else p.cast(wrap(x), dtype=wide) for x in node.inputs]
        whole = contracted(list(zip(arrays, terms, strict=True)), result, path)
        found: Node = (whole if wide is node.dtype else p.cast(whole, dtype=node.dtype)).node
        return found

    def jvp(self, tangents: Sequence[Tangent], inputs: Sequence[Array], output: Array, /, **params: Any) -> Tangent:
        total: Tangent = None
        for position, tangent in enumerate(tangents):
            if tangent is not None:
                total = plus(total, self(*inputs[:position], tangent, *inputs[position + 1 :], **params))
        return total

    def vjp(
        self, cotangent: Array, inputs: Sequence[Array], output: Array, wanted: Sequence[bool], /, **params: Any
    ) -> Sequence[Tangent]:
        return [
            self._transposed(position, cotangent, inputs, **params) if want else None
            for position, want in enumerate(wanted)
        ]

    def _transposed(
        self, position: int, cotangent: Array, inputs: Sequence[Array], terms: tuple[Labels, ...], result: Labels
    ) -> Array:
        """The cotangent of one input: a contraction of the result's cotangent with the other inputs."""
        own, shape = terms[position], inputs[position].node.shape
        others = [*inputs[:position], *inputs[position + 1 :]]
        other_terms = (*terms[:position], *terms[position + 1 :])
        found = {*result, *[label for labels in other_terms for label in labels]}
        product_of_rest = self(
            cotangent,
            *[conjugate_of(x) for x in others],
            terms=(result, *other_terms),
            result=tuple([label for label in own if label in found]),
        )
        alone = tuple([axis for axis, label in enumerate(own) if label not in found])
        spread = p.expand(product_of_rest, axes=alone) if alone else product_of_rest
        joint = tuple([joint_extent(m, n) for m, n in zip(spread.node.shape, shape, strict=True)])
        spread = _broadcast(spread, joint)
        return spread if identical(joint, shape) else p.sum_to(spread, shape=shape)

    def vmap(self, inputs: Sequence[Array], axes: Sequence[int | None], /, **params: Any) -> tuple[Array, int | None]:
        terms, result = params["terms"], params["result"]
        batch = 1 + max([label for labels in terms for label in labels], default=-1)
        moved = [x if axis is None else move_axis(x, axis, 0) for x, axis in zip(inputs, axes, strict=True)]
        labelled = [labels if axis is None else (batch, *labels) for labels, axis in zip(terms, axes, strict=True)]
        return self(*moved, terms=tuple(labelled), result=(batch, *result)), 0


contract = Contraction()
