"""Memory of a card that Weft and other libraries share: whose work waits for whose, and until when memory is kept."""

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
"""The default stream of CUDA, under the name that DLPack and the driver have for it."""


class CudaSharing:
    """All waiting is that of streams for events; no thread waits.

    What others were given may be in use by work that they queued when they let go of it: so before Weft uses such
    memory again, its queues wait for all that the card has to do at that moment. What Weft was given it may read in
    work that is queued when the last array of it ends: so the owner is held until that work is done.
    """

    def __init__(self, engine: CudaEngine, driver: Driver, card: int) -> None:
        self.device = (dlpack.CUDA, card)
        self.returned: deque[object] = deque()
        """Something for each buffer that others have let go of since `wait_for_others`."""
        self._engine, self._driver = engine, driver
        self._lock = fork_safe_lock()
        """Held from recording the event to the moment when others wait for it. Who holds it may ask for the lock of the
        order of work, and nobody asks for it the other way round."""
        self._event = 0
        self._holding = fork_safe_lock()
        """Held while the entries of those below are looked at or changed; no other lock is asked for."""
        self.borrowed: list[weakref.ref[Buffer]] = []
        self.held: deque[tuple[int, Any]] = deque()
        """Events, and owners of memory that is read before they happen."""
        self._spare: list[int] = []

    @property
    def borrows(self) -> bool:
        """Whether there is memory of others, or the owner of some that ended is held still."""
        return bool(self.borrowed or self.held)

    def card_of(self, address: int) -> int:
        return self._driver.card_of(address)

    def own_stream(self) -> int:
        return self._engine.entered().queues[0].handle

    def give(self, address: int, stream: Any) -> None:
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
        """Have all work from now on wait for what other libraries have queued so far."""
        with self._lock:
            count = len(self.returned)
            if count:
                event = self._any_event()
                self._driver.record_all(self._engine.context, event)
                self._engine.order.wait_in_all(None, event)
            for _ in range(count):  # only now: other threads that see none do not wait
                self.returned.popleft()

    def hold(self, read: Sequence[int], queue: Queue) -> None:
        """Keep the memory of others in which these addresses are until what was queued is done."""
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
        """Give back the memory of others that nothing reads any more."""
        ended = []
        with self._holding:
            for event, owners in list(self.held):
                if not self._driver.has_happened(event):
                    break
                self.held.popleft()
                self._spare.append(event)
                ended.append(owners)
        del ended  # without the lock: owners are of others, and may do what they like when they end

    def _any_event(self) -> int:
        if not self._event:
            self._event = self._driver.event()
        return self._event


def _handle_of(stream: Any) -> int | None:
    """The stream of the driver that the argument of ``__dlpack__`` names; None if nothing has to wait.

    Raises:
        ValueError: it names none.
    """
    if stream is None:
        return _LEGACY_STREAM
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < -1 or stream == 0:
        raise ValueError(
            "The stream of __dlpack__ must be None or 1 (the default stream of CUDA), 2 (that of the thread), a handle "
            f"of CUDA as an integer, or -1 (nothing waits); got {stream!r}."
        )
    return None if stream == -1 else stream
