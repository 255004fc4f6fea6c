"""Accesses whose offsets are computed once for several of them."""

from __future__ import annotations

from weft.compiler.compared_keys import ComparedKeys
from weft.compiler.kernel import Launch

LONGEST_ROW, FEWEST = 128, 3
"""That is done in rows of at most so many lanes, for at least so many accesses. In longer rows, or for fewer accesses,
it saves little, and another launch of the same kernel may need other code."""


def alike_accesses(launch: Launch) -> tuple[tuple[int, int], ...]:
    """The loads and stores of short rows that move with all loops as an earlier one does, with the number of that one.
    Each of several slices of one array needs a multiplication and an addition for each axis of rows otherwise."""
    if not launch.row_extents or launch.lane_extent > LONGEST_ROW:
        return ()
    first = ComparedKeys()
    found = []
    for number, instruction in enumerate(launch.kernel.instructions):
        access = instruction.access
        if access is None or access.operand is None or access.computed:
            continue
        strides = *access.rows, *access.sweeps, access.lane
        earlier = first.get(strides)
        if earlier is None:
            first[strides] = number
        else:
            found.append((number, earlier))
    return tuple(found) if len(found) >= FEWEST else ()
