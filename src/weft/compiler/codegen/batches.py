"""Code of one plan, made on several threads at a time.

While a plan makes its steps, code that neither the process nor the disk has is not made at once: its IR is noted in a
batch, and `Deferred` is raised. When all that can be known so is known, LLVM makes the whole batch, and what was left
is asked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from weft.compiler import dumps
from weft.runtime import recording
from weft.runtime.atomic import without_interrupts
from weft.runtime.processors import available_processors

MOST_THREADS = 16


class Deferred(Exception):
    """Code is to be made with other code. Whoever asked for it asks again when the batch was made."""


class Work(NamedTuple):
    """A module to make of the ``text`` of its IR: ``alone``, or ``apart`` while other threads make others and nothing
    interrupts this one."""

    title: str
    text: str
    alone: Callable[[str], Any]
    apart: Callable[[str], Any]


class Batch:
    """Modules to make, and those that were made, by key."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Work] = {}
        self.made: dict[bytes, Any] = {}

    def make(self) -> None:
        """Make all that is waiting."""
        # Long ones first, so that threads end at about the same time.
        waiting = sorted(self.waiting.items(), key=lambda item: -len(item[1].text))
        self.waiting = {}
        threads = min(MOST_THREADS, available_processors(), len(waiting))
        if threads > 1:
            self.made.update(without_interrupts(lambda: _by_threads(waiting, threads)))
        else:
            self.made.update([(key, outcome_of(work, work.alone)) for key, work in waiting])


def _by_threads(waiting: list[tuple[bytes, Work]], threads: int) -> list[tuple[bytes, Any]]:
    with ThreadPoolExecutor(threads, "weft LLVM") as pool:
        try:
            made = [pool.submit(outcome_of, work, work.apart) for _, work in waiting]
        except RuntimeError:  # no thread can be started any more: the process ends, or may have no more of them
            return [(key, outcome_of(work, work.alone)) for key, work in waiting]
        return [(key, one.result()) for (key, _), one in zip(waiting, made, strict=True)]


def outcome_of(work: Work, make: Callable[[str], Any]) -> Any:
    with recording.span("machine code", work.title):
        return make(work.text)


class _Current(threading.local):
    batch: Batch | None = None


_current = _Current()


def current() -> Batch | None:
    """The batch in which this thread notes what it needs; None if it makes that at once, as it does where people see
    what is made, in order."""
    return None if dumps.stages else _current.batch


@contextmanager
def opened() -> Iterator[Batch]:
    """Note what is to be made while the block runs."""
    before, batch = _current.batch, Batch()
    _current.batch = batch
    try:
        yield batch
    finally:
        _current.batch = before
