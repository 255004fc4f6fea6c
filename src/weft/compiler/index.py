"""The loop axes of a kernel, and which of them an index goes over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

from weft.graph.node import Node, Shape
from weft.primitives.index import ZERO, Term, Terms, added, scaled
from weft.runtime.memory import contiguous_strides

new_axis = count().__next__


def own_axes(shape: Shape) -> tuple[Terms, dict[int, int]]:
    """A new loop axis, with its extent, for each axis of ``shape`` whose extent is not 1."""
    terms: list[Term] = []
    extents: dict[int, int] = {}
    for extent in shape:
        if extent == 1:
            terms.append(ZERO)
        else:
            axis = new_axis()
            extents[axis] = extent
            terms.append(Term(0, ((axis, 1),)))
    return tuple(terms), extents


def whole_axes(terms: Terms, shape: Shape, extents: Mapping[int, int]) -> tuple[int, ...] | None:
    """The loop axes that together go over all of ``shape``, one for each axis whose extent is not 1; None if the terms
    are not of this kind."""
    axes = []
    for term, extent in zip(terms, shape, strict=True):
        if extent == 1:
            if term != ZERO:  # a primitive that chooses what it reads, such as padding, may read outside the array
                return None
            continue
        if term.start or term.computed or len(term.axes) != 1 or term.axes[0][1] != 1:
            return None
        axis = term.axes[0][0]
        if extents[axis] != extent:
            return None
        axes.append(axis)
    return tuple(axes)


def walked_axes(terms: Terms, shape: Shape, extents: Mapping[int, int]) -> tuple[int, ...] | None:
    """The loop axes that together go over all of ``shape`` in row-major order, one or several for each axis; None if
    the terms are not of this kind."""
    axes: list[int] = []
    for term, extent in zip(terms, shape, strict=True):
        covered = 1
        for axis, step in reversed(term.axes):
            if step != covered:
                return None
            covered *= extents[axis]
        if term.start or term.computed or covered != extent:
            return None
        axes.extend(axis for axis, _ in term.axes)
    return tuple(axes)


def index_in(loops: Mapping[int, int], shape: Sequence[int]) -> Terms | None:
    """The index in ``shape`` of the current element of ``loops`` (axes and extents, in order), if these go over exactly
    its elements; None if an axis of the shape is no product of neighbouring loops."""
    following = list(loops)
    terms: list[Term] = []
    for extent in shape:
        term, covered = ZERO, 1
        while following and covered < extent:
            axis = following.pop(0)
            covered *= loops[axis]
            term = added(scaled(term, loops[axis]), Term(0, ((axis, 1),)))
        if covered != extent:
            return None
        terms.append(term)
    return None if following else tuple(terms)


def refined(one: Shape, other: Shape) -> Shape | None:
    """The coarsest shape of which neighbouring extents make those of two shapes with as many elements; None if there is
    none."""
    found: list[int] = []
    left, right = ([extent for extent in shape if extent != 1] for shape in (one, other))
    while left and right:
        part = min(left[0], right[0])
        for rest in (left, right):
            if part == 0 or rest[0] % part:
                return None
            rest[0] //= part
            if rest[0] == 1:
                del rest[0]
        found.append(part)
    return tuple(found)


def behind_in(loops: Mapping[int, int], view: Node, terms: Terms) -> tuple[Node, Terms] | None:
    """The input of a view, and the index in it that corresponds to an index of the view; None if an index cannot pass
    the view. If the index goes over all elements of the view, it is enough that these are in the order of the
    input's."""
    step: tuple[Node, Terms] | None = view.primitive.behind(view, terms)
    if step is None and view.primitive.is_view and (loops or view.size == 1) and keeps_places(view):
        source = view.inputs[0]
        walked = walked_axes(terms, view.shape, loops)
        at = None if walked is None else index_in({axis: loops[axis] for axis in walked}, source.shape)
        step = None if at is None else (source, at)
    return step


def keeps_places(view: Node) -> bool:
    """Whether a view has the elements of its input in the same row-major order."""
    source = view.inputs[0]
    shown = view.primitive.shown(view, contiguous_strides(source.shape))
    if shown is None or shown[1] or view.size != source.size:
        return False
    strides = zip(view.shape, shown[0], contiguous_strides(view.shape), strict=True)
    return all(extent == 1 or stride == expected for extent, stride, expected in strides)
