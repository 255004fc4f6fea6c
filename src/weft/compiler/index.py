"""Indices as affine expressions of loop axes, and how views and reshapes change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from weft.graph.node import Shape
from weft.primitives.base import AxisTerm

new_axis = count().__next__


class Term(NamedTuple):
    """``start + sum(step * axis) + sum(step * value)``: loop axes by id, computed places by value id."""

    start: int
    axes: tuple[tuple[int, int], ...] = ()
    computed: tuple[tuple[int, int], ...] = ()


Terms = tuple[Term, ...]
ZERO = Term(0)


def shifted(term: Term, distance: int) -> Term:
    return Term(term.start + distance, term.axes, term.computed) if distance else term


def scaled(term: Term, factor: int) -> Term:
    if factor == 1:
        return term
    if factor == 0:
        return ZERO
    axes = tuple([(axis, step * factor) for axis, step in term.axes])
    return Term(term.start * factor, axes, tuple([(value, step * factor) for value, step in term.computed]))


def added(left: Term, right: Term) -> Term:
    steps = dict(left.axes)
    for axis, step in right.axes:
        steps[axis] = steps.get(axis, 0) + step
    axes = tuple(sorted((axis, step) for axis, step in steps.items() if step))
    return Term(left.start + right.start, axes, left.computed + right.computed)


def weighted(terms: Sequence[Term], weights: Sequence[int]) -> Term:
    """The sum of terms times weights: a linear place in memory, say."""
    total = ZERO
    for term, weight in zip(terms, weights, strict=True):
        total = added(total, scaled(term, weight))
    return total


def own_axes(shape: Shape) -> tuple[Terms, tuple[int, ...]]:
    """One fresh loop axis per axis of ``shape`` that has more (or fewer) than one element."""
    terms, axes = [], []
    for extent in shape:
        if extent == 1:
            terms.append(ZERO)
        else:
            axis = new_axis()
            axes.append(axis)
            terms.append(Term(0, ((axis, 1),)))
    return tuple(terms), tuple(axes)


def through_view(terms: Terms, places: Sequence[AxisTerm]) -> Terms:
    """The index of a view's input that belongs to an index of its output."""
    result = []
    for place in places:
        term = Term(place.start) if place.axis is None else shifted(scaled(terms[place.axis], place.step), place.start)
        result.append(term if place.inner is None else added(term, terms[place.inner]))
    return tuple(result)


def whole_axes(terms: Terms, shape: Shape, extents: Mapping[int, int]) -> tuple[int, ...] | None:
    """The loop axes that go over all of ``shape``, one for each axis that is not of extent 1; None if the terms are
    anything else."""
    axes = []
    for term, extent in zip(terms, shape, strict=True):
        if extent == 1:
            continue
        if term.start or term.computed or len(term.axes) != 1 or term.axes[0][1] != 1:
            return None
        axis = term.axes[0][0]
        if extents[axis] != extent:
            return None
        axes.append(axis)
    return tuple(axes)


def reshaped_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides that show the same memory under another shape, or None if there are none."""
    if 0 in target:
        return (0,) * len(target)
    old = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]
    blocks: list[list[int]] = []
    for extent, stride in old:
        if blocks and blocks[-1][1] == stride * extent:
            blocks[-1] = [blocks[-1][0] * extent, stride]
        else:
            blocks.append([extent, stride])
    result: list[int] = []
    remaining = list(reversed(blocks))
    left, step = remaining.pop(0) if remaining else (1, 1)
    for extent in reversed(target):
        if extent == 1:
            result.append(0)
            continue
        while left == 1 and remaining:
            left, step = remaining.pop(0)
        if left % extent:
            return None
        result.append(step)
        left, step = left // extent, step * extent
    return tuple(reversed(result))
