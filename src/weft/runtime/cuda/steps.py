"""Steps in the form in which a card runs them: loaded functions, numbers in its memory, one graph for all."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import Driver, Launch
from weft.runtime.cuda.queues import Queue
from weft.runtime.memory import Buffer
from weft.runtime.on_host import HostSteps
from weft.runtime.steps import FIRST, OnHost, Step, StepList, Table, TableLayout

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine

_WORD = 8
_KEPT = 4
"""Slots of so many runs of a plan are kept on the card."""


class Loaded(NamedTuple):
    """A function on a card, and how many of its blocks the card holds at once."""

    function: int
    most_blocks: int

    @classmethod
    def of(cls, driver: Driver, code: CudaCode, multiprocessors: int) -> Loaded:
        text = code.ptx if isinstance(code.ptx, bytes) else code.ptx.encode() + b"\0"
        _, function = driver.load(text, code.name, code.shared)
        resident = driver.resident_blocks(function, code.threads, code.shared)
        return cls(function, max(resident, 1) * multiprocessors)


class _OwnMemory:
    """Stands for the engine in buffers of memory that users do not count."""

    def __init__(self, engine: CudaEngine) -> None:
        self.memory = engine.own_memory


class Slots:
    """The slots of runs in the memory of a card, and what queues the steps that read them there.

    ``launching`` queues one step (None: it is one for the CPU), ``together`` all of them, if none is for the CPU: as a
    graph, which never changes, because kernels read addresses from the slots. To launch a graph takes less time than a
    kernel, even if it has only one.
    """

    def __init__(self, buffer: Buffer, launches: list[Launch | None], driver: Driver, queue: int) -> None:
        self.buffer = buffer
        self._launches = launches
        self.written: array[int] | None = None
        """What they hold."""
        self.launching = [None if launch is None else driver.launching(launch, queue) for launch in launches]
        self.graph = 0
        self.together: Action | None = None
        known = [launch for launch in launches if launch is not None]
        if len(known) == len(launches):
            self.graph = driver.graph(known)
            self.together = driver.launching_graph(self.graph, queue)


class CudaSteps(StepList):
    """The steps of a plan on a card. It has the numbers of all steps in its memory, and the slots of the latest runs.
    Those for the CPU are ``stand_ins``, by the number of the first one."""

    def __init__(
        self, engine: CudaEngine, driver: Driver, steps: Sequence[Step], layout: TableLayout | None = None
    ) -> None:
        super().__init__(steps)
        self._engine, self._driver = engine, driver
        inputs, end = (0, None) if layout is None else (layout.inputs, FIRST + layout.constant(0))
        self._read, self._written = slice(FIRST, FIRST + inputs), slice(FIRST + inputs, end)
        """Where a table has the addresses that are read, and those that are written."""
        self._own: Any = _OwnMemory(engine)
        self._numbers = self._on_card([number for step in steps for number in step.numbers])
        self._loaded = [None if type(step.code) is OnHost else engine.load(step.code) for step in steps]
        self.stand_ins = {found[0][0]: HostSteps([step for _, step in found]) for found in _for_the_host(steps)}
        self._latest: dict[Queue, deque[Slots]] = {}

    def _on_card(self, numbers: Sequence[int]) -> Buffer:
        buffer = Buffer(self._own, _WORD * max(len(numbers), 1))
        if numbers:
            words = (ctypes.c_int64 * len(numbers))(*numbers)
            self._engine.write(buffer.address, ctypes.addressof(words), _WORD * len(words))
        return buffer

    def slots_of(self, table: Table, queue: Queue) -> tuple[Slots, list[Action]]:
        """The slots of a run on a queue, and what writes them to the card: nothing, if one of its latest runs had the
        same ones, as is so when memory is used again."""
        values = table.values[FIRST:]
        latest = self._latest.get(queue)
        if latest is None:
            latest = self._latest[queue] = deque()
        for slots in latest:
            if slots.written == values:
                return slots, []
        slots = self._new_slots(len(values), queue) if len(latest) < _KEPT else latest.popleft()
        latest.append(slots)
        source = table.address + _WORD * FIRST
        copy = self._driver.copying_in(slots.buffer.address, source, _WORD * len(values), queue.handle)
        slots.written = None
        return slots, [copy, (setattr, slots, "written", values)]

    def touched(self, table: Table, slots: Slots) -> tuple[list[int], list[int]]:
        """The addresses at which a run reads, and those at which it writes."""
        read, written = table.values[self._read], table.values[self._written]
        return [*read, self._numbers.address], [*written, slots.buffer.address]

    def _new_slots(self, count: int, queue: Queue) -> Slots:
        buffer = Buffer(self._own, _WORD * max(count, 1))
        numbers = self._numbers.address
        launches: list[Launch | None] = []
        for step, loaded in zip(self.steps, self._loaded, strict=True):
            launch = None
            if loaded is not None:
                code: CudaCode = step.code
                blocks = code.blocks(step.units, step.grain, loaded.most_blocks)
                launch = Launch(loaded.function, blocks, code.threads, code.shared, numbers, buffer.address)
            launches.append(launch)
            numbers += _WORD * len(step.numbers)
        slots = Slots(buffer, launches, self._driver, queue.handle)
        if slots.graph:
            weakref.finalize(self, self._engine.ended_graphs.append, slots.graph).atexit = False
        return slots

    @property
    def title(self) -> str:
        """What the kernels compute."""
        return "; ".join([step.code.title for step in self.steps if type(step.code) is CudaCode])

    def forget_slots(self) -> None:
        """The card may have none of them."""
        for latest in self._latest.values():
            for slots in latest:
                slots.written = None


def _for_the_host(steps: Sequence[Step]) -> Iterator[list[tuple[int, Step]]]:
    """The steps for the CPU with their numbers, those together that follow each other."""
    for on_host, found in groupby(enumerate(steps), key=lambda one: type(one[1].code) is OnHost):
        if on_host:
            yield list(found)
