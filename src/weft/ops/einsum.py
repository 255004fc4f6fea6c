"""Sums of products, written with one letter per axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft.checks import wrong_type
from weft.graph.extents import decide_equal, fixed, joint_extent
from weft.ops.arguments import Array, dimensions_text, promoted, shape_text, to_dtype
from weft.ops.diagonals import diagonal
from weft.ops.reductions import whole_sum_dtype
from weft.ops.replays import replayed
from weft.primitives.contraction_order import Labels, Path, best_path
from weft.runtime.devices import StreamOrDevice

__all__ = ["einsum", "einsum_path"]

Letters = list[str]
OperandLabels = tuple[Labels, ...]


@replayed
def einsum(subscripts: str, *operands: Any, stream: StreamOrDevice = None) -> Array:
    """The sum of products given in Einstein notation.

    Three or more operands are multiplied in the order that takes the fewest operations, which depends on the shapes;
    `einsum_path` returns it.

    Args:
        subscripts: one letter per axis and a comma between operands, ``"ij,jk->ik"``. Letters that do not follow the
            arrow are summed over; without an arrow, letters that occur more than once are. ``...`` stands for axes that
            are broadcast.
        operands: arrays; they must be floating or complex if a sum runs over two of them.

    Raises:
        ValueError: invalid subscripts, or subscripts that do not fit the shapes.

    >>> mx.einsum("ij,kj->ik", mx.array([[1.0, 2.0]]), mx.array([[3.0, 4.0], [5.0, 6.0]]))
    array([[11, 17]], dtype=float32)
    """
    arrays, terms, result = _described("einsum", subscripts, operands)
    arrays = _summable(arrays, terms, result)
    if len(arrays) > 2 and arrays[0].node.dtype.is_inexact:
        return p.contract(*arrays, terms=terms, result=result)
    return p.contracted(list(zip(arrays, terms, strict=True)), result, [range(len(arrays))])


def _summable(arrays: list[Array], terms: OperandLabels, result: Labels) -> list[Array]:
    """The operands in a dtype in which their products can be summed."""
    every = {label for labels in terms for label in labels}
    return [to_dtype(x, whole_sum_dtype(x.node.dtype)) for x in arrays] if every - set(result) else arrays


def einsum_path(subscripts: str, *operands: Any) -> tuple[list[tuple[int, ...]], str]:
    """The order in which `einsum` multiplies these operands, and what it costs.

    Args:
        subscripts: as for `einsum`.
        operands: arrays.

    Returns:
        The positions of the operands of each step, whose result is appended to the list of operands; and a text with
        the number of labels and of arithmetic operations, for multiplying all at once and for this order.

    Raises:
        ValueError: invalid subscripts, or subscripts that do not fit the shapes.

    >>> path, text = mx.einsum_path("ij,jk,kl->il", mx.ones((2, 9)), mx.ones((9, 9)), mx.ones((9, 3)))
    >>> path
    [(0, 1), (0, 1)]
    """
    arrays, terms, result = _described("einsum_path", subscripts, operands)
    found = p.label_extents(terms, [x.node.shape for x in arrays])
    extents = {label: fixed(extent) for label, extent in found.items()}
    path = best_path(terms, result, tuple(extents.items()))
    return list(path), _cost_text(subscripts, path, terms, result, extents)


def _cost_text(subscripts: str, path: Path, terms: OperandLabels, result: Labels, extents: dict[int, int]) -> str:
    """The text of `einsum_path`."""
    remaining = [set(labels) for labels in terms]
    every = set().union(*remaining)
    naive = _operations(every, not every <= set(result), len(terms), extents)
    cost, scaling = 0, 0
    for step in path:
        involved = set().union(*[remaining[position] for position in step])
        remaining = [labels for position, labels in enumerate(remaining) if position not in step]
        left = involved & set(result).union(*remaining)
        cost += _operations(involved, left != involved, len(step), extents)
        scaling = max(scaling, len(involved))
        remaining.append(left)
    return (
        f"  Complete contraction:  {subscripts}\n"
        f"         Naive scaling:  {len(every)}\n"
        f"     Optimized scaling:  {scaling}\n"
        f"      Naive FLOP count:  {naive}\n"
        f"  Optimized FLOP count:  {cost}\n"
    )


def _operations(labels: set[int], sums: bool, operands: int, extents: dict[int, int]) -> int:
    """Multiplications and additions of one step."""
    return math.prod([extents[label] for label in labels]) * (max(1, operands - 1) + sums)


def _described(name: str, subscripts: str, operands: Sequence[Any]) -> tuple[list[Array], OperandLabels, Labels]:
    """The operands, a number for each of their axes, and the numbers of the axes of the result."""
    if not isinstance(subscripts, str):
        raise wrong_type(name, "subscripts", "a string such as 'ij,jk->ik'", subscripts)
    if not operands:
        raise ValueError(f"[{name}] At least one operand is needed.")
    found = promoted(name, operands, words=())
    inputs, output = _parsed(name, subscripts, [x.node.ndim for x in found])
    terms = [_with_diagonals(name, x, labels) for x, labels in zip(found, inputs, strict=True)]
    _check_extents(name, subscripts, terms)
    names = dict.fromkeys([label for labels in inputs for label in labels])
    number = {label: position for position, label in enumerate(names)}
    numbered = tuple([tuple([number[label] for label in labels]) for _, labels in terms])
    return [x for x, _ in terms], numbered, tuple([number[label] for label in output])


def _parsed(name: str, subscripts: str, dimensions: Sequence[int]) -> tuple[list[Letters], Letters]:
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
            raise ValueError(
                f"[{name}] {word!r} in {subscripts!r} does not fit an operand with {dimensions_text(ndim)}."
            )
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


def _labels(word: str, hidden: int) -> Letters:
    before, dots, behind = word.partition("...")
    return [*before, *[str(distance) for distance in range(hidden, 0, -1) if dots], *behind]


def _with_diagonals(name: str, x: Array, labels: Letters) -> tuple[Array, Letters]:
    """An operand without repeated labels: the diagonal of the axes with one label becomes one axis."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if not decide_equal(x.node.shape[first], x.node.shape[second]):
                raise ValueError(f"[{name}] Axes {label!r} of shape {shape_text(x.node.shape)} have different extents.")
            x = diagonal(x, 0, first, second)
            labels = [one for axis, one in enumerate(labels) if axis not in (first, second)] + [label]
    return x, labels


def _check_extents(name: str, subscripts: str, terms: Sequence[tuple[Array, Letters]]) -> None:
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
