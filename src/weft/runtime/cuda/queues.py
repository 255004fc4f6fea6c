"""Several queues of a card: which work waits for which, derived from the memory that it reads and writes."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.driver import Driver

_EVENTS = 32
"""The latest marks of a queue, at most this many, have an event of their own; an older mark uses that of a later
one."""


class Queue:
    """A stream of the driver. It works in order; a *mark* is a point in that order.

    ``handles`` are those of libraries for this queue; ``shared`` is what libraries store for all queues of the card,
    under keys of their choice.
    """

    def __init__(self, driver: Driver, shared: dict[Any, Any]) -> None:
        self._driver = driver
        self.handle = driver.stream()
        self.handles: dict[Any, Any] = {}
        self.shared = shared
        self._events: list[int] = []
        self._marks = 0
        """How many marks there are."""
        self.marked = 0
        """The last mark that is set. Work before a later mark may not be queued yet."""
        self._reached = 0

    def copying(self, target: int, source: int, size: int) -> Action:
        """An action that copies within the memory of the card."""
        return self._driver.copying(target, source, size, self.handle)

    def waiting(self) -> Action:
        """An action that waits for the queued work; it cannot be captured."""
        return self._driver.waiting(self.handle)

    def next_mark(self) -> Mark:
        """The next mark, which `marking` sets."""
        if not self._events:
            self._events = [self._driver.event() for _ in range(_EVENTS)]
        self._marks += 1
        return Mark(self, self._marks)

    def note_reached(self, number: int) -> None:
        """Record that all marks up to this one are reached."""
        self._reached = max(self._reached, number)

    def has_reached(self, number: int) -> bool:
        """Whether a mark is known to be reached."""
        return number <= self._reached

    def marking(self, mark: Mark) -> list[Action]:
        """Actions that set a mark after all queued work."""
        return [self._driver.recording(self.event_of(mark), self.handle), (setattr, self, "marked", mark.number)]

    def event_of(self, mark: Mark) -> int:
        """An event that happens when a mark is reached, or later."""
        return self._events[mark.number % _EVENTS]

    def wait_for(self, marks: Iterable[Mark]) -> None:
        """Make all later work wait for marks of other queues. Marks that turn out to be reached are recorded as
        such."""
        for mark in marks:
            if mark.queue is not self:
                event = mark.queue.event_of(mark)
                if self._driver.has_happened(event):
                    mark.queue.note_reached(mark.number)
                else:
                    self._driver.wait_event(self.handle, event)


class Mark(NamedTuple):
    """The ``number``-th mark of a queue."""

    queue: Queue
    number: int

    @property
    def is_reached(self) -> bool:
        return self.queue.has_reached(self.number)


@dataclass(slots=True)
class _Use:
    """The last write to a block, and the reads since."""

    size: int
    writer: Mark | None = None
    readers: dict[Queue, Mark] = field(default_factory=dict)


class MemoryBlocks:
    """The blocks of a card's memory with the marks at which their uses end."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._uses: dict[int, _Use] = {}

    def add(self, address: int, size: int) -> None:
        insort(self._starts, address)
        self._uses[address] = _Use(size)

    def remove(self, address: int) -> None:
        self._starts.remove(address)
        del self._uses[address]

    def _uses_of(self, addresses: Iterable[int]) -> list[_Use]:
        """The uses of the blocks that contain these addresses; what is no address is skipped."""
        uses = [self._uses.get(address) or self._around(address) for address in addresses]
        return [use for use in uses if use is not None]

    def _around(self, address: int) -> _Use | None:
        """The uses of the block that contains an address other than its first."""
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        use = self._uses[self._starts[position]]
        return use if address < self._starts[position] + use.size else None

    def awaited(self, read: Iterable[int], written: Iterable[int]) -> set[Mark]:
        """The marks, not known to be reached, that must be reached before work that reads and writes at these addresses
        may begin."""
        found = {use.writer for use in self._uses_of(read)}
        for use in self._uses_of(written):
            found.add(use.writer)
            found.update(use.readers.values())
        return {mark for mark in found if mark is not None and not mark.is_reached}

    def note(self, mark: Mark, read: Iterable[int], written: Iterable[int]) -> None:
        """Record that work that reads and writes at these addresses ends at a mark."""
        for use in self._uses_of(read):
            use.readers[mark.queue] = mark
        for use in self._uses_of(written):
            use.writer = mark
            use.readers.clear()
