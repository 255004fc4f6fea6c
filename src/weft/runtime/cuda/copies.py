"""Copies between the memory of a card and that of the host or of another card."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

from weft.runtime.atomic import refuse_reentry
from weft.runtime.cuda.driver import CudaError, Driver
from weft.runtime.cuda.order import Order
from weft.runtime.cuda.queues import Mark, Queue
from weft.runtime.cuda.staging import STAGED, Staging
from weft.runtime.locks import fork_safe_lock

PINNED = 4096
"""Bytes of pinned memory, to and from which cards copy fastest. Larger copies gain less from it."""


class Copies:
    """Copies to and from one card. ``enter`` is called on each thread before it calls the driver; ``wait`` waits until
    a driver's object is ready; ``finish`` waits for all queued work."""

    def __init__(
        self,
        driver: Driver,
        order: Order,
        enter: Callable[[], None],
        wait: Callable[[Callable[[int], bool], int], None],
        finish: Callable[[], None],
    ) -> None:
        self._driver, self._order = driver, order
        self._enter, self._wait, self._finish = enter, wait, finish
        self._pinned = 0
        self._pinned_bytes = memoryview(b"")
        self._inwards, self._outwards = Staging(driver, enter), Staging(driver, enter)
        """Makes large copies."""
        self._reading = fork_safe_lock()
        """Held while the pinned memory is in use."""

    def begin(self) -> None:
        """Allocate pinned memory, in the current context."""
        self._pinned = address = self._driver.pinned(PINNED)
        self._pinned_bytes = memoryview((ctypes.c_char * PINNED).from_address(address)).cast("B")

    def write(self, there: int, here: int, size: int) -> None:
        """Copy from a host address; the bytes there may change as soon as this returns."""
        if size:
            self._enter()
        if size >= STAGED:
            self._write_staged(there, here, size)
        elif size:
            order = self._order
            with order.lock:
                marking = order.begin_work(order.copies, (), (there,))
                self._driver.copy_in(there, here, size, order.copies.handle)
                order.mark(marking)

    def _write_staged(self, there: int, here: int, size: int) -> None:
        """No other work uses the block at the address before this returns, so queued work need not wait until the copy
        is finished."""
        order = self._order
        if not order.several and not self._driver.is_done(order.copies.handle):
            order.separate_copies(self._finish)  # so that copies can be made while kernels run
        order.wait_before((), (there,))
        try:
            self._inwards.copy_in(there, here, size, order.copies.handle)
        finally:
            with order.lock:
                order.mark(order.begin_work(order.copies, (), (there,)))

    def read(self, there: int, here: int, size: int) -> None:
        """Copy to a host address."""
        if size:
            self._enter()
            self._order.wait_before((there,), ())
            self.read_behind(self._order.copies, there, here, size)

    def read_small(self, there: int, size: int) -> bytearray:
        """A copy of at most `PINNED` bytes."""
        self._enter()
        order = self._order
        if order.several:
            order.wait_before((there,), ())
        refuse_reentry(self._reading)
        with self._reading:
            self._to_pinned(order.copies, there, size)
            return bytearray(self._pinned_bytes[:size])

    def read_behind(self, queue: Queue, there: int, here: int, size: int) -> None:
        """Copy to the host after the work that is queued on a queue."""
        if size <= PINNED:
            refuse_reentry(self._reading)
            with self._reading:
                self._to_pinned(queue, there, size)
                ctypes.memmove(here, self._pinned, size)
            return
        self._wait(self._driver.is_done, queue.handle)
        copy_out = self._outwards.copy_out if size >= STAGED else self._driver.copy_out
        copy_out(here, there, size, queue.handle)

    def _to_pinned(self, queue: Queue, there: int, size: int) -> None:
        """Copy to the pinned memory after the work that is queued on a queue, and wait for it."""
        driver = self._driver
        try:
            driver.copy_out(self._pinned, there, size, queue.handle)
            self._wait(driver.is_done, queue.handle)
        except CudaError:
            raise
        except BaseException:
            self.begin()  # after an interrupt the card may still write to the old one
            raise

    def from_card(self, other: int, there: int, own: int, here: int, size: int, computed: Iterable[Mark]) -> Mark:
        """Queue a copy from another card (its context is ``other``) to this card (its context is ``own``), after what
        was ``computed`` there. Returns the mark that is reached when the copy is finished."""
        order = self._order
        with order.lock:
            order.copies.wait_for(computed)
            marking = order.begin_work(order.copies, (), (here,))
            self._driver.copy_peer(here, own, there, other, size, order.copies.handle)
            order.mark(marking)
            return order.marked(order.copies)
