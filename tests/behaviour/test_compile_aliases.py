"""The same array passed several times to a compiled function stays one array, as without `compile`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from tests.checks import Counted, assert_same_bits, leaves


def numbered(first: float) -> mx.array:
    return mx.array([first, first + 1.0, first + 2.0])


def add(a: mx.array, b: mx.array) -> Any:
    a += 10
    return a * b, b


def assign(a: mx.array, b: mx.array) -> Any:
    a[0] = b.sum()
    b[2] = a[0] * 2
    return a + b, b


def is_same(a: mx.array, b: mx.array) -> Any:
    return a * 2 if a is b else a + b


def of_tree(tree: Any, *, more: Any) -> Any:
    tree["a"][0] += more
    more[1] = 7.0
    return tree["b"] * tree["a"][0], more


def of_gradient(a: mx.array, b: mx.array) -> Any:
    def loss(x: mx.array) -> mx.array:
        a[0] = 5.0
        return (x * b).sum()

    return mx.value_and_grad(loss)(a * 2), a


def of_both_gradients(a: mx.array, b: mx.array) -> Any:
    a *= 2
    return mx.value_and_grad(lambda x, y: (x * x * y).sum(), argnums=(0, 1))(a, b)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[mx.array, mx.array], tuple[Any, dict[str, Any]]]]] = {
    "add": (add, lambda x, y: ((x, y), {})),
    "assign": (assign, lambda x, y: ((x, y), {})),
    "is": (is_same, lambda x, y: ((x, y), {})),
    "a keyword argument": (add, lambda x, y: ((x,), {"b": y})),
    "nested": (of_tree, lambda x, y: (({"a": [x], "b": y},), {"more": x})),
    "value_and_grad": (of_gradient, lambda x, y: ((x, y), {})),
    "value_and_grad with respect to both": (of_both_gradients, lambda x, y: ((x, y), {})),
}


@pytest.mark.parametrize("shapeless", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_array_as_two_arguments(name: str, shapeless: bool) -> None:
    function, arguments = FUNCTIONS[name]
    compiled = mx.compile(function, shapeless=shapeless)
    one, other = numbered(1.0), numbered(4.0)
    for x, y in [(one, one), (one, other), (other, other), (other, other), (one, other), (one, one)]:
        args, kwargs = arguments(x, y)
        found = compiled(*args, **kwargs)
        copies = {id(x): mx.array(x), id(y): mx.array(y)}
        args, kwargs = arguments(copies[id(x)], copies[id(y)])
        assert_same_bits(found, function(*args, **kwargs))
    assert_same_bits([one, other], [numbered(1.0), numbered(4.0)])


def test_which_of_several_arguments_are_the_same() -> None:
    def function(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
        a += 1
        c *= 2
        return a * 100 + b * 10 + c

    counted = Counted(function)
    compiled = mx.compile(counted.function)
    x, y, z = (mx.array(value) for value in (1.0, 2.0, 3.0))
    patterns = [(x, y, z), (x, x, z), (x, y, y), (x, y, x), (x, x, x)]
    for arguments in [*patterns, *patterns[::-1]]:
        fresh = {id(array): mx.array(array) for array in arguments}
        assert compiled(*arguments).item() == function(*[fresh[id(array)] for array in arguments]).item()
        assert compiled(*arguments).item() == compiled(*arguments).item()
    assert counted.calls == len(patterns)


State = dict[str, Any]


def twice() -> State:
    w = numbered(1.0)
    return {"a": w, "b": w, "rest": [numbered(5.0), (w,)]}


def in_place(state: State, x: mx.array) -> Any:
    state["a"] += x
    return state["b"] * 2, state["rest"][1][0]


def by_index(state: State, x: mx.array) -> Any:
    state["b"][0] = x
    state["rest"][0][1] = x
    return state["a"] + state["rest"][0]


def replaced(state: State, x: mx.array) -> Any:
    state["a"] = state["a"] + x
    state["b"] -= x
    return state["a"] * state["b"]


def joined(state: State, x: mx.array) -> Any:
    state["rest"][0] += x
    state["a"] = state["rest"][0] = state["rest"][0] * 2
    return state["a"] + state["b"]


STEPS = {"+=": in_place, "[]": by_index, "another array": replaced, "made the same": joined}


def identities(tree: Any) -> list[int]:
    """For each leaf the position of the first leaf that is the same object."""
    found = [id(leaf) for leaf in leaves(tree)]
    return [found.index(one) for one in found]


@pytest.mark.parametrize("declared", ["same", "outputs", "apart"])
@pytest.mark.parametrize("step", STEPS)
def test_the_same_array_twice_in_a_state(step: str, declared: str) -> None:
    def outcome(compiled: bool) -> Any:
        state = twice()
        inputs = {"same": state, "apart": [state, state["a"]], "outputs": None}[declared]
        call = (
            mx.compile(lambda x: STEPS[step](state, x), inputs, state) if compiled else lambda x: STEPS[step](state, x)
        )
        held = state["a"]
        results = [[call(mx.array(float(number))) for number in range(1 if declared == "outputs" else 4)]]
        found = [*results, state, held]
        state["b"] = numbered(3.0)
        found.append(call(mx.array(2.0)) if declared != "outputs" else 0)
        return found, identities([state, held]), state

    found, expected = outcome(True), outcome(False)
    assert found[1] == expected[1]
    assert_same_bits(found[0], expected[0])
    assert_same_bits(found[2], expected[2])


@pytest.mark.parametrize("state_of", [lambda w: [w], lambda w: (w,), lambda w: w, lambda w: ([numbered(0.0)], w)])
@pytest.mark.parametrize("declared", ["inputs", "outputs", "both"])
def test_an_argument_that_is_in_the_state(declared: str, state_of: Callable[[mx.array], Any]) -> None:
    def outcome(compiled: bool) -> Any:
        w = numbered(1.0)
        state = state_of(w)

        def function(a: mx.array, x: mx.array) -> mx.array:
            (*_, own) = leaves(state)
            a += x
            own[1] = x * 3
            return own * 2 + a

        inputs, outputs = [None if declared == other else state for other in ("outputs", "inputs")]
        call = mx.compile(function, inputs, outputs) if compiled else function
        results = []
        for number in range(4):
            results.append(call(w, mx.array(float(number))))
            if declared == "inputs" and not compiled:
                w[:] = numbered(1.0)
        return results, w, state

    assert_same_bits(outcome(True), outcome(False))


def test_another_argument_than_the_one_in_the_state() -> None:
    state = [numbered(1.0)]

    def function(a: mx.array) -> mx.array:
        a += 1
        return state[0] * 2

    compiled = mx.compile(function, inputs=state, outputs=state)
    other = numbered(1.0)
    assert [compiled(array)[0].item() for array in (other, other, state[0], state[0], other, other)] == [
        2,
        2,
        4,
        6,
        6,
        6,
    ]
    assert state[0][0].item() == 3
    assert other[0].item() == 1


def test_entries_that_become_the_same_array_between_calls() -> None:
    state = {"a": numbered(1.0), "b": numbered(4.0)}

    def step(x: mx.array) -> mx.array:
        state["a"] += x
        state["b"] = state["b"] * 1
        return state["a"] + state["b"]

    compiled = mx.compile(step, inputs=state, outputs=state)
    x = mx.array(1.0)
    assert [compiled(x)[0].item() for _ in range(3)] == [6.0, 7.0, 8.0]
    state["b"] = state["a"]
    assert compiled(x)[0].item() == 10.0
    assert compiled(x)[0].item() == 11.0


@pytest.mark.parametrize("optimizer", [optim.SGD, optim.Adam])
def test_tied_weights(optimizer: Callable[[float], optim.Optimizer]) -> None:
    def outcome(compiled: bool) -> Any:
        mx.random.seed(2)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model.layers[1].weight = model.layers[0].weight
        rule = optimizer(0.1)
        rule.init(model.trainable_parameters())

        def step(x: mx.array) -> mx.array:
            model.layers[0].weight *= 0.9
            loss, gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())(x)
            rule.update(model, gradients)
            return loss

        state = [model.state, rule.state]
        call = mx.compile(step, inputs=state, outputs=state) if compiled else step
        return [call(mx.ones((2, 4))) for _ in range(3)], model.parameters()

    assert_same_bits(outcome(True), outcome(False))


def test_the_same_array_returned_twice_is_one_array() -> None:
    def function(x: mx.array) -> Any:
        y = x * 2
        return [y, {"again": y, "equal": x * 2}, x]

    compiled = mx.compile(function)
    for _ in range(3):
        first, others, _ = compiled(numbered(1.0))
        assert others["again"] is first
        assert others["equal"] is not first


def test_the_log_tells_which_arguments_are_the_same(caplog: pytest.LogCaptureFixture) -> None:
    compiled = mx.compile(lambda x, y: x + y["part"])
    x = numbered(1.0)
    with caplog.at_level("INFO", "weft.compile"):
        compiled(x, {"part": numbered(1.0)})
        compiled(x, {"part": x})
    assert re.search(r"because y\['part'\]: float32\[3\] -> the same array as x; it took", caplog.messages[-1])


def test_an_explanation_has_the_same_array_once() -> None:
    state = twice()
    compiled = mx.compile(lambda x: in_place(state, x), inputs=state, outputs=state)
    first, *_ = str(compiled.explain(mx.array(1.0))).splitlines()
    assert first.endswith("<lambda>(x: float32[]; inputs['a']: float32[3]; inputs['rest'][0]: float32[3])")
    assert compiled(mx.array(1.0))[0].tolist() == [4.0, 6.0, 8.0]


@pytest.mark.parametrize("name", ["inputs", "outputs", "shapeless"])
@pytest.mark.parametrize("value", ["state", 3, {1, 2}, iter([]), mx.exp, b"x", 0.5])
def test_what_compile_cannot_take_is_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"^\[compile\] {name} must be a"):
        mx.compile(mx.exp, **{name: value})


@pytest.mark.parametrize("value", [[], None, mx.array(True), "yes"])
def test_shapeless_is_a_bool(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^\[compile\] shapeless must be a bool; got"):
        mx.compile(mx.exp, shapeless=value)


Captured = Callable[[mx.array], Callable[..., Any]]
"""Makes a function that uses an array from outside, which is also an argument or in the state."""


def captured_is_assigned(c: mx.array) -> Callable[..., Any]:
    def function(a: mx.array) -> mx.array:
        c[0] = 10.0
        return a * 2

    return function


def argument_is_assigned(c: mx.array) -> Callable[..., Any]:
    def function(a: mx.array) -> mx.array:
        a[0] = 10.0
        return c * 2

    return function


def in_a_container(c: mx.array) -> Callable[..., Any]:
    outside = {"more": [c]}

    def inner() -> mx.array:
        return outside["more"][0] * 2

    def function(a: mx.array) -> mx.array:
        a += 1
        return a + inner()

    return function


@pytest.mark.parametrize("make", [captured_is_assigned, argument_is_assigned, in_a_container])
def test_an_array_from_outside_that_is_an_argument_too(make: Captured) -> None:
    c, other = numbered(1.0), numbered(1.0)
    function = make(c)
    compiled = mx.compile(function)
    with pytest.raises(ValueError, match=r"^\[compile\] .*function gets an array as an argument.* from outside"):
        compiled(c)
    for _ in range(3):
        assert compiled(other).tolist() == make(numbered(1.0))(numbered(1.0)).tolist()
    with pytest.raises(ValueError, match="from outside"):
        compiled(c)
    assert_same_bits([c, other], [numbered(1.0)] * 2)


@pytest.mark.parametrize("by_state", [True, False])
def test_an_array_from_outside_that_is_in_the_state_too(by_state: bool) -> None:
    c = numbered(1.0)
    state = [c]

    def step(x: mx.array) -> mx.array:
        changed, read = (state[0], c) if by_state else (c, state[0])
        changed += x
        return read * 2

    compiled = mx.compile(step, inputs=state, outputs=state)
    with pytest.raises(ValueError, match="from outside"):
        compiled(mx.array(1.0))
    assert_same_bits(c, numbered(1.0))
    state[0] = numbered(2.0)
    assert compiled(mx.array(1.0)).tolist() == ([2, 4, 6] if by_state else [4, 6, 8])


def test_copies_from_outside_are_arrays_of_their_own() -> None:
    c = numbered(1.0)
    copied = mx.array(c)

    def function(a: mx.array) -> mx.array:
        a += 1
        return a * copied

    compiled = mx.compile(function)
    assert [compiled(c).tolist() for _ in range(2)] == [[2, 6, 12]] * 2
    captured = numbered(1.0)
    only_read = mx.compile(lambda a: a * captured)
    assert only_read(captured).tolist() == [1, 4, 9]
