"""Records what runs when. While nothing is recorded, ``recorders`` is empty, and a run does no more than test that."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Any, NamedTuple

from weft.errors import EvaluationError
from weft.runtime.devices import Stream, current_stream, default_device, default_stream
from weft.runtime.executor import CLOCK
from weft.runtime.locks import fork_safe_lock, new_lock
from weft.runtime.steps import Table
from weft.runtime.streams import working_for

STEP_LIMIT = 1_000_000
SPAN_LIMIT = 100_000
"""A recorder stores at most this many steps and spans."""

_NANOSECONDS = 1_000_000_000


class Thread(NamedTuple):
    """A thread of Python. Identities are reused by later threads, and names may be equal."""

    identity: int
    name: str


class PlanRun(NamedTuple):
    """One run of a plan, of which ``done`` steps were run. ``times`` has begin and end of each, in seconds and
    nanoseconds, or zeros as long as they are unknown. ``asked_at`` is the line of the program that asked for the
    result."""

    plan: Any
    done: int
    times: array[int]
    stream: int
    thread: Thread
    asked_at: str

    def step_times(self) -> Iterator[tuple[int, int]]:
        """Begin and end of each step in nanoseconds."""
        times = self.times
        for first in range(0, 4 * self.done, 4):
            begin = times[first] * _NANOSECONDS + times[first + 1]
            yield begin, times[first + 2] * _NANOSECONDS + times[first + 3]


TRANSFER = "transfer"


class Span(NamedTuple):
    """Anything else that takes time. ``kind`` is trace, plan, machine code or `TRANSFER` (of ``size`` bytes from one
    device to another, or from a file). Times are in nanoseconds."""

    kind: str
    name: str
    begin: int
    end: int
    thread: Thread
    size: int = 0


class Recorder:
    """What was recorded. Threads append to it, so it is in no order; ``dropped`` counts steps beyond the limit."""

    def __init__(self) -> None:
        self.runs: list[PlanRun] = []
        self.spans: list[Span] = []
        self.dropped = 0
        self._steps = 0
        self._lock = new_lock()

    def add_run(self, run: PlanRun) -> None:
        with self._lock:
            if self._steps + run.done > STEP_LIMIT:
                self.dropped += run.done
                return
            self._steps += run.done
            self.runs.append(run)

    def add_span(self, span: Span) -> None:
        if len(self.spans) < SPAN_LIMIT:
            self.spans.append(span)


recorders: tuple[Recorder, ...] = ()
_lock = fork_safe_lock()


def start(recorder: Recorder) -> None:
    """Record what runs from now on with a recorder."""
    global recorders
    with _lock:
        recorders = (*recorders, recorder)


def stop(recorder: Recorder) -> None:
    """Stop recording with a recorder; waits for the times of what ran."""
    global recorders
    with _lock:
        recorders = tuple([other for other in recorders if other is not recorder])
    _write_all(0)


_unwritten: deque[Callable[[], None]] = deque()
_MOST_UNWRITTEN = 64


def later(write: Callable[[], None]) -> None:
    """Call ``write``, which writes the times of a run and may wait for them, later: when recording stops, or when many
    runs have followed."""
    _unwritten.append(write)
    _write_all(_MOST_UNWRITTEN)


def _write_all(but: int) -> None:
    """Write the times of all runs but the ``but`` latest ones."""
    while len(_unwritten) > but:
        try:
            write = _unwritten.popleft()
        except IndexError:  # another thread took it
            return
        with suppress(EvaluationError):  # the error reaches those who ask for values
            write()


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Record what all threads run while the block runs."""
    recorder = Recorder()
    start(recorder)
    try:
        yield recorder
    finally:
        stop(recorder)


def now() -> int:
    """The clock of all records, in nanoseconds."""
    return time.clock_gettime_ns(CLOCK)


def this_thread() -> Thread:
    return Thread(threading.get_ident(), threading.current_thread().name)


_NOT_RECORDED = nullcontext()


def span(kind: str, name: str) -> AbstractContextManager[None]:
    """A block whose time is recorded, if anybody records."""
    return _OpenSpan(kind, name) if recorders else _NOT_RECORDED


def transfer(source: object, destination: object, size: int) -> AbstractContextManager[None]:
    """A block that copies ``size`` bytes from one device to another, or from a file to a device."""
    return _OpenSpan(TRANSFER, f"{source} to {destination}", size) if recorders else _NOT_RECORDED


class _OpenSpan:
    __slots__ = ("_begin", "_kind", "_name", "_size")

    def __init__(self, kind: str, name: str, size: int = 0) -> None:
        self._kind, self._name, self._size = kind, name, size

    def __enter__(self) -> None:
        self._begin = now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        done = Span(self._kind, self._name, self._begin, now(), this_thread(), self._size)
        for recorder in recorders:
            recorder.add_span(done)


def run(plan: Any, table: Table, stream: Stream | None, asked_at: str) -> int:
    """Run the steps of a plan on its engine and record their times; ``asked_at`` is the line of the user's program that
    asked.

    ``stream`` is the one that the run belongs to; None: the current one of this thread.
    """
    listening = recorders
    times = array("q", bytes(32 * plan.steps.count))
    done: int = plan.engine.run_timed(plan.steps, table, times, stream)
    record = PlanRun(plan, done, times, _index_of(stream), this_thread(), asked_at)
    for recorder in listening:
        recorder.add_run(record)
    return done


def _index_of(stream: Stream | None) -> int:
    if stream is not None:
        return stream.index
    worker = working_for()
    return worker if worker is not None else (current_stream() or default_stream(default_device())).index


def _after_fork() -> None:
    """A forked child records nothing: the file of a profile belongs to its parent."""
    global recorders
    recorders = ()
    _unwritten.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
