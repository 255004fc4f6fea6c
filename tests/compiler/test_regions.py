"""Whether two accesses overlap, and what remains of an array around a slice, compared with sets of elements."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.sampling import examples
from weft.compiler.kernel import Access, Kernel, Launch
from weft.compiler.regions import Box, are_apart, around, meeting
from weft.graph.node import Shape
from weft.runtime.memory import contiguous_strides

Loops = tuple[int, list[tuple[int, int]]]
"""The first element, and the stride and extent of each loop."""


def elements(loops: Loops) -> set[int]:
    first, axes = loops
    return {
        first + sum(index * stride for index, (stride, _) in zip(indices, axes, strict=True))
        for indices in product(*[range(extent) for _, extent in axes])
    }


def access_of(loops: Loops) -> tuple[Access, Launch]:
    first, axes = loops
    *rows, lane = [stride for stride, _ in axes]
    *row_extents, lanes = [extent for _, extent in axes]
    kernel = Kernel(len(rows), 0, "parallel", [])
    return Access(mx.float32, tuple(rows), (), lane, first, (), None), Launch(kernel, tuple(row_extents), (), lanes)


def apart(one: Loops, other: Loops, shape: tuple[int, ...]) -> bool:
    return are_apart(*access_of(one), *access_of(other), shape)


def drawn(rng: np.random.Generator, shape: Shape) -> Loops:
    """Loops over an array of a shape, most of them along its axes; some go beyond the end of an axis."""
    weights = contiguous_strides(shape)
    axes = []
    for _ in range(rng.integers(1, 4)):
        weight = weights[rng.integers(len(weights))] if rng.random() < 0.8 else 1
        axes.append((int(rng.integers(-2, 4)) * weight, int(rng.integers(1, 5))))
    low = sum(min(0, stride * (extent - 1)) for stride, extent in axes)
    high = sum(max(0, stride * (extent - 1)) for stride, extent in axes)
    return int(rng.integers(-low, max(-low + 1, prod(shape) - high))), axes


def test_accesses_that_are_apart_do_not_meet(rng: np.random.Generator) -> None:
    found = 0
    while found < 300:
        shape = tuple(map(int, rng.integers(1, 7, rng.integers(1, 4))))
        one, other = drawn(rng, shape), drawn(rng, shape)
        if max(elements(one) | elements(other)) < prod(shape) and apart(one, other, shape):
            found += 1
            assert not elements(one) & elements(other), (one, other, shape)


def test_accesses_that_are_not_near_are_apart(rng: np.random.Generator) -> None:
    """Accesses are left out only if they would be found to be apart one by one; most rows of an array are."""
    for _ in range(30):
        shape = tuple(map(int, rng.integers(1, 7, rng.integers(1, 4))))
        ones, others = [[access_of(drawn(rng, shape)) for _ in range(9)] for _ in range(2)]
        given = [None, *others, (replace(others[0][0], computed=((0, 1),)), others[0][1])]
        for one, near in zip(ones, meeting(ones, given, shape), strict=True):
            assert near == sorted(near)
            assert {0, len(given) - 1} <= {*near}
            assert all(number in near or are_apart(*one, *other, shape) for number, other in enumerate(others, 1))
    rows = [access_of((8 * row, [(1, 8)])) for row in range(6)]
    assert meeting(rows, rows, SHAPE) == [[row] for row in range(6)]
    columns = [access_of((2 * column, [(8, 6), (1, 2)])) for column in range(4)]
    assert meeting(columns, columns, SHAPE) == [[column] for column in range(4)]


def test_what_is_computed_may_meet_everything() -> None:
    one, other = access_of((0, [(1, 8)])), access_of((8, [(1, 8)]))
    assert are_apart(*one, *other, SHAPE)
    computed = replace(one[0], computed=((0, 1),)), one[1]
    assert not are_apart(*computed, *other, SHAPE)
    assert not are_apart(*other, *computed, SHAPE)


SHAPE = (6, 8)


def test_a_number_may_be_stored_in_the_memory_of_a_vector() -> None:
    """The number is an array without axes, and the vector's loads go beyond it."""
    number, vector = access_of((0, [(0, 1)])), access_of((0, [(1, 5)]))
    assert not are_apart(*number, *vector, ())
    assert are_apart(*number, *access_of((1, [(1, 4)])), ())
    x = mx.sin(mx.zeros((5,))) + 1
    mx.eval(x)
    total = mx.sum(mx.ones((7,)))
    spread, product = mx.exp(mx.zeros((7,)) + total), x * total
    del x
    mx.eval(total, spread, product)
    assert (total.item(), product.tolist()) == (7, [7] * 5)


APART: dict[str, tuple[Loops, Loops]] = {
    "rows": ((0, [(1, 16)]), (16, [(1, 32)])),
    "columns": ((0, [(8, 6), (1, 3)]), (3, [(8, 6), (1, 5)])),
    "a row and the others": ((8, [(1, 8)]), (16, [(1, 32)])),
    "every other element": ((0, [(2, 24)]), (1, [(2, 24)])),
    "every other row": ((0, [(16, 3), (1, 8)]), (8, [(16, 3), (1, 8)])),
    "a row between every other one": ((16, [(8, 1), (1, 8)]), (8, [(16, 3), (1, 8)])),
    "rows from the end": ((47, [(-1, 8)]), (39, [(-1, 16)])),
}


@pytest.mark.parametrize("name", APART)
def test_regions_that_do_not_meet_are_found_to_be_apart(name: str) -> None:
    assert apart(*APART[name], SHAPE)


@given(st.data())
@examples(50)
def test_boxes_around_a_slice_are_all_else(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    starts = tuple([data.draw(st.integers(0, extent)) for extent in shape])
    sizes = tuple([data.draw(st.integers(0, extent - start)) for extent, start in zip(shape, starts, strict=True)])
    boxes = [Box(starts, sizes), *around(shape, Box(starts, sizes))]
    covered = [index for box in boxes for index in product(*map(range, box.starts, map(sum, zip(*box, strict=True))))]
    assert sorted(covered) == list(product(*map(range, shape)))


def test_a_number_has_no_axis() -> None:
    """The only element of an array without axes may be read where another array is donated to it."""
    one, other = access_of((0, [(0, 1)])), access_of((0, [(1, 8)]))
    assert not are_apart(*one, *other, ())
    assert mx.any(mx.array([[1, 0, 3], [0, 0, 2]], mx.uint8)).item() is True
