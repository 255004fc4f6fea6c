"""A repeated call with arrays in modules and containers sees every change of these since the previous call."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = mx.array([factor, 1.0])
        self.power = 1.0
        self.chosen: set[str] = set()


class Model(nn.Module):
    """A module whose result depends on each array, key, attribute and length in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Scale(2.0), Scale(3.0)]
        self.table = {"low": mx.array([0.5, 0.25]), "high": mx.array([8.0, 4.0])}
        self.first: Any = [mx.array([1.0, 2.0])]  # also a tuple
        self.second = [mx.array([3.0, 4.0])]
        self.pair = (mx.array([1.0, 1.0]), 2)
        self.offset = mx.array([0.0, 0.0])
        self.note = self.mark = "same"

    def __call__(self, x: mx.array) -> mx.array:
        for number, layer in enumerate(self.layers):
            weight = 10.0 if "squared" in layer.chosen else 1.0
            x = x * layer.factor * layer.power * weight + (0.5 if layer.training else 0.0) + number
            x = x + len(layer._no_grad)
        for position, (key, value) in enumerate(self.table.items()):
            x = x * (position + 2) + value * len(key)
        for position, name in enumerate(vars(self)):
            x = x * (position + 1) + len(name)
        for arrays in (self.first, self.second):
            x = x * 3 + sum(arrays) * (2 if isinstance(arrays, tuple) else 1)
        return x * self.pair[0] * self.pair[1] + self.offset


def evaluated(*values: float) -> mx.array:
    x = mx.array(values)
    mx.eval(x)
    return x


def reorder(model: Model) -> None:
    model.table["low"] = model.table.pop("low")


def rename(model: Model) -> None:
    model.table = {"lowest": model.table["low"], "high": model.table["high"]}


def exchange(model: Model) -> None:
    low, high = model.table["low"], model.table["high"]
    model.table["low"], model.table["high"] = high, low


def in_place(model: Model) -> None:
    model.offset += 1.0
    mx.eval(model.offset)


def freeze(model: Model) -> None:
    model.freeze()
    assert model.layers[0]._no_grad


def other_attribute_order(model: Model) -> None:
    vars(model)["note"] = vars(model).pop("note")


def rename_attribute(model: Model) -> None:
    vars(model)["remark"] = vars(model).pop("mark")


def of_another_class(model: Model) -> None:
    class Doubled(Scale):
        def __init__(self) -> None:
            super().__init__(2.0)
            self.power = 2.0

    model.layers[0] = Doubled()


def new_dict_of_attributes(model: Model) -> None:
    object.__setattr__(model.layers[0], "__dict__", {**vars(model.layers[0]), "power": 3.0})


CHANGES: dict[str, Callable[[Model], object]] = {
    "an attribute set": lambda model: setattr(model, "offset", evaluated(3.0, 4.0)),
    "an array deep inside": lambda model: setattr(model.layers[1], "factor", evaluated(5.0, 6.0)),
    "an array assigned to in place": in_place,
    "an element assigned": lambda model: model.offset.__setitem__(0, 7.0),
    "another shape": lambda model: setattr(model, "offset", evaluated(3.0)),
    "another dtype": lambda model: setattr(model, "offset", mx.array([1, 2])),
    "other strides": lambda model: setattr(model, "offset", mx.array([[1.0, 2.0], [3.0, 4.0]]).T[0]),
    "no value yet": lambda model: setattr(model, "offset", mx.array([1.0, 2.0]) * 3),
    "a number for an array": lambda model: setattr(model.layers[0], "factor", 4.0),
    "another tuple": lambda model: setattr(model, "pair", (evaluated(2.0, 2.0), 5)),
    "a list appended to": lambda model: model.layers.append(Scale(7.0)),
    "a list that lost an entry": lambda model: model.layers.pop(),
    "a list in another order": lambda model: model.layers.reverse(),
    "another list": lambda model: setattr(model, "layers", [Scale(9.0), Scale(9.0)]),
    "an entry moved to the next list": lambda model: model.second.insert(0, model.first.pop()),
    "a tuple for a list": lambda model: setattr(model, "first", tuple(model.first)),
    "a dict updated": lambda model: model.table.update(low=evaluated(1.0, 2.0)),
    "a key more": lambda model: model.table.update(middle=evaluated(1.0, 2.0)),
    "a key less": lambda model: model.table.pop("low"),
    "keys in another order": reorder,
    "another key": rename,
    "two entries exchanged": exchange,
    "a module replaced": lambda model: model.layers.__setitem__(0, Scale(11.0)),
    "a module of another class": of_another_class,
    "the same array twice": lambda model: setattr(model.layers[0], "factor", model.layers[1].factor),
    "an attribute that is a number": lambda model: setattr(model.layers[0], "power", 4.0),
    "a number equal to it": lambda model: setattr(model.layers[0], "power", True),
    "another attribute": lambda model: setattr(model, "longer_name", 1.0),
    "the name of an attribute": rename_attribute,
    "attributes in another order": other_attribute_order,
    "another dict of attributes": new_dict_of_attributes,
    "a set that is an attribute": lambda model: model.layers[1].chosen.add("squared"),
    "another set": lambda model: setattr(model.layers[1], "chosen", {"squared"}),
    "frozen": freeze,
    "for evaluation": lambda model: model.eval(),
    "a constant in a tuple": lambda model: setattr(model, "pair", (model.pair[0], 3)),
    "parameters updated": lambda model: model.update({"layers": [{}, {"factor": evaluated(0.5, 0.5)}]}),
}


