"""The page of a profile: kernels by the time that they took, and what ran when, on each stream and thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.compiler.planning.records import StepRecord
from weft.inspection.pages.tables import column, detail, table_view
from weft.inspection.text import duration_text, microseconds, number_of, percent, shortened, size_text
from weft.inspection.timeline import TimelineEntry, tracks_of

if TYPE_CHECKING:
    from weft.inspection.profile import KernelTotal, Profile

SPAN_LIMIT = 100_000
"""A page has at most this many spans; if there are more, the shortest are left out."""
SHOWN_PLACES = 5


def profile_data(
    profile: Profile, begin: int, entries: Sequence[TimelineEntry], kernels: Sequence[KernelTotal]
) -> dict[str, Any]:
    """The data of a profile's page. Events are relative to ``begin``, and their records belong to ``kernels``."""
    return {
        "title": f"profile of {duration_text(profile.seconds)}",
        "facts": list(_facts(profile, kernels)),
        "details": [_detail(kernel) for kernel in kernels],
        "views": [_kernels(kernels), _timeline(begin, entries, kernels)],
    }


def _facts(profile: Profile, kernels: Sequence[KernelTotal]) -> Iterator[tuple[str, str]]:
    yield "time", duration_text(profile.seconds)
    total = sum([kernel.seconds for kernel in kernels])
    yield "in steps", f"{duration_text(total)}, {number_of(sum([kernel.count for kernel in kernels]), 'step')}"
    for kind, (count, seconds) in profile.compilation.items():
        yield kind, f"{count:,}x, {duration_text(seconds)}"
    for way, transfers in profile.transfers.items():
        yield way, str(transfers)
    if profile.overlap:
        yield "at the same time", duration_text(profile.overlap)


def _kernels(kernels: Sequence[KernelTotal]) -> dict[str, Any]:
    seconds = [kernel.seconds for kernel in kernels]
    whole = sum(seconds)
    columns = [
        column("time", seconds, duration_text),
        column("share", seconds, lambda value: percent(value, whole), bar=True),
        column("count", [kernel.count for kernel in kernels], lambda value: f"{value:,}"),
        column("us each", [kernel.seconds / kernel.count for kernel in kernels], microseconds, bar=True),
        column("bytes", [kernel.bytes_read + kernel.bytes_written for kernel in kernels], size_text, bar=True),
        column("rate", None, texts=[kernel.rate for kernel in kernels]),
        column("loops", None, texts=[kernel.loops for kernel in kernels]),
        column("operations", None, texts=[shortened(kernel.name) for kernel in kernels]),
    ]
    return table_view("Kernels", columns, range(len(kernels)))


def _detail(kernel: KernelTotal) -> dict[str, Any]:
    facts = [
        ("time", f"{duration_text(kernel.seconds)} in {number_of(kernel.count, 'run')}"),
        ("each", f"{microseconds(kernel.seconds / kernel.count)} us"),
        ("loops", kernel.loops),
        ("read", size_text(kernel.bytes_read)),
        ("written", size_text(kernel.bytes_written)),
        ("arithmetic", f"{kernel.arithmetic:,} operations"),
        ("rate", kernel.rate),
        ("operations", kernel.name),
        *[
            ("asked for at", f"{place}: {count:,}x")
            for place, count in kernel.places.most_common(SHOWN_PLACES)
            if place
        ],
    ]
    return detail(f"{kernel.kind}: {shortened(kernel.name)}", facts)


def _timeline(begin: int, entries: Sequence[TimelineEntry], kernels: Sequence[KernelTotal]) -> dict[str, Any]:
    kept = sorted(entries, key=lambda entry: entry.begin - entry.end)[:SPAN_LIMIT]
    kept.sort(key=lambda entry: entry.begin)
    tracks = tracks_of(entries)
    numbers = {kernel.facts: number for number, kernel in enumerate(kernels)}
    names: dict[str, int] = {}
    spans = [
        [
            tracks[entry.track],
            (entry.begin - begin) / 1000,
            (entry.end - entry.begin) / 1000,
            names.setdefault(entry.name, len(names)),
            _number_of(entry.record, numbers),
        ]
        for entry in kept
    ]
    left_out = len(entries) - len(kept)
    return {
        "kind": "timeline",
        "title": "Timeline",
        "rows": [track.title for track in tracks],
        "names": list(names),
        "spans": spans,
        "note": f"The {number_of(left_out, 'shortest step')} of {len(entries):,} are left out." if left_out else "",
    }


def _number_of(record: StepRecord | None, numbers: dict[tuple[Any, ...], int]) -> int | None:
    return None if record is None else numbers.get(record.facts)
