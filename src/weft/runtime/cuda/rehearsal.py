"""Rehearsals of calls of NVIDIA's libraries: calls that are captured into a graph, which is never launched.

A library makes a handle and chooses how it computes when it is first asked, and loads each kernel when that is first
queued, which takes some milliseconds. A capture has it do all of this, and queues nothing.
"""

from __future__ import annotations

from typing import Any

from weft.runtime.cuda.driver import Driver
from weft.runtime.cuda.library_calls import LibraryCall
from weft.runtime.cuda.order import Order
from weft.runtime.memory import Buffer

_DISTANCE = 256
"""Bytes between the addresses that calls are given. However large operands are, nothing is read or written there."""
_MOST_PLACES = 64


class Rehearsal:
    """Rehearses calls for the first queue of a card, on threads whose context is that of the card, one at a time."""

    def __init__(self, driver: Driver, order: Order, memory: Any) -> None:
        """``memory`` stands for the engine in buffers."""
        self._driver, self._order = driver, order
        self._buffer = Buffer(memory, _DISTANCE * _MOST_PLACES)
        self._queue = order.new_queue()

    def rehearse(self, call: LibraryCall) -> None:
        addresses = [self._buffer.address + number * _DISTANCE for number in range(len(call.places))]
        call.queued(addresses, self._order.queues[0])  # it has handles from then on
        graph = self._driver.captured(call.queued(addresses, self._queue), self._queue.handle)
        if graph:
            self._driver.destroy_graph(graph)
        else:
            self._queue = self._order.new_queue()  # one that failed to capture cannot be used any more
