"""LLVM on several threads at a time.

llvmlite holds one lock during each call of LLVM, because its users share a context. LLVM itself needs no lock if each
thread has its own context, target machine and passes. So Weft replaces the lock by one that lets threads of that kind
pass; all others acquire it as before. The lock is no public part of llvmlite: if it is not found as expected, or
callbacks are registered for it, no thread passes, and LLVM runs on one thread at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm


class ThreadCompiler(NamedTuple):
    """The objects of LLVM that only one thread at a time may use."""

    machine: llvm.TargetMachine
    builder: llvm.PassBuilder
    layout: str


class _ThreadState(threading.local):
    passes = False


_thread = _ThreadState()


class _LlvmLock:
    """A wrapper of llvmlite's lock, which threads that are `apart` do not acquire."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def acquire(self) -> bool:
        return _thread.passes or bool(self._lock.acquire())

    def release(self) -> None:
        if not _thread.passes:
            self._lock.release()


@cache
def _replaced() -> Any:
    """The object whose lock has been replaced by a `_LlvmLock`; None if llvmlite's lock is not as expected."""
    holder: Any = getattr(llvm.ffi.lib, "_lock", None)
    lock = getattr(holder, "_lock", None)
    if type(lock) is not type(threading.RLock()) or not isinstance(getattr(holder, "_cblist", None), list):
        return None
    holder._lock = _LlvmLock(lock)  # a thread inside a call of LLVM holds, and releases, the lock that is wrapped
    return holder


def possible() -> bool:
    """Whether threads can be `apart`."""
    holder = _replaced()
    return holder is not None and not holder._cblist


@contextmanager
def apart() -> Iterator[None]:
    """In this block the thread calls LLVM without the lock, with its own context, target machine and passes. Garbage
    collection must be off: it could free objects of LLVM that other threads share."""
    _thread.passes = possible()
    try:
        yield
    finally:
        _thread.passes = False
