"""Memory of a card that Weft shares with other libraries: which work waits for which, and how long memory is held."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.runtime import dlpack
from weft.runtime.atomic import refuse_reentry
from weft.runtime.cuda.driver import Driver
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Buffer

if TYPE_CHECKING:
    from weft.runtime.cuda.engine import CudaEngine
    from weft.runtime.cuda.queues import Queue

_LEGACY_STREAM = 1
"""CUDA's default stream, by its number in DLPack and in the driver."""


class CudaSharing:
    """Only streams wait, for events; no thread does.

    When another library lets go of Weft's memory, work that it queued may still use it: before Weft uses such memory
    again, its queues wait for all work that the card has at that moment. When the last array in another library's
    memory ends, queued work of Weft may still read it: the owner is held until that work is done.
    """

    def __init__(self, engine: CudaEngine, driver: Driver, card: int) -> None:
        self.device = (dlpack.CUDA, card)
        self.returned: deque[object] = deque()
        """One entry for each buffer that others have let go of since `wait_for_others`."""
        self._engine, self._driver = engine, driver
        self._lock = fork_safe_lock()
        """Held from recording the event until the queues wait for it. A thread that holds it may take the lock of
        `Order`, but not the other way round."""
        self._event = 0
        self._holding = fork_safe_lock()
        """Held while the two lists below are read or changed; a thread that holds it takes no other lock."""
        self.borrowed: list[weakref.ref[Buffer]] = []
        self.held: deque[tuple[int, Any]] = deque()
        """Events, with owners of memory that is read before they happen."""
        self._spare: list[int] = []

    @property
    def borrows(self) -> bool:
        """Whether memory of others is in use, or the owner of memory that ended is still held."""
        return bool(self.borrowed or self.held)

    def card_of(self, address: int) -> int:
        return self._driver.card_of(address)

    def own_stream(self) -> int:
        return self._engine.entered().queues[0].handle

    def give(self, address: int, stream: Any) -> None:
        self._engine.wait_for_launches()
        handle = _handle_of(stream)
        if handle is not None:
            refuse_reentry(self._lock)
            with self._lock:
                for event in self._engine.entered().events_of(address, self._any_event()):
                    self._driver.wait_event(handle, event)

    def take(self, buffer: Buffer, stream: int | None = None) -> None:
        queue = self._engine.entered().queues[0]
        refuse_reentry(self._lock)
        with self._lock:
            event = self._any_event()
            if stream is not None:
                self._driver.record(event, stream)
                self._driver.wait_event(queue.handle, event)
            self._engine.order.wait_in_all(queue, event)
        self.let_go()
        if not buffer.is_own:
            with self._holding:
                self.borrowed.append(weakref.ref(buffer))

    def wait_for_others(self) -> None:
        """Make all later work wait for what other libraries have queued so far."""
        with self._lock:
            count = len(self.returned)
            if count:
                event = self._any_event()
                self._driver.record_all(self._engine.context, event)
                self._engine.order.wait_in_all(None, event)
            for _ in range(count):  # not earlier: a thread that finds the list empty does not wait
                self.returned.popleft()

    def hold(self, read: Sequence[int], queue: Queue) -> None:
        """Hold the owners of other libraries' memory at these addresses until the queued work is done."""
        self.let_go()
        with self._holding:
            buffers = [buffer for buffer in [reference() for reference in self.borrowed] if buffer is not None]
            self.borrowed = [weakref.ref(buffer) for buffer in buffers]
            owners = [
                buffer.owner
                for buffer in buffers
                if any(buffer.address <= address < buffer.address + buffer.size for address in read)
            ]
            if owners:
                event = self._spare.pop() if self._spare else self._driver.event()
                self._driver.record(event, queue.handle)
                self.held.append((event, owners))

    def let_go(self) -> None:
        """Release other libraries' memory that no work reads any more."""
        ended = []
        with self._holding:
            for event, owners in list(self.held):
                if not self._driver.has_happened(event):
                    break
                self.held.popleft()
                self._spare.append(event)
                ended.append(owners)
        del ended  # without the lock: an owner may run any code when it ends

    def _any_event(self) -> int:
        if not self._event:
            self._event = self._driver.event()
        return self._event


def _handle_of(stream: Any) -> int | None:
    """The driver's stream that the argument of ``__dlpack__`` names; None if no stream has to wait.

    Raises:
        ValueError: it names no stream.
    """
    if stream is None:
        return _LEGACY_STREAM
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < -1 or stream == 0:
        raise ValueError(
            "The stream of __dlpack__ must be None or 1 (the default stream of CUDA), 2 (that of the thread), a handle "
            f"of CUDA as an integer, or -1 (nothing waits); got {stream!r}."
        )
    return None if stream == -1 else stream
