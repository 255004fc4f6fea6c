"""Locks that a forked child finds open, whoever held them in the parent."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_waited_for: list[threading.RLock] = []
_held: list[threading.RLock] = []
"""Those of `_waited_for`, during a fork."""


def fork_safe_lock(waited_for: bool = False) -> threading.RLock:
    """A reentrant lock, open again in a forked child.

    If it is ``waited_for``, no thread holds it at the moment of a fork: it guards what must not be left half done.
    While such a lock is held no other one may be asked for.
    """
    lock = threading.RLock()
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


# Of what is called before a fork, this comes last, for it was registered first.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_release, after_in_child=_after_fork_in_child)
