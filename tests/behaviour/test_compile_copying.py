"""Compiled functions are copied and pickled as functions are, and compiled methods as methods are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
import weft.nn as nn


@mx.compile
def doubled(x: mx.array) -> mx.array:
    return x * 2


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = mx.array(3.0)
        self.step = self.times
        self.activation = doubled

    @mx.compile
    def times(self, x: mx.array) -> mx.array:
        return x * self.weight


COPIES: dict[str, Callable[[Any], Any]] = {
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "pickled": lambda value: pickle.loads(pickle.dumps(value)),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_compiled_function_is_its_own_copy(way: str) -> None:
    assert doubled(mx.array(2.0)).item() == 4.0
    assert COPIES[way](doubled) is doubled


def test_a_function_that_no_name_leads_to_cannot_be_pickled() -> None:
    inner = mx.compile(lambda x: x * 2)
    assert copy.deepcopy(inner) is inner
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(inner)


def test_a_copied_method_is_equal_and_works() -> None:
    method = Scale().times
    copied = copy.copy(method)
    assert copied is not method
    assert copied == method
    assert hash(copied) == hash(method)
    assert copied(mx.array(2.0)).item() == 6.0


def test_a_copied_module_has_methods_of_its_own() -> None:
    module = Scale()
    assert module.step(mx.array(2.0)).item() == 6.0
    copied = copy.deepcopy(module)
    copied.weight = mx.array(5.0)
    assert copied.step.__self__ is copied
    assert [copied.step(mx.array(2.0)).item(), module.step(mx.array(2.0)).item()] == [10.0, 6.0]
    assert copied.activation is doubled


def test_a_method_that_is_not_filled_yet_has_no_attributes() -> None:
    method = Scale().times
    empty = object.__new__(type(method))
    for name in ("__func__", "__self__", "__setstate__", "anything"):
        assert not hasattr(empty, name)
    assert not hasattr(method, "anything")
    assert method.__name__ == "times"
