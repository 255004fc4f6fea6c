"""When steps ran on a card, measured by events between them. They are read later, so that timing makes nothing wait."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from weft.runtime import recording
from weft.runtime.cuda.driver import Driver
from weft.runtime.cuda.waiting import wait_until

_SECOND = 1_000_000_000
_OLD = 10 * _SECOND
"""In nanoseconds. The driver gives the time between events in 24 bits; up to this distance it is exact to a
microsecond."""


class Timing:
    """Events of a card, and the time on the host's clock at which one of them happened."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._spare: list[int] = []
        self._stream = self._known = self._moment = 0

    def events(self, count: int) -> list[int]:
        """Unused events."""
        if not self._known or recording.now() - self._moment > _OLD:
            self._know_one()
        return [self._spare.pop() if self._spare else self._driver.event() for _ in range(count)]

    def _know_one(self) -> None:
        """Record an event now, on a stream that is otherwise unused, and note the time."""
        if not self._stream:
            self._stream = self._driver.stream()
        event = self._driver.event()  # times of other runs may be relative to the event before
        begin = recording.now()
        self._driver.record(event, self._stream)
        wait_until(self._driver.has_happened, event)
        self._known, self._moment = event, (begin + recording.now()) // 2

    def note(self, events: Sequence[int], first: int, done: int, times: array[int]) -> None:
        """Write the times of steps, from step ``first`` on, when they are known, if all are ``done``.

        ``events`` has one event before each step and one after the last step.
        """
        if done + 1 == len(events):
            recording.later(partial(self._write, events, first, times, self._known, self._moment))
        else:
            self._spare.extend(events)

    def _write(self, events: Sequence[int], first: int, times: array[int], known: int, moment: int) -> None:
        wait_until(self._driver.has_happened, events[-1])
        began = moment + self._driver.elapsed(known, events[first])
        moments = [began + self._driver.elapsed(events[first], event) for event in events[first:]]
        for number, (begin, end) in enumerate(pairwise(moments), first):
            times[4 * number : 4 * number + 4] = array("q", [*divmod(begin, _SECOND), *divmod(end, _SECOND)])
        self._spare.extend(events)
