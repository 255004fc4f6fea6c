"""Copies of arrays from one device to another.

An array's buffer is on one device; work on another reads a copy, which is cached as long as the original lives.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

from weft.runtime import recording
from weft.runtime.devices import Device
from weft.runtime.engine import Engine
from weft.runtime.host import host
from weft.runtime.locks import fork_safe_lock
from weft.runtime.memory import Buffer, View

Span = tuple[int, int]
"""The bytes that an array covers, counted from its first element."""


Source = tuple[Buffer, Engine, int, int]
"""What tells a copy from others: bytes of a buffer, and where they are copied to."""


class Transfer(NamedTuple):
    """So many bytes from one device to another."""

    source: Device
    target: Device
    size: int


def transfers_to(engine: Engine, views: Sequence[View], spans: Sequence[Span]) -> dict[Source, Transfer]:
    """What is copied to an engine before work reads ``views`` there, unless a copy is there already."""
    found: dict[Source, Transfer] = {}
    for view, (low, high) in zip(views, spans, strict=True):
        buffer = view.buffer
        if buffer.engine is not engine:
            key = buffer, engine, view.offset + low, view.offset + high
            found[key] = Transfer(buffer.engine.device, engine.device, high - low)
    return found


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
            copy = found[key] = _copied(view.buffer, low, high, engine)
    return copy.address - span[0]


def has_copies(buffer: Buffer) -> bool:
    """Whether a buffer was copied to another device: its memory may then not be written again."""
    return bool(_copies) and buffer in _copies


def on_host(view: View, span: Span) -> View:
    """A view of the same elements in memory of the process."""
    if view.buffer.engine is host:
        return view
    copy = _copied(view.buffer, view.offset + span[0], view.offset + span[1], host)
    return View(copy, -span[0], view.strides)


def _copied(buffer: Buffer, low: int, high: int, engine: Engine) -> Buffer:
    """Bytes of a buffer in a new one of another engine."""
    copy = Buffer(engine, high - low)
    with recording.span(recording.TRANSFER, f"{buffer.engine.device} to {engine.device}", high - low):
        engine.copy_across(buffer, low, copy, high - low)
    return copy
