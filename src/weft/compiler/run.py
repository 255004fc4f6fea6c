"""One execution of a plan: its memory, and the table of addresses and constants that native code reads."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from weft.compiler.codegen import native
from weft.compiler.plan import Output, Plan
from weft.dtypes import Dtype
from weft.errors import EvaluationError
from weft.graph.node import Node, Shape, leaf
from weft.runtime.executor import executor
from weft.runtime.memory import Buffer, View, size_class
from weft.runtime.steps import State, Table

# The state of runs that nobody can stop.
_UNSTOPPED = State()


class Run:
    """A plan with its inputs, its new buffers and its constants.

    Nobody needs the inputs in ``ended`` afterwards: their buffers may become those of outputs.
    """

    __slots__ = ("_arena", "_buffers", "_inputs", "_lock", "_plan", "_promised", "_state", "_table")

    def __init__(
        self, plan: Plan, inputs: Sequence[View], constants: Sequence[int], ended: Collection[int] = ()
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._state = _UNSTOPPED
        self._lock = threading.Lock()
        self._promised: list[View] = []
        taken = _donated(plan, inputs, ended) if ended else {}
        self._buffers = [taken.get(number) or Buffer(size) for number, size in enumerate(plan.sizes)]
        self._arena = Buffer(plan.arena) if plan.arena else None
        addresses = [view.address for view in inputs]
        addresses += [buffer.address for buffer in self._buffers]
        addresses.append(self._arena.address if self._arena is not None else 0)
        addresses += constants
        self._table = Table(addresses)

    def now(self) -> None:
        """Run on this thread, after what the inputs wait for."""
        for view in self._inputs:
            if view.event is not None:
                view.event.wait()
        execute(self._plan, self._table, self._state)
        self._arena = None

    def stoppable(self) -> Run:
        """This run, from now on with a state of its own."""
        self._state = State()
        return self

    def cancel(self) -> None:
        """Stop before the next step."""
        self._state.cancel()

    def results(self) -> list[View]:
        """The outputs; their elements are there once the run is over."""
        return [self._view(output) for output in self._plan.outputs]

    def _view(self, output: Output) -> View:
        if output.from_input:
            return view_of_input(self._inputs[output.number], output)
        return View(self._buffers[output.number], output.offset, output.strides)

    def promise(self, avals: Sequence[tuple[Shape, Dtype]]) -> list[Node]:
        """Nodes for the outputs whose values wait for this run, whoever needs one first: an interrupt between the
        promise and the run loses nothing."""
        self._promised = self.results()
        for view in self._promised:
            view.event = self
        return [leaf(view, *aval) for view, aval in zip(self._promised, avals, strict=True)]

    def wait(self) -> None:
        """Run, if that has not happened."""
        with self._lock:
            if self._state.steps_run != self._plan.steps.count:
                self.now()
        for view in self._promised:
            view.event = None


def view_of_input(source: View, output: Output) -> View:
    """An output that shows an input in another way."""
    view = View(source.buffer, source.offset + output.offset, output.strides)
    view.event = source.event
    return view


def execute(plan: Plan, table: Table, state: State = _UNSTOPPED) -> None:
    """Walk over the steps of a plan."""
    steps = plan.steps
    if steps.count:
        done = executor(native.runtime_functions).run(steps.address, steps.count, table.address, state.address)
        if done != steps.count:
            raise EvaluationError("the evaluation was cancelled")


def _donated(plan: Plan, inputs: Sequence[View], ended: Collection[int]) -> dict[int, Buffer]:
    """The buffers of ended inputs by the output that takes them."""
    return {
        output: inputs[number].buffer
        for number, output in plan.donations
        if number in ended and _fits(inputs[number], plan.sizes[output])
    }


def _fits(view: View, size: int) -> bool:
    return view.offset == 0 and size_class(view.buffer.size) == size_class(size)
