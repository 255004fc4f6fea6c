"""Independent streams run at the same time: the timeline of a profile shows kernels that overlap."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import weft
import weft.core as mx

ATTEMPTS = 10
Interval = tuple[float, float]


def long_kernel(seed: float) -> mx.array:
    """A single kernel that computes for about 50 ms and reads and writes very little."""
    x = mx.arange(16 * 250_000, dtype=mx.float32).reshape(16, 250_000) * seed
    for _ in range(4):
        x = mx.sin(x)
    return x.sum(axis=1)


def kernels_by_stream(work: Callable[[], Any]) -> dict[int, list[Interval]]:
    """When each kernel began and ended, by the index of its stream, in microseconds."""
    file = io.StringIO()
    with weft.profile(file):
        work()
    found: dict[int, list[Interval]] = {}
    for event in json.loads(file.getvalue())["traceEvents"]:
        if event.get("cat") == "kernel":
            found.setdefault(event["args"]["stream"], []).append((event["ts"], event["ts"] + event["dur"]))
    return found


def overlap(one: Interval, other: Interval) -> float:
    return min(one[1], other[1]) - max(one[0], other[0])


def longest(intervals: list[Interval]) -> Interval:
    return max(intervals, key=lambda interval: interval[1] - interval[0])


def started_on(*streams: mx.Stream) -> Callable[[], None]:
    """Start one long kernel on each of the streams without waiting for any."""

    def start() -> None:
        for number, stream in enumerate(streams):
            with mx.stream(stream):
                mx.async_eval(long_kernel(1.0 + number))

    return start


def test_kernels_of_two_streams_overlap_in_time() -> None:
    left, right = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    kernels_by_stream(started_on(left, right))  # afterwards plans and machine code are cached
    seen = []
    for _ in range(ATTEMPTS):  # on a busy machine one may end before the other begins
        found = kernels_by_stream(started_on(left, right))
        assert set(found) == {left.index, right.index}
        seen.append((longest(found[left.index]), longest(found[right.index])))
        if overlap(*seen[-1]) > 0:
            return
    raise AssertionError(f"no two of these kernels ran at the same time: {seen}")


def test_kernels_of_one_stream_do_not() -> None:
    stream = mx.new_stream(mx.cpu)
    kernels_by_stream(started_on(stream))
    for _ in range(3):
        (intervals,) = kernels_by_stream(started_on(stream, stream)).values()
        intervals.sort()
        assert all(overlap(before, after) <= 0 for before, after in pairwise(intervals))


def test_what_waits_for_another_stream_does_not() -> None:
    """Each kernel of a chain over two streams begins after the one before it has ended."""
    left, right = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)

    def chain() -> None:
        with mx.stream(left):
            first = long_kernel(1.0)
        with mx.stream(right):
            second = mx.sin(first) + 1
        mx.async_eval(second)

    kernels_by_stream(chain)
    found = kernels_by_stream(chain)
    assert max(end for _, end in found[left.index]) <= min(begin for begin, _ in found[right.index])
