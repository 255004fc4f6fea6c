"""The queues of a card: which queue does a stream's work, and in which order queues read and write memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.runtime.atomic import Action
from weft.runtime.cuda.driver import Driver
from weft.runtime.cuda.queues import Mark, MemoryBlocks, Queue
from weft.runtime.devices import Stream
from weft.runtime.locks import fork_safe_lock

_MOST_QUEUES = 8
"""This many queues have a driver's stream of their own; further streams share them."""


class Order:
    """While a single stream is used, all work goes through one queue in the order of submission. The second stream
    brings a queue for itself and one for copies. From then on ``blocks`` records the uses of memory, so that work on
    one queue waits for the work on others that it depends on."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.queues: list[Queue] = []
        """The first queue also does the work whose stream is not known."""
        self.copies: Any = None
        """The queue for copies."""
        self.several = False
        self.shared: dict[Any, Any] = {}
        """What libraries store for all queues."""
        self.blocks = MemoryBlocks()
        self.lock = fork_safe_lock()
        """Held while the uses of blocks are read or changed."""
        self._is_used = False
        """Whether a stream uses the first queue."""
        self._shared_last = 0

    def begin(self) -> None:
        """Make the first queue, in the current context."""
        self.copies = self.new_queue()
        self.queues = [self.copies]

    def new_queue(self) -> Queue:
        return Queue(self._driver, self.shared)

    def of(self, stream: Stream | None, finish: Callable[[], None]) -> Queue:
        """The queue of a stream; ``finish`` waits for all that was queued."""
        if stream is None:
            return self.queues[0]
        if stream.queue is None:
            stream.queue = self._queue_of_new(finish)
        queue: Queue = stream.queue
        return queue

    def _queue_of_new(self, finish: Callable[[], None]) -> Queue:
        """A queue for another stream, which is shared with other streams if there are many."""
        if not self._is_used:
            self._is_used = True
            return self.queues[0]
        if len(self.queues) > _MOST_QUEUES:
            # The queue for copies is left out: its marks of runs and of copies would not be set in the order of their
            # numbers.
            of_streams = [queue for queue in self.queues if queue is not self.copies]
            self._shared_last = (self._shared_last + 1) % len(of_streams)
            return of_streams[self._shared_last]
        if not self.several:
            self.separate_copies(finish)
        queue = self.new_queue()
        self.queues.append(queue)
        return queue

    def separate_copies(self, finish: Callable[[], None]) -> None:
        """Make a queue for copies, and begin to record the uses of memory."""
        with self.lock:
            finish()
            self.copies = self.new_queue()
            self.queues.append(self.copies)
            self.several = True

    def begin_work(self, queue: Queue, read: Sequence[int], written: Sequence[int]) -> list[Action]:
        """Make a queue wait for what work that reads and writes at these addresses depends on; returns actions that
        mark the end of this work."""
        if not self.several:
            return []
        with self.lock:
            queue.wait_for(self.blocks.awaited(read, written))
            mark = queue.next_mark()
            self.blocks.note(mark, read, written)
        return queue.marking(mark)

    def marks_of(self, address: int) -> Iterable[Mark]:
        """The marks to be reached before others may read the memory at an address."""
        with self.lock:
            if self.several:
                return self.blocks.awaited((address,), ())
            return [self.marked(self.queues[0])]

    def note_reader(self, address: int, mark: Mark) -> None:
        """Record that a queue of another card reads the memory at an address until a mark is reached."""
        with self.lock:
            if self.several:
                self.blocks.note(mark, (address,), ())
            else:
                self.queues[0].wait_for([mark])

    def marked(self, queue: Queue) -> Mark:
        """A new mark after all work that is queued on a queue."""
        mark = queue.next_mark()
        self.mark(queue.marking(mark))
        return mark

    def wait_before(self, read: Sequence[int], written: Sequence[int]) -> None:
        """Make the queue for copies wait for what a copy that reads and writes at these addresses depends on."""
        if self.several:
            with self.lock:
                self.copies.wait_for(self.blocks.awaited(read, written))

    def mark(self, marking: Sequence[Action]) -> None:
        """Mark the end of work now."""
        for function, *arguments in marking:
            self._driver.check(function(*arguments), "cuEventRecord")

    def events_of(self, address: int, event: int) -> list[int]:
        """The events of all work that uses the memory at an address. ``event`` may be recorded for this."""
        with self.lock:
            if self.several:
                return [mark.queue.event_of(mark) for mark in self.blocks.awaited((), (address,))]
            self._driver.record(event, self.queues[0].handle)
            return [event]

    def wait_in_all(self, queue: Queue | None, event: int) -> None:
        """Make all queues wait for an event, which is first recorded on ``queue``, if one is given."""
        with self.lock:
            if queue is not None:
                self._driver.record(event, queue.handle)
            for other in list(self.queues):
                if other is not queue:
                    self._driver.wait_event(other.handle, event)
