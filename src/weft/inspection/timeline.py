"""Timelines in the format of Chrome's traces, which Perfetto (ui.perfetto.dev) shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import weft
from weft.compiler.plan import Plan
from weft.compiler.records import StepRecord
from weft.inspection.text import shortened
from weft.runtime.recording import PlanRun, Span, Thread

_Row = tuple[int | None, Thread]


def timeline(
    begin: int, runs: Sequence[PlanRun], spans: Sequence[Span], records_of: Callable[[Plan], Sequence[StepRecord]]
) -> Iterator[str]:
    """The lines of a file in JSON. Times count from ``begin``; there is a row for each stream on each thread, and one
    for what Python does there."""
    process = os.getpid()
    rows = _rows(runs, spans)
    yield f'{{"displayTimeUnit": "ms", "otherData": {{"weft": {json.dumps(weft.__version__)}}}, "traceEvents": ['
    yield json.dumps({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "weft"}})
    for (stream, thread), number in rows.items():
        what = "Python" if stream is None else f"stream {stream}"
        named: dict[str, Any] = {"thread_name": {"name": f"{what} ({thread.name})"}}
        named["thread_sort_index"] = {"sort_index": number}
        for name, args in named.items():
            yield "," + json.dumps({"ph": "M", "name": name, "pid": process, "tid": number, "args": args})
    for event, row in _events(runs, spans, records_of):
        event["ts"] = (event["ts"] - begin) / 1000
        event["dur"] /= 1000
        yield "," + json.dumps({"ph": "X", "pid": process, "tid": rows[row], **event})
    yield "]}"


def _rows(runs: Sequence[PlanRun], spans: Sequence[Span]) -> dict[_Row, int]:
    """A number for each row: threads in the order in which they appear, streams by their index."""
    seen = dict.fromkeys([*[span.thread for span in spans], *[run.thread for run in runs]])
    threads = {thread: position for position, thread in enumerate(seen)}
    found: set[_Row] = {(None, span.thread) for span in spans} | {(run.stream, run.thread) for run in runs}
    order = sorted(found, key=lambda row: (threads[row[1]], -1 if row[0] is None else row[0]))
    return {row: number for number, row in enumerate(order, start=1)}


def _events(
    runs: Sequence[PlanRun], spans: Sequence[Span], records_of: Callable[[Plan], Sequence[StepRecord]]
) -> Iterator[tuple[dict[str, Any], _Row]]:
    for span in spans:
        event = {"name": f"{span.kind}: {shortened(span.name)}", "cat": span.kind, "ts": span.begin}
        yield {**event, "dur": span.end - span.begin, "args": {"what": span.name}}, (None, span.thread)
    plans: dict[int, int] = {}
    for run in runs:
        plan = plans.setdefault(id(run.plan), len(plans))
        for record, (begin, end) in zip(
            records_of(run.plan), run.step_times(), strict=False
        ):  # an interrupted run has fewer
            args = {
                "operations": record.name,
                "loops": record.loops,
                "bytes read": record.bytes_read,
                "bytes written": record.bytes_written,
                "arithmetic": record.arithmetic,
                "plan": plan,
                "stream": run.stream,
            }
            event = {"name": shortened(record.name), "cat": record.kind, "ts": begin, "dur": end - begin}
            yield {**event, "args": args}, (run.stream, run.thread)
