"""The engine of one NVIDIA card: its memory, copies, and runs as launches that the card queues."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from weft.errors import EvaluationError
from weft.runtime import recording
from weft.runtime.atomic import Action, first_code, first_code_unless, first_failure, refuse_reentry
from weft.runtime.cuda.assembly import Assembler
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.copies import PINNED, Copies
from weft.runtime.cuda.driver import CudaError, CudaMemoryError, Driver
from weft.runtime.cuda.order import Order
from weft.runtime.cuda.queues import Queue
from weft.runtime.cuda.rehearsal import Rehearsal
from weft.runtime.cuda.runs import QueuedRun, noting
from weft.runtime.cuda.sharing import CudaSharing
from weft.runtime.cuda.staging import STAGED
from weft.runtime.cuda.steps import CudaSteps, Loaded, OwnMemory, Slots
from weft.runtime.cuda.timing import Timing
from weft.runtime.cuda.waiting import wait_until
from weft.runtime.devices import Device, Stream, gpu
from weft.runtime.engine import Engine
from weft.runtime.host import host
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Allocator, Buffer
from weft.runtime.on_host import HostSteps
from weft.runtime.steps import DONE, FIRST, Sealed, Step, Table, TableLayout

T = TypeVar("T")

_SHOWN = 8
"""An error of a card names the kernels of at most this many runs."""

FORKED = (
    "this process was forked from one that had used a GPU, and NVIDIA's driver does not work in such a child. Start "
    'processes in another way (multiprocessing.set_start_method("spawn")), or use the GPU in the children only; '
    "mx.cpu works here."
)


class _ContextOfThread(threading.local):
    context = 0


_thread = _ContextOfThread()
_engines: weakref.WeakSet[CudaEngine] = weakref.WeakSet()


class CudaEngine(Engine):
    """Runs the work of a card. Its ``order`` decides which work waits for which.

    While a single stream is used, memory can be reused as soon as its buffer has ended: work that still reads it is in
    the queue before work that writes it next. Reading results on the card then needs no event.
    """

    queues = True
    takes_at_once = STAGED
    sharing: CudaSharing

    def __init__(self, driver: Driver, card: int) -> None:
        self._driver = driver
        self._card = card
        self._has_neighbours = driver.count() > 1
        self._forked = False
        self.context = self._multiprocessors = 0
        self.when_expected: Callable[[], object] = lambda: None
        self.when_started: Callable[[], object] = lambda: None
        """Functions to call when a stream of the card is made and when the card is first used."""
        self.order = Order(driver)
        self._capturing: Queue | None = None
        """A queue for capturing graphs; nothing else is queued on it."""
        self._lock = fork_safe_lock()
        """Held from writing the addresses of a run to the card until its launch."""
        self._copies = Copies(driver, self.order, self._enter, self._wait, self._finish_queues)
        self._timing = Timing(driver)
        super().__init__(Device(gpu, card), Allocator(self._allocate, self._free, self._rest_of_memory))
        self.own_memory = Allocator(self._allocate, self._free)
        """Allocates memory that memory statistics leave out: numbers of steps, slots of runs."""
        self.sharing = CudaSharing(self, driver, card)
        self.export_ended = self.sharing.returned.append
        self._assembler = Assembler(driver, self.architecture, self._enter)
        self._loaded: dict[CudaCode, Loaded] = {}
        self._begun: deque[CudaSteps] = deque(maxlen=_SHOWN)
        """The steps of the latest runs that were started since the last wait."""
        self.ended_graphs: deque[int] = deque()
        """Graphs of plans that ended, to be destroyed."""
        _engines.add(self)

    @property
    def works_in_parallel(self) -> bool:  # type: ignore[override]  # only read
        return self.order.several

    @property
    def architecture(self) -> str:
        """The architecture by its name in compilers, such as ``sm_90``."""
        major, minor = self._driver.capability(self._card)
        return f"sm_{major}{minor}"

    def will_be_used(self) -> None:
        self.when_expected()

    def info(self) -> dict[str, str | int]:
        return {
            **super().info(),
            "device_name": self._driver.name_of(self._card),
            "architecture": self.architecture,
            "memory_size": self._driver.total_memory(self._card),
        }

    def _enter(self) -> None:
        """Must be called before each call of the driver."""
        if self._forked:
            raise EvaluationError(FORKED)
        if not self.context:
            self._start()
        if _thread.context != self.context or self._has_neighbours:  # other libraries may change the context
            self._driver.use(self.context)
            _thread.context = self.context
        if self.sharing.returned:
            self.sharing.wait_for_others()

    def _start(self) -> None:
        """Begin to use the card, which takes some of its memory and some tenths of a second."""
        refuse_reentry(self._lock)
        with self._lock:
            is_first = not self.context
            if is_first:
                context = _thread.context = self._driver.context(self._card)
                self._driver.use(context)
                self._multiprocessors = self._driver.multiprocessors(self._card)
                self._copies.begin()
                self.order.begin()
                self.context = context
        if is_first:
            self.when_started()

    def entered(self) -> Order:
        """Prepare this thread for calls of the driver; returns the order of work."""
        self._enter()
        return self.order

    def _allocate(self, size: int) -> int:
        self._enter()
        address = self._driver.allocate(size)
        if address:
            with self.order.lock:
                self.order.blocks.add(address, size)
        return address

    def _free(self, address: int) -> None:
        self._enter()
        self.finish()  # queued work may still use it
        with self.order.lock:
            readers = self.order.blocks.awaited((), (address,))  # also on queues of other cards
            self.order.blocks.remove(address)
        for mark in readers:
            self._wait(self._driver.has_happened, mark.queue.event_of(mark))
        self._driver.free(address)

    def _with_room(self, do: Callable[[], T]) -> T:
        """Call ``do``, which takes memory of the card that is not for arrays; if there is too little, free cached
        memory and call it again."""
        try:
            return do()
        except CudaMemoryError:
            self.memory.clear()
            self.own_memory.clear()
        try:
            return do()
        except CudaMemoryError as error:
            raise error.with_more(self._rest_of_memory()) from None

    def _rest_of_memory(self) -> str:
        total, free = self._driver.total_memory(self._card), self._driver.free_memory()
        return f"; {self.device} has {total} bytes, {free} of them free"

    def copy_in(self, source: memoryview, buffer: Buffer, offset: int) -> None:
        elements = np.frombuffer(source, np.uint8)
        self._copies.write(buffer.address + offset, elements.ctypes.data, elements.nbytes)

    def copy_out(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        if target.nbytes:
            self.wait_for_launches()
            self._copies.read(
                buffer.address + offset, ctypes.addressof(ctypes.c_char.from_buffer(target)), target.nbytes
            )

    def copied_out(self, buffer: Buffer, offset: int, size: int) -> bytearray:
        if 0 < size <= PINNED:
            self.wait_for_launches()
            return self._copies.read_small(buffer.address + offset, size)
        return super().copied_out(buffer, offset, size)

    def copy_across(self, source: Buffer, start: int, target: Buffer, size: int) -> None:
        if source.engine is host:
            self._copies.write(target.address, source.address + start, size)
        elif isinstance(source.engine, CudaEngine):
            self._copy_from_card(source.engine, source.address + start, target.address, size)
        else:
            super().copy_across(source, start, target, size)

    def _copy_from_card(self, other: CudaEngine, there: int, here: int, size: int) -> None:
        """Copy from another card's memory without blocking this thread: this card's queue waits until the elements were
        computed, and the other card's queues wait for the copy before they use that memory for something else."""
        other.wait_for_launches()
        computed = other.entered().marks_of(there)
        self._enter()
        copied = self._copies.from_card(other.context, there, self.context, here, size, computed)
        other.entered().note_reader(there, copied)
        if recording.recorders:
            self._wait(self._driver.is_done, copied.queue.handle)

    def write(self, there: int, here: int, size: int) -> None:
        """Copy from a host address; the bytes there may change as soon as this returns."""
        self._copies.write(there, here, size)

    def finish(self, buffers: Collection[Buffer] | None = None) -> None:
        if _thread.context != self.context or self._has_neighbours or self.sharing.returned:
            self._enter()
        order = self.order
        if not order.several:
            for queue in order.queues[:1]:
                self._wait(self._driver.is_done, queue.handle)
            return
        if buffers is None:
            self._finish_queues()
            return
        with order.lock:
            awaited = order.blocks.awaited([buffer.address for buffer in buffers], ())
            events = {mark: mark.queue.event_of(mark) for mark in awaited}
        for mark, event in events.items():
            self._wait(self._driver.has_happened, event)
            mark.queue.note_reached(mark.number)

    def _finish_queues(self) -> None:
        """Wait until all queued work is done."""
        for queue in list(self.order.queues):
            marked = queue.marked
            self._wait(self._driver.is_done, queue.handle)
            queue.note_reached(marked)

    def _wait(self, is_ready: Callable[[int], bool], handle: int) -> None:
        """Wait for the card. Errors name the kernels that may have caused them."""
        try:
            wait_until(is_ready, handle)
        except CudaError as error:
            raise error.after([steps.title for steps in list(self._begun)]) from None
        self._begun.clear()
        if self.sharing.held:
            self.sharing.let_go()

    def seal(self, steps: Sequence[Step], layout: TableLayout | None = None) -> CudaSteps:
        self._enter()
        self._destroy_graphs()
        return CudaSteps(self, self._driver, steps, layout)

    def begin_loading(self, code: CudaCode) -> None:
        """Start making the machine code of code that will be loaded."""
        if code not in self._loaded:
            self._assembler.begin(code)

    def load(self, code: CudaCode) -> Loaded:
        """The function of some code, loaded on this card."""
        found = self._loaded.get(code)
        if found is None:
            machine_code = self._assembler.machine_code(code)
            found = self._loaded[code] = self._with_room(
                lambda: Loaded.of(self._driver, code, machine_code, self._multiprocessors)
            )
        return found

    def for_libraries(self) -> dict[Any, Any]:
        """What libraries store for all queues of this card. Its context becomes that of this thread."""
        return self.entered().shared

    def rehearsal(self) -> Rehearsal:
        """For calls of libraries, on the thread that asks."""
        return Rehearsal(self._driver, self.entered(), OwnMemory(self))

    def captured(self, actions_on: Callable[[Queue], Sequence[Action]]) -> int:
        """A graph of what actions queue on a queue; 0 if they cannot be captured."""
        self._destroy_graphs()
        queue, self._capturing = self._capturing or self.order.new_queue(), None
        graph = self._driver.captured(actions_on(queue), queue.handle)
        if graph:
            self._capturing = queue
        return graph

    def _destroy_graphs(self) -> None:
        if self.ended_graphs:
            self.finish()
        while self.ended_graphs:
            self._driver.destroy_graph(self.ended_graphs.popleft())

    def run(self, steps: Sealed, table: Table, stream: Stream | None = None) -> int:
        assert isinstance(steps, CudaSteps)
        values = table.values
        if values[DONE]:
            return self._run(steps, table, stream)
        self._enter()
        refuse_reentry(self._lock)
        with self._lock:
            launch = self._launch_again(steps, values, stream)
            if launch is None:
                return self._run(steps, table, stream)
            self._begun.append(steps)
            code = first_code((launch, (values.__setitem__, DONE, steps.count)))
            if code:
                self._not_launched(steps, code)
        return steps.count

    def run_all(self, steps: Sealed, table: Table, stream: Stream | None) -> bool:
        """Most runs take this short path, in which what others call is written out. After an interrupt the caller
        drops the table, so the launch need not be noted in it."""
        assert type(steps) is CudaSteps
        sharing, lock = self.sharing, self._lock
        if _thread.context != self.context or self._has_neighbours or sharing.returned:
            self._enter()
        if lock._is_owned():  # type: ignore[attr-defined]  # as `refuse_reentry` asks
            refuse_reentry(lock)
        with lock:
            if stream is None or self.order.several or sharing.borrowed or sharing.held:
                return self._run(steps, table, stream) == steps.count
            launch = steps.launch_again(stream.queue, table.values)
            if launch is None:
                return self._run(steps, table, stream) == steps.count
            self._begun.append(steps)
            function, graph, queue = launch
            code = function(graph, queue)
            if code:
                self._not_launched(steps, code)
        return True

    def _launch_again(self, steps: CudaSteps, values: array[int], stream: Stream | None) -> Action | None:
        """An action that queues all steps, if they are one launch, their slots are on the card and nothing has to
        wait."""
        sharing = self.sharing
        if stream is None or self.order.several or sharing.borrowed or sharing.held:
            return None
        return steps.launch_again(stream.queue, values)

    def _not_launched(self, steps: CudaSteps, code: int) -> None:
        steps.forget_slots()
        self._driver.check(code, "cuGraphLaunch")

    def run_unless(self, steps: Sealed, table: Table, stream: Stream, doubts: Iterator[bool]) -> bool:
        assert isinstance(steps, CudaSteps)
        self._enter()
        refuse_reentry(self._lock)
        with self._lock:
            if self.order.several or self.sharing.borrows:
                return False
            writing: Sequence[Action] = ()
            launch = steps.launch_again(stream.queue, table.values)
            if launch is None:
                queue = self.order.of(stream, self._finish_queues)
                slots, writing = self._with_room(lambda: steps.slots_of(table, queue))
                launch = None if steps.stand_ins else steps.together(slots, queue)
            if launch is None:
                return False
            self._begun.append(steps)
            code = first_code_unless(doubts, (*writing, launch))
            if code is True:
                return False
            if code:
                self._not_launched(steps, code)
        return True

    def wait_for_launches(self) -> None:
        """To be called before elements are read: wait for a thread that is in `run_unless`, if there is one. As the
        driver's functions release the interpreter's lock, this thread may have got an array after the doubts were read,
        and could copy old elements first and new ones later."""
        with self._lock:
            pass

    def _run(self, steps: CudaSteps, table: Table, stream: Stream | None) -> int:
        """Run the steps that were not run yet, in the general way."""
        values = table.values
        if values[DONE] == steps.count or table.stopped:
            return values[DONE]
        self._enter()
        with self._lock:
            self._begun.append(steps)
            queue = self.order.of(stream, self._finish_queues)
            slots, writing = self._with_room(lambda: steps.slots_of(table, queue))
            marking = self._begin_work(queue, steps, table, slots)
            run = QueuedRun(steps, slots, table, queue)
            if steps.stand_ins:
                self._run_each(run, writing, marking)
            else:
                self._run_together(run, writing, marking)
            if self.sharing.borrows:
                self.sharing.hold(steps.touched(table, slots)[0], queue)
        return values[DONE]

    def _begin_work(self, queue: Queue, steps: CudaSteps, table: Table, slots: Slots) -> Sequence[Action]:
        """Make a queue wait for what a run needs; returns the actions that mark the end of the run."""
        order = self.order
        return order.begin_work(queue, *steps.touched(table, slots)) if order.several else ()

    def _run_together(self, run: QueuedRun, writing: Sequence[Action], marking: Sequence[Action]) -> None:
        """Run all steps that were not run yet in one call of native code."""
        steps, slots, table, queue = run
        first = table.values[DONE]
        together = None if first else steps.together(slots, queue)
        if together is not None:
            queued = [together, noting(table, steps.count)]
        else:
            queued = [x for number in range(first, steps.count) for x in run.queueing(number)]
        try:
            self._queue(run, [*writing, *queued, *marking])
        except EvaluationError:
            self._queue(run, marking)
            raise

    def _queue(self, run: QueuedRun, actions: Sequence[Action]) -> None:
        """Queue actions in one call of native code, one of which is `noting`: an interrupt cannot come between, so
        that no work is queued twice."""
        failure = first_failure(actions)
        if failure is not None:
            run.steps.forget_slots()
            number, code = failure
            run.check(actions[number], code)
            self._driver.check(code, "a launch")

    def _run_each(
        self, run: QueuedRun, writing: Sequence[Action], marking: Sequence[Action], events: Sequence[int] = ()
    ) -> None:
        """Run one step after the other. If there are ``events``, one is recorded before each step and one at the
        end."""
        steps, _, table, queue = run
        try:
            self._queue(run, writing)
            for number in range(table.values[DONE], steps.count):
                if table.stopped:
                    return
                if events:
                    self._driver.record(events[number], queue.handle)
                if number in steps.stand_ins:
                    self._run_on_host(run, steps.stand_ins[number])
                else:
                    self._queue(run, run.queueing(number))
            if events:
                self._driver.record(events[-1], queue.handle)
        finally:
            self._queue(run, marking)

    def _run_on_host(self, run: QueuedRun, found: HostSteps) -> None:
        """Run the next steps of a run, which are steps for the CPU."""
        table, queue = run.table, run.queue
        copies, memory = found.run(table.values[FIRST:], partial(self._copies.read_behind, queue))
        actions = [self._driver.copying_in(copy.there, copy.here, copy.size, queue.handle) for copy in copies]
        self._queue(run, [*actions, noting(table, table.values[DONE] + found.count)])
        del memory  # the driver has finished reading it

    def run_timed(self, steps: Sealed, table: Table, times: array[int], stream: Stream | None) -> int:
        assert isinstance(steps, CudaSteps)
        values = table.values
        if values[DONE] == steps.count or table.stopped:
            return values[DONE]
        self._enter()
        refuse_reentry(self._lock)
        with self._lock:
            self._begun.append(steps)
            queue, first = self.order.of(stream, self._finish_queues), values[DONE]
            slots, writing = self._with_room(lambda: steps.slots_of(table, queue))
            marking = self._begin_work(queue, steps, table, slots)
            events = self._timing.events(steps.count + 1)
            try:
                self._run_each(QueuedRun(steps, slots, table, queue), writing, marking, events)
            finally:
                self._timing.note(events, first, values[DONE], times)
            if self.sharing.borrows:
                self.sharing.hold(steps.touched(table, slots)[0], queue)
        return values[DONE]


def _after_fork() -> None:
    _thread.context = 0
    for engine in list(_engines):
        engine._forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
