"""Sums of products, written with one letter per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.checks import wrong_type
from weft.graph.extents import decide_equal, fixed, joint_extent, product
from weft.ops.arguments import Array, broadcast, promoted, shape_text, to_dtype
from weft.ops.contraction import contraction_path, path_text
from weft.ops.diagonals import diagonal
from weft.ops.entrance import on_stream
from weft.ops.products import inexact_only
from weft.ops.reductions import whole_sum_dtype
from weft.runtime.devices import StreamOrDevice

__all__ = ["einsum", "einsum_path"]

Labels = list[str]


@on_stream
def einsum(subscripts: str, *operands: Any, stream: StreamOrDevice = None) -> Array:
    """The sum of products that Einstein's notation describes.

    Three operands and more are multiplied in the order that takes the fewest operations, which depends on the shapes;
    `einsum_path` gives it.

    Args:
        subscripts: one letter per axis and a comma between operands, ``"ij,jk->ik"``. Letters that are not behind
            the arrow are summed over; without an arrow, those that stand more than once. ``...`` stands for axes that
            are broadcast.
        operands: arrays; floating or complex where a sum runs over two of them.

    Raises:
        ValueError: subscripts that cannot be read or do not fit the shapes.

    >>> mx.einsum("ij,kj->ik", mx.array([[1.0, 2.0]]), mx.array([[3.0, 4.0], [5.0, 6.0]]))
    array([[11, 17]], dtype=float32)
    """
    terms, output, extents = _described("einsum", subscripts, operands)
    path = contraction_path([labels for _, labels in terms], output, extents)
    for step in path:
        chosen = [terms[position] for position in step]
        terms = [term for position, term in enumerate(terms) if position not in step]
        needed = {*output, *[label for _, labels in terms for label in labels]}
        terms.append(_contracted(chosen, needed))
    ((result, labels),) = terms
    return p.transpose(result, axes=tuple([labels.index(label) for label in output]))


def einsum_path(subscripts: str, *operands: Any) -> tuple[list[tuple[int, ...]], str]:
    """The order in which `einsum` multiplies these operands, and what it costs.

    Args:
        subscripts: as for `einsum`.
        operands: arrays.

    Returns:
        The positions of the operands of each step, whose result goes to the end of the list of operands; and a text
        with the number of labels and of arithmetic operations, without an order and with this one.

    Raises:
        ValueError: subscripts that cannot be read or do not fit the shapes.

    >>> path, text = mx.einsum_path("ij,jk,kl->il", mx.ones((2, 9)), mx.ones((9, 9)), mx.ones((9, 3)))
    >>> path
    [(0, 1), (0, 1)]
    """
    terms, output, extents = _described("einsum_path", subscripts, operands)
    inputs = [labels for _, labels in terms]
    plain = {label: fixed(extent) for label, extent in extents.items()}
    path = contraction_path(inputs, output, plain)
    return list(path), path_text(subscripts, path, inputs, output, plain)


def _described(
    name: str, subscripts: str, operands: Sequence[Any]
) -> tuple[list[tuple[Array, Labels]], Labels, dict[str, int]]:
    """The operands with a label for each axis, the labels of the result, and the extent of each label."""
    if not isinstance(subscripts, str):
        raise wrong_type(name, "subscripts", "a string such as 'ij,jk->ik'", subscripts)
    if not operands:
        raise ValueError(f"[{name}] At least one operand is needed.")
    arrays = promoted(name, operands, words=())
    inputs, output = _parsed(name, subscripts, [x.node.ndim for x in arrays])
    terms = [_with_diagonals(name, x, labels) for x, labels in zip(arrays, inputs, strict=True)]
    return terms, output, _extents(name, subscripts, terms)


def _contracted(terms: Sequence[tuple[Array, Labels]], needed: set[str]) -> tuple[Array, Labels]:
    """The product of terms from left to right, summed over the labels that are not needed."""
    result, labels = terms[0]
    for number, (x, others) in enumerate(terms[1:], 1):
        later = {*needed, *[label for _, labels in terms[number + 1 :] for label in labels]}
        result, labels = _summed(result, labels, {*later, *others})
        result, labels = _joined(result, labels, x, others, later)
    return _summed(result, labels, needed)


def _parsed(name: str, subscripts: str, dimensions: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of the operands and of the result; axes of ``...`` are labelled by their distance from the end."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    words = left.split(",")
    if len(words) != len(dimensions):
        raise ValueError(f"[{name}] {subscripts!r} describes {len(words)} operands; {len(dimensions)} are given.")
    inputs = []
    widest = 0
    for word, ndim in zip(words, dimensions, strict=True):
        letters = word.replace("...", "", 1)
        hidden = ndim - len(letters) if "..." in word else 0
        if hidden < 0 or len(letters) + hidden != ndim or not (letters.isalpha() or not letters):
            raise ValueError(f"[{name}] {word!r} in {subscripts!r} does not fit an operand with {ndim} dimensions.")
        widest = max(widest, hidden)
        inputs.append(_labels(word, hidden))
    every = [label for labels in inputs for label in labels]
    if arrow:
        output = _labels(right, widest)
    else:
        single = sorted(label for label in set(every) if label.isalpha() and every.count(label) == 1)
        output = [*_labels("...", widest), *single]
    if len(set(output)) != len(output) or not set(output) <= set(every):
        raise ValueError(f"[{name}] The result of {subscripts!r} must name letters of the operands, each once.")
    return inputs, output


def _labels(word: str, hidden: int) -> Labels:
    before, dots, behind = word.partition("...")
    return [*before, *[str(distance) for distance in range(hidden, 0, -1) if dots], *behind]


def _with_diagonals(name: str, x: Array, labels: Labels) -> tuple[Array, Labels]:
    """A term without repeated labels: of their axes the diagonal is taken."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if not decide_equal(x.node.shape[first], x.node.shape[second]):
                raise ValueError(f"[{name}] Axes {label!r} of shape {shape_text(x.node.shape)} have different extents.")
            x = diagonal(x, 0, first, second)
            labels = [one for axis, one in enumerate(labels) if axis not in (first, second)] + [label]
    return x, labels


