"""The memory plan never lets two temporaries overlap that are alive at the same time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.compiler.planning.arena import Interval, arrange

intervals = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 10)).map(
        lambda drawn: Interval(drawn[0], drawn[1], drawn[1] + drawn[2])
    ),
    max_size=40,
)


@given(intervals)
def test_what_is_alive_together_does_not_overlap(given_intervals: list[Interval]) -> None:
    offsets, total = arrange(given_intervals)
    for i, (one, start) in enumerate(zip(given_intervals, offsets, strict=True)):
        assert start % 64 == 0
        assert start + one.size <= total
        for other, begin in zip(given_intervals[:i], offsets[:i], strict=True):
            together = one.first <= other.last and other.first <= one.last
            assert not together or start + one.size <= begin or begin + other.size <= start


def test_a_chain_needs_two_blocks() -> None:
    _, total = arrange([Interval(640, step, step + 1) for step in range(100)])
    assert total == 2 * 640
