"""Copies of arrays from one device to another.

An array belongs to no device. What an operation needs is copied to the device where it runs, and stays there as long as
the original lives, so that it is copied once.
"""

from __future__ import annotations

import weakref

from weft.runtime import recording
from weft.runtime.engine import Engine
from weft.runtime.forking import fork_safe_lock
from weft.runtime.host import host
from weft.runtime.memory import Buffer, View

Span = tuple[int, int]
"""The bytes that an array covers, counted from its first element."""

_copies: weakref.WeakKeyDictionary[Buffer, dict[tuple[Engine, int, int], Buffer]] = weakref.WeakKeyDictionary()
_lock = fork_safe_lock()


def address_on(engine: Engine, view: View, span: Span) -> int:
    """The address of the first element of an array on an engine, where it is copied to if it is not there."""
    low, high = view.offset + span[0], view.offset + span[1]
    key = engine, low, high
    with _lock:
        found = _copies.setdefault(view.buffer, {})
        copy = found.get(key)
        if copy is None:
            source = view.buffer.engine.device
            with recording.span("transfer", f"{high - low} bytes from {source} to {engine.device}"):
                copy = Buffer(engine, high - low)
                engine.copy_across(view.buffer, low, copy, high - low)
            found[key] = copy
    return copy.address - span[0]


def has_copies(buffer: Buffer) -> bool:
    """Whether a buffer was copied to another device: its memory may then not be written again."""
    return bool(_copies) and buffer in _copies


def on_host(view: View, span: Span) -> View:
    """A view of the same elements in memory of the process."""
    if view.buffer.engine is host:
        return view
    copy = Buffer(host, max(span[1] - span[0], 1))
    host.copy_across(view.buffer, view.offset + span[0], copy, span[1] - span[0])
    return View(copy, -span[0], view.strides)
