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
from weft.runtime.steps import POOL, Table
from weft.runtime.streams import under_way

# The buffer of outputs that have no memory yet.
_NOWHERE = Buffer(1)


class Run:
    """A plan with its inputs, its new buffers and its constants.

    Nobody needs the inputs in ``ended`` afterwards: their buffers may become those of outputs. A ``deferred`` run gets
    its buffers only when somebody needs them: then its outputs can be where everybody sees them before it is known
    which inputs nobody sees any more.
    """

    done = False  # as an event: nobody else makes it happen
    __slots__ = ("_arena", "_buffers", "_constants", "_inputs", "_lock", "_plan", "_promised", "_table")

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
        self._lock = threading.Lock()
        self._promised: list[View] = []
        self._arena: Buffer | None = None
        self._buffers = [_NOWHERE] * len(plan.sizes)
        self._table: Table | None = None
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
        if self._promised:
            for view, output in zip(self._promised, plan.outputs, strict=True):
                if not output.from_input:
                    view.move(self._buffers[output.number])
        self._table = Table(plan.steps, addresses)

    def place(self, ended: Collection[int] = ()) -> None:
        """Take memory for the outputs, if that has not happened."""
        under_way.append(self)
        try:
            with self._lock:
                if self._table is None:
                    self._take_memory(ended)
        finally:
            under_way.remove(self)

    def now(self) -> None:
        """Run on this thread, after what the inputs wait for."""
        for view in self._inputs:
            event = view.event  # another thread may settle it
            if event is not None:
                event.wait()
        assert self._table is not None
        execute(self._plan, self._table)
        self._arena = None

    def cancel(self) -> None:
        """Stop before the next step, if it has begun or waits on a stream."""
        if self._table is not None:
            self._table.cancel()

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
                if self._table is None or self._table.steps_run != self._plan.steps.count:
                    self.now()
        finally:
            under_way.remove(self)
        for view in self._promised:
            view.event = None


def run_now(plan: Plan, inputs: Sequence[View], constants: Sequence[int], stream: Stream) -> list[View]:
    """The outputs of a plan, computed on this thread for ``stream``."""
    entries = []
    for view in inputs:
        event = view.event  # another thread may settle it
        if event is not None:
            event.wait()
        entries.append(view.address)
    buffers = [Buffer(size) for size in plan.sizes]
    entries += [buffer.address for buffer in buffers]
    arena = Buffer(plan.arena) if plan.arena else _NOWHERE
    entries.append(arena.address)
    entries += constants
    execute(plan, Table(plan.steps, entries), stream)
    return [
        view_of_input(inputs[output.number], output)
        if output.from_input
        else View(buffers[output.number], output.offset, output.strides)
        for output in plan.outputs
    ]


def view_of_input(source: View, output: Output) -> View:
    """An output that shows an input in another way."""
    view = View(source.buffer, source.offset + output.offset, output.strides)
    view.event = source.event
    return view


def execute(plan: Plan, table: Table, stream: Stream | None = None) -> None:
    """Walk over the steps of a plan."""
    count = plan.steps.count
    if count:
        native_code = executor(native.runtime_functions)
        table.values[POOL] = native_code.pool
        if recording.recorders:
            done = recording.run(native_code, plan, table, stream)
        else:
            done = native_code.run(table.address)
        if done != count:
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