def _extents(name: str, subscripts: str, terms: Sequence[tuple[Array, Labels]]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for x, labels in terms:
        for label, extent in zip(labels, x.node.shape, strict=True):
            known = extents.get(label, 1)
            try:
                extents[label] = joint_extent(known, extent)
            except ValueError:
                raise ValueError(
                    f"[{name}] Axis {label!r} of {subscripts!r} has extents {known} and {extent}."
                ) from None
    return extents


def _summed(x: Array, labels: Labels, needed: set[str]) -> tuple[Array, Labels]:
    axes = tuple([axis for axis, label in enumerate(labels) if label not in needed])
    if not axes:
        return x, labels
    x = p.sum(to_dtype(x, whole_sum_dtype(x.node.dtype)), axes=axes)
    return x, [label for label in labels if label in needed]


def _joined(x: Array, left: Labels, y: Array, right: Labels, needed: set[str]) -> tuple[Array, Labels]:
    """The product of two terms, summed over the labels of both that nobody needs any more."""
    y, right = _summed(y, right, {*left, *needed})
    shared = [label for label in left if label in right]
    inner = [label for label in shared if label not in needed]
    outer = [label for label in shared if label in needed]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]
    extents = _joint_extents(x, left, y, right)
    x = _arranged(x, left, [*outer, *rows, *inner], extents)
    y = _arranged(y, right, [*outer, *inner, *columns], extents)
    batch, m, k, n = [[extents[label] for label in labels] for labels in (outer, rows, inner, columns)]
    x = p.reshape(x, shape=(*batch, product(m), product(k)))
    y = p.reshape(y, shape=(*batch, product(k), product(n)))
    if inner:
        inexact_only("einsum", x.node.dtype)
        result = p.matmul(x, y)
    else:
        shape = (*batch, product(m), product(n))
        result = p.multiply(broadcast(x, shape), broadcast(y, shape))
    return p.reshape(result, shape=(*batch, *m, *n)), [*outer, *rows, *columns]


def _joint_extents(x: Array, left: Labels, y: Array, right: Labels) -> dict[str, int]:
    extents = dict(zip(left, x.node.shape, strict=True))
    for label, extent in zip(right, y.node.shape, strict=True):
        extents[label] = joint_extent(extents.get(label, 1), extent)
    return extents


def _arranged(x: Array, labels: Labels, wanted: Labels, extents: dict[str, int]) -> Array:
    ordered = p.transpose(x, axes=tuple([labels.index(label) for label in wanted]))
    return broadcast(ordered, tuple([extents[label] for label in wanted]))
