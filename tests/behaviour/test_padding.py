"""Padding with an array's own elements, and padded arrays of which some columns are read."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

import weft.core as mx


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
def test_only_what_is_added_is_looked_up(mode: Literal["edge", "reflect", "symmetric"]) -> None:
    """The array itself is copied, not gathered with an index for each element."""
    with mx.stream(mx.cpu):
        explained = mx.compile(lambda x: mx.pad(x, 3, mode)).explain(mx.zeros((200, 300)))
    gathered = [step.bytes_written for step in explained.steps if "gather" in step.name]
    assert sum(gathered) < 20_000, str(explained)


@pytest.mark.parametrize("value", [0.0, -0.0, np.nan])
@pytest.mark.parametrize("low", [0, 2])
def test_columns_of_padded_arrays(low: int, value: float) -> None:
    """Whether a column is one of those that were added is known before it is computed."""
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    columns = [*range(low + 7), -1]

    def read(x: mx.array) -> mx.array:
        made = mx.pad(-x, [(0, 0), (low, 3)], constant_values=value)
        return mx.stack([mx.abs(made[:, column]) - made[::-1, column] for column in columns])

    wanted = np.pad(-x, ((0, 0), (low, 3)), constant_values=value).T[columns]
    np.testing.assert_array_equal(np.array(mx.compile(read)(mx.array(x))), np.abs(wanted) - wanted[:, ::-1])
