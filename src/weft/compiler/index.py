"""The loop axes of a kernel, and which of them an index walks over."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from weft.graph.node import Shape
from weft.primitives.index import ZERO, Term, Terms

new_axis = count().__next__


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
