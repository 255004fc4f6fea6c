"""`compile`: containers that are both arguments and state, and state that changes its structure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import Counted, assert_same_bits, structure

State = dict[str, Any]


def fresh_state() -> State:
    return {"a": mx.array(1.0), "list": [mx.array(2.0)], "count": 0}


def add_to_argument(given: State, own: State, x: mx.array) -> mx.array:
    given["a"] = given["a"] + x
    given["list"].append(own["a"] * 10)
    return own["a"] * 2 + len(own["list"])


def add_to_own(given: State, own: State, x: mx.array) -> mx.array:
    own["a"] = own["a"] + x
    own["list"][0] += x
    return given["a"] + given["list"][0]


def replace_the_list(given: State, own: State, x: mx.array) -> mx.array:
    own["list"] = [x, x]
    given["list"].append(x * 3)
    return own["list"][-1]


STEPS: dict[str, Callable[[State, State, mx.array], mx.array]] = {
    "the argument changes": add_to_argument,
    "the state changes": add_to_own,
    "a part is replaced": replace_the_list,
}


def run(step: Callable[..., mx.array], *, compiled: bool, declared: str) -> tuple[list[Any], State, int]:
    """Results and state after some calls with the state itself, a part of it in a tree, or another one as argument."""
    state = fresh_state()
    counted = Counted(lambda given, x: step(given, state, x))
    call = counted.function
    if compiled:
        call = mx.compile(
            call,
            inputs=state if "inputs" in declared else None,
            outputs=state if "outputs" in declared else None,
        )
    results = []
    for number in range(3):
        results.append(call(state, mx.array(float(number))))
        if declared == "inputs and outputs":
            other = fresh_state()
            results.append(call(other, mx.array(5.0)))
    return results, state, counted.calls


@pytest.mark.parametrize("step", STEPS)
def test_the_state_as_an_argument_is_one_object(step: str) -> None:
    expected, expected_state, _ = run(STEPS[step], compiled=False, declared="inputs and outputs")
    actual, state, _ = run(STEPS[step], compiled=True, declared="inputs and outputs")
    assert_same_bits(actual, expected)
    assert_same_bits(state, expected_state)


def test_the_outputs_as_an_argument_are_one_object() -> None:
    expected, expected_state, _ = run(add_to_argument, compiled=False, declared="outputs")
    actual, state, _ = run(add_to_argument, compiled=True, declared="outputs")
    assert_same_bits(actual, expected)
    assert_same_bits(state, expected_state)


def test_a_part_of_the_state_in_a_keyword_argument_is_one_object() -> None:
    def outcome(compiled: bool) -> tuple[list[float], State]:
        state = {"inner": {"n": mx.array(1.0)}}

        def step(x: mx.array, *, part: Any) -> mx.array:
            part["n"] = part["n"] + x
            return state["inner"]["n"] * 2

        call = mx.compile(step, inputs=state, outputs=state) if compiled else step
        return [call(mx.array(1.0), part=state["inner"]).item() for _ in range(3)], state

    assert_same_bits(outcome(True), outcome(False))


def test_a_module_as_argument_and_state() -> None:
    model = nn.Linear(2, 2)

    def step(model_: nn.Linear, x: mx.array) -> mx.array:
        model_.update({"bias": model.bias + 1})
        return model_(x)

    counted = Counted(step)
    compiled = mx.compile(counted.function, inputs=model.state, outputs=model.state)
    bias = model.bias
    for number in range(1, 4):
        x = mx.full((1, 2), float(number))
        result = compiled(model, x)
        bias = bias + 1
        assert_same_bits(model.bias, bias)
        assert_same_bits(result, model(x))
    assert counted.calls == 1


def test_another_container_is_another_call() -> None:
    """The result differs between the state itself and an equal container as argument."""
    state = [mx.array(1.0)]

    def step(given: list[mx.array]) -> mx.array:
        given[0] = given[0] + 10
        return state[0] * 1

    compiled = mx.compile(step, inputs=state)
    for _ in range(2):
        assert compiled(state).item() == 11.0
        assert compiled([mx.array(1.0)]).item() == 1.0
        assert state[0].item() == 1.0, "not an output"


def outcome_of_appending(compiled: bool, declared: str, calls: int = 3) -> tuple[list[Any], Any, int]:
    state: dict[str, Any] = {"kept": mx.array(7.0), "list": []}

    def step(x: mx.array) -> mx.array:
        state["list"].append(x * 2)
        return x + len(state["list"])

    counted = Counted(step)
    call = counted.function
    if compiled:
        call = mx.compile(call, inputs=state if declared == "both" else None, outputs=state)
    return [call(mx.array(float(number))) for number in range(calls)], state, counted.calls


@pytest.mark.parametrize("declared", ["outputs", "both"])
def test_what_is_appended_piles_up(declared: str) -> None:
    expected, expected_state, _ = outcome_of_appending(False, declared)
    actual, state, _ = outcome_of_appending(True, declared)
    assert_same_bits(actual, expected)
    assert_same_bits(state, expected_state)
    assert len(state["list"]) == 3


def test_a_list_of_outputs_that_is_emptied_is_traced_once() -> None:
    state: list[mx.array] = []

    def step(x: mx.array) -> mx.array:
        state.append(x * 2)
        return x

    counted = Counted(step)
    compiled = mx.compile(counted.function, outputs=state)
    for number in range(4):
        compiled(mx.array(float(number)))
        assert [value.item() for value in state] == [2.0 * number]
        state.clear()
    assert counted.calls == 1


def test_entries_of_outputs_that_the_function_leaves_alone_stay() -> None:
    state: dict[str, Any] = {"other": mx.array(1.0), "text": "a", "last": mx.array(0.0), "object": object()}

    def step(x: mx.array) -> mx.array:
        state["last"] = x
        return x

    counted = Counted(step)
    compiled = mx.compile(counted.function, outputs=state)
    compiled(mx.array(1.0))
    replaced, thing = mx.array(50.0), object()
    state["other"], state["object"] = replaced, thing
    compiled(mx.array(2.0))
    assert state["other"] is replaced
    assert state["object"] is thing
    assert state["last"].item() == 2.0
    state["text"] = "b"
    compiled(mx.array(3.0))
    assert (state["text"], state["last"].item()) == ("b", 3.0)


def test_entries_of_outputs_may_change_places() -> None:
    def outcome(compiled: bool) -> list[mx.array]:
        state = [mx.array(1.0), mx.array(2.0), mx.array(3.0)]

        def rotate(x: mx.array) -> mx.array:
            state.append(state.pop(0))
            return x

        call = mx.compile(rotate, outputs=state) if compiled else rotate
        for _ in range(4):
            call(mx.array(0.0))
        return state

    assert_same_bits(outcome(True), outcome(False))


def test_numbers_in_outputs_count_on() -> None:
    state: dict[str, Any] = {"calls": 0, "last": mx.array(0.0)}

    def step(x: mx.array) -> mx.array:
        state["calls"] += 1
        state["last"] = x * state["calls"]
        return x

    compiled = mx.compile(step, outputs=state)
    for number in range(1, 4):
        compiled(mx.array(2.0))
        assert (state["calls"], state["last"].item()) == (number, 2.0 * number)


@pytest.mark.parametrize("as_input", [False, True])
def test_an_update_in_place_reaches_whoever_holds_the_array(as_input: bool) -> None:
    def outcome(compiled: bool) -> list[Any]:
        held = mx.array([1.0, 2.0])
        state = {"held": held, "untouched": mx.array(3.0)}
        untouched = state["untouched"]

        def step(x: mx.array) -> mx.array:
            if as_input:
                state["held"] += x
            else:
                state["held"][0] = x
            return x

        call = mx.compile(step, inputs=state if as_input else None, outputs=state) if compiled else step
        results = [[call(mx.array(float(number))), held.tolist()] for number in (5, 6)]
        assert state["held"] is held
        assert state["untouched"] is untouched
        return [*results, state]

    assert_same_bits(outcome(True), outcome(False))


def test_outputs_inside_another_transformation() -> None:
    state = {"total": mx.array(0.0)}

    def step(x: mx.array) -> mx.array:
        state["total"] = state["total"] + x
        return x * state["total"]

    compiled = mx.compile(step, inputs=state, outputs=state)
    for _ in range(2):
        state["total"] = mx.array(1.0)
        outer = mx.compile(lambda x: compiled(x) + compiled(x), inputs=state, outputs=state)
        assert outer(mx.array(2.0)).item() == 2 * 3 + 2 * 5
        assert state["total"].item() == 5.0
        assert mx.grad(lambda x: compiled(x))(mx.array(2.0)).item() == 7 + 2
        assert structure(state) == {"total": mx.array}


@pytest.mark.parametrize("called_before", [False, True])
def test_what_is_captured_follows_the_transformation_around(called_before: bool) -> None:
    """While a transformation is tracing, it may differentiate with respect to an array from outside."""
    weights = [mx.array(2.0)]
    inner = mx.compile(lambda x: x * weights[0])

    def with_weight(weight: mx.array, x: mx.array) -> mx.array:
        before, weights[0] = weights[0], weight
        try:
            return inner(x)
        finally:
            weights[0] = before

    three = mx.array(3.0)
    if called_before:
        assert inner(three).item() == 6.0
    for _ in range(2):
        assert mx.grad(with_weight)(mx.array(5.0), three).item() == 3.0
        assert mx.jvp(with_weight, [mx.array(5.0), three], [mx.array(1.0), mx.array(0.0)])[1][0].item() == 3.0
        assert mx.vmap(with_weight, in_axes=(0, None))(mx.array([5.0, 6.0]), three).tolist() == [15.0, 18.0]
        compiled = mx.compile(lambda weight, x: with_weight(weight, x))
        assert [compiled(mx.array(value), three).item() for value in (5.0, 6.0)] == [15.0, 18.0]
        assert inner(three).item() == 6.0


def test_a_compiled_loss_that_captures_its_model() -> None:
    model = nn.Linear(2, 1, bias=False)
    loss = mx.compile(lambda x: model(x).sum())
    x = mx.array([[3.0, 4.0]])
    loss(x)
    for _ in range(2):
        _, gradients = nn.value_and_grad(model, loss)(x)
        assert gradients["weight"].tolist() == [[3.0, 4.0]]
    step = mx.compile(lambda x: loss(x) * 2, inputs=model.state)
    assert_same_bits(step(x), model(x).sum() * 2)
    model.weight = mx.array([[1.0, 1.0]])
    assert step(x).item() == 14.0


def test_constants_made_inside_are_no_captured_arrays() -> None:
    inner = Counted(lambda x: x * mx.array([1.0, 2.0]) + mx.arange(2) + mx.ones(2))
    compiled = mx.compile(inner.function)
    x = mx.ones(2)
    for _ in range(3):
        assert mx.grad(lambda x: compiled(x).sum())(x).tolist() == [1.0, 2.0]
    assert inner.calls == 1


def test_arrays_of_a_tuple_as_inputs_and_outputs() -> None:
    for state in (mx.array(1.0), (mx.array(1.0),), ([mx.array(0.0)], (mx.array(1.0),))):
        held = state
        while not isinstance(held, mx.array):
            held = held[-1]

        def step(x: mx.array, held: mx.array = held) -> mx.array:
            held += x
            return held * 2

        compiled = mx.compile(step, inputs=state, outputs=state)
        assert [compiled(mx.array(2.0)).item() for _ in range(3)] == [6.0, 10.0, 14.0]
        assert held.item() == 7.0
        held -= 7
        assert compiled(mx.array(2.0)).item() == 4.0


def test_one_array_in_two_places_of_the_state() -> None:
    def outcome(compiled: bool) -> list[Any]:
        zeros = mx.zeros(2)
        state = {"m": zeros, "v": zeros, "rest": [zeros, zeros]}

        def step(x: mx.array) -> mx.array:
            state["m"] = state["m"] + x
            state["v"] = state["v"] + x * x
            return state["m"] * state["v"] + state["rest"][1]

        call = mx.compile(step, inputs=state, outputs=state) if compiled else step
        results: list[Any] = [call(mx.array([2.0, 3.0])) for _ in range(3)]
        state["rest"][1] = mx.ones(2)
        return [*results, call(mx.array([2.0, 3.0])), state]

    assert_same_bits(outcome(True), outcome(False))


def test_one_array_in_two_places_of_the_outputs() -> None:
    zeros = mx.zeros(2)
    state: list[mx.array] = [zeros, zeros]
    compiled = mx.compile(lambda x: x, outputs=state)
    compiled(mx.array(1.0))
    state[0] = mx.ones(2)
    compiled(mx.array(1.0))
    assert [entry.tolist() for entry in state] == [[1.0, 1.0], [0.0, 0.0]]
