"""Profiles: what ran while a block was active, as totals by kernel and as a timeline."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from weft.compiler.planning.plan import Plan
from weft.compiler.planning.records import StepRecord
from weft.graph.location import user_location
from weft.inspection.files import opened, write_lines
from weft.inspection.paged import Paged
from weft.inspection.text import (
    duration_text,
    microseconds,
    number_of,
    percent,
    rate_text,
    shortened,
    size_text,
    step_rate_text,
    table,
)
from weft.inspection.timeline import TimelineEntry, entries_of, overlap_of, timeline
from weft.runtime import recording
from weft.runtime.locks import fork_safe_lock
from weft.runtime.streams import drain_all

SHOWN_KERNELS = 12

_lock = fork_safe_lock()
_active: Profile | None = None


class TransferTotal(NamedTuple):
    """The number of copies from one device to another, and their bytes and seconds in total."""

    copies: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        spent = duration_text(self.seconds)
        return f"{self.copies:,}x, {size_text(self.bytes)}, {spent}, {rate_text(self.bytes, self.seconds, 'GB/s')}"


class KernelTotal:
    """A kernel, or a matrix product, with certain loops: how often it ran, and how long in total.

    Bytes and ``arithmetic`` (the number of scalar operations) are those of one run. ``places`` are the lines of the
    program that caused it, by a compiled call or by reading a value, and how often each did.
    """

    def __init__(self, record: StepRecord) -> None:
        self.facts = record.facts
        self.kind, self.name, self.loops, self.bytes_read, self.bytes_written, self.arithmetic = record.facts
        self.count = 0
        self.seconds = 0.0
        self.places: Counter[str] = Counter()

    @property
    def rate(self) -> str:
        """Arithmetic operations per second for a call that has any, else bytes per second."""
        arithmetic = self.arithmetic * self.count if self.kind == "call" else 0
        return step_rate_text(arithmetic, (self.bytes_read + self.bytes_written) * self.count, self.seconds)


Totals = dict[tuple[str, str, str, int, int, int], KernelTotal]
"""Totals by what identifies their steps."""


def _total_of(record: StepRecord, totals: Totals) -> KernelTotal:
    """The total to which a step is added."""
    total = totals.get(record.facts)
    if total is None:
        total = totals[record.facts] = KernelTotal(record)
    return total


class Profile(Paged):
    """What ran in the block of ``with weft.profile("timeline.json") as profile``. Printing it shows the kernels that
    took most time, and ``html(file)`` writes a page for a browser.

    ``kernels`` are totals, longest first; ``compilation`` has count and seconds of traces, plans and machine code;
    ``transfers`` are copies from device to device; ``seconds`` is the duration of the block, ``overlap`` the part of it
    in which two or more steps or copies were running.
    """

    function = "profile"

    def __init__(self, file: Any = None) -> None:
        self._file = file
        self._target: TextIO | None = None
        self._recorder = recording.Recorder()
        self._records: dict[int, list[StepRecord]] = {}
        self._begun_at = ""
        self._begin: int | None = None
        self._end: int | None = None

    def __enter__(self) -> Profile:
        global _active
        begun_at = user_location()
        with _lock:
            if _active is not None:
                raise RuntimeError(
                    f"[profile] another profile is active, begun at {_active._begun_at}; there can be one at a time. "
                    "End it before this one begins, or profile both blocks as one."
                )
            if self._begin is not None:
                raise RuntimeError("[profile] this profile has been used. Make a new one: with weft.profile(...).")
            if self._file is not None:
                self._target = opened("profile", self._file)
            self._begun_at = begun_at
            try:
                _active = self
                self._begin = recording.now()
                recording.start(self._recorder)
            except BaseException:  # an interrupt: `__exit__` will not be called
                self._stop()
                raise
        return self

    def _stop(self) -> None:
        global _active
        self._end = recording.now()
        recording.stop(self._recorder)
        _active = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if _active is not self:  # in a forked child, which must not write its parent's file
            return
        try:
            if error is None:
                drain_all()
        finally:
            self._stop()
            self._write()

    def _write(self) -> None:
        target, self._target = self._target, None
        if target is None:
            return
        try:
            write_lines(target, timeline(self._begin or 0, self._entries()))
        finally:
            if target is not self._file:
                target.close()

    def _entries(self) -> list[TimelineEntry]:
        return entries_of(list(self._recorder.runs), list(self._recorder.spans), self._records_of)

    def _records_of(self, plan: Plan) -> list[StepRecord]:
        """Records of the steps of a plan. Plans are compared by identity; the runs of this profile keep them alive."""
        records = self._records.get(id(plan))
        if records is None:
            records = self._records[id(plan)] = plan.describe().records
        return records

    @property
    def seconds(self) -> float:
        if self._begin is None:
            return 0.0
        return ((self._end or recording.now()) - self._begin) / 1e9

    @property
    def kernels(self) -> list[KernelTotal]:
        """The totals of what ran, longest first; equal kernels with equal loops have one total."""
        totals: Totals = {}
        by_plan: dict[int, list[KernelTotal]] = {}
        for run in list(self._recorder.runs):
            steps = by_plan.get(id(run.plan))
            if steps is None:
                steps = by_plan[id(run.plan)] = [_total_of(record, totals) for record in self._records_of(run.plan)]
            for total, (begin, end) in zip(steps, run.step_times(), strict=False):  # an interrupted run has fewer times
                total.count += 1
                total.places[run.asked_at] += 1
                total.seconds += (end - begin) / 1e9
        return sorted([total for total in totals.values() if total.count], key=lambda total: -total.seconds)

    @property
    def compilation(self) -> dict[str, tuple[int, float]]:
        """How often, and for how many seconds in total, functions were traced, programs planned, and machine code made
        or loaded. Machine code is usually made during planning, and then counted in both."""
        sums: dict[str, tuple[int, float]] = {}
        for span in sorted(self._recorder.spans, key=lambda span: span.begin):
            if span.kind != recording.TRANSFER:
                count, seconds = sums.get(span.kind, (0, 0.0))
                sums[span.kind] = count + 1, seconds + (span.end - span.begin) / 1e9
        return sums

    @property
    def transfers(self) -> dict[str, TransferTotal]:
        """Copies from one device to another or from files: totals by the names of both."""
        totals: dict[str, TransferTotal] = {}
        for span in sorted(self._recorder.spans, key=lambda span: span.begin):
            if span.kind == recording.TRANSFER:
                count, size, seconds = totals.get(span.name, (0, 0, 0.0))
                spent = (span.end - span.begin) / 1e9
                totals[span.name] = TransferTotal(count + 1, size + span.size, seconds + spent)
        return totals

    @property
    def overlap(self) -> float:
        """For how many seconds two or more steps or copies were running at the same time."""
        return overlap_of(self._entries()) / 1e9

    def _page_data(self) -> dict[str, Any]:
        from weft.inspection.pages.profiled import profile_data

        return profile_data(self, self._begin or 0, self._entries(), self.kernels)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _lines(self) -> Iterator[str]:
        kernels = self.kernels
        total = sum([kernel.seconds for kernel in kernels])
        runs = list(self._recorder.runs)
        streams = len({run.stream for run in runs})
        yield (
            f"{duration_text(self.seconds)}: {number_of(sum([kernel.count for kernel in kernels]), 'step')} of "
            f"{number_of(len(runs), 'run')} of {number_of(len({id(run.plan) for run in runs}), 'plan')} took "
            f"{duration_text(total)} on {number_of(streams, 'stream')}"
        )
        compilation = [
            f"{kind} {count:,}x, {duration_text(spent)}" for kind, (count, spent) in self.compilation.items()
        ]
        if compilation:
            yield f"compilation: {'; '.join(compilation)}"
        transfers = [f"{way} {total}" for way, total in self.transfers.items()]
        if transfers:
            yield f"transfers: {'; '.join(transfers)}"
        overlap = self.overlap
        if overlap:
            yield f"at the same time as something else: {duration_text(overlap)}"
        if kernels:
            yield from self._table(kernels[:SHOWN_KERNELS], total)
        if len(kernels) > SHOWN_KERNELS:
            rest = sum([kernel.seconds for kernel in kernels[SHOWN_KERNELS:]])
            more = number_of(len(kernels) - SHOWN_KERNELS, "other")
            yield f"... and {more}, {percent(rest, total)} of the time: .kernels lists all"
        if self._recorder.dropped:
            left_out = number_of(self._recorder.dropped, "step")
            yield f"not recorded: {left_out} beyond the first {recording.STEP_LIMIT:,}"

    def _table(self, kernels: list[KernelTotal], total: float) -> list[str]:
        rows = [
            [
                duration_text(kernel.seconds),
                percent(kernel.seconds, total),
                f"{kernel.count:,}",
                microseconds(kernel.seconds / kernel.count),
                size_text(kernel.bytes_read + kernel.bytes_written),
                kernel.rate,
                kernel.loops,
                shortened(kernel.name),
            ]
            for kernel in kernels
        ]
        return table(["time", "share", "count", "us each", "bytes", "rate", "loops", "operations"], rows, left=2)


def profile(file: Any = None) -> Profile:
    """A block in which everything that runs is recorded, on all threads and streams.

    At its end it waits for the work of all streams, and writes a timeline for ui.perfetto.dev (or chrome://tracing) if
    a ``file`` is given. Arrays are lazy: what should be recorded must be evaluated inside the block.

    Args:
        file: a path, or a file opened for writing text.

    Raises:
        RuntimeError: another profile is active.
        OSError: the file cannot be written.

    >>> with profile() as recorded:
    ...     mx.eval(mx.exp(mx.ones((2, 3))))
    >>> [(kernel.name, kernel.loops, kernel.count) for kernel in recorded.kernels]
    [('exp', '6', 1)]
    """
    return Profile(file)


def _after_fork() -> None:
    """A forked child records nothing."""
    global _active
    _active = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
