"""Copies of arrays from one device to another.

An array's buffer is on one device; work on another reads a copy, which is cached as long as the original lives. Where
a graph goes from one device to another, the copy is queued behind the work that computes the value (`send`); what reads
it waits for it, or makes it if nobody has.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from threading import get_ident
from typing import NamedTuple

from weft.runtime import recording
from weft.runtime.atomic import refuse_reentry
from weft.runtime.devices import Device, Stream
from weft.runtime.engine import Engine
from weft.runtime.host import host
from weft.runtime.locks import fork_safe_lock, new_lock
from weft.runtime.memory import Buffer, View
from weft.runtime.streams import Event, under_way

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


class _Copy:
    """Bytes of a buffer in a new one of another engine, once somebody has waited for that."""

    __slots__ = ("__weakref__", "_lock", "_low", "_queued", "_source", "buffer")

    def __init__(self, source: View, low: int, size: int, engine: Engine) -> None:
        self._source: View | None = source
        self._low = low
        self._lock = new_lock()
        self._queued: Event | None = None
        self.buffer = Buffer(engine, size)

    def queue(self, stream: Stream) -> None:
        """Leave it to a stream."""
        if self._queued is None:
            self._queued = stream.engine.submit(stream, self._begin)

    def wait(self) -> None:
        """Wait until it is done; copy if nobody has."""
        if self._queued is not None:
            self._queued.wait()
        self._make()

    def _make(self) -> None:
        """Copy, after what the source waits for, unless that is done."""
        refuse_reentry(self._lock)
        with self._lock:
            under_way[self] = get_ident()
            try:
                self._copy()
            finally:
                under_way.pop(self, None)

    def _copy(self) -> None:
        source = self._source
        if source is None:
            return
        event = source.event
        if event is not None:
            event.wait()
        _copy_across(source.buffer, self._low, self.buffer)
        with _lock:
            key = self.buffer.engine, self._low, self._low + self.buffer.size
            _copies.setdefault(source.buffer, {})[key] = self.buffer
        self._source = None

    def _begin(self) -> None:
        with suppress(Exception):  # it fails again for who waits
            self._make()


_copies: weakref.WeakKeyDictionary[Buffer, dict[tuple[Engine, int, int], Buffer]] = weakref.WeakKeyDictionary()
_begun: weakref.WeakValueDictionary[Source, _Copy] = weakref.WeakValueDictionary()
_lock = fork_safe_lock()


def _copy_of(view: View, span: Span, engine: Engine) -> Buffer | _Copy:
    """The copy of an array on an engine, or one that somebody has to wait for."""
    low, high = view.offset + span[0], view.offset + span[1]
    with _lock:
        found = _copies.get(view.buffer, {}).get((engine, low, high))
        if found is not None:
            return found
        source = view.buffer, engine, low, high
        copy = _begun.get(source)
        if copy is None:
            copy = _begun[source] = _Copy(view, low, high - low, engine)
        return copy


def send(view: View, span: Span, engine: Engine, stream: Stream) -> _Copy | None:
    """Queue the copy of an array to an engine on the stream that computes it, unless it is there. Somebody has to hold
    what is returned until work that reads the copy is queued."""
    copy = _copy_of(view, span, engine)
    if isinstance(copy, Buffer):
        return None
    copy.queue(stream)
    return copy


def address_on(engine: Engine, view: View, span: Span) -> int:
    """The address of the first element of an array on an engine, where it is copied to if it is not there."""
    copy = _copy_of(view, span, engine)
    if isinstance(copy, _Copy):
        copy.wait()
        copy = copy.buffer
    return copy.address - span[0]


def has_copies(buffer: Buffer) -> bool:
    """Whether a buffer was or is copied to another device: its memory may then not be written again."""
    if not (_copies or _begun):
        return False
    with _lock:
        return buffer in _copies or any(source[0] is buffer for source in _begun)


def on_host(view: View, span: Span) -> View:
    """A view of the same elements in memory of the process."""
    if view.buffer.engine is host:
        return view
    copy = _copied(view.buffer, view.offset + span[0], view.offset + span[1], host)
    return View(copy, -span[0], view.strides)


def _copied(buffer: Buffer, low: int, high: int, engine: Engine) -> Buffer:
    """Bytes of a buffer in a new one of another engine."""
    copy = Buffer(engine, high - low)
    _copy_across(buffer, low, copy)
    return copy


def _copy_across(source: Buffer, low: int, target: Buffer) -> None:
    """Fill a buffer with bytes of one of another engine."""
    way = f"{source.engine.device} to {target.engine.device}"
    with recording.span(recording.TRANSFER, way, target.size):
        target.engine.copy_across(source, low, target, target.size)
