"""Indices as affine expressions of loop axes, and how views change indices and strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.graph.node import Shape


class AxisTerm:
    """The index of an input along one axis: ``start + step * index[axis] + inner_step * index[inner]``. A term whose
    axis is None is left out."""

    __slots__ = ("axis", "inner", "inner_step", "start", "step")

    def __init__(
        self, axis: int | None, step: int = 1, start: int = 0, inner: int | None = None, inner_step: int = 1
    ) -> None:
        self.axis, self.step, self.start, self.inner, self.inner_step = axis, step, start, inner, inner_step


class Term(NamedTuple):
    """``start + sum(step * axis) + sum(step * value)``: loop axes by id, computed indices by value id."""

    start: int
    axes: tuple[tuple[int, int], ...] = ()
    computed: tuple[tuple[int, int], ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether the index is the same in all turns of all loops."""
        return not self.axes and not self.computed


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
    """The sum of terms times weights, for example a location in memory."""
    total = ZERO
    for term, weight in zip(terms, weights, strict=True):
        total = added(total, scaled(term, weight))
    return total


def through_view(terms: Terms, axes: Sequence[AxisTerm]) -> Terms:
    """The index in a view's input of the element at an index of the view."""
    result = []
    for read in axes:
        term = Term(read.start) if read.axis is None else shifted(scaled(terms[read.axis], read.step), read.start)
        result.append(term if read.inner is None else added(term, scaled(terms[read.inner], read.inner_step)))
    return tuple(result)


def strides_through_view(axes: Sequence[AxisTerm], strides: Shape, rank: int) -> tuple[Shape, int]:
    """The strides of a view, from those of its input, and the offset of its first element."""
    result = [0] * rank
    offset = 0
    for read, stride in zip(axes, strides, strict=True):
        offset += read.start * stride
        if read.axis is not None:
            result[read.axis] += read.step * stride
        if read.inner is not None:
            result[read.inner] += read.inner_step * stride
    return tuple(result), offset


def squeezed(source: Shape, target: Shape) -> list[int | None] | None:
    """For a reshape that only adds or drops axes of extent 1: the target axis of each source axis (None if dropped).
    Else None."""
    positions = [axis for axis, extent in enumerate(target) if extent != 1]
    if [extent for extent in source if extent != 1] != [target[axis] for axis in positions]:
        return None
    following = iter(positions)
    return [None if extent == 1 else next(following) for extent in source]


def reshaped_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides with which the same memory has another shape, or None if there are none."""
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
