"""`weft.optimizers`: the walk over trees and the methods, alone and against MLX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten, tree_map

UNTYPED: Any = optim  # so that the type checker lets wrong arguments pass


def parameters():
    return {"weight": np.array([[1.0, -2.0]], np.float32), "layers": [{"bias": np.array([0.5], np.float32)}, {}]}


def gradients(step):
    rng = np.random.default_rng(step)
    return tree_map(lambda p: rng.normal(size=p.shape).astype(np.float32), parameters())


def train(core, optimizer, map_tree, steps=5):
    values = map_tree(core.array, parameters())
    for step in range(steps):
        values = optimizer.apply_gradients(map_tree(core.array, gradients(step)), values)
    return [np.array(values["weight"]), np.array(values["layers"][0]["bias"])]


METHODS = [
    lambda o: o.SGD(0.1),
    lambda o: o.SGD(0.1, momentum=0.9),
    lambda o: o.SGD(0.1, momentum=0.9, dampening=0.3),
    lambda o: o.SGD(0.1, momentum=0.9, nesterov=True),
    lambda o: o.SGD(0.1, momentum=0.5, weight_decay=0.2),
    lambda o: o.SGD(0.1, weight_decay=0.2),
    lambda o: o.SGD(o.linear_schedule(0.0, 1.0, 3)),
    lambda o: o.Adam(0.1),
    lambda o: o.Adam(0.1, betas=[0.5, 0.75], eps=1e-3),
    lambda o: o.Adam(0.1, bias_correction=True),
    lambda o: o.Adam(o.cosine_decay(0.1, 4), bias_correction=True),
    lambda o: o.AdamW(0.1, weight_decay=0.1),
    lambda o: o.AdamW(0.1, weight_decay=0.1, bias_correction=True),
    lambda o: o.Adagrad(0.1),
    lambda o: o.RMSprop(0.1, alpha=0.5),
    lambda o: o.AdaDelta(0.1, rho=0.5),
    lambda o: o.Adamax(0.1),
    lambda o: o.Lion(0.1, weight_decay=0.1),
    lambda o: o.Adafactor(0.1, beta_1=0.5, weight_decay=0.1, relative_step=False),
    lambda o: o.Muon(0.1, ns_steps=3),
]


@pytest.mark.parametrize("make", METHODS)
def test_methods_against_mlx(mlx_package, make):
    ours, theirs = make(optim), make(mlx_package.optimizers)
    for actual, expected in zip(
        train(mx, ours, tree_map), train(mlx_package.core, theirs, mlx_package.utils.tree_map), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    our_state, their_state = dict(tree_flatten(ours.state)), dict(tree_flatten(theirs.state))
    assert our_state.keys() == their_state.keys()
    for path, value in our_state.items():
        np.testing.assert_allclose(np.array(value), np.array(their_state[path]), rtol=1e-5, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("make", METHODS)
def test_methods_keep_dtypes_and_the_identity_of_their_state(make):
    optimizer = make(optim)
    state = optimizer.state
    values = {"w": mx.ones((2,), dtype=mx.float16)}
    for _ in range(2):
        values = optimizer.apply_gradients({"w": mx.ones((2,), dtype=mx.float16)}, values)
    assert values["w"].dtype == mx.float16
    assert {array.dtype for array in state["w"].values()} == {mx.float16}
    assert optimizer.state is state
    assert (state["step"].item(), state["step"].dtype) == (2, mx.uint64)
    assert state["learning_rate"].dtype == mx.float32


def test_sgd_by_hand():
    optimizer = optim.SGD(learning_rate=0.5, momentum=0.5)
    values = {"w": mx.array([1.0])}
    for expected in (0.5, -0.25, -1.125):
        values = optimizer.apply_gradients({"w": mx.array([1.0])}, values)
        assert values["w"].tolist() == [expected]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.SGD(0.1, nesterov=True), "needs a momentum above 0 and no dampening"),
        (lambda: optim.SGD(0.1, momentum=0.9, dampening=0.1, nesterov=True), r"dampening=0\.1"),
        (lambda: optim.Adam(0.1, betas=(1.0, 0.9)), r"\[Adam\] betas .* got \(1\.0, 0\.9\)"),
        (lambda: optim.Adam(0.1, betas=(0.9,)), "two numbers"),
        (lambda: optim.AdamW(0.1, betas=(0.9, -0.1)), r"\[AdamW\] betas"),
        (lambda: optim.Adam(0.1, eps=-1), "eps must be at least 0; got -1"),
        (lambda: optim.Adam(math.nan), r"\[Adam\] learning_rate .* got nan"),
        (lambda: optim.SGD(mx.ones((2,))), r"\[SGD\] learning_rate must be one number; .* \(2,\)"),
        (lambda: optim.SGD(lambda step: mx.ones((2,))), r"\[SGD\] learning_rate must be one number"),
        (lambda: optim.SGD(0.1, momentum=-0.5), r"\[SGD\] momentum must be at least 0; got -0\.5"),
        (lambda: optim.AdamW(0.1, weight_decay=-1), r"\[AdamW\] weight_decay must be at least 0"),
        (lambda: optim.clip_grad_norm({}, -1.0), r"\[clip_grad_norm\] max_norm must be at least 0; got -1"),
    ],
)
def test_settings_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UNTYPED.SGD("0.1"), r"\[SGD\] learning_rate must be a number; got '0\.1' of type str"),
        (lambda: UNTYPED.SGD(None), r"\[SGD\] learning_rate .* NoneType"),
        (lambda: UNTYPED.SGD(0.1j), r"\[SGD\] learning_rate .* complex"),
        (lambda: UNTYPED.AdamW([0.1, 0.2]), r"\[AdamW\] learning_rate .* list"),
        (lambda: UNTYPED.SGD(lambda step: None), r"\[SGD\] learning_rate .* got None"),
        (lambda: setattr(UNTYPED.SGD(0.1), "learning_rate", "0.1"), r"\[SGD\] learning_rate"),
        (lambda: UNTYPED.SGD(0.1, momentum="0.9"), r"\[SGD\] momentum must be a number; got '0\.9'"),
        (lambda: UNTYPED.SGD(0.1, weight_decay=None), r"\[SGD\] weight_decay"),
        (lambda: UNTYPED.SGD(0.1, dampening="x"), r"\[SGD\] dampening"),
        (lambda: UNTYPED.Adam(0.1, betas=0.9), r"\[Adam\] betas must be two numbers; got 0\.9"),
        (lambda: UNTYPED.Adam(0.1, betas=("a", "b")), r"\[Adam\] each of betas .* 'a'"),
        (lambda: UNTYPED.Adam(0.1, eps="x"), r"\[Adam\] eps"),
        (lambda: UNTYPED.AdamW(0.1, weight_decay="x"), r"\[AdamW\] weight_decay"),
        (lambda: UNTYPED.Optimizer({"rate": 0.1}), r"\[Optimizer\] the schedule of rate must be a function"),
        (lambda: UNTYPED.exponential_decay("a", 0.5), r"\[exponential_decay\] init"),
        (lambda: UNTYPED.step_decay(0.1, None, 4), r"\[step_decay\] decay_rate"),
        (lambda: UNTYPED.cosine_decay(0.1, "10"), r"\[cosine_decay\] decay_steps must be a number; got '10'"),
        (lambda: UNTYPED.linear_schedule(0.1, [1], 3), r"\[linear_schedule\] end"),
        (lambda: UNTYPED.join_schedules([0.1], []), r"\[join_schedules\] schedules must be functions .* 0\.1"),
        (
            lambda: UNTYPED.join_schedules(UNTYPED.cosine_decay(1.0, 5), []),
            r"\[join_schedules\] schedules must be a list",
        ),
        (
            lambda: UNTYPED.join_schedules([UNTYPED.cosine_decay(1.0, 5)] * 2, ["3"]),
            r"\[join_schedules\] .*boundaries .*'3'",
        ),
        (lambda: UNTYPED.clip_grad_norm({"a": mx.ones(2)}, "1"), r"\[clip_grad_norm\] max_norm"),
        (lambda: UNTYPED.clip_grad_norm({"a": 1.0}, 1.0), r"\[clip_grad_norm\] gradients must be arrays; .* float"),
    ],
)
def test_settings_of_the_wrong_type(make, message):
    with pytest.raises(TypeError, match=message):
        make()


class Recording(optim.Optimizer):
    """Subtracts the gradient, and counts the updates of each parameter."""

    def __init__(self, **settings):
        super().__init__()
        for name, value in settings.items():
            self._maybe_schedule(name, value)

    def init_single(self, parameter, state):
        state["count"] = mx.array(0)

    def apply_single(self, gradient, parameter, state):
        state["count"] = state["count"] + 1
        return parameter - gradient


def test_a_subclass_deals_with_single_parameters():
    optimizer = Recording()
    updated = optimizer.apply_gradients(
        {"a": [mx.array(1.0), {"b": mx.array(2.0)}]}, {"a": [mx.array(5.0), {"b": mx.array(5.0)}]}
    )
    assert tree_map(lambda array: array.item(), updated) == {"a": [4, {"b": 3}]}
    assert tree_map(lambda array: array.item(), optimizer.state) == {
        "step": 1,
        "a": [{"count": 1}, {"b": {"count": 1}}],
    }


def test_the_first_update_calls_the_init_that_a_subclass_has_extended():
    class Prepared(Recording):
        times = 0

        def init(self, parameters):
            super().init(parameters)
            self.times += 1

    optimizer = Prepared()
    assert not optimizer._initialized
    for _ in range(2):
        optimizer.apply_gradients({"a": mx.array(1.0)}, {"a": mx.array(1.0)})
        assert (optimizer.times, optimizer._initialized) == (1, True)
    optimizer.state = optimizer.state
    assert not optimizer._initialized
    optimizer.apply_gradients({"a": mx.array(1.0)}, {"a": mx.array(1.0)})
    assert (optimizer.times, optimizer.state["a"]["count"].item()) == (2, 3)


def test_the_base_class_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="Optimizer must define init_single"):
        optim.Optimizer().init({"a": mx.array(1.0)})
    with pytest.raises(NotImplementedError, match="apply_single"):
        optim.Optimizer().apply_single(mx.array(1.0), mx.array(1.0), {})


def test_any_setting_may_follow_a_schedule():
    optimizer = Recording(temperature=lambda step: 10 * step, scale=3)
    assert optimizer.state["temperature"].item() == 0
    for expected in (0, 10, 20):
        optimizer.apply_gradients({"a": mx.array(1.0)}, {"a": mx.array(1.0)})
        assert optimizer.state["temperature"].item() == expected
    assert optimizer.state["scale"].dtype == mx.float32


def test_what_a_subclass_schedules_may_have_axes():
    optimizer = Recording(switches=lambda step: mx.stack([step > 0, step > 1]))
    for expected in ([False, False], [False, False], [True, False]):
        assert optimizer.state["switches"].tolist() == expected
        optimizer.apply_gradients({"a": mx.array(1.0)}, {"a": mx.array(1.0)})


def test_schedules_of_python_numbers_become_arrays():
    optimizer = optim.SGD(lambda step: 0.5)
    assert isinstance(optimizer.learning_rate, mx.array)
    optimizer.apply_gradients({"a": mx.array(1.0)}, {"a": mx.array(1.0)})
    assert isinstance(optimizer.learning_rate, mx.array)


def test_learning_rate_can_be_set():
    optimizer = optim.SGD(1)
    optimizer.learning_rate = 0.25
    assert optimizer.apply_gradients({"a": mx.array(1.0)}, {"a": mx.array(1.0)})["a"].item() == 0.75
    optimizer.learning_rate = mx.array(0.5)
    assert optimizer.learning_rate.item() == 0.5


def test_update_changes_the_model_and_only_where_there_are_gradients():
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
    before = dict(tree_flatten(model.parameters()))
    optim.SGD(1.0).update(model, {"layers": [{"bias": mx.array([2.0])}]})
    after = dict(tree_flatten(model.parameters()))
    assert after["layers.0.bias"].item() == pytest.approx(before["layers.0.bias"].item() - 2)
    assert all(after[path] is before[path] for path in before if path != "layers.0.bias")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weight": mx.ones((1, 2)), "absent": mx.ones((1,))}, "`absent` has a gradient but no parameter"),
        ({"layers": [{"absent": mx.ones((1,))}]}, r"`layers\.0\.absent` has a gradient"),
        ({"layers": [{}, {}, mx.ones((1,))]}, r"`layers\.2` has a gradient"),
        ({"weight": mx.ones((3,))}, r"gradient of `weight` has shape \(3,\), the parameter \(1, 2\)"),
        ([mx.ones((1,))], "a dict of gradients; got list"),
    ],
)
def test_gradients_that_do_not_fit_change_nothing(given, message):
    optimizer = optim.Adam(0.1)
    values = tree_map(mx.array, parameters())
    optimizer.init(values)
    before = tree_flatten(optimizer.state)
    with pytest.raises(ValueError, match=message):
        optimizer.apply_gradients(given, values)
    assert all(new is old for (_, new), (_, old) in zip(tree_flatten(optimizer.state), before, strict=True))


@pytest.mark.parametrize(
    ("gradient", "parameter", "message"),
    [
        (1.0, mx.ones((2,)), r"\[Adam\] the gradient of `layers\.0` must be an array; .* float: .*mx\.array"),
        (None, mx.ones((2,)), "gradient of .* NoneType"),
        (np.ones(2, np.float32), mx.ones((2,)), "gradient of .* ndarray"),
        (mx.ones((2,)), np.ones(2, np.float32), r"\[Adam\] the parameter of `layers\.0` .* ndarray"),
        (mx.ones((2,)), "text", "parameter of .* str"),
    ],
)
def test_leaves_that_are_no_arrays_change_nothing(gradient, parameter, message):
    optimizer = optim.Adam(0.1)
    before = dict(optimizer.state)
    with pytest.raises(TypeError, match=message):
        optimizer.apply_gradients({"layers": [gradient]}, {"layers": [parameter]})
    assert optimizer.state == before


def test_trees_of_the_wrong_kind():
    optimizer = UNTYPED.SGD(0.1)
    for parameters in (None, mx.ones((2,)), [mx.ones((2,))]):
        with pytest.raises(ValueError, match=rf"\[SGD\] init takes a dict .* {type(parameters).__name__}"):
            optimizer.init(parameters)
    with pytest.raises(TypeError, match=r"\[SGD\] parameters must be arrays; .* int"):
        optimizer.init({"a": 3})
    with pytest.raises(TypeError, match=r"\[SGD\] update takes the model first"):
        optimizer.update({"bias": mx.ones((1,))}, nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"\[SGD\] update takes the model first, .* a list and a dict"):
        optimizer.update([nn.Linear(1, 1)], {})


@pytest.mark.parametrize("name", ["step", "learning_rate"])
def test_parameters_cannot_take_the_names_of_the_optimizer(name):
    with pytest.raises(ValueError, match=f"named '{name}'"):
        optim.SGD(0.1).init({name: mx.ones((1,))})


def test_init_keeps_what_is_there():
    optimizer = optim.Adam(0.1)
    optimizer.apply_gradients({"a": [mx.ones((1,))]}, {"a": [mx.ones((1,))]})
    mean = optimizer.state["a"][0]["m"]
    optimizer.init({"a": [mx.ones((1,)), mx.ones((2,))], "b": mx.ones((3,))})
    assert optimizer.state["a"][0]["m"] is mean
    assert optimizer.state["a"][1]["m"].shape == (2,)
    assert optimizer.state["b"]["v"].shape == (3,)


def test_parameters_that_join_later_start_afresh():
    optimizer = optim.SGD(1.0, momentum=0.5)
    one = mx.ones((1,))
    optimizer.apply_gradients({"a": one}, {"a": one})
    updated = optimizer.apply_gradients({"a": one, "b": one}, {"a": one, "b": one})
    assert (updated["a"].item(), updated["b"].item()) == (-0.5, 0)


def test_state_can_be_saved_and_restored():
    one = {"a": mx.ones((1,))}
    first, second = optim.Adam(0.1), optim.Adam(0.5)
    first.apply_gradients(one, one)
    second.state = tree_map(lambda array: array + 0, first.state)
    assert second.apply_gradients(one, one)["a"].item() == first.apply_gradients(one, one)["a"].item()
    assert second.step.item() == 2


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        ({}, ValueError, r"\[SGD\] state needs an array 'step': .* keys \[\]\. To start again, make a new optimizer"),
        ({"step": mx.array(0)}, ValueError, r"'learning_rate': .* keys \['step'\]"),
        ({"step": 0, "learning_rate": 0.1}, ValueError, "needs an array 'step'"),
        (None, TypeError, r"\[SGD\] state must be a dict; .* NoneType"),
    ],
)
def test_a_state_that_is_none(state, kind, message):
    optimizer = optim.SGD(0.1)
    before = optimizer.state
    with pytest.raises(kind, match=message):
        optimizer.state = state
    assert optimizer.state is before


def test_the_state_of_another_kind_of_optimizer():
    one = {"layers": [{"a": mx.ones((1,))}]}
    first, second = optim.SGD(0.1, momentum=0.5), optim.Adam(0.1)
    first.apply_gradients(one, one)
    second.state = first.state
    with pytest.raises(ValueError, match=r"\[Adam\] The state of `layers\.0\.a` has no 'm': .* another kind"):
        second.apply_gradients(one, one)


def _ones(*shape: int) -> mx.array:
    return mx.ones(shape)


@pytest.mark.parametrize("method", [lambda: optim.SGD(0.1, momentum=0.9), lambda: optim.Adam(0.1)])
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": _ones(2)}, {"a": {"v": _ones(2)}}, "The state of `a` is a dict of arrays"),
        ({"a": _ones(2)}, {"a": {"w": _ones(2)}}, "The state of `a` is a dict of arrays"),
        ({"a": {"v": _ones(2)}}, {"a": _ones(2)}, "The state of `a` has (in 'v' no array but .* dict|no 'm')"),
        ({"a": [_ones(2)]}, {"a": _ones(2)}, "The state of `a` is of type list"),
        ({"a": _ones(2)}, {"a": [_ones(2)]}, "The state of `a` is a dict of arrays"),
        ({"a": {"b": _ones(2)}}, {"a": [_ones(2)]}, "The state of `a` is of type dict"),
        ({"a": _ones(2)}, {"a": _ones(3)}, r"The state of `a` has a '.' of shape \(2,\), .* shape \(3,\)"),
        ({"a": _ones(2)}, {"a": _ones(1)}, r"The state of `a` has a '.' of shape \(2,\), .* shape \(1,\)"),
        ({"a": _ones(3)}, {"a": _ones(2, 3)}, r"The state of `a` has a '.' of shape \(3,\), .* shape \(2, 3\)"),
    ],
)
def test_the_state_of_other_parameters(method, first, second, message):
    optimizer = method()
    optimizer.apply_gradients({"0": _ones(1), **first}, {"0": _ones(1), **first})
    before = tree_flatten(optimizer.state)
    with pytest.raises(ValueError, match=message):
        optimizer.apply_gradients({"0": _ones(1), **second}, {"0": _ones(1), **second})
    after = tree_flatten(optimizer.state)
    assert [(path, id(array)) for path, array in after] == [(path, id(array)) for path, array in before]
    optimizer.apply_gradients(first, first)
    assert optimizer.step.item() == 2


def test_an_error_of_a_method_changes_nothing():
    class Failing(Recording):
        def apply_single(self, gradient, parameter, state):
            state["seen"] = parameter
            if parameter.size == 2:
                raise RuntimeError("two")
            return parameter

    optimizer = Failing(rate=lambda step: step + 1)
    one = {"a": _ones(1), "b": _ones(2)}
    optimizer.init(one)
    before = tree_flatten(optimizer.state)
    with pytest.raises(RuntimeError, match="two"):
        optimizer.apply_gradients(one, one)
    assert tree_flatten(optimizer.state) == before


def test_a_state_may_be_of_another_shape_than_its_parameter():
    class Factored(optim.Optimizer):
        def init_single(self, parameter, state):
            state["rows"], state["mean"] = mx.zeros(parameter.shape[:1]), mx.array(0.0)

        def apply_single(self, gradient, parameter, state):
            state["rows"] = state["rows"] + mx.sum(gradient, axis=1)
            state["mean"] = state["mean"] + gradient
            return parameter - state["rows"][:, None]

    optimizer = Factored()
    for _ in range(2):
        updated = optimizer.apply_gradients({"a": _ones(2, 3)}, {"a": _ones(2, 3)})
    assert updated["a"].tolist() == [[-5.0] * 3] * 2


def test_an_error_of_a_method_says_which_parameter():
    class Failing(Recording):
        def apply_single(self, gradient, parameter, state):
            return {"other": parameter}["absent"]

    with pytest.raises(KeyError, match="absent") as caught:
        Failing().apply_gradients({"b": [mx.ones((2,))]}, {"b": [mx.ones((2,))]})
    assert caught.value.__notes__ == ["This happened in the step of Failing for the parameter `b.0`."]


def test_a_negative_learning_rate_goes_uphill():
    optimizer = optim.SGD(-0.5)
    updated = optimizer.apply_gradients({"w": mx.array(2.0)}, {"w": mx.array(1.0)})
    assert updated["w"].item() == 2.0


def test_a_tree_with_tuples_keeps_them() -> None:
    gradients = {"a": (mx.array([1.0]), {"b": mx.array([2.0])})}
    optimizer = optim.SGD(1.0, momentum=0.5)
    once = optimizer.apply_gradients(gradients, {"a": (mx.array([0.0]), {"b": mx.array([0.0])})})
    twice = optimizer.apply_gradients(gradients, once)
    assert isinstance(twice["a"], tuple)
    assert [leaf.item() for _, leaf in tree_flatten(twice)] == [-2.5, -5]


def test_a_state_grows_where_it_is() -> None:
    optimizer = optim.SGD(1.0, momentum=0.5)
    optimizer.init({"layers": [{"w": mx.array([1.0])}]})
    state, inner = optimizer.state, optimizer.state["layers"][0]["w"]
    optimizer.init({"layers": [{"b": mx.array([1.0])}, {"w": mx.array([1.0])}], "head": mx.array([2.0])})
    assert optimizer.state is state
    assert state["layers"][0]["w"] is inner
    found = [path for path, _ in tree_flatten(state)]
    assert found == ["step", "learning_rate", "layers.0.w.v", "layers.0.b.v", "layers.1.w.v", "head.v"]
