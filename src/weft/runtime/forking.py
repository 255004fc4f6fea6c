"""Locks that a forked child finds open, whoever held them in the parent."""

from __future__ import annotations

import os
import threading


def fork_safe_lock() -> threading.RLock:
    """A reentrant lock for the life of the process, open again in a forked child."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # CPython's own hook
    return lock
