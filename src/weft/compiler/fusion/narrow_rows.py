"""Narrow rows that are taken from computed places are done together: what computes a place is then done once for a row,
in the lanes of vectors, and the row is read as a whole."""

from __future__ import annotations

from collections.abc import Collection

from weft.compiler.kernel import VIRTUAL_LANES
from weft.primitives.index import Term

from .builder import NARROW_LANES, Draft
from .groups import FusedGroup

LONGEST_BODY = 80
"""The most instructions of a body that does all elements of a row."""

MUCH_SHARED = 4
"""Elements that leave less than three quarters of a vector empty are done together if so many times as many operations
find their place as are done with them."""


def taken_rows(draft: Draft, group: FusedGroup, most: int) -> int | None:
    """The last axis of a group whose ``draft`` loads rows of at most ``most`` elements along it, each from a place that
    is computed for the whole row, and differs from lane to lane if lanes go along the axis before; None if there is no
    such axis, or if a loop over it takes less time."""
    if not most or not group.is_plain or len(group.axes) < 2:
        return None
    *_, lane, axis = group.axes
    extent = group.extents[axis]
    if not 1 < extent <= most or group.extents[lane] < VIRTUAL_LANES:
        return None
    taken = {number for number, term in enumerate(draft.terms) if _takes_rows(draft, number, term, lane, axis)}
    if not taken:
        return None
    shared, own = _computed(draft, lane, axis, taken)
    pays = extent <= NARROW_LANES or (shared >= MUCH_SHARED * own and _stores_rows(draft, lane, extent))
    return axis if pays and shared + extent * own <= LONGEST_BODY else None


def _takes_rows(draft: Draft, number: int, term: Term | None, lane: int, axis: int) -> bool:
    if draft.instructions[number].operation != "load" or term is None or not term.computed:
        return False
    places = set().union(*[draft.depends[value] for value, _ in term.computed])
    return lane in places and axis not in places and dict(term.axes).get(axis) == 1


def _computed(draft: Draft, lane: int, axis: int, taken: Collection[int]) -> tuple[int, int]:
    """How many operations on lanes have the same results for all elements of a row, and how many instructions beside
    the ``taken`` loads and the stores have not."""
    shared = own = 0
    for number, (instruction, depends) in enumerate(zip(draft.instructions, draft.depends, strict=True)):
        if axis in depends:
            own += number not in taken and instruction.operation != "store"
        else:
            shared += lane in depends and instruction.operation == "apply"
    return shared, own


def _stores_rows(draft: Draft, lane: int, extent: int) -> bool:
    """Whether all elements that are stored for neighbouring lanes are neighbours in memory."""
    stored = [term for i, term in zip(draft.instructions, draft.terms, strict=True) if i.operation == "store"]
    return all(term is not None and dict(term.axes).get(lane) == extent for term in stored)
