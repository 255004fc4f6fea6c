"""Copies of arrays from one device to another.

An array's buffer is on one device; work on another device reads a copy, which is cached as long as the view of the
array exists. Where a graph continues on another device, the copy is queued after the work that computes the value
(`send`), and the work that reads it waits for that copy alone. Otherwise the copy is made when it is first needed.
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
from weft.runtime.forks import under_way
from weft.runtime.host import host
from weft.runtime.locks import new_lock
from weft.runtime.memory import Buffer, View, export_of
from weft.runtime.streams import Event

Span = tuple[int, int]
"""The bytes that an array covers, counted from its first element."""


Copied = tuple[Buffer, Engine, int, int]
"""A range of bytes of a buffer, and the engine to which it is copied."""


class Transfer(NamedTuple):
    """A copy of ``size`` bytes from one device to another."""

    source: Device
    destination: Device
    size: int


def transfers_to(engine: Engine, views: Sequence[View], spans: Sequence[Span]) -> dict[Copied, Transfer]:
    """The copies to an engine that work there needs to read ``views``; some of them may exist already."""
    found: dict[Copied, Transfer] = {}
    for view, (low, high) in zip(views, spans, strict=True):
        buffer = view.buffer
        if buffer.engine is not engine:
            key = buffer, engine, view.offset + low, view.offset + high
            found[key] = Transfer(buffer.engine.device, engine.device, high - low)
    return found


def copy_on(engine: Engine, view: View, span: Span) -> View:
    """A view of the same elements on an engine; they are copied there unless a copy exists."""
    key = engine, *span
    buffer = view.copies.get(key) if view.copies else None
    if buffer is None:
        buffer = _filled(Buffer(engine, span[1] - span[0]), view, span)
    return View(buffer, -span[0], view.strides)


def on_host(view: View, span: Span) -> View:
    """A view of the same elements in memory of the process."""
    return view if view.buffer.engine is host else copy_on(host, view, span)


class Sending:
    """A copy that a stream makes after the work that computes the elements. It is the event of the view that refers to
    the copy."""

    __slots__ = ("_abandoned", "_buffer", "_event", "_lock", "_span", "_stopped", "_view", "done")

    def __init__(self, view: View, span: Span, buffer: Buffer, stream: Stream) -> None:
        self._view, self._span, self._buffer = view, span, buffer
        self._lock = new_lock()
        self._abandoned = self._stopped = self.done = False
        self._event: Event = stream.engine.submit(stream, self._begin, self.cancel)

    def _begin(self) -> None:
        if not self._abandoned:
            with suppress(Exception):  # it is raised again where somebody waits
                self._make()

    def _make(self) -> None:
        refuse_reentry(self._lock)
        shared = self, get_ident()
        try:
            under_way.add(shared)
            with self._lock:
                if not self.done:
                    if self._stopped:
                        raise CancelledError
                    if self._view.event is not None:
                        self._view.event.wait()
                    _filled(self._buffer, self._view, self._span)
                    self.done = True
        finally:
            under_way.discard(shared)

    def begin_again(self) -> None:
        self._lock = new_lock()

    def wait(self) -> None:
        """Wait until the copy is made; make it here if the stream failed to."""
        self._event.wait()
        self._make()

    def cancel(self) -> None:
        """Do not make the copy, and ask the work that computes the elements to end early."""
        self._abandoned = self._stopped = True
        event = self._view.event
        if event is not None:
            event.cancel()

    def allow_again(self) -> None:
        """Undo `cancel`: the next `wait` makes the copy."""
        self._stopped = False


def send(view: View, span: Span, engine: Engine, stream: Stream) -> View:
    """A view of the same elements on another engine; the ``stream`` that computes them copies them there."""
    buffer = Buffer(engine, span[1] - span[0])
    result = View(buffer, -span[0], view.strides)
    result.event = Sending(view, span, buffer, stream)
    return result


def _filled(buffer: Buffer, view: View, span: Span) -> Buffer:
    """Copy the elements of a view into a buffer of another engine. Returns the buffer that holds the copy from then on:
    ``buffer``, or that of another thread that was faster. It is cached only if others cannot write to the view's
    memory."""
    engine, source = buffer.engine, view.buffer
    low, high = span
    with recording.transfer(source.engine.device, engine.device, high - low):
        engine.copy_across(source, view.offset + low, buffer, high - low)
    export = export_of(source)
    if export is not None and export.writable:
        return buffer  # a cached copy would miss later writes
    with sections:
        if view.copies is None:
            view.copies = {}
        found: Buffer = view.copies.setdefault((engine, low, high), buffer)
    return found
