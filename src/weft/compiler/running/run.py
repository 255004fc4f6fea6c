"""One execution of a plan: its memory, and the table of addresses and constants that native code reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from threading import get_ident
from typing import NamedTuple
from weakref import ref

from weft.compiler.planning.plan import Plan
from weft.compiler.planning.planner import Output
from weft.dtypes import Dtype
from weft.errors import CancelledError
from weft.graph.location import user_location
from weft.graph.node import Node, Shape, leaf
from weft.runtime import recording
from weft.runtime.atomic import refuse_reentry, sections
from weft.runtime.devices import Stream
from weft.runtime.forks import begin_steps, end_steps, under_way
from weft.runtime.locks import new_lock
from weft.runtime.memory import BareBuffer, BareView, Buffer, View, size_class
from weft.runtime.steps import DONE, FIRST, Table
from weft.runtime.streams import Event
from weft.runtime.transfers import Sending, copy_on
from weft.runtime.unread import NOWHERE, Unread

_NONE: Mapping[int, Buffer] = {}


def write_inputs(plan: Plan, table: Table, inputs: Sequence[View], wait: bool = True) -> list[View] | None:
    """Write the addresses of ``inputs`` into the table of a run, as soon as their values are computed. If ``wait`` is
    False and one is not computed yet, return None instead of waiting.

    Returns copies that were made for the device. The caller holds them until the run is queued, because a copy of
    memory that others may write to is not cached, so nothing else holds it.
    """
    values, engine = table.values, plan.engine
    slot, copies = FIRST, []
    for view in inputs:
        event = view.event  # another thread may settle it
        if event is not None:
            if not (wait or event.done):
                return None
            try:
                event.wait()
            except CancelledError:
                again = view.event
                if table.stopped or again is event:
                    raise
                if again is not None:
                    again.wait()  # it was cancelled with another run that waited for it, and is computed again
        if view.buffer.engine is engine:
            values[slot] = view.address
        else:
            copy = copy_on(engine, view, plan.spans[slot - FIRST])
            copies.append(copy)
            values[slot] = copy.address
        slot += 1
    return copies


def arrived(views: Sequence[View]) -> bool:
    """Whether all values can be read without waiting."""
    events = [view.event for view in views]
    return events.count(None) == len(events) or all(event is None or event.done for event in events)


def write_outputs(plan: Plan, table: Table, donated: Mapping[int, Buffer] = _NONE) -> list[Buffer]:
    """Take memory for outputs, and write its addresses into the table of a run. ``donated`` gives buffers to use
    instead of new ones, by slot."""
    values, engine = table.values, plan.engine
    buffers = []
    for slot, size, block in plan.blocks[: len(plan.sizes)]:
        buffer = Buffer(engine, size, block) if slot not in donated else donated[slot]
        buffers.append(buffer)
        values[slot] = buffer.address
    return buffers


def execute(plan: Plan, table: Table, stream: Stream | None, asked_at: str) -> None:
    """Run the steps of a plan that have not run yet. ``asked_at`` is the line of the user's program that needs the
    result."""
    count = plan.steps.count
    if count:
        if recording.recorders and not table.steps_run:  # a resumed run is not recorded
            done = recording.run(plan, table, stream, asked_at)
        else:
            done = plan.engine.run(plan.steps, table, stream)
        if done != count:
            raise CancelledError


def view_of_input(source: View, output: Output) -> View:
    """An output that is a view of an input."""
    view = View(source.buffer, source.offset + output.offset, output.strides)
    view.event = source.event
    return view


def give_values(nodes: Sequence[Node], views: Sequence[View]) -> None:
    """Give nodes the values that were computed, but those that another thread gave one. The caller holds the lock of
    sections."""
    for node, view in zip(nodes, views):  # noqa: B905  # `strict` takes its time
        if node.value is None:
            node.value = view


def run_now(
    plan: Plan, table: Table, inputs: Sequence[View], stream: Stream | None = None, wait: bool = True
) -> list[View] | None:
    """The outputs of a plan, computed on this thread for ``stream`` (None: the thread's stream).

    ``table`` holds the constants. Returns None if ``wait`` is False and an input is not computed yet.
    """
    values, engine, slot = table.values, plan.engine, FIRST
    copies: list[View] | None = None
    for view in inputs:
        if view.event is not None or view.buffer.engine is not engine:
            copies = write_inputs(plan, table, inputs, wait)
            if copies is None:
                return None
            break
        values[slot] = view.address
        slot += 1
    return run_written(plan, table, inputs, stream)


def run_written(plan: Plan, table: Table, inputs: Sequence[View], stream: Stream | None) -> list[View]:
    """The outputs of a plan, computed on this thread for ``stream``. ``table`` holds the addresses of ``inputs``."""
    values, engine = table.values, plan.engine
    values[DONE] = 0
    buffers = []
    lease = engine.memory.lease
    for slot, size, block in plan.blocks:  # what `write_outputs` and `Buffer` do, for speed: most calls come here
        buffer = BareBuffer()
        buffer.engine, buffer.size, buffer.is_own = engine, size, True
        buffer.export = None
        buffer.lease = leased = lease(block, size)
        values[slot] = buffer.address = leased.address
        buffers.append(buffer)
    if recording.recorders:
        execute(plan, table, stream, user_location())
    elif not engine.run_all(plan.steps, table, stream):
        raise CancelledError
    views = []
    for output in plan.outputs:
        from_input, number, _, strides, offset = output
        if from_input:
            views.append(view_of_input(inputs[number], output))
            continue
        buffer, view = buffers[number], BareView()
        view.buffer, view.offset, view.strides = buffer, offset, strides
        view.address = buffer.address + offset
        view.event = view.copies = None
        views.append(view)
    return views


def run_for_one(plan: Plan, table: Table, inputs: Sequence[View], stream: Stream) -> View:
    """The output of a plan that has one, as by `run_now`. It is written out, for speed, because evaluations of single
    operations come here."""
    if plan.sole is None:
        found = run_now(plan, table, inputs, stream)
        assert found is not None
        return found[0]
    values, engine, index = table.values, plan.engine, FIRST
    for view in inputs:
        if view.event is not None or view.buffer.engine is not engine:
            inputs = [*inputs, *(write_inputs(plan, table, inputs) or ())]  # copies are held until the steps are run
            break
        values[index] = view.address
        index += 1
    values[DONE] = 0
    slot, size, block, strides, offset = plan.sole
    buffer, view = BareBuffer(), BareView()
    buffer.engine, buffer.size, buffer.is_own = engine, size, True
    buffer.lease = lease = engine.memory.lease(block, size)
    buffer.address = address = values[slot] = lease.address
    if recording.recorders:
        execute(plan, table, stream, user_location())
    elif not engine.run_all(plan.steps, table, stream):
        raise CancelledError
    view.buffer, view.offset, view.strides = buffer, offset, strides
    view.address = address + offset
    buffer.export = view.event = view.copies = None
    return view


class Memory(NamedTuple):
    """The buffers of a run's outputs, and the table that gives their addresses to the engine."""

    buffers: Sequence[Buffer]
    table: Table


class Run:
    """A plan with its inputs, its new buffers and its constants.

    ``ended`` are inputs that nothing needs after the run: their buffers may become those of outputs. If a run is
    ``deferred``, its buffers are taken only after the outputs were published, since only then it is known which inputs
    have ended.
    """

    # Outputs use a run as their event. A run that has ended is removed from them, so this is never True.
    done = False
    __slots__ = (
        "_arena",
        "_asked_at",
        "_constants",
        "_event",
        "_failed",
        "_inputs",
        "_lock",
        "_memory",
        "_outputs",
        "_plan",
        "_stream",
    )

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[View],
        constants: Sequence[int],
        ended: Collection[int] = (),
        deferred: bool = False,
        stream: Stream | None = None,
    ) -> None:
        self._plan = plan
        self._stream = stream
        self._inputs = inputs
        self._constants = constants
        self._asked_at = user_location() if recording.recorders else ""
        self._lock = new_lock()
        self._outputs: list[ref[View]] = []
        """Weak references, because the outputs refer to the run while they wait for it, and may never be read."""
        self._memory: Memory | None = None
        self._arena: Buffer | None = None
        """The memory for temporaries, of a run that has begun. Runs in a queue have none, so they do not add up."""
        self._event: Event | None = None
        """The event of the stream's worker, while the run is queued there."""
        self._failed: Event | None = None
        """The event of a worker that failed to run this."""
        events = [view.event for view in inputs]
        if events.count(None) != len(events):
            for event in events:
                if type(event) in (Run, Unread):
                    event.take_memory()
        if not deferred:
            self._memory = self._taken(ended)

    def _taken(self, ended: Collection[int]) -> Memory:
        plan = self._plan
        donated = _donated(plan, self._inputs, ended) if ended else _NONE
        table = plan.new_table(self._constants)
        return Memory(write_outputs(plan, table, donated), table)

    def take_memory(self, ended: Collection[int] = ()) -> bool:
        """Take memory for the outputs. False if that was done before: another thread may be running this."""
        with sections:
            is_first = self._memory is None
            self._with_memory(ended)
        return is_first

    def _with_memory(self, ended: Collection[int] = ()) -> Memory:
        memory = self._memory
        if memory is None:
            memory = self._taken(ended)
            for found, output in zip(self._outputs, self._plan.outputs, strict=False):
                view = found()
                if view is not None and not output.from_input:
                    view.move(memory.buffers[output.number])
            self._memory = memory  # last, so that all of this is done again if an interrupt comes before
        return memory

    @property
    def can_begin(self) -> bool:
        """Whether all inputs are computed."""
        return arrived(self._inputs)

    def _run(self, table: Table) -> None:
        """Run on this thread, after waiting for the inputs. If it was stopped before, continue with the next step."""
        if table.stopped:
            raise CancelledError  # before waiting for inputs that are not needed any more
        copies = write_inputs(self._plan, table, self._inputs)
        if self._plan.arena and self._arena is None:
            slot, size, block = self._plan.blocks[-1]
            with sections:
                self._arena = Buffer(self._plan.engine, size, block)
                table.values[slot] = self._arena.address
        try:
            begin_steps(self)
            execute(self._plan, table, self._stream, self._asked_at)
        finally:
            end_steps(self)
        del copies

    def queue(self, stream: Stream) -> Event:
        """Submit the run to the worker of a stream, whose event the `results` wait for. If it fails there, they become
        promises again, so that a thread that reads one runs it again. No thread may have begun to read a result before
        this call."""
        with sections:
            self._stream = stream  # keeps the stream alive until the work is done
            self._event = event = self._plan.engine.submit(stream, self._queued, self._stop)
            self._await(event)
        return event

    def _queued(self) -> None:
        try:
            with sections:
                table = self._with_memory().table
            self._run(table)
            self._let_go(table)
        except BaseException:
            with sections:
                self._failed, self._event = self._event, None
                self._with_memory().table.allow_again()
                for view in self._inputs:
                    if type(view.event) is Sending:
                        view.event.allow_again()
                self._await(self)
            raise

    def _stop(self) -> None:
        """Stop before the next step, and cancel what the inputs wait for."""
        assert self._memory is not None
        self._memory.table.cancel()
        for view in self._inputs:
            event = view.event
            if event is not None:
                event.cancel()

    def results(self) -> list[View]:
        """The outputs, which are created by this call, once. Their elements are there when the run has ended."""
        memory, inputs = self._memory, self._inputs
        views = []
        for output in self._plan.outputs:
            if output.from_input:
                views.append(view_of_input(inputs[output.number], output))
            else:
                buffer = NOWHERE if memory is None else memory.buffers[output.number]
                views.append(View(buffer, output.offset, output.strides))
        self._outputs = [ref(view) for view in views]
        return views

    def _await(self, event: Run | Event | None) -> None:
        """Let the outputs that still exist wait for an event."""
        for found in self._outputs:
            view = found()
            if view is not None:
                view.event = event

    def promise(self, avals: Sequence[tuple[Shape, Dtype]]) -> list[Node]:
        """Nodes of outputs. Reading one runs this plan if it has not run. An interrupt before the run loses nothing."""
        views = self.promised()
        return [leaf(view, shape, dtype) for view, (shape, dtype) in zip(views, avals, strict=True)]

    def promised(self) -> list[View]:
        """The outputs. Reading one runs this plan if it has not run."""
        views = self.results()
        for view in views:
            view.event = self
        return views

    def cancel(self) -> None:
        """Do nothing: the thread that waits runs it itself, and an interrupt reaches that thread directly."""

    def wait(self) -> None:
        """Run if it has not run. Raises the error of the run."""
        refuse_reentry(sections)
        with sections:
            event = self._event
            table = self._with_memory().table if event is None else None  # with memory taken, it will not be queued
        if table is None:
            assert event is not None
            event.wait()
            return
        if self._failed is not None:
            self._failed.noticed = True
        refuse_reentry(self._lock)
        shared = self, get_ident()
        try:
            under_way.add(shared)
            with self._lock:
                if table.steps_run != self._plan.steps.count:
                    self._run(table)
                self._let_go(table)
        finally:
            under_way.discard(shared)
        self._await(None)

    def begin_again(self) -> None:
        self._lock = new_lock()

    def _let_go(self, table: Table) -> None:
        """Drop the references to the memory of a run that has ended, since a queue may still refer to the run. Whether
        memory can be freed or donated is found by counting references."""
        self._inputs = ()
        self._memory = Memory((), table)
        self._arena = None


def _donated(plan: Plan, inputs: Sequence[View], ended: Collection[int]) -> dict[int, Buffer]:
    """The buffers of inputs that end with the run, by the slot of the output that takes them over."""
    taken, blocks, engine = {}, plan.blocks, plan.engine
    for number, output in plan.donations:
        if number not in ended:
            continue
        view, (slot, size, block) = inputs[number], blocks[output]
        buffer = view.buffer
        if view.offset == 0 and buffer.engine is engine and buffer.is_own:
            if buffer.size == size:
                taken[slot] = buffer
            elif size_class(buffer.size) == block:
                taken[slot] = buffer
                buffer.size = max(buffer.size, size)  # the input keeps its elements if the run fails
    return taken
