"""Groups that walk over the same elements become one: what both use is then neither stored nor computed twice."""

from __future__ import annotations

from collections.abc import Mapping

from weft.compiler.groups import FusedGroup, Root
from weft.compiler.index import index_in, walked_axes
from weft.graph.node import Shape
from weft.primitives.index import Term, Terms, added, scaled

Renaming = Mapping[int, Term]
"""What stands for a loop axis: an index of other loop axes."""


def goes_over(group: FusedGroup, terms: Terms, shape: Shape) -> bool:
    """Whether the loops of a group are just those over all of ``shape``, and nothing is folded, scanned or scattered in
    them."""
    return group.is_plain and walked_axes(terms, shape, group.extents) == tuple(group.axes)


def in_loops(loops: Mapping[int, int], group: FusedGroup) -> Renaming | None:
    """The axes of a group in terms of other ``loops`` over the same elements; None if one is no product of these."""
    index = index_in(loops, [group.extents[axis] for axis in group.axes])
    return None if index is None else dict(zip(group.axes, index, strict=True))


def renamed(terms: Terms, renaming: Renaming) -> Terms:
    """An index in terms of other loop axes."""
    result = []
    for term in terms:
        found = Term(term.start, (), term.computed)
        for axis, step in term.axes:
            found = added(found, scaled(renaming[axis], step))
        result.append(found)
    return tuple(result)


def renamed_roots(group: FusedGroup, renaming: Renaming) -> list[Root]:
    """What a group stores, at an index of other loop axes."""
    return [Root(root.node, renamed(root.terms, renaming), root.target, root.write) for root in group.roots]
