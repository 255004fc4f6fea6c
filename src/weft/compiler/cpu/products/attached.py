"""Kernels that a step calls for each rectangle of its result, as soon as it is made.

A section after the numbers of the step describes the kernel: see `attached_calls`.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.compiler.codegen.attached_calls import HEAD
from weft.primitives.routine import Attached

NONE = (0,) * HEAD
"""The section of a step without an attached kernel."""

# Where the result is made: 0 is in memory, USED in scratch memory, REUSED in scratch that each rectangle uses again.
USED, REUSED = 1, 2


class Lines(NamedTuple):
    """The rows, or if ``turned`` the columns, of a result that are the units of an attached kernel.

    A matrix has ``units`` of them. In scratch memory they are ``pitch`` elements apart, and the scratch memory may be
    ``reused`` from rectangle to rectangle.
    """

    units: int
    turned: bool
    pitch: int
    reused: bool = False


def section(attached: Attached | None, lines: Lines) -> tuple[int, ...]:
    """The section for a kernel. A result that is not made in memory is in scratch memory of the step."""
    if attached is None:
        return NONE
    numbers, shifts = list(attached.numbers), attached.shifts
    if not attached.in_memory:
        lanes = numbers[attached.lane]
        for _, strides in attached.reads:
            for position in strides:
                numbers[position] = numbers[position] // lanes * lines.pitch
        offsets = {offset for offset, _ in attached.reads}
        shifts = tuple([shift for shift in shifts if shift[0] not in offsets])
    scratch = 0 if attached.in_memory else REUSED if lines.reused else USED
    head = [attached.code, scratch, lines.pitch, int(lines.turned), lines.units, attached.lane, len(numbers)]
    changed = [number for shift in shifts for number in shift] + [offset for offset, _ in attached.reads]
    return (*head, len(shifts), len(attached.reads), *numbers, *changed)
