"""How nodes get values by a plan: now or later, in new memory or in that of inputs that end.

It is the same whoever found the plan: `single`, `known_graphs` or a `Program`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.compiler.planning.plan import Plan
from weft.graph import tracing
from weft.graph.node import Node, give_value
from weft.runtime.atomic import consume, sections
from weft.runtime.devices import LONG_WORK, Stream
from weft.runtime.holders import only_known
from weft.runtime.memory import View

from .run import Run, arrived, give_values, run_for_one, run_now

_TO_MEMORY = (2, 1)
"""References to the value of an input, by its node and in ``views``; to its buffer, by the value."""

Donations = Sequence[tuple[int, int]]
"""Those of a plan: pairs of an input and an output that may take its memory."""


class Inputs(NamedTuple):
    """The nodes that a plan reads, the views of their elements, and how many references to each node are ``known``: by
    what the plan computes, and by what was read of that, without the reference in ``nodes``.

    The nodes need not be those of which the views are the values: a view may show another part, or a copy.
    """

    nodes: Sequence[Node]
    views: Sequence[View]
    known: Sequence[int]

    def unreferenced(self, donations: Donations) -> list[int]:
        """Those inputs of which outputs may take the memory, as far as references to the nodes tell."""
        return [number for number, _ in donations if only_known([self.nodes[number]], (self.known[number] + 1,))]

    def ended(self, donations: Donations) -> list[int]:
        """Those inputs of which outputs may take the memory: nothing but what the plan computes refers to the nodes,
        nor to their memory."""
        nodes, views, known = self
        return [
            number
            for number, _ in donations
            if views[number] is nodes[number].value
            and only_known([nodes[number], views[number], views[number].buffer], (known[number] + 1, *_TO_MEMORY))
        ]


class Submission:
    """Nodes that get values by one plan, the views that it reads, and its constants."""

    __slots__ = ("constants", "nodes", "views")
    nodes: Sequence[Node]
    views: list[View]
    constants: Sequence[int]

    def ended(self, donations: Donations) -> list[int]:
        """Those inputs of which outputs may take the memory; see `Inputs`. The caller holds the lock of sections."""
        raise NotImplementedError

    def release(self) -> None:
        """Release what the nodes are made of. The caller holds the lock of sections."""
        tracing.release(self.nodes)

    def submit(self, plan: Plan, stream: Stream, at_once: int) -> None:
        """Evaluate the nodes on a stream.

        This thread does the work if there is less than ``at_once``, if the stream is idle and, unless ``at_once`` is
        `LONG_WORK`, if all inputs have arrived.
        """
        is_idle = stream.worker is None or stream.worker.idle
        if plan.work >= at_once or not is_idle or not (at_once == LONG_WORK or arrived(self.views)):
            self._queue(plan, stream)
            return
        if plan.donates and self.run_donating(plan, stream):
            return
        table = plan.table_for(self.constants)
        if plan.sole is None:
            found = run_now(plan, table, self.views, stream)
            assert found is not None
        else:
            found = [run_for_one(plan, table, self.views, stream)]
        plan.spare_tables.append(table)
        with sections:
            give_values(self.nodes, found)
            self.release()

    def run_donating(self, plan: Plan, stream: Stream) -> bool:
        """Run in the memory of inputs that end, if there are any; return whether that was done.

        The nodes get values before these are computed: another thread that evaluates the same nodes must wait for this
        run, because it overwrites what they are made of.
        """
        with sections:
            for node in self.nodes:
                if node.value is not None:  # evaluated meanwhile, so what it is made of has been released
                    return False
            ended = self.ended(plan.donations)
            if not ended or tracing.is_tracing() or tracing.is_followed(self.nodes):
                return False
            run = Run(plan, self.views, self.constants, ended, stream=stream)
            consume(map(give_value, self.nodes, run.promised()))  # without a gap: what they are made of is overwritten
            self.release()
        run.wait()
        return True

    def _queue(self, plan: Plan, stream: Stream) -> None:
        run = Run(plan, self.views, self.constants)
        stream.engine.make_room(stream)  # outside of the section, because it may wait
        views = run.results()
        with sections:
            run.queue(stream)
            give_values(self.nodes, views)
            self.release()
