"""Memory of a card that Weft and other libraries share: whose work waits for whose, and until when memory is kept."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.runtime import dlpack
from weft.runtime.cuda.driver import Driver
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
        self._event = 0
        self._borrowed: list[weakref.ref[Buffer]] = []
        self._held: deque[tuple[int, Any]] = deque()
        """Events, and owners of memory that is read before they happen."""
        self._spare: list[int] = []

    @property
    def borrows(self) -> bool:
        """Whether there is memory of others."""
        return bool(self._borrowed)

    def card_of(self, address: int) -> int:
        return self._driver.card_of(address)

    def own_stream(self) -> int:
        return self._engine.first_queue().handle

    def give(self, address: int, stream: Any) -> None:
        handle = _handle_of(stream)
        if handle is not None:
            for event in self._engine.events_of(address, self._any_event()):
                self._driver.wait_event(handle, event)

    def take(self, buffer: Buffer, stream: int | None = None) -> None:
        queue, event = self._engine.first_queue(), self._any_event()
        if stream is not None:
            self._driver.record(event, stream)
            self._driver.wait_event(queue.handle, event)
        self._engine.wait_in_all_queues(queue, event)
        self.let_go()
        if not buffer.is_own:
            self._borrowed.append(weakref.ref(buffer))

    def wait_for_others(self) -> None:
        """Have all work from now on wait for what other libraries have queued so far."""
        self.returned.clear()
        event = self._any_event()
        self._driver.record_all(self._engine.context, event)
        self._engine.wait_in_all_queues(None, event)

    def hold(self, read: Sequence[int], queue: Queue) -> None:
        """Keep the memory of others in which these addresses are until what was queued is done."""
        self.let_go()
        owners, alive = [], []
        for reference in self._borrowed:
            buffer = reference()
            if buffer is not None:
                alive.append(reference)
                if any(buffer.address <= address < buffer.address + buffer.size for address in read):
                    owners.append(buffer.owner)
        self._borrowed = alive
        if owners:
            event = self._spare.pop() if self._spare else self._driver.event()
            self._driver.record(event, queue.handle)
            self._held.append((event, owners))

    def let_go(self) -> None:
        """Give back the memory of others that nothing reads any more."""
        ended = []
        while self._held and self._driver.has_happened(self._held[0][0]):
            event, owners = self._held.popleft()
            self._spare.append(event)
            ended.append(owners)

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
