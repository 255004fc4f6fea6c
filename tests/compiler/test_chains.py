"""Which accesses stay within the matrices of a turn, compared with sets of elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from weft.compiler.conditions import ranges_of
from weft.compiler.planning.chains import rows_at_once
from weft.compiler.planning.turn_accesses import NodeAccess, TurnAccesses

NODE = mx.zeros((4, 3, 10)).node
SIZE = NODE.size
WHOLE = [(4, 30), (30, 1)]
"""Loops over the matrices, and over all elements of each."""


def accessing(
    outer: Any, inner: Any = (), offset: int = 0, computed: bool = False, ranges: Any = MappingProxyType({})
) -> NodeAccess:
    return NodeAccess(NODE, True, outer, inner, offset, computed, ranges)


def within(access: NodeAccess, index: Sequence[int]) -> bool:
    """Whether a location with these indices of outer and inner axes is accessed."""
    return all(low <= index[axis] < high for axis, (low, high) in access.ranges.items())


def stays(access: NodeAccess, turns: int) -> bool:
    """Whether each of ``turns`` equal parts of the outer loops accesses its own part of the elements."""
    if SIZE % turns or access.computed:
        return False
    indices = list(product(*[range(extent) for extent, _ in access.outer]))
    if len(indices) % turns:
        return False
    of_turn, part = len(indices) // turns, SIZE // turns
    for position, index in enumerate(indices):
        first = access.offset + sum(i * stride for i, (_, stride) in zip(index, access.outer, strict=True))
        for inside in product(*[range(extent) for extent, _ in access.inner]):
            at = first + sum(i * stride for i, (_, stride) in zip(inside, access.inner, strict=True))
            if within(access, (*index, *inside)) and at // part != position // of_turn:
                return False
    return True


def test_what_stays_in_its_turn(rng: np.random.Generator) -> None:
    """`stays_in` may be false where it could be true, but not the other way round."""
    found = 0
    for _ in range(4000):
        extents = [int(n) for n in rng.choice([1, 2, 3, 4, 6], rng.integers(1, 4))]
        axes = [(extent, int(rng.choice([0, 1, 3, 5, 10, 20, 30, 60, -1, -30]))) for extent in extents]
        cut = int(rng.integers(1, len(axes) + 1))
        ranges = {}
        for axis in range(len(axes)):
            if rng.random() < 0.3:
                low = int(rng.integers(axes[axis][0]))
                ranges[axis] = low, int(rng.integers(low, axes[axis][0])) + 1
        one, turns = (
            accessing(axes[:cut], axes[cut:], int(rng.choice([-1, 0, 0, 0, 1, 5, 30])), ranges=ranges),
            int(rng.choice([2, 3, 4, 6, 8])),
        )
        if one.stays_in(turns):
            found += 1
            assert stays(one, turns), (one, turns)
    assert found > 20


@pytest.mark.parametrize(
    ("one", "turns"),
    [
        (accessing([(4, 30)], [(3, 10), (10, 1)]), 4),
        (accessing([(4, 30)], [(3, 10), (10, 1)]), 2),
        (accessing([(2, 60), (2, 30)], [(30, 1)]), 4),
        (accessing([(2, 60), (2, 30)], [(30, 1)]), 2),
        (accessing([(4, 30), (3, 10)], [(10, 1)]), 4),
        (accessing([(1, 0), (4, 30)], [(10, 1)], 20), 4),
        (accessing([(4, 30)], [(29, 1)], 1), 4),
        (accessing([(4, 30)], [(31, 1)], -1, ranges={1: (1, 31)}), 4),
        (accessing([(4, 30), (4, 10)], [(10, 1)], -10, ranges={1: (1, 4)}), 4),
    ],
)
def test_accesses_that_stay(one: NodeAccess, turns: int) -> None:
    assert stays(one, turns)
    assert one.stays_in(turns)


@pytest.mark.parametrize(
    ("one", "turns"),
    [
        (accessing(WHOLE[:1], WHOLE[1:]), 3),  # matrices are not shared out
        (accessing(WHOLE[:1], WHOLE[1:]), 7),
        (accessing([(16, 7)], [(7, 1)]), 16),  # elements cannot be
        (accessing(WHOLE[:1], WHOLE[1:], computed=True), 4),
        (accessing([(4, 30)], [(30, 1)], 1), 4),  # the first element of the next
        (accessing([(4, 30)], [(31, 1)]), 4),
        (accessing([(4, 30)], [(30, 1)], -1), 4),
        (accessing([(4, 30)], [(30, -1)], 29), 4),  # not told apart from what goes below
        (accessing([(4, -30)], [(30, 1)], 90), 4),  # in another order
        (accessing([(4, 0)], [(30, 1)]), 4),  # all read the first
        (accessing([(4, 60)], [(30, 1)]), 4),
        (accessing([(2, 30), (2, 60)], [(30, 1)]), 4),
        (accessing([(2, 60)], [(60, 1)]), 4),  # too few turns
        (accessing([(4, 30)], [(31, 1)], -1, ranges={1: (0, 30)}), 4),
        (accessing([(5, 30)], [(30, 1)], -30, ranges={0: (1, 5)}), 5),  # a turn reads what another one has
    ],
)
def test_accesses_that_do_not_stay(one: NodeAccess, turns: int) -> None:
    assert not one.stays_in(turns)


@pytest.mark.parametrize(("rows", "size", "count"), [(2000, 1000, 16), (6, 5000, 3), (7, 5000, 1), (3, 70_000, 1)])
def test_how_many_rows_are_a_turn(rows: int, size: int, count: int) -> None:
    """As many as fit, of which each turn has as many; a long row is a turn of its own."""
    assert rows_at_once(rows, size, 1 << 14) == count


@pytest.mark.parametrize(("rows", "size"), [(1009, 1000), (8, (1 << 17) + 1), (5, 0)])
def test_rows_that_are_no_turns(rows: int, size: int) -> None:
    """Short ones of which no number of turns has as many, very long ones, and those without elements."""
    assert rows_at_once(rows, size, 1 << 14) == 0


def loaded(function: Any, *arguments: mx.array) -> list[dict[int, tuple[int, int]]]:
    """What is known of the ranges of all loads under conditions, in the kernels of a function."""
    with mx.stream(mx.cpu):
        plans = plans_of(function, *arguments)
    launches = [record.launch for plan in plans for record in plan.describe().records if record.launch is not None]
    return [ranges_of(one, i.where) for one in launches for i in one.kernel.instructions if i.where is not None]


def test_ranges_of_loads() -> None:
    x = mx.array(np.ones((4, 5, 6), np.float32))
    assert loaded(lambda x: mx.pad(x, [(0, 0), (1, 2), (3, 0)]) * 2, x) == [{1: (1, 6), 2: (3, 9)}]
    found = loaded(lambda x: mx.pad(x, [(0, 0), (2, 0), (0, 0)]) + mx.pad(x, [(0, 0), (0, 2), (0, 0)]), x)
    assert found == [{1: (2, 7)}, {1: (0, 5)}]
    chosen = mx.array([3, 0, 5, 1])
    assert all(found == {} for found in loaded(lambda x: mx.take(x, chosen, axis=2) + 1, x))


def test_what_a_step_accesses() -> None:
    other = mx.zeros((4, 30)).node
    reading, leaving = accessing([(4, 30)], [(30, 1)]), NodeAccess(other, False, [(4, 0)], [(30, 1)], 0)
    found = TurnAccesses.of([reading, leaving], 4, None)
    assert found == (frozenset([NODE, other]), frozenset([NODE]), frozenset([other]), 0)
