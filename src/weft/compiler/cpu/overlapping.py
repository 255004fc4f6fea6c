"""Code of which several parts are emitted side by side, in the order in which a processor should see it.

A processor executes instructions out of order, but chooses among some dozen that wait, in the order in which they
come. If these are of one kind, units for other kinds are idle. So instructions of a part that need one unit are spread
evenly among those of other parts that need others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

Instructions = list[Callable[[], None]]
"""Functions that emit an instruction each, or a few that belong together."""


def run(instructions: Instructions) -> None:
    for emit in instructions:
        emit()


def evenly(first: Sequence[_T], second: Sequence[_T]) -> list[_T]:
    """Both sequences as one list, with the elements of the shorter one spread evenly among those of the longer one."""
    longer, shorter = (second, first) if len(first) < len(second) else (first, second)
    found: list[_T] = []
    done = 0
    for number, element in enumerate(longer, 1):
        wanted = number * len(shorter) // len(longer)
        found += [element, *shorter[done:wanted]]
        done = wanted
    return found


class TurnInstructions(NamedTuple):
    """The instructions of a turn: those of ``reading`` come before those of ``transposing``, and these before those of
    ``adding``. Those of ``prefetching`` may be anywhere."""

    reading: Instructions
    transposing: Instructions
    adding: Instructions
    prefetching: Instructions


def overlapped(turns: Sequence[TurnInstructions]) -> list[Instructions]:
    """The instructions of all turns: while one is transposed, the next one is read and the one before is added. LLVM
    should move nothing from one list to the next: it would delay additions until registers are full.
    """
    found = [turns[0].reading]
    for number, turn in enumerate(turns):
        before = turns[number - 1].adding if number else []
        after = turns[number + 1].reading if number + 1 < len(turns) else []
        found.append(evenly(turn.transposing, evenly(evenly(before, after), turn.prefetching)))
    return [*found, turns[-1].adding]
