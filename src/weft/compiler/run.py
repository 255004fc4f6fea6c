"""One execution of a plan: its memory, and the table of addresses and constants that native code reads."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from weft.compiler.codegen import native
from weft.compiler.plan import Output, Plan
from weft.dtypes import Dtype
from weft.errors import EvaluationError
from weft.graph.node import Node, Shape, leaf
from weft.runtime import recording
from weft.runtime.devices import Stream
from weft.runtime.executor import executor
from weft.runtime.memory import Buffer, View, size_class
from weft.runtime.steps import State, Table
from weft.runtime.streams import under_way

# The state of runs that nobody can stop.
_UNSTOPPED = State()
# The buffer of outputs that have no memory yet.
_NOWHERE = Buffer(1)


class Run:
    """A plan with its inputs, its new buffers and its constants.

    Nobody needs the inputs in ``ended`` afterwards: their buffers may become those of outputs. A ``deferred`` run gets
    its buffers only when somebody needs them: then its outputs can be where everybody sees them before it is known
    which inputs nobody sees any more.
    """

    done = False  # as an event: nobody else makes it happen
    __slots__ = ("_arena", "_buffers", "_constants", "_inputs", "_lock", "_plan", "_promised", "_state", "_table")

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[View],
        constants: Sequence[int],
        ended: Collection[int] = (),
        deferred: bool = False,
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._constants = constants
        self._state = _UNSTOPPED
        self._lock = threading.Lock()
        self._promised: list[View] = []
        self._arena: Buffer | None = None
        self._table: Table | None = None
        self._buffers = [_NOWHERE] * len(plan.sizes)
        for view in inputs:
            event = view.event
            if type(event) is Run:
                event.place()
        if not deferred:
            self._take_memory(ended)

    def _take_memory(self, ended: Collection[int]) -> None:
        plan, inputs = self._plan, self._inputs
        taken = _donated(plan, inputs, ended) if ended else {}
        self._buffers = [taken.get(number) or Buffer(size) for number, size in enumerate(plan.sizes)]
        self._arena = Buffer(plan.arena) if plan.arena else None
        addresses = [view.address for view in inputs]
        addresses += [buffer.address for buffer in self._buffers]
        addresses.append(self._arena.address if self._arena is not None else 0)
        addresses += self._constants
        for view, output in zip(self._promised, plan.outputs, strict=False):
            if not output.from_input:
                view.move(self._buffers[output.number])
        self._table = Table(addresses)

    def place(self, ended: Collection[int] = ()) -> None:
        """Take memory for the outputs, if that has not happened."""
        under_way.append(self)
        try:
            with self._lock:
                if self._table is None:
                    self._take_memory(ended)
        finally:
            under_way.remove(self)

    def now(self, stream: Stream | None = None) -> None:
        """Run on this thread, after what the inputs wait for; for ``stream``, if that is not the one of the thread."""
        for view in self._inputs:
            event = view.event  # another thread may settle it
            if event is not None:
                event.wait()
        assert self._table is not None
        execute(self._plan, self._table, self._state, stream)
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
        return [leaf(view, *aval) for view, aval in zip(self.promised(), avals, strict=True)]

    def promised(self) -> list[View]:
        """The outputs; who reads one runs this first, if nobody has."""
        self._promised = self.results()
        for view in self._promised:
            view.event = self
        return self._promised

    def wait(self) -> None:
        """Run, if that has not happened."""
        self.place()
        under_way.append(self)
        try:
            with self._lock:
                if self._state.steps_run != self._plan.steps.count:
                    self.now()
        finally:
            under_way.remove(self)
        for view in self._promised:
            view.event = None


def view_of_input(source: View, output: Output) -> View:
    """An output that shows an input in another way."""
    view = View(source.buffer, source.offset + output.offset, output.strides)
    view.event = source.event
    return view


def execute(plan: Plan, table: Table, state: State = _UNSTOPPED, stream: Stream | None = None) -> None:
    """Walk over the steps of a plan."""
    steps = plan.steps
    if steps.count:
        native_code = executor(native.runtime_functions)
        if recording.recorders:
            done = recording.run(native_code, plan, steps, table.address, state.address, stream)
        else:
            done = native_code.run(steps.address, steps.count, table.address, state.address)
        if done != steps.count:
            raise EvaluationError("the evaluation was cancelled")


def _donated(plan: Plan, inputs: Sequence[View], ended: Collection[int]) -> dict[int, Buffer]:
    """The buffers of ended inputs by the output that takes them."""
    taken = {}
    for number, output in plan.donations:
        size = plan.sizes[output]
        if number in ended and _fits(inputs[number], size):
            taken[output] = buffer = inputs[number].buffer
            buffer.size = size
    return taken


def _fits(view: View, size: int) -> bool:
    return view.offset == 0 and size_class(view.buffer.size) == size_class(size)
