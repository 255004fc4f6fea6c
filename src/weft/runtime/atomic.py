"""Atomic changes: other threads, signal handlers and code that follows an interrupt see all of a change or none of it.

An interrupt is an exception that a signal handler raises, as Ctrl-C does. CPython changes threads, runs signal handlers
and collects garbage, and so runs users' destructors, only after a call, at the beginning of a function written in
Python, and before it repeats a loop. This module and those that use it rely on three consequences:

- A sequence of statements without calls and loops is executed completely or not at all.
- One call of native code that runs no Python code, such as `consume` of an iterator made of native functions, is
  completed once it began.
- A `with` statement holds a lock of `weft.runtime.locks` exactly as long as its block runs. The block of a ``with`` or
  a ``try`` contains no `while`: in CPython 3.12 and 3.13 the jump back to the start of a loop is outside of every such
  block, and an interrupt there leaves a lock held.

A change that needs more than that is a section: it holds ``sections``, the one lock for all short sections, or a lock
of its own if it takes long. A section that an exception stopped can be run again. Signal handlers and destructors
cannot enter a section of the thread that they interrupted: what enters one calls `refuse_reentry` first.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
from _thread import LockType, allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, starmap
from operator import call, itemgetter
from typing import Any, ParamSpec, TypeVar

from weft.errors import EvaluationError
from weft.runtime.locks import fork_safe_lock

P = ParamSpec("P")
T = TypeVar("T")

Action = tuple[Any, ...]
"""A function and its arguments."""

consume: Callable[[Iterable[Any]], object] = partial(deque, maxlen=0)
"""Take everything from an iterator, in one call of native code."""

# Imported modules and LLVM take locks. A child that is forked while another thread holds one could never get it.
_uninterrupted = fork_safe_lock(waited_for=True)

sections = fork_safe_lock()
"""Held while nodes are read or get values, and while runs get memory or are queued. A thread that holds it does not
wait for other threads and takes no other lock."""

REENTERED = (
    "a signal handler or a destructor asked for values of arrays while the thread that it runs on was in the middle of "
    "evaluating. That evaluation is not harmed. Set a flag in the handler, and evaluate in the main program."
)


def refuse_reentry(lock: threading.RLock) -> None:
    """Raise if this thread is in a section of ``lock``, so that a signal handler or a destructor must be asking."""
    if lock._is_owned():  # type: ignore[attr-defined]  # what threading.Condition asks as well
        raise EvaluationError(REENTERED)


def completed(write: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call ``write``, which may be called twice, again if an exception stops it, and raise that exception."""
    try:
        write(*args, **kwargs)
    except BaseException:
        write(*args, **kwargs)
        raise


def first_failure(actions: Iterable[Action]) -> tuple[int, Any] | None:
    """Run actions until one returns something other than 0 and None; give its index and what it returned. If the
    actions are native, this is one call of native code."""
    return next(filter(itemgetter(1), enumerate(starmap(call, actions))), None)


def first_code(actions: Iterable[Action]) -> Any:
    """The first result of an action that is neither 0 nor None, without its index; 0 if there is none."""
    return next(filter(None, starmap(call, actions)), 0)


def first_code_unless(doubts: Iterator[bool], actions: Iterable[Action]) -> Any:
    """Do what `first_code` does unless one of ``doubts`` is true: then run nothing and return True. The doubts are read
    in the same call of native code."""
    return next(filter(None, chain(doubts, starmap(call, actions))), 0)


def do_all(actions: Iterable[Action]) -> None:
    """Run all ``actions``, each of which may be run twice. If one runs Python code and is interrupted, all are run
    again."""
    completed(_do_each, actions)


def _do_each(actions: Iterable[Action]) -> None:
    consume(starmap(call, actions))


@contextmanager
def done_at_end(actions: Iterable[Action]) -> Iterator[None]:
    """Run all ``actions``, each of which may be run twice, when the block ends. The block may add actions."""
    try:
        try:
            yield
        finally:
            consume(starmap(call, actions))
    except BaseException:
        consume(starmap(call, actions))
        raise


def without_interrupts(work: Callable[[], T]) -> T:
    """The result of ``work``, run on a helper thread, so that Ctrl-C cannot stop it half way.

    Python raises interrupts on the main thread only, so other threads do the work themselves. An interrupt ends the
    waiting, not the work. Only one such work is done at a time, and a fork and the end of the process wait for it.
    """
    if threading.get_ident() != threading.main_thread().ident:
        with _uninterrupted:
            return work()
    results: list[T] = []
    errors: list[BaseException] = []
    ended = allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            with _uninterrupted, no_garbage_collected():
                results.append(work())
        except BaseException as error:  # raised below, on the thread that waits
            errors.append(error)
        finally:
            _unfinished.pop(ended, None)
            ended.release()

    # Not `threading.Thread`, whose `start` runs Python code: an interrupt in it becomes another error.
    started: list[Any] = []
    starting = [(_unfinished.__setitem__, ended, started), (start_new_thread, run, ())]
    try:
        started.extend(starmap(call, starting))
    except RuntimeError:
        if len(started) == _STARTED:  # a signal handler raised it
            raise
        run()  # the interpreter is about to end, or there are too many threads
    else:
        ended.acquire()
    if errors:
        raise errors.pop()
    return results.pop()


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """Turn garbage collection off until the last such block ends. It may run users' destructors, which may need a lock
    that a waiting thread holds; and where many objects are made that stay, it takes long and finds nothing."""
    global _collects
    block = object()
    collects = gc.isenabled()
    try:
        _collects = _collects or collects
        _blocks[block] = threading.get_ident()
        gc.disable()
        yield
    finally:
        try:
            _blocks.pop(block, None)
        finally:
            if _collects and not _blocks:
                _collects = False
                gc.enable()


@contextmanager
def garbage_collected_rarely() -> Iterator[None]:
    """Collect garbage only after many new objects, and only among these, in a block that runs users' code and makes
    many objects that stay."""
    before = gc.get_threshold()
    if not 0 < before[0] < _MANY_OBJECTS:  # collection is off, or rare already
        yield
        return
    with done_at_end([(gc.set_threshold, *before)]):
        gc.set_threshold(_MANY_OBJECTS, _MANY_TIMES, _MANY_TIMES)
        yield


_MANY_OBJECTS, _MANY_TIMES = 1 << 15, 1000


def _end_blocks_of_others() -> None:
    """In a forked child: remove the blocks of other threads, which do not exist here and so never end."""
    own = threading.get_ident()
    others = [block for block, thread in _blocks.items() if thread != own]
    with no_garbage_collected():
        consume(map(_blocks.pop, others))


_blocks: dict[object, int] = {}
"""Blocks in which no garbage is collected, with their threads."""
_collects = False
"""Whether garbage collection was on before the first of these blocks."""

_STARTED = 2
_unfinished: dict[LockType, list[Any]] = {}
"""Locks that helper threads hold while they work. The list has `_STARTED` entries once the thread has been started; if
it could not be started, an interrupt may leave the lock here."""


def _at_exit() -> None:
    for ended, started in list(_unfinished.items()):
        if len(started) == _STARTED:
            ended.acquire()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unfinished.clear)
    os.register_at_fork(after_in_child=_end_blocks_of_others)
atexit.register(_at_exit)
