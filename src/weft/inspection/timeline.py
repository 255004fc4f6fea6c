"""What ran when: events in rows, one row for each stream on each thread, and one for what Python does there; and their
file in the format of Chrome's traces, which Perfetto (ui.perfetto.dev) shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import weft
from weft.compiler.plan import Plan
from weft.compiler.records import StepRecord
from weft.inspection.text import shortened
from weft.runtime.device import cpu
from weft.runtime.recording import TRANSFER, PlanRun, Span, Thread


class Row(NamedTuple):
    """A stream on a thread, and its device, if that is not the CPU; without a stream, what Python does there."""

    stream: int | None
    thread: Thread
    device: str = ""

    @property
    def title(self) -> str:
        what = "Python" if self.stream is None else f"{self.device}stream {self.stream}"
        return f"{what} ({self.thread.name})"


class Event(NamedTuple):
    """What took from ``begin`` to ``end``, in nanoseconds: a step of a plan, with its ``record`` and the number of the
    plan, or something else."""

    kind: str
    what: str
    begin: int
    end: int
    row: Row
    record: StepRecord | None = None
    plan: int = 0

    @property
    def name(self) -> str:
        return shortened(self.what) if self.record else f"{self.kind}: {shortened(self.what)}"


def events_of(
    runs: Sequence[PlanRun], spans: Sequence[Span], records_of: Callable[[Plan], Sequence[StepRecord]]
) -> list[Event]:
    """All that was recorded."""
    events = [Event(span.kind, span.name, span.begin, span.end, Row(None, span.thread)) for span in spans]
    plans: dict[int, int] = {}
    for run in runs:
        device = run.plan.engine.device
        name = "" if device.type is cpu else f"{device.type.name} {device.index}, "
        plan, row = plans.setdefault(id(run.plan), len(plans)), Row(run.stream, run.thread, name)
        times = zip(records_of(run.plan), run.step_times(), strict=False)  # an interrupted run has fewer
        events += [
            Event(record.kind, record.name, begin, end, row, record, plan) for record, (begin, end) in times if begin
        ]
    return events


def overlap_of(events: Iterable[Event]) -> int:
    """Nanoseconds in which two or more steps or copies were under way."""
    working = [event for event in events if event.record or event.kind == TRANSFER]
    changes = sorted([(event.begin, 1) for event in working] + [(event.end, -1) for event in working])
    together = under_way = 0
    for (moment, change), (following, _) in pairwise(changes):
        under_way += change
        if under_way > 1:
            together += following - moment
    return together


def rows_of(events: Iterable[Event]) -> dict[Row, int]:
    """The rows in their order, numbered from 0: threads in the order in which they appear, streams by their index."""
    found = dict.fromkeys([event.row for event in events])
    threads = {thread: position for position, thread in enumerate(dict.fromkeys([row.thread for row in found]))}
    order = sorted(found, key=lambda row: (threads[row.thread], -1 if row.stream is None else row.stream))
    return {row: number for number, row in enumerate(order)}


def timeline(begin: int, events: Sequence[Event]) -> Iterator[str]:
    """The lines of a file in JSON. Times count from ``begin``."""
    process = os.getpid()
    rows = rows_of(events)
    yield f'{{"displayTimeUnit": "ms", "otherData": {{"weft": {json.dumps(weft.__version__)}}}, "traceEvents": ['
    yield json.dumps({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "weft"}})
    for row, number in rows.items():
        named: dict[str, Any] = {"thread_name": {"name": row.title}, "thread_sort_index": {"sort_index": number + 1}}
        for name, args in named.items():
            yield "," + json.dumps({"ph": "M", "name": name, "pid": process, "tid": number + 1, "args": args})
    for event in events:
        entry = {"name": event.name, "cat": event.kind, "args": _arguments(event)}
        times = {"ts": (event.begin - begin) / 1000, "dur": (event.end - event.begin) / 1000}
        yield "," + json.dumps({"ph": "X", "pid": process, "tid": rows[event.row] + 1, **entry, **times})
    yield "]}"


def _arguments(event: Event) -> dict[str, Any]:
    record = event.record
    if record is None:
        return {"what": event.what}
    return {
        "operations": record.name,
        "loops": record.loops,
        "bytes read": record.bytes_read,
        "bytes written": record.bytes_written,
        "arithmetic": record.arithmetic,
        "plan": event.plan,
        "stream": event.row.stream,
    }
