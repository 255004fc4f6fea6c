"""Locks that are free in a forked child whoever held them in the parent, and that no interrupt leaves held."""

from __future__ import annotations

import _thread
import concurrent.futures.thread  # noqa: F401  # it must be imported before the end of this module
import os
import sys
import threading
import weakref
from collections.abc import Callable

new_lock: Callable[[], threading.RLock] = threading.RLock
"""A reentrant lock, which ``with`` holds exactly as long as its block runs, whenever an interrupt comes."""

if sys.version_info >= (3, 14):

    class _Lock(_thread.RLock):  # type: ignore[misc]  # final for type checkers only
        """From 3.14 on CPython may run a signal handler between a native ``__enter__`` and the block, and an exception
        there would leave the lock held. After an ``__enter__`` written in Python it does not."""

        def __enter__(self) -> bool:  # type: ignore[override]  # type checkers are told that it is `acquire`
            held = self._recursion_count()  # type: ignore[attr-defined]  # CPython's own, as below
            try:
                return self.acquire()
            except BaseException:
                if self._recursion_count() > held:  # type: ignore[attr-defined]
                    self.release()
                raise

    new_lock = _Lock

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_waited_for: list[threading.RLock] = []
_held: list[threading.RLock] = []
"""The locks of `_waited_for` that are held during a fork."""


def fork_safe_lock(waited_for: bool = False) -> threading.RLock:
    """A reentrant lock, free again in a forked child.

    If it is ``waited_for``, a fork waits until no thread holds it: it guards changes that a child must not inherit half
    done. A thread that holds such a lock must take no other lock.
    """
    lock = new_lock()
    _locks.add(lock)
    if waited_for:
        _waited_for.append(lock)
    return lock


def _before_fork() -> None:
    for lock in list(_waited_for):
        lock.acquire()
        _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().release()


def _after_fork_in_child() -> None:
    _release()
    for lock in list(_locks):
        if not lock._is_owned():  # type: ignore[attr-defined]  # a handler that forks: what it interrupted goes on
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # CPython's own hook


# Before a fork, functions run in the reverse order of registration. This one is registered before all others of Weft,
# so it runs after them; but after that of `concurrent.futures`, so it runs before that one, which takes the lock of
# `submit`: a thread that is waited for here may be about to submit.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_release, after_in_child=_after_fork_in_child)
