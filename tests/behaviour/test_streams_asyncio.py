"""``with mx.stream(s):`` around an ``await``: the block applies to its task, not to the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import weft.core as mx
from weft.runtime.devices import current_stream

Use = Callable[[], Any]


def of_an_operation() -> Any:
    return (mx.array(1.0) + 2).node.stream


def of_a_derivative() -> Any:
    return mx.grad(lambda x: x * x * x)(mx.array(1.0)).node.stream


def after_a_trace() -> Any:
    """A function that opens a block of its own, which ends with the function."""
    inner = mx.new_stream(mx.cpu)

    def function(x: mx.array) -> mx.array:
        with mx.stream(inner):
            return x + 1

    mx.compile(function)(mx.array(1.0))
    mx.vmap(function)(mx.ones(3))
    return current_stream()


@pytest.mark.parametrize("use", [current_stream, of_an_operation, of_a_derivative, after_a_trace])
def test_each_task_is_in_its_own_blocks(use: Use) -> None:
    before, first, second = current_stream(), mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    turns = [asyncio.Event() for _ in range(3)]

    async def overlapping(stream: mx.Stream, mine: asyncio.Event, then: asyncio.Event) -> None:
        with mx.stream(stream):
            assert use() is stream
            then.set()
            await mine.wait()
            assert use() is stream
            with mx.stream(first):
                await asyncio.sleep(0)
                assert use() is first
            assert use() is stream
        assert use() is before

    async def without_a_block() -> None:
        for _ in range(5):
            assert use() is before
            await asyncio.sleep(0)
        turns[0].set()

    async def main() -> None:
        await asyncio.gather(
            overlapping(first, turns[0], turns[1]), overlapping(second, turns[1], turns[2]), without_a_block()
        )
        assert use() is before

    asyncio.run(main())
    assert use() is before
    with mx.stream(first):
        asyncio.run(inherited(first))
    assert use() is before


async def inherited(stream: Any) -> None:
    """The block around the event loop applies to all tasks that open none."""
    other = mx.new_stream(mx.cpu)

    async def seen(pause: Awaitable[None]) -> Any:
        await pause
        return current_stream()

    with mx.stream(other):
        inside = asyncio.create_task(seen(asyncio.sleep(0)))
    outside = asyncio.create_task(seen(asyncio.sleep(0)))
    assert await inside is other
    assert await outside is stream


def test_defaults_that_a_task_sets_are_those_of_the_thread() -> None:
    before, other = mx.default_stream(mx.cpu), mx.new_stream(mx.cpu)

    async def main() -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            await asyncio.sleep(0)
        mx.set_default_stream(other)
        await asyncio.create_task(look())

    async def look() -> None:
        assert current_stream() is other

    try:
        asyncio.run(main())
        assert current_stream() is other
    finally:
        mx.set_default_stream(before)
    assert current_stream() is before
