"""Steps in the form in which a card runs them: loaded functions, numbers in its memory, one graph for all."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import Driver, Launch
from weft.runtime.memory import Buffer
from weft.runtime.on_host import HostStep
from weft.runtime.steps import FIRST, OnHost, Step, StepList, Table

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine

_WORD = 8


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


class CudaSteps(StepList):
    """The steps of a plan on a card.

    The card has the numbers of all steps in its memory, and a copy of the slots of the run that was begun last.
    ``launching`` queues one step (None: it is one for the CPU, in ``stand_ins``), ``together`` all of them, if none is
    for the CPU: several are a graph, which never changes, because kernels read addresses from the slots.
    """

    def __init__(self, engine: CudaEngine, driver: Driver, steps: Sequence[Step]) -> None:
        super().__init__(steps)
        self._engine, self._driver = engine, driver
        self._own: Any = _OwnMemory(engine)
        self._numbers = self._on_card([number for step in steps for number in step.numbers])
        self._loaded = [None if type(step.code) is OnHost else engine.load(step.code) for step in steps]
        self.stand_ins = {number: HostStep(step) for number, step in enumerate(steps) if type(step.code) is OnHost}
        self.launching: list[Action | None] = []
        self.together: Action | None = None
        self._launches: list[Launch] = []
        self._slots: Buffer | None = None
        self._written: array[int] | None = None
        """The slots that the card has."""

    def _on_card(self, numbers: Sequence[int]) -> Buffer:
        buffer = Buffer(self._own, _WORD * max(len(numbers), 1))
        if numbers:
            words = array("q", numbers)
            self._driver.copy_in(buffer.address, words.buffer_info()[0], _WORD * len(words), self._engine.queue)
        return buffer

    def make_launches(self, slots: int) -> None:
        """Make what queues the steps, if that has not happened; a run has so many ``slots``."""
        if self._slots is not None:
            return
        buffer = Buffer(self._own, _WORD * max(slots, 1))
        self.launching = []
        self._launches = []
        numbers = self._numbers.address
        for step, loaded in zip(self.steps, self._loaded, strict=True):
            action = None
            if loaded is not None:
                code: CudaCode = step.code
                blocks = code.blocks(step.units, step.grain, loaded.most_blocks)
                launch = Launch(loaded.function, blocks, code.threads, code.shared, numbers, buffer.address)
                self._launches.append(launch)
                action = self._driver.launching(launch, self._engine.queue)
            self.launching.append(action)
            numbers += _WORD * len(step.numbers)
        if len(self._launches) == 1 == self.count:
            self.together = self.launching[0]
        elif len(self._launches) == self.count:
            graph = self._driver.graph(self._launches)
            weakref.finalize(self, self._engine.ended_graphs.append, graph).atexit = False
            self.together = self._driver.launching_graph(graph, self._engine.queue)
        self._slots = buffer

    def writing(self, table: Table) -> list[Action]:
        """What writes the slots of a run to the card; nothing if it has the same ones."""
        slots = table.values[FIRST:]
        if slots == self._written:
            return []
        assert self._slots is not None
        source = table.address + _WORD * FIRST
        copy = self._driver.copying_in(self._slots.address, source, _WORD * len(slots), self._engine.queue)
        return [copy, (setattr, self, "_written", slots)] if len(slots) else []

    def forget_slots(self) -> None:
        """The card may have none of them."""
        self._written = None
