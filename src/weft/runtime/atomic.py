"""Changes that nobody sees half done: neither other threads, nor signal handlers, nor what follows an interrupt.

An interrupt is an exception that a signal handler raises, as Ctrl-C does. CPython changes threads, runs signal handlers
and collects garbage, and so runs users' destructors, only after a call, at the beginning of a function written in
Python, and before it repeats a loop. This module and those that use it rely on three consequences:

- Statements without calls and loops are done together or not at all.
- One call of native code that runs no Python code, such as `consume` of an iterator made of native functions, is done
  completely once it began.
- A `with` statement holds a lock of `weft.runtime.locks` in its block and at no other time. No `while` stands in the
  block of a ``with`` or a ``try``: in CPython 3.12 and 3.13 its repetition belongs to no block, and an interrupt there
  leaves a lock held.

What takes more than that is a section: it holds ``sections``, the one lock for all short ones, or a lock of its own, if
it takes longer. After an exception anywhere in it, another attempt must be possible. Sections are not reentrant for
signal handlers and destructors: each way into one asks `refuse_reentry` first.
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

# What is imported has locks, and so has LLVM: a child would find them closed for ever.
_uninterrupted = fork_safe_lock(waited_for=True)

sections = fork_safe_lock()
"""Held while nodes are read or get values, and while runs get memory or are queued. Who holds it waits for nobody and
asks for no other lock."""

REENTERED = (
    "a signal handler or a destructor asked for values of arrays while the thread that it runs on was in the middle of "
    "evaluating. That evaluation is not harmed. Set a flag in the handler, and evaluate in the main program."
)


def refuse_reentry(lock: threading.RLock) -> None:
    """Raise if this thread is in a section of ``lock``: only a signal handler or a destructor asks for it again."""
    if lock._is_owned():  # type: ignore[attr-defined]  # what threading.Condition asks as well
        raise EvaluationError(REENTERED)


def completed(write: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call ``write``, which does the same when it is called again; should an exception stop it, once more."""
    try:
        write(*args, **kwargs)
    except BaseException:
        write(*args, **kwargs)
        raise


def first_failure(actions: Iterable[Action]) -> tuple[int, Any] | None:
    """Do actions, in one call of native code if they are native, until one gives something other than 0 and None:
    which one that is, and what it gives."""
    return next(filter(itemgetter(1), enumerate(starmap(call, actions))), None)


def first_code(actions: Iterable[Action]) -> Any:
    """What `first_failure` finds, without saying which action gives it; 0 if none does."""
    return next(filter(None, starmap(call, actions)), 0)


def first_code_unless(doubts: Iterator[bool], actions: Iterable[Action]) -> Any:
    """What `first_code` finds; but True, and nothing is done, if one of ``doubts`` is, which are read in the same call
    of native code."""
    return next(filter(None, chain(doubts, starmap(call, actions))), 0)


def do_all(actions: Iterable[Action]) -> None:
    """Do all ``actions``, which may be done twice, even if one of them runs Python code and is interrupted."""
    completed(_do_each, actions)


def _do_each(actions: Iterable[Action]) -> None:
    consume(starmap(call, actions))


@contextmanager
def done_at_end(actions: Iterable[Action]) -> Iterator[None]:
    """Do all ``actions``, which may be done twice, when the block ends; it may add some."""
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

    Python raises interrupts on the main thread only: other threads do the work themselves. An interrupt ends the
    waiting, not the work. No other work is done at the same time, and a fork and the end of the process wait for it.
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
        except BaseException as error:  # it belongs to who waits
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
    """Collect none in the block: that may run users' code, which may need a lock that a waiting thread holds; and where
    many objects are made that stay, it takes long and finds nothing. It goes on when the last such block ends."""
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
    """Collect some only after many objects were made, and only among new ones, in a block that runs users' code and
    makes many objects that stay."""
    before = gc.get_threshold()
    if not 0 < before[0] < _MANY_OBJECTS:  # it is off, or rare already
        yield
        return
    with done_at_end([(gc.set_threshold, *before)]):
        gc.set_threshold(_MANY_OBJECTS, _MANY_TIMES, _MANY_TIMES)
        yield


_MANY_OBJECTS, _MANY_TIMES = 1 << 15, 1000


def _end_blocks_of_others() -> None:
    """In a child, where those of other threads do not end."""
    own = threading.get_ident()
    others = [block for block, thread in _blocks.items() if thread != own]
    with no_garbage_collected():
        consume(map(_blocks.pop, others))


_blocks: dict[object, int] = {}
"""The threads of blocks in which no garbage is collected."""
_collects = False
"""Whether it was collected before the first of these blocks."""

_STARTED = 2
_unfinished: dict[LockType, list[Any]] = {}
"""Locks that helper threads hold while they work. The list has `_STARTED` entries if the thread has begun; if it could
not, an interrupt may leave the lock here."""


def _at_exit() -> None:
    for ended, started in list(_unfinished.items()):
        if len(started) == _STARTED:
            ended.acquire()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unfinished.clear)
    os.register_at_fork(after_in_child=_end_blocks_of_others)
atexit.register(_at_exit)