def with_argument(model: Model) -> Callable[[mx.array], mx.array]:
    compiled = mx.compile(lambda model, x: model(x))
    return lambda x: compiled(model, x)


def with_keyword(model: Model) -> Callable[[mx.array], mx.array]:
    compiled = mx.compile(lambda x, model: model(x))
    return lambda x: compiled(x, model=model)


WAYS: dict[str, Callable[[Model], Callable[[mx.array], mx.array]]] = {
    "argument": with_argument,
    "keyword": with_keyword,
    "inputs": lambda model: mx.compile(lambda x: model(x), inputs=model),
    "inputs in a list": lambda model: mx.compile(lambda x: model(x), inputs=[model.state]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHANGES)
def test_it_sees(name: str, way: str) -> None:
    model, x = Model(), evaluated(1.0, 2.0)
    compiled = WAYS[way](model)
    for _ in range(3):
        np.testing.assert_array_equal(np.array(compiled(x)), np.array(model(x)))
    CHANGES[name](model)
    for _ in range(3):
        np.testing.assert_array_equal(np.array(compiled(x)), np.array(model(x)))


@pytest.mark.parametrize("name", CHANGES)
def test_a_function_that_changes_its_state_sees(name: str) -> None:
    def step(model: Model, x: mx.array) -> mx.array:
        model.offset = model.offset + x
        return model(x)

    one, other, x = Model(), Model(), evaluated(1.0, 2.0)
    compiled = mx.compile(lambda x: step(one, x), inputs=one, outputs=one)
    for number in range(6):
        if number == 3:
            CHANGES[name](one)
            CHANGES[name](other)
        np.testing.assert_array_equal(np.array(compiled(x)), np.array(step(other, x)))
        np.testing.assert_array_equal(np.array(one.offset), np.array(other.offset))


def test_another_object_of_the_same_structure() -> None:
    compiled = mx.compile(lambda model, x: model(x))
    x = evaluated(1.0, 2.0)
    for _ in range(4):
        model = Model()  # possibly at the address of the previous one
        model.offset = evaluated(*np.random.default_rng().normal(size=2).tolist())
        np.testing.assert_array_equal(np.array(compiled(model, x)), np.array(model(x)))


def test_containers_that_argument_and_state_share() -> None:
    state, own = {"a": evaluated(1.0)}, {"a": evaluated(2.0)}

    def function(given: dict[str, mx.array]) -> mx.array:
        given["a"] = given["a"] * 10
        return given["a"] + state["a"]

    compiled = mx.compile(function, inputs=state)
    assert [compiled(own).item(), compiled(own).item(), compiled(own).item()] == [21.0, 21.0, 21.0]
    assert compiled(state).item() == 20.0
    assert compiled(own).item() == 21.0


def test_a_container_without_arrays_that_argument_and_state_share() -> None:
    state: dict[str, Any] = {"numbers": [1], "x": evaluated(1.0)}

    def function(given: list[int]) -> mx.array:
        given[0] = 5
        return state["x"] * state["numbers"][0]

    compiled = mx.compile(function, inputs=state)
    assert [compiled([1]).item(), compiled([1]).item(), compiled([1]).item()] == [1.0, 1.0, 1.0]
    assert compiled(state["numbers"]).item() == 5.0


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_an_argument_that_is_one_of_the_arrays_of_the_state(calls: int) -> None:
    state = [evaluated(1.0), evaluated(2.0)]

    def function(x: mx.array) -> mx.array:
        x += 10
        return x + state[0] + 100 * state[1]

    compiled = mx.compile(function, inputs=state)
    for _ in range(calls):
        assert compiled(evaluated(3.0)).item() == 214.0
    assert compiled(state[0]).item() == 222.0
    state[0], state[1] = state[1], state[1]
    assert compiled(evaluated(3.0)).item() == 215.0


def test_it_keeps_neither_arguments_nor_arrays_alive() -> None:
    compiled = mx.compile(lambda model, x: model(x))
    model, x = Model(), evaluated(1.0, 2.0)
    for _ in range(3):
        compiled(model, x)
    module, node = weakref.ref(model.layers[0]), weakref.ref(model.offset.node)
    del model
    gc.collect()
    assert module() is None
    assert node() is None


def test_memory_of_an_array_that_was_given_before_is_used_again() -> None:
    compiled = mx.compile(lambda model, x: model(x))
    model, x = Model(), evaluated(1.0, 2.0)
    model.offset = mx.zeros((1 << 16, 2))
    mx.eval(model.offset)
    for _ in range(3):
        mx.eval(compiled(model, x))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model.offset = model.offset * 0.5
    mx.eval(model.offset)
    assert mx.get_peak_memory() - before < 1 << 16


def test_other_threads_change_the_state_between_calls() -> None:
    model, x = Model(), evaluated(1.0, 2.0)
    compiled = mx.compile(lambda x: model(x), inputs=model)
    compiled(x)
    compiled(x)
    expected = [np.array(model(x))]
    for value in (3.0, 4.0):
        thread = threading.Thread(target=lambda value=value: setattr(model, "offset", evaluated(value, value)))
        thread.start()
        thread.join()
        expected.append(np.array(model(x)))
        np.testing.assert_array_equal(np.array(compiled(x)), expected[-1])
    assert not np.array_equal(expected[0], expected[1])


def test_threads_that_call_while_one_replaces_arrays() -> None:
    """Each result is that of one of the states: no thread reads memory that was given to other arrays."""
    model, x = Model(), evaluated(1.0, 1.0)
    model.offset = evaluated(0.0, 0.0)
    compiled = mx.compile(lambda x: model(x), inputs=model)
    base = np.array(model(x))
    problems: list[Any] = []

    def call() -> None:
        for _ in range(300):
            found = np.array(compiled(x)) - base
            if found[0] != found[1] or found[0] not in (0.0, 1024.0, 2048.0):
                problems.append(found)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(400):
        model.offset = evaluated(*[1024.0 * (number % 3)] * 2)
    for thread in threads:
        thread.join()
    assert not problems


class Row(list[Any]):
    """A list class with an attribute in a slot and without a dict."""

    __slots__ = ("more", "power")
    more: int
    power: float


@pytest.mark.parametrize("change", ["a value", "an equal number", "a slot set", "a slot emptied"])
def test_attributes_in_slots(change: str) -> None:
    def function(row: Row, x: mx.array) -> mx.array:
        return x * row[0] * row.power + (0.5 if row.power is True else 0.0) + getattr(row, "more", 0)

    row, x = Row([evaluated(2.0)]), evaluated(1.0, 3.0)
    row.power = 1.0
    if change == "a slot emptied":
        row.more = 3
    compiled = mx.compile(function)
    for number in range(6):
        if number == 3 and change == "a value":
            row.power = 4.0
        elif number == 3 and change == "an equal number":
            row.power = True
        elif number == 3 and change == "a slot set":
            row.more = 2
        elif number == 3:
            del row.more
        np.testing.assert_array_equal(np.array(compiled(row, x)), np.array(function(row, x)))
