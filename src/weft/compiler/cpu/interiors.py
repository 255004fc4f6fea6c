"""Lanes for which the conditions of all loads are known to hold.

What is around an array with zeros around it is known from indices: an element is read if its index is at least one
number and below another. In rows of more than a few vectors most lanes are far from both ends. A loop over these needs
neither comparisons nor masks.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.conditions import compares_lanes, is_conjunction, parts_of, relation_of
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, Launch, Level

FEWEST_LANES = 4 * VIRTUAL_LANES
"""In shorter rows, comparing where the interior begins and ends takes as long as it saves."""

MOST_INSTRUCTIONS = 80
"""A body with more instructions is not written a second time: its code would take long to generate, and there is so
much to do for each lane that masks take a small part of the time."""


class Interior(NamedTuple):
    """Comparisons of the index of a lane: those that hold from some lane on (``lower``), and those that hold before
    some lane (``upper``), each as the numbers of the index and of what it is compared with; the numbers of conditions
    with one value for all lanes (``shared``); and the instructions of lanes that are true where all of these hold."""

    lower: tuple[tuple[int, int], ...]
    upper: tuple[tuple[int, int], ...]
    shared: tuple[int, ...]
    certain: frozenset[int]


def interior_of(kernel: Kernel) -> Interior | None:
    """What to compare for the interior of a row; None if no load of parallel lanes has such a condition."""
    if kernel.lane != "parallel" or kernel.sweeps or len(kernel.instructions) > MOST_INSTRUCTIONS:
        return None
    wheres = [i.where for i in kernel.instructions if i.operation == "load" and i.varying and i.where is not None]
    parts = sorted({part for where in wheres for part in parts_of(kernel, where)})
    instructions = kernel.instructions
    shared = [n for n in parts if not instructions[n].varying and instructions[n].level <= Level.ROW]
    bounds = {n: instructions[n] for n in parts if compares_lanes(kernel.instructions, instructions[n])}
    lower = tuple([_compared(one) for one in bounds.values() if relation_of(one) == "ge"])
    upper = tuple([_compared(one) for one in bounds.values() if relation_of(one) == "lt"])
    if not bounds or not set(lower).isdisjoint(upper):
        return None
    known = {*bounds, *shared}
    for number, instruction in enumerate(instructions):
        if is_conjunction(instruction) and known.issuperset(instruction.inputs):
            known.add(number)
    return Interior(lower, upper, tuple(shared), frozenset([n for n in known if instructions[n].varying]))


def has_interior(launch: Launch) -> bool:
    """Whether rows of a launch get a loop over their interior: if that is most of them."""
    found = interior_of(launch.kernel) if launch.lane_extent >= FEWEST_LANES else None
    if found is None:
        return False
    first = max([0, *[_lane_at(launch, *pair) for pair in found.lower]])
    last = min([launch.lane_extent, *[_lane_at(launch, *pair) for pair in found.upper]])
    return last - first >= launch.lane_extent - last + first


def _lane_at(launch: Launch, index: int, bound: int) -> int:
    """The lane of the first row at which an index is equal to a bound."""
    of_lane, of_all = [launch.kernel.instructions[number].access for number in (index, bound)]
    assert of_lane is not None
    assert of_all is not None
    return of_all.offset - of_lane.offset


def _compared(comparison: Instruction) -> tuple[int, int]:
    index, bound = comparison.inputs
    return index, bound
