"""Shapes of which neighbouring extents make those of others."""

from __future__ import annotations

import pytest

from weft.compiler.index import refined
from weft.graph.node import Shape


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ((64, 512), (64, 2, 2, 128), (64, 2, 2, 128)),
        ((4, 32, 288), (128, 3, 3, 32), (4, 32, 3, 3, 32)),
        ((6,), (1, 6, 1), (6,)),
        ((), (1, 1), ()),
        ((2, 3), (3, 2), None),
        ((4, 6), (8, 3), (4, 2, 3)),
        ((0, 3), (3, 0), None),
    ],
)
def test_shapes_that_others_are_made_of(one: Shape, other: Shape, expected: Shape | None) -> None:
    assert refined(one, other) == refined(other, one) == expected
