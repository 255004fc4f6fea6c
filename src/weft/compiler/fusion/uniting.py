"""Groups that walk over the same elements become one. What both use is then neither stored nor computed twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.compiler.index import index_in, walked_axes
from weft.graph.node import Shape
from weft.primitives.index import Term, Terms, added, scaled

from .groups import FusedGroup, Group, Root, Use

Renaming = Mapping[int, Term]
"""For a loop axis, the index in other loop axes that replaces it."""


def goes_over(group: FusedGroup, terms: Terms, shape: Shape) -> bool:
    """Whether the loops of a group are exactly those over all of ``shape``, and nothing in them is folded, scanned or
    scattered."""
    return group.is_plain and walked_axes(terms, shape, group.extents) == tuple(group.axes)


def in_loops(loops: Mapping[int, int], group: FusedGroup) -> Renaming | None:
    """The axes of a group as indices in other ``loops`` over the same elements; None if an axis is no product of
    these."""
    index = index_in(loops, [group.extents[axis] for axis in group.axes])
    return None if index is None else dict(zip(group.axes, index, strict=True))


def renamed(terms: Terms, renaming: Renaming) -> Terms:
    """An index, with its loop axes replaced by others."""
    result = []
    for term in terms:
        found = Term(term.start, (), term.computed)
        for axis, step in term.axes:
            found = added(found, scaled(renaming[axis], step))
        result.append(found)
    return tuple(result)


def renamed_roots(group: FusedGroup, renaming: Renaming) -> list[Root]:
    """The roots of a group, with their loop axes replaced by others."""
    return [Root(root.node, renamed(root.terms, renaming), root.target, root.write) for root in group.roots]


class Renamed:
    """Replacements for loop axes that were removed, and for groups that became parts of others.

    They are applied when the uses of a node are read. Applying them to all uses whenever two groups are united would
    take time that grows with the square of the number of uses of a node.
    """

    def __init__(self) -> None:
        self._groups: dict[Group, Group] = {}
        self._axes: dict[int, Term] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, old: Group, new: Group, renaming: Renaming) -> None:
        """Note that ``new`` replaces ``old``. If both are the same group, only its loops were replaced."""
        self._groups[old] = new
        self._axes.update(renaming)

    def uses(self, uses: Sequence[Use]) -> list[Use]:
        """The uses of a node, with groups and axes that still exist."""
        return [
            (self._group(user), self._index(terms)) if user in self._groups else (user, terms) for user, terms in uses
        ]

    def _group(self, group: Group) -> Group:
        gone = []
        while (new := self._groups.get(group, group)) is not group:
            gone.append(group)
            group = new
        self._groups.update(dict.fromkeys(gone, group))
        return group

    def _index(self, terms: Terms | None) -> Terms | None:
        gone = [axis for term in terms or () for axis, _ in term.axes if axis in self._axes]
        if terms is None or not gone:
            return terms
        for axis in gone:
            self._settle(axis)
        return renamed(terms, self._axes)

    def _settle(self, axis: int) -> None:
        """Express a removed axis in axes that still exist."""
        pending = [axis]
        while pending:
            gone = [inner for inner, _ in self._axes[pending[-1]].axes if inner in self._axes]
            unsettled = [inner for inner in gone if any(other in self._axes for other, _ in self._axes[inner].axes)]
            if unsettled:
                pending += unsettled
                continue
            axis = pending.pop()
            if gone:
                (self._axes[axis],) = renamed((self._axes[axis],), self._axes)
