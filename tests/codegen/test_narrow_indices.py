"""Computed indices have 32 bits where no place is further away."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
from weft.compiler.fusion.builder import Draft
from weft.compiler.index import own_axes
from weft.graph.node import Node
from weft.runtime.memory import contiguous_strides

from .planned import plans_of

NARROW = (mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int32, mx.uint32)


def ends(dtype: mx.Dtype) -> np.ndarray:
    """Indices around the ends of an axis of 100, and those of the dtype."""
    limits = np.iinfo(str(dtype).rpartition(".")[-1])
    found = [limits.min, limits.max, *range(-102, -97), -1, 0, 1, *range(97, 102)]
    return np.array([one for one in found if limits.min <= one <= limits.max] * 5, dtype=limits.dtype)


@pytest.mark.parametrize("dtype", [*NARROW, mx.int64], ids=str)
def test_indices_outside_become_the_nearest_inside(dtype: mx.Dtype) -> None:
    indices = ends(dtype)
    meant = indices.astype(np.int64)
    meant = np.clip(np.where(meant < 0, meant + 100, meant), 0, 99)
    for step in (3, -3):
        taken = mx.compile(lambda table, indices: table[indices] * 2)(mx.arange(300)[::step], mx.array(indices))
        assert taken.tolist() == (2 * np.arange(300)[::step][meant]).tolist()


def test_conversions_that_change_indices() -> None:
    taken = mx.compile(lambda table, indices: table[indices.astype(mx.uint32)])
    assert taken(mx.arange(100), mx.array([-5, 7, -100] * 6, dtype=mx.int8)).tolist() == [99, 7, 99] * 6


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("wider", [None, mx.int64], ids=str)
def test_they_are_not_made_wider(dtype: mx.Dtype, wider: mx.Dtype | None) -> None:
    """Not even if the program converts them, unless that changes their values."""

    def taken(table: mx.array, indices: mx.array) -> mx.array:
        return table[indices if wider is None else indices.astype(wider)]

    (plan,) = plans_of(mx.compile(taken), mx.arange(100.0), mx.array(ends(dtype)))
    assert not any("apply" in line and ": int64" in line and "astype" not in line for line in str(plan).splitlines())


@pytest.mark.parametrize(("rows", "expected"), [(1 << 18, mx.int32), (1 << 20, mx.int64)])
def test_places_that_are_far_away(rows: int, expected: mx.Dtype) -> None:
    """The index of each axis fits 32 bits, but perhaps not the place of an element. Nothing is computed here."""
    table, indices = mx.zeros((rows, 1 << 12), dtype=mx.uint8), mx.zeros((20,), dtype=mx.int32)
    gathered = table[indices, indices].node

    def in_memory(node: Node) -> tuple[Node, tuple[int, ...], int] | None:
        return (node, contiguous_strides(node.shape), 0) if node in (table.node, indices.node) else None

    draft = Draft(in_memory, ())
    terms, _ = own_axes(gathered.shape)
    load = draft.value(gathered, terms)
    term = draft.terms[load]
    assert term is not None
    assert [draft.dtype_of(value) for value, _ in term.computed] == [expected] * 2
