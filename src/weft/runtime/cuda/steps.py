"""Steps in the form in which a card runs them: loaded functions, numbers in its memory, and a graph of all steps."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import Driver, FunctionLaunch
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.queues import Queue
from weft.runtime.memory import Buffer
from weft.runtime.on_host import HostSteps
from weft.runtime.steps import DONE, FIRST, OnHost, Step, StepList, Table, TableLayout

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine

_WORD = 8
_CACHED = 4
"""The slots of at most this many runs of a plan are cached on the card."""

Addresses = Sequence[list[int]]
"""The addresses for each call of a library."""


class Loaded(NamedTuple):
    """A function on a card, how many of its blocks the card holds at once, whether it waits in its own code for the
    kernels before it, and whether it gets the numbers of a step ``by_value``, not their address."""

    function: int
    most_blocks: int
    waits: bool
    by_value: bool

    @classmethod
    def of(cls, driver: Driver, code: CudaCode, machine_code: bytes, multiprocessors: int) -> Loaded:
        _, function = driver.load(machine_code, code.name, code.shared)
        resident = driver.resident_blocks(function, code.threads, code.shared)
        return cls(function, max(resident, 1) * multiprocessors, code.waits, code.by_value)


class OwnMemory:
    """Takes the place of the engine in buffers that memory statistics leave out."""

    def __init__(self, engine: CudaEngine) -> None:
        self.memory = engine.own_memory


class Slots:
    """The slots of runs in the memory of a card, and the actions that queue the steps that read them, on one queue.

    Kernels read addresses from the slots, so a graph of kernels alone serves all runs; even for a single kernel,
    launching a graph takes less time than launching the kernel. Libraries get ``addresses`` when their calls are
    queued, so a graph with such calls serves only runs with the same addresses.

    ``actions`` has the actions of each step (None for a step of the CPU); ``together`` queues all steps as a graph.
    Steps that are ``idle`` have nothing to do in these runs, and are not launched. ``again``: more than one run had
    these addresses.
    """

    def __init__(
        self, buffer: Buffer, launches: Sequence[FunctionLaunch | None], addresses: Addresses, idle: frozenset[int]
    ) -> None:
        self.buffer = buffer
        self.launches = launches
        self.addresses = addresses
        self.idle = idle
        self.written: array[int] | None = None
        """The table of a run that has not begun, whose values are in the slots."""
        self.actions: Sequence[list[Action] | None] = ()
        self.together: Action | None = None
        self.again = False


class CudaSteps(StepList):
    """The steps of a plan on a card. The slots of the latest runs are in its memory, and so are numbers that kernels do
    not get by value.

    ``stand_ins`` are the steps for the CPU, by the index of the first of each sequence; ``calls`` are those of
    libraries, by index."""

    def __init__(self, engine: CudaEngine, driver: Driver, steps: Sequence[Step], layout: TableLayout | None) -> None:
        super().__init__(steps)
        self._engine, self._driver = engine, driver
        inputs, end = (0, None) if layout is None else (layout.inputs, FIRST + layout.constant(0))
        self._read, self._written = slice(FIRST, FIRST + inputs), slice(FIRST + inputs, end)
        """Where in a table the addresses are that are read, and those that are written."""
        self._own: Any = OwnMemory(engine)
        self._loaded = [engine.load(step.code) if type(step.code) is CudaCode else None for step in steps]
        self._sent = [
            () if loaded is None or loaded.by_value else step.numbers
            for step, loaded in zip(steps, self._loaded, strict=True)
        ]
        """The numbers of steps whose kernels get their address."""
        self._numbers = self._on_card([number for numbers in self._sent for number in numbers])
        self.stand_ins = {found[0][0]: HostSteps([step for _, step in found]) for found in _for_the_host(steps)}
        self.calls: dict[int, LibraryCall] = {
            number: step.code for number, step in enumerate(steps) if isinstance(step.code, LibraryCall)
        }
        self._copies = [found for found in map(_copy_of, count(), steps) if found is not None]
        self._idle_before: frozenset[int] | None = None
        self._may_capture = not self.stand_ins and all(call.is_captured for call in self.calls.values())
        self._latest: dict[Queue | None, deque[Slots]] = {}
        self._overwritten: deque[array[int]] = deque(maxlen=_CACHED)
        """The latest values that were written over others."""

    def _on_card(self, numbers: Sequence[int]) -> Buffer:
        buffer = Buffer(self._own, _WORD * max(len(numbers), 1))
        if numbers:
            words = (ctypes.c_int64 * len(numbers))(*numbers)
            self._engine.write(buffer.address, ctypes.addressof(words), _WORD * len(words))
        return buffer

    def slots_of(self, table: Table, queue: Queue) -> tuple[Slots, list[Action]]:
        """The slots of a run on a queue, and the actions that write them to the card: none if a recent run had the same
        values, as is usual when memory is reused."""
        written = table.values[:]
        written[DONE] = 0
        latest = self._latest.get(queue)
        if latest is None:
            latest = self._latest[queue] = deque()
        for slots in latest:
            if slots.written == written:
                slots.again = True
                return slots, []
        values = written[FIRST:]
        idle = frozenset([copy.number for copy in self._copies if copy.is_idle(values)])
        slots = (self._with_addresses if self.calls else self._for_all)(values, idle, latest, queue)
        source = table.address + _WORD * FIRST
        copy = self._driver.copying_in(slots.buffer.address, source, _WORD * len(values), queue.handle)
        slots.written = None
        return slots, [copy, (setattr, slots, "written", written)]

    def launch_again(self, queue: Queue | None, values: array[int]) -> Action | None:
        """The action that queues all steps for a table with these values, if it is a single launch and the slots are on
        the card."""
        for slots in self._latest.get(queue, ()):
            if slots.written == values:
                return slots.together
        return None

    def touched(self, table: Table, slots: Slots) -> tuple[list[int], list[int]]:
        """The addresses at which a run reads, and those at which it writes."""
        read, written = table.values[self._read], table.values[self._written]
        return [*read, self._numbers.address], [*written, slots.buffer.address]

    def _for_all(self, values: array[int], idle: frozenset[int], latest: deque[Slots], queue: Queue) -> Slots:
        """Slots that serve any run with these or more idle steps: new ones as long as there are fewer than `_CACHED`;
        then, of those that leave out most steps, the ones that were written first. Slots that leave out exactly these
        steps are then made only if the run before had the same idle steps."""
        again, self._idle_before = idle == self._idle_before, idle
        if len(latest) == _CACHED:
            found = max([slots for slots in latest if slots.idle <= idle], key=lambda one: len(one.idle), default=None)
            if found is not None and (found.idle == idle or not again):
                latest.remove(found)
                latest.append(found)
                return found
            latest.popleft()
            idle = idle if again else frozenset()
        slots = self._new_slots(len(values), (), idle, queue)
        known = [launch for number, launch in enumerate(slots.launches) if launch is not None and number not in idle]
        if len(known) + len(idle) == self.count and known:
            self._launch_together(slots, self._driver.graph(known), queue)
        latest.append(slots)
        return slots

    def _with_addresses(self, values: array[int], idle: frozenset[int], latest: deque[Slots], queue: Queue) -> Slots:
        """Slots for runs whose libraries get the addresses in ``values``. Runs in which only kernels have other
        addresses use the same ones, which are written again each time, until the same values come a second time."""
        addresses = [call.addresses(values) for call in self.calls.values()]
        recurring = values in self._overwritten
        for slots in latest:
            served = slots.addresses == addresses and slots.idle == idle
            if served and not (recurring and len(latest) < _CACHED):
                slots.again = True
                self._overwritten.append(values)
                return slots
        if len(latest) == _CACHED:
            latest.popleft()
        latest.append(self._new_slots(len(values), addresses, idle, queue))
        return latest[-1]

    def _new_slots(self, count: int, addresses: Addresses, idle: frozenset[int], queue: Queue) -> Slots:
        buffer = Buffer(self._own, _WORD * max(count, 1))
        numbers = self._numbers.address
        launches: list[FunctionLaunch | None] = []
        for step, loaded, sent in zip(self.steps, self._loaded, self._sent, strict=True):
            launch = None
            if loaded is not None:
                code: CudaCode = step.code
                blocks = code.blocks(step.units, step.grain, loaded.most_blocks)
                sizes = blocks, code.threads, code.shared
                given = step.numbers if loaded.by_value else numbers
                launch = FunctionLaunch(loaded.function, *sizes, given, buffer.address, loaded.waits)
            launches.append(launch)
            numbers += _WORD * len(sent)
        slots = Slots(buffer, launches, addresses, idle)
        slots.actions = self._actions(slots, queue, self._driver.launching)
        return slots

    def _actions(
        self, slots: Slots, queue: Queue, behind: Callable[[FunctionLaunch, int], Action]
    ) -> list[list[Action] | None]:
        """The actions that queue each step on a queue; ``behind`` makes the action that launches a kernel behind
        another one."""
        found: list[list[Action] | None] = []
        before: FunctionLaunch | None = None
        for number, launch in enumerate(slots.launches):
            if number in slots.idle:
                found.append([])
                continue
            launching = self._driver.launching if before is None else behind
            found.append(None if launch is None else [launching(launch, queue.handle)])
            before = launch
        for (number, call), addresses in zip(self.calls.items(), slots.addresses, strict=True):
            found[number] = call.queued(addresses, queue)
        return found

    def together(self, slots: Slots, queue: Queue) -> Action | None:
        """The action that queues all steps as one graph. A graph that must be captured is made only for addresses that
        came again."""
        if slots.together is None and slots.again and self._may_capture:
            graph = self._engine.captured(lambda on: self._early(slots, on))
            self._may_capture = graph != 0
            if graph:
                self._launch_together(slots, graph, queue)
        return slots.together

    def _early(self, slots: Slots, queue: Queue) -> list[Action]:
        """The actions that queue all steps, if each kernel may begin before the one before it has ended."""
        actions = self._actions(slots, queue, self._driver.launching_early)
        return [action for step in actions for action in step or ()]

    def _launch_together(self, slots: Slots, graph: int, queue: Queue) -> None:
        slots.together = self._driver.launching_graph(graph, queue.handle)
        weakref.finalize(slots, self._engine.ended_graphs.append, graph).atexit = False

    @property
    def title(self) -> str:
        """What the kernels compute, for error messages."""
        return "; ".join([step.code.title for step in self.steps if isinstance(step.code, CudaCode | LibraryCall)])

    def forget_slots(self) -> None:
        """Assume that the card has none of the slots."""
        for latest in self._latest.values():
            for slots in latest:
                slots.written = None


class _CopyStep(NamedTuple):
    """A step that copies elements as they are: slots and offsets of what it reads and writes."""

    number: int
    source: tuple[int, int]
    target: tuple[int, int]

    def is_idle(self, values: array[int]) -> bool:
        """Whether the copy would write elements to where they are."""
        (slot, offset), (to_slot, to_offset) = self.source, self.target
        return values[slot] + offset == values[to_slot] + to_offset


def _copy_of(number: int, step: Step) -> _CopyStep | None:
    """The copy that a step does; None if it does anything else or changes the order of elements."""
    copied = step.code.copied if type(step.code) is CudaCode else None
    if copied is None or any(step.numbers[left] != step.numbers[right] for left, right in copied.strides):
        return None
    source, target = [(step.numbers[slot], step.numbers[offset]) for slot, offset in copied[:2]]
    return _CopyStep(number, source, target)


def _for_the_host(steps: Sequence[Step]) -> Iterator[list[tuple[int, Step]]]:
    """Sequences of consecutive steps for the CPU, with their indices."""
    for on_host, found in groupby(enumerate(steps), key=lambda one: type(one[1].code) is OnHost):
        if on_host:
            yield list(found)
