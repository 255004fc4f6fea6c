"""Copies of arrays from one device to another.

An array's buffer is on one device; work on another reads a copy, which is cached as long as the view of the array
lives. Where a graph goes from one device to another, the copy is queued behind the work that computes the value
(`send`), and what reads it waits for that alone. Elsewhere it is made where it is needed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import get_ident
from typing import NamedTuple

from weft.errors import CancelledError
from weft.runtime import recording
from weft.runtime.atomic import refuse_reentry, sections
from weft.runtime.devices import Device, Stream
from weft.runtime.engine import Engine
from weft.runtime.host import host
from weft.runtime.locks import new_lock
from weft.runtime.memory import Buffer, View, export_of
from weft.runtime.streams import Event, under_way

Span = tuple[int, int]
"""The bytes that an array covers, counted from its first element."""


Copied = tuple[Buffer, Engine, int, int]
"""Bytes of a buffer, and where they are copied to."""


class Transfer(NamedTuple):
    """So many bytes from one device to another."""

    source: Device
    destination: Device
    size: int


def transfers_to(engine: Engine, views: Sequence[View], spans: Sequence[Span]) -> dict[Copied, Transfer]:
    """What is copied to an engine before work reads ``views`` there, unless a copy is there already."""
    found: dict[Copied, Transfer] = {}
    for view, (low, high) in zip(views, spans, strict=True):
        buffer = view.buffer
        if buffer.engine is not engine:
            key = buffer, engine, view.offset + low, view.offset + high
            found[key] = Transfer(buffer.engine.device, engine.device, high - low)
    return found


def copy_on(engine: Engine, view: View, span: Span) -> View:
    """A view of the same elements on an engine, where they are copied to if they are not there."""
    key = engine, *span
    buffer = view.copies.get(key) if view.copies else None
    if buffer is None:
        buffer = _filled(Buffer(engine, span[1] - span[0]), view, span)
    return View(buffer, -span[0], view.strides)


def on_host(view: View, span: Span) -> View:
    """A view of the same elements in memory of the process."""
    return view if view.buffer.engine is host else copy_on(host, view, span)


class Sending:
    """A copy that a stream makes behind the work that computes what is copied. It is the event of the view that shows
    the copy."""

    __slots__ = ("_abandoned", "_buffer", "_event", "_lock", "_span", "_stopped", "_view", "done")

    def __init__(self, view: View, span: Span, buffer: Buffer, stream: Stream) -> None:
        self._view, self._span, self._buffer = view, span, buffer
        self._lock = new_lock()
        self._abandoned = self._stopped = self.done = False
        self._event: Event = stream.engine.submit(stream, self._begin, self.cancel)

    def _begin(self) -> None:
        if not self._abandoned:
            with suppress(Exception):  # it fails again for who waits
                self._make()

    def _make(self) -> None:
        refuse_reentry(self._lock)
        with self._lock:
            under_way[self] = get_ident()
            try:
                if not self.done:
                    if self._stopped:
                        raise CancelledError
                    if self._view.event is not None:
                        self._view.event.wait()
                    _filled(self._buffer, self._view, self._span)
                    self.done = True
            finally:
                under_way.pop(self, None)

    def wait(self) -> None:
        """Wait until the copy is made; make it if the stream could not."""
        self._event.wait()
        self._make()

    def cancel(self) -> None:
        """Make no copy, and ask the work that computes what is copied to end early."""
        self._abandoned = self._stopped = True
        event = self._view.event
        if event is not None:
            event.cancel()

    def allow_again(self) -> None:
        """Who waits from now on makes the copy."""
        self._stopped = False


def send(view: View, span: Span, engine: Engine, stream: Stream) -> View:
    """A view of the same elements on another engine, which the ``stream`` that computes them copies there."""
    buffer = Buffer(engine, span[1] - span[0])
    result = View(buffer, -span[0], view.strides)
    result.event = Sending(view, span, buffer, stream)
    return result


def _filled(buffer: Buffer, view: View, span: Span) -> Buffer:
    """Copy the elements of a view into a buffer of another engine. Returns the buffer where they are found from then
    on, as long as the view lives and others do not write to its memory: this one, or that of a thread that was
    faster."""
    engine, source = buffer.engine, view.buffer
    low, high = span
    with recording.transfer(source.engine.device, engine.device, high - low):
        engine.copy_across(source, view.offset + low, buffer, high - low)
    export = export_of(source)
    if export is not None and export.writable:
        return buffer  # what others write later is not in it
    with sections:
        if view.copies is None:
            view.copies = {}
        found: Buffer = view.copies.setdefault((engine, low, high), buffer)
    return found
