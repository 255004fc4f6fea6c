"""LLVM on several threads at a time.

llvmlite holds one lock during each call of LLVM, because its users share a context. LLVM itself needs none where each
thread has a context, a target machine and passes of its own. So threads of ours pass by the lock while they work so;
for all others it is what it was. The lock is no public part of llvmlite: where it is not found as expected, or
somebody wants to be told of it, nobody passes by, and LLVM works on one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm


class ThreadCompiler(NamedTuple):
    """What of LLVM one thread at a time uses."""

    machine: llvm.TargetMachine
    builder: llvm.PassBuilder
    layout: str


class _ThreadState(threading.local):
    passes = False


_thread = _ThreadState()


class _LlvmLock:
    """The lock of llvmlite, which threads that are ``apart`` pass by."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self) -> bool:
        return _thread.passes or bool(self._lock.acquire())

    def release(self) -> None:
        if not _thread.passes:
            self._lock.release()


@cache
def _replaced() -> Any:
    """What holds the lock, which is ours now; None if it is not as expected."""
    holder: Any = getattr(llvm.ffi.lib, "_lock", None)
    lock = getattr(holder, "_lock", None)
    if type(lock) is not type(threading.RLock()) or not isinstance(getattr(holder, "_cblist", None), list):
        return None
    holder._lock = _LlvmLock(lock)  # who is in a call of LLVM holds the one inside
    return holder


def possible() -> bool:
    """Whether threads can be `apart`."""
    holder = _replaced()
    return holder is not None and not holder._cblist


@contextmanager
def apart() -> Iterator[None]:
    """In the block this thread uses LLVM with a context, a target machine and passes of its own; no garbage may be
    collected, which may belong to others."""
    _thread.passes = possible()
    try:
        yield
    finally:
        _thread.passes = False
