"""Locks that a forked child finds open, whoever held them in the parent."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock, open again in a forked child."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _after_fork() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # CPython's own hook


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
