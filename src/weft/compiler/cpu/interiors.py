"""Lanes for which the conditions of all loads are known to hold.

What is around an array with zeros around it is known from indices: an element is read if its index is at least one
number and below another. In rows of more than a few vectors most lanes are far from both ends. A loop over these needs
neither comparisons nor masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride, Launch, Level

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
    conditions = [i.where for i in kernel.instructions if i.operation == "load" and i.varying and i.where is not None]
    parts = sorted({part for where in conditions for part in _parts_of(kernel, where)})
    instructions = kernel.instructions
    shared = [n for n in parts if not instructions[n].varying and instructions[n].level <= Level.ROW]
    bounds = {n: instructions[n] for n in parts if _compares_lanes(kernel.instructions, instructions[n])}
    lower = tuple([_compared(one) for one in bounds.values() if one.primitive.relation == "ge"])
    upper = tuple([_compared(one) for one in bounds.values() if one.primitive.relation == "lt"])
    if not bounds or not set(lower).isdisjoint(upper):
        return None
    certain = set(bounds)
    for number, instruction in enumerate(instructions):
        if (
            _is_conjunction(instruction)
            and instruction.varying
            and certain.union(shared).issuperset(instruction.inputs)
        ):
            certain.add(number)
    return Interior(lower, upper, tuple(shared), frozenset(certain))


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
    return (0 if of_all is None else of_all.offset) - of_lane.offset


def _compared(comparison: Instruction) -> tuple[int, int]:
    index, bound = comparison.inputs
    return index, bound


def _is_conjunction(instruction: Instruction) -> bool:
    return instruction.operation == "apply" and bool(instruction.primitive.is_conjunction)


def _parts_of(kernel: Kernel, number: int) -> Iterator[int]:
    """The conditions that all have to hold for the one with a number."""
    instruction = kernel.instructions[number]
    if not _is_conjunction(instruction) or not instruction.varying:
        yield number
        return
    for source in instruction.inputs:
        yield from _parts_of(kernel, source)


def _compares_lanes(instructions: Sequence[Instruction], condition: Instruction) -> bool:
    """Whether a condition compares the index of each lane with a number that all lanes share."""
    if condition.operation != "apply" or condition.primitive.relation not in ("ge", "lt"):
        return False
    index, bound = [instructions[source] for source in condition.inputs]
    if index.operation != "index" or index.access is None or index.access.computed:
        return False
    return index.access.lane_stride is LaneStride.ONE and not bound.varying and bound.level <= Level.ROW
