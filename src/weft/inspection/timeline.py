"""What ran when: entries on tracks. There is a track for each stream on each thread, and one for what Python does on a
thread. Also the file in the format of Chrome's traces, which Perfetto (ui.perfetto.dev) shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import weft
from weft.compiler.planning.plan import Plan
from weft.compiler.planning.records import StepRecord
from weft.inspection.text import shortened
from weft.runtime.device import cpu
from weft.runtime.recording import TRANSFER, PlanRun, Span, Thread


class Track(NamedTuple):
    """A stream on a thread, with its device unless that is the CPU; without a stream, what Python does on the
    thread."""

    stream: int | None
    thread: Thread
    device: str = ""

    @property
    def title(self) -> str:
        what = "Python" if self.stream is None else f"{self.device}stream {self.stream}"
        return f"{what} ({self.thread.name})"


class TimelineEntry(NamedTuple):
    """Something that took the time from ``begin`` to ``end``, in nanoseconds: a step of a plan, with its ``record`` and
    the number of the plan, or something else."""

    kind: str
    what: str
    begin: int
    end: int
    track: Track
    record: StepRecord | None = None
    plan: int = 0

    @property
    def name(self) -> str:
        return shortened(self.what) if self.record else f"{self.kind}: {shortened(self.what)}"


def entries_of(
    runs: Sequence[PlanRun], spans: Sequence[Span], records_of: Callable[[Plan], Sequence[StepRecord]]
) -> list[TimelineEntry]:
    """The entries for everything that was recorded."""
    entries = [TimelineEntry(span.kind, span.name, span.begin, span.end, Track(None, span.thread)) for span in spans]
    plans: dict[int, int] = {}
    for run in runs:
        device = run.plan.engine.device
        name = "" if device.type is cpu else f"{device.type.name} {device.index}, "
        plan, track = plans.setdefault(id(run.plan), len(plans)), Track(run.stream, run.thread, name)
        times = zip(records_of(run.plan), run.step_times(), strict=False)  # an interrupted run has fewer times
        entries += [
            TimelineEntry(record.kind, record.name, begin, end, track, record, plan)
            for record, (begin, end) in times
            if begin
        ]
    return entries


def overlap_of(entries: Iterable[TimelineEntry]) -> int:
    """Nanoseconds in which two or more steps or copies were running."""
    working = [entry for entry in entries if entry.record or entry.kind == TRANSFER]
    changes = sorted([(entry.begin, 1) for entry in working] + [(entry.end, -1) for entry in working])
    together = under_way = 0
    for (moment, change), (following, _) in pairwise(changes):
        under_way += change
        if under_way > 1:
            together += following - moment
    return together


def tracks_of(entries: Iterable[TimelineEntry]) -> dict[Track, int]:
    """The tracks in order, numbered from 0: threads in the order of their first entries, streams by their index."""
    found = dict.fromkeys([entry.track for entry in entries])
    threads = {thread: position for position, thread in enumerate(dict.fromkeys([track.thread for track in found]))}
    order = sorted(found, key=lambda track: (threads[track.thread], -1 if track.stream is None else track.stream))
    return {track: number for number, track in enumerate(order)}


def timeline(begin: int, entries: Sequence[TimelineEntry]) -> Iterator[str]:
    """The lines of a file in JSON. Times are relative to ``begin``."""
    process = os.getpid()
    tracks = tracks_of(entries)
    yield f'{{"displayTimeUnit": "ms", "otherData": {{"weft": {json.dumps(weft.__version__)}}}, "traceEvents": ['
    yield json.dumps({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "weft"}})
    for track, number in tracks.items():
        named: dict[str, Any] = {"thread_name": {"name": track.title}, "thread_sort_index": {"sort_index": number + 1}}
        for name, args in named.items():
            yield "," + json.dumps({"ph": "M", "name": name, "pid": process, "tid": number + 1, "args": args})
    for entry in entries:
        shown = {"name": entry.name, "cat": entry.kind, "args": _arguments(entry)}
        times = {"ts": (entry.begin - begin) / 1000, "dur": (entry.end - entry.begin) / 1000}
        yield "," + json.dumps({"ph": "X", "pid": process, "tid": tracks[entry.track] + 1, **shown, **times})
    yield "]}"


def _arguments(entry: TimelineEntry) -> dict[str, Any]:
    record = entry.record
    if record is None:
        return {"what": entry.what}
    return {
        "operations": record.name,
        "loops": record.loops,
        "bytes read": record.bytes_read,
        "bytes written": record.bytes_written,
        "arithmetic": record.arithmetic,
        "plan": entry.plan,
        "stream": entry.track.stream,
    }
