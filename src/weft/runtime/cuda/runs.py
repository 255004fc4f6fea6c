"""A run of steps on a queue of a card, as calls that queue each of them."""

from __future__ import annotations

from typing import NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.steps import CudaSteps, Slots
from weft.runtime.steps import DONE, Table


class QueuedRun(NamedTuple):
    """A run of steps on a queue, whose slots are on the card."""

    steps: CudaSteps
    slots: Slots
    table: Table
    queue: Queue

    def queueing(self, number: int) -> list[Action]:
        """Actions that queue a step and note in the table that it was queued; none for steps of the CPU."""
        actions = self.slots.actions[number]
        return [] if actions is None else [*actions, noting(self.table, number + 1)]

    def check(self, action: Action, code: int) -> None:
        """Raise the error of a code, if the action calls a library that explains its codes."""
        for number, call in self.steps.calls.items():
            if any(action is one for one in self.slots.actions[number] or ()):
                call.check(code)


def noting(table: Table, count: int) -> Action:
    """An action that writes into the table of a run how many steps are done."""
    return table.values.__setitem__, DONE, count
