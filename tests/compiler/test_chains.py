"""Which accesses stay within the matrices of a turn, compared with sets of elements."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.compiler.planning.turn_accesses import NodeAccess, TurnAccesses

NODE = mx.zeros((4, 3, 10)).node
SIZE = NODE.size
WHOLE = [(4, 30), (30, 1)]
"""Loops over the matrices, and over all elements of each."""


def accessing(outer: Any, inner: Any = (), offset: int = 0, computed: bool = False) -> NodeAccess:
    return NodeAccess(NODE, True, outer, inner, offset, computed)


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
            if at // part != position // of_turn:
                return False
    return True


def test_what_stays_in_its_turn(rng: np.random.Generator) -> None:
    """`stays_in` may be false where it could be true, but not the other way round."""
    found = 0
    for _ in range(4000):
        extents = [int(n) for n in rng.choice([1, 2, 3, 4, 6], rng.integers(1, 4))]
        axes = [(extent, int(rng.choice([0, 1, 3, 5, 10, 20, 30, 60, -1, -30]))) for extent in extents]
        cut = int(rng.integers(1, len(axes) + 1))
        one, turns = (
            accessing(axes[:cut], axes[cut:], int(rng.choice([0, 0, 0, 1, 5, 30]))),
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
    ],
)
def test_accesses_that_do_not_stay(one: NodeAccess, turns: int) -> None:
    assert not one.stays_in(turns)


def test_what_a_step_accesses() -> None:
    other = mx.zeros((4, 30)).node
    reading, leaving = accessing([(4, 30)], [(30, 1)]), NodeAccess(other, False, [(4, 0)], [(30, 1)], 0)
    found = TurnAccesses.of([reading, leaving], 4, None)
    assert found == (frozenset([NODE, other]), frozenset([NODE]), frozenset([other]), 0)
