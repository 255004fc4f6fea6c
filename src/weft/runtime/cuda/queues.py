"""Several queues of a card: what has to wait for what, known from the memory that is read and written."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.runtime.atomic import Action
from weft.runtime.cuda.driver import Driver

_EVENTS = 32
"""So many of the latest marks of a queue have an event of their own; older ones have those of later marks."""


class Queue:
    """A stream of the driver. It works in order; a *mark* is a point in that order.

    ``handles`` are those of libraries for this queue, and ``shared`` is what they keep for all queues of its card, by
    keys of their choice.
    """

    def __init__(self, driver: Driver, shared: dict[Any, Any]) -> None:
        self._driver = driver
        self.handle = driver.stream()
        self.handles: dict[Any, Any] = {}
        self.shared = shared
        self._events: list[int] = []
        self._marks = 0
        """How many there are."""
        self.marked = 0
        """The last one that is set: work that it is behind may not be queued before."""
        self._reached = 0

    def copying(self, target: int, source: int, size: int) -> Action:
        """A copy within the memory of the card."""
        return self._driver.copying(target, source, size, self.handle)

    def waiting(self) -> Action:
        """Wait for what was queued; this cannot be captured."""
        return self._driver.waiting(self.handle)

    def next_mark(self) -> Mark:
        """The next mark; `marking` sets it."""
        if not self._events:
            self._events = [self._driver.event() for _ in range(_EVENTS)]
        self._marks += 1
        return Mark(self, self._marks)

    def note_reached(self, number: int) -> None:
        """All marks up to one are reached."""
        self._reached = max(self._reached, number)

    def has_reached(self, number: int) -> bool:
        """Whether a mark is known to be reached."""
        return number <= self._reached

    def marking(self, mark: Mark) -> list[Action]:
        """What sets a mark behind all that was queued."""
        return [self._driver.recording(self.event_of(mark), self.handle), (setattr, self, "marked", mark.number)]

    def event_of(self, mark: Mark) -> int:
        """An event that happens when a mark is reached, or later."""
        return self._events[mark.number % _EVENTS]

    def wait_for(self, marks: Iterable[Mark]) -> None:
        """Have all that is queued from now on wait for marks of other queues, unless they are reached: then the next
        one who asks finds that noted."""
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
    """Who wrote last to a block, and who has read it since."""

    size: int
    writer: Mark | None = None
    readers: dict[Queue, Mark] = field(default_factory=dict)


class MemoryBlocks:
    """The blocks of memory of a card, and which marks of queues their uses end at."""

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
        """Those of the blocks in which the addresses are; what is no address is passed over."""
        uses = [self._uses.get(address) or self._around(address) for address in addresses]
        return [use for use in uses if use is not None]

    def _around(self, address: int) -> _Use | None:
        """That of the block in the middle of which an address is."""
        position = bisect_right(self._starts, address) - 1
        if position < 0:
            return None
        use = self._uses[self._starts[position]]
        return use if address < self._starts[position] + use.size else None

    def awaited(self, read: Iterable[int], written: Iterable[int]) -> set[Mark]:
        """What has to be reached before work that reads and writes at these addresses may begin, and is not known to be
        reached."""
        found = {use.writer for use in self._uses_of(read)}
        for use in self._uses_of(written):
            found.add(use.writer)
            found.update(use.readers.values())
        return {mark for mark in found if mark is not None and not mark.is_reached}

    def note(self, mark: Mark, read: Iterable[int], written: Iterable[int]) -> None:
        """Work that reads and writes at these addresses ends at a mark."""
        for use in self._uses_of(read):
            use.readers[mark.queue] = mark
        for use in self._uses_of(written):
            use.writer = mark
            use.readers.clear()
