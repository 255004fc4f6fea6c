"""Padding with an array's own elements."""

from __future__ import annotations

from typing import Literal

import pytest

import weft.core as mx


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_only_what_is_added_is_looked_up(mode: Literal["edge", "reflect", "symmetric"]) -> None:
    """The array itself is copied, not gathered with an index for each element."""
    with mx.stream(mx.cpu):
        explained = mx.compile(lambda x: mx.pad(x, 3, mode)).explain(mx.zeros((200, 300)))
    gathered = [step.bytes_written for step in explained.steps if "gather" in step.name]
    assert sum(gathered) < 20_000, str(explained)
