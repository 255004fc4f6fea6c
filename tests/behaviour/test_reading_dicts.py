"""The native function that reads many dicts does what the one in Python does."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from weft.runtime.dict_reader import dict_reader
from weft.tree import END, Levels
from weft.tree.levels import read_dicts


class Named(dict[Any, Any]):
    """A dict with attributes."""


def known(dicts: list[Any]) -> tuple[list[type], list[Any]]:
    """The types and keys of dicts."""
    return [*map(type, dicts)], [key for one in dicts for key in (*one, END)]


VALUE = object()
DICTS: dict[str, list[Any]] = {
    "none": [],
    "empty": [{}, {}],
    "one": [{"a": VALUE}],
    "several": [{"a": 1, "b": VALUE}, Named(c=[2]), {}, {1: None}],
    "other value": [{"a": 1, "b": 3}, Named(c=[2]), {}, {1: None}],
    "other type": [{"a": 1, "b": VALUE}, {"c": [2]}, {}, {1: None}],
    "equal key": [{"a": 1, "b": VALUE}, Named(c=[2]), {}, {True: None}],
    "other order": [{"b": VALUE, "a": 1}, Named(c=[2]), {}, {1: None}],
    "other cut": [{"a": 1}, Named(b=VALUE, c=[2]), {}, {1: None}],
    "one more": [{"a": 1, "b": VALUE}, Named(c=[2]), {}, {1: None}, {}],
    "one more key": [{"a": 1, "b": VALUE}, Named(c=[2]), {}, {1: None, 2: 3}],
}


@pytest.mark.parametrize("before", DICTS)
@pytest.mark.parametrize("after", DICTS)
def test_values_are_those_of_the_same_types_and_keys(before: str, after: str) -> None:
    types, keys = known(DICTS[before])
    found = dict_reader()(DICTS[after], types, keys)
    assert found == read_dicts(DICTS[after], types, keys)
    same = before == after or {before, after} == {"several", "other value"}
    assert found == ([value for one in DICTS[after] for value in one.values()] if same else None)


def test_dicts_that_change() -> None:
    order = random.Random(0)
    dicts = [Named({key: object() for key in order.sample("abcdefgh", order.randrange(6))}) for _ in range(100)]
    types, keys = known(dicts)
    for _ in range(200):
        one = dicts[order.randrange(100)]
        key = order.choice("abcdefgh")
        before = dict(one)
        if key in one and order.random() < 0.5:
            del one[key]
        else:
            one[key] = object()
        found = dict_reader()(dicts, types, keys)
        assert found == read_dicts(dicts, types, keys)
        assert (found is None) == ([*one] != [*before])
        one.clear()
        one.update(before)


def test_reading_counts_references_as_python_does() -> None:
    value = object()
    dicts = [{"a": value}]
    types, keys = known(dicts)
    others = [{"b": value}]
    before = [sys.getrefcount(one) for one in (value, END, Named, dict, dicts[0], types, keys)]
    for _ in range(100):
        assert dict_reader()(dicts, types, keys) == [value]
        assert dict_reader()(others, types, keys) is None
        assert dict_reader()(dicts, [Named], keys) is None
    assert [sys.getrefcount(one) for one in (value, END, Named, dict, dicts[0], types, keys)] == before


def test_levels_read_dicts_with_either_function() -> None:
    inner = {"c": 3}
    pair = (2, inner)
    tree: list[Any] = [{"a": 1, "b": pair}, [4, {}], Named(d={"e": 5})]
    for read in (read_dicts, dict_reader()):
        levels = Levels.of(tree, read)
        assert levels is not None
        reading = levels.read(tree)
        assert reading is not None
        assert reading.leaves == (1, 2, 3, 4, 5)
        assert reading.containers == [tree, tree[1], tree[0], tree[2], pair, {}, {"e": 5}, inner]
        assert levels.read([{"a": 1, "b": (2, {"x": 3})}, [4, {}], Named(d={"e": 5})]) is None
