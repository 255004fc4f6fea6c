"""Losses, `nn.value_and_grad`, and training steps with and without `mx.compile`."""

from __future__ import annotations

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.runtime import counters
from weft.utils import tree_flatten

LOGITS = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 4.0]], np.float32)
CLASSES = np.array([0, 2], np.int32)
PROBABILITIES = np.array([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], np.float32)
BINARY = np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.5]], np.float32)
WEIGHTS = np.array([1.0, 2.0], np.float32)


CASES = [
    ("cross_entropy", (LOGITS, CLASSES), {}),
    ("cross_entropy", (LOGITS, PROBABILITIES), {}),
    ("cross_entropy", (LOGITS, CLASSES, WEIGHTS), {"label_smoothing": 0.1}),
    ("cross_entropy", (LOGITS, PROBABILITIES), {"label_smoothing": 0.25}),
    ("cross_entropy", (LOGITS, np.array([0, 1, 0])), {"axis": 0}),
    ("cross_entropy", (LOGITS[0], np.array(1)), {}),
    ("cross_entropy", (np.ones((2, 3, 4), np.float32), np.zeros((2, 4), np.int32)), {"axis": 1}),
    ("binary_cross_entropy", (LOGITS, BINARY), {}),
    ("binary_cross_entropy", (LOGITS * 100, BINARY), {}),
    ("binary_cross_entropy", (PROBABILITIES, BINARY), {"with_logits": False}),
    ("binary_cross_entropy", (LOGITS, BINARY, PROBABILITIES), {}),
    ("nll_loss", (LOGITS, CLASSES), {}),
    ("nll_loss", (LOGITS, np.array([0, 1, 0])), {"axis": 0}),
    ("mse_loss", (LOGITS, BINARY), {}),
    ("l1_loss", (LOGITS, BINARY), {}),
    ("smooth_l1_loss", (LOGITS, BINARY), {"beta": 0.5}),
    ("huber_loss", (LOGITS, BINARY), {"delta": 0.75}),
    ("log_cosh_loss", (LOGITS, BINARY), {}),
    ("hinge_loss", (LOGITS, np.sign(LOGITS)), {}),
    ("margin_ranking_loss", (LOGITS, BINARY, np.sign(LOGITS)), {"margin": 0.25}),
    ("kl_div_loss", (LOGITS, BINARY), {"axis": 0}),
    ("gaussian_nll_loss", (LOGITS, BINARY, PROBABILITIES + 0.5), {"full": True}),
    ("gaussian_nll_loss", (LOGITS, BINARY, PROBABILITIES), {"eps": 0.25}),
    ("cosine_similarity_loss", (LOGITS, BINARY), {}),
    ("triplet_loss", (LOGITS, BINARY, PROBABILITIES), {}),
    ("triplet_loss", (LOGITS, BINARY, PROBABILITIES), {"axis": 0, "p": 3, "margin": 0.5}),
]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum", None])
@pytest.mark.parametrize(("name", "arrays", "settings"), CASES)
def test_losses_against_mlx(mlx_package, name, arrays, settings, reduction):
    if reduction is not None:
        settings = settings | {"reduction": reduction}
    actual = getattr(nn.losses, name)(*map(mx.array, arrays), **settings)
    expected = getattr(mlx_package.nn.losses, name)(*map(mlx_package.core.array, arrays), **settings)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(np.array(actual), np.array(expected), rtol=1e-5, atol=1e-6)


def test_smooth_l1_loss_is_smooth_where_its_formulas_meet():
    """Values and slopes on both sides of ``beta``, which is 2 instead of the default of 1."""
    differences = mx.array([0.0, 0.5, -1.0, 2.0, -2.5, 4.0])
    loss = lambda x: nn.losses.smooth_l1_loss(x, mx.zeros(6), beta=2.0, reduction="none")  # noqa: E731 - a formula
    assert loss(differences).tolist() == [0.0, 0.0625, 0.25, 1.0, 1.5, 3.0]
    assert mx.grad(lambda x: mx.sum(loss(x)))(differences).tolist() == [0.0, 0.25, -0.5, 1.0, -1.0, 1.0]


def test_cross_entropy_gradient_is_softmax_minus_target():
    logits = mx.array(LOGITS)
    gradient = mx.grad(lambda x: nn.losses.cross_entropy(x, mx.array(CLASSES), reduction="sum"))(logits)
    np.testing.assert_allclose(np.array(gradient), np.array(nn.softmax(logits)) - np.eye(3)[CLASSES], atol=1e-6)


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "uint64"])
@pytest.mark.parametrize("classes", [3, 300])
def test_classes_that_there_are_not_give_nan(name, axis, dtype, classes):
    loss = getattr(nn.losses, name)
    low = np.iinfo(dtype).min < 0
    targets = [0, 2, -1 if low else 1, classes if classes < 100 else 5, -classes - 1 if low and classes < 100 else 5]
    there = np.array([-classes <= target < classes for target in targets])
    scores = np.random.default_rng(0).normal(size=(5, classes)).astype(np.float32)

    def value(x):
        return loss(x.T if axis == 0 else x, mx.array(targets, getattr(mx, dtype)), axis=axis)

    whole = np.array(loss(mx.array(scores), mx.array(np.clip(targets, -classes, classes - 1))))
    for run in (value, mx.compile(value)):
        losses = np.array(run(mx.array(scores)))
        np.testing.assert_array_equal(np.isnan(losses), ~there)
        np.testing.assert_array_equal(losses[there], whole[there])
    gradient = np.array(mx.grad(lambda x: value(x).sum())(mx.array(scores)))
    np.testing.assert_array_equal(np.isnan(gradient).any(axis=1), ~there)


def test_losses_of_halves_stay_halves_and_those_of_integers_are_floats():
    targets = mx.array([0, 5])
    for dtype, result in ((mx.float16, mx.float16), (mx.bfloat16, mx.bfloat16), (mx.int32, mx.float32)):
        loss = nn.losses.cross_entropy(mx.array([[1, 2], [3, 4]], dtype), targets)
        assert loss.dtype == result
        assert np.isnan(np.array(loss.astype(mx.float32))).tolist() == [False, True]


@pytest.mark.parametrize(
    ("name", "arrays", "settings", "message"),
    [
        ("cross_entropy", (LOGITS, CLASSES), {"reduction": "median"}, r"^\[cross_entropy\] reduction .* got 'median'"),
        ("cross_entropy", (LOGITS, CLASSES), {"label_smoothing": 1.0}, r"label_smoothing .* got 1\.0"),
        ("cross_entropy", (LOGITS, CLASSES), {"label_smoothing": -0.1}, "label_smoothing"),
        ("cross_entropy", (LOGITS, CLASSES), {"axis": 2}, r"axis 2 is out of range .*\(2, 3\)"),
        ("cross_entropy", (LOGITS, np.array([0, 1, 2])), {}, r"\(3,\) do not match logits of shape \(2, 3\)"),
        ("cross_entropy", (LOGITS, PROBABILITIES.T), {}, r"\(3, 2\) do not match logits of shape \(2, 3\)"),
        ("cross_entropy", (LOGITS, CLASSES.astype(np.float32)), {}, "must be integers; got .*float32"),
        ("cross_entropy", (LOGITS, CLASSES, np.ones(3)), {}, r"weights of shape \(3,\) do not match losses"),
        ("binary_cross_entropy", (LOGITS, BINARY[0]), {}, r"\(3,\) do not match inputs of shape \(2, 3\)"),
        ("binary_cross_entropy", (LOGITS, BINARY, WEIGHTS), {}, r"weights of shape \(2,\)"),
        ("binary_cross_entropy", (LOGITS, BINARY), {"reduction": "median"}, r"^\[binary_cross_entropy\] reduction"),
        ("nll_loss", (LOGITS, np.array(0)), {}, r"^\[nll_loss\] targets of shape \(\)"),
        ("mse_loss", (LOGITS, BINARY[:1]), {}, r"^\[mse_loss\] targets of shape \(1, 3\) do not match predictions"),
        ("l1_loss", (LOGITS, BINARY[:1]), {}, "l1_loss"),
    ],
)
def test_losses_refuse_what_does_not_fit(name, arrays, settings, message):
    with pytest.raises(ValueError, match=message):
        getattr(nn.losses, name)(*map(mx.array, arrays), **settings)


def test_value_and_grad_follows_the_trainable_parameters():
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1, bias=False))
    model.layers[0].freeze(keys="bias")

    def loss(x, y=0.0):
        """The loss."""
        return ((model(x) - y) ** 2).mean(), "aside"

    step = nn.value_and_grad(model, loss)
    assert step.__doc__ == "The loss."
    before = dict(tree_flatten(model.parameters()))
    (value, aside), gradients = step(mx.ones((5, 2)), y=1.0)
    assert aside == "aside"
    assert value.shape == ()
    assert [path for path, _ in tree_flatten(gradients)] == ["layers.0.weight", "layers.2.weight"]
    after = dict(tree_flatten(model.parameters()))
    assert all(after[path] is before[path] for path in before)


def test_value_and_grad_agrees_with_grad_over_the_parameters():
    model = nn.Linear(2, 1)
    x = mx.array([[1.0, 2.0], [3.0, 4.0]])
    _, gradients = nn.value_and_grad(model, lambda m, v: m(v).sum())(model, x)
    assert gradients["weight"].tolist() == [[4, 6]]
    assert gradients["bias"].tolist() == [2]


def test_parameters_come_back_after_an_error():
    model = nn.Linear(1, 1)
    weight = model.weight

    def fail():
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        nn.value_and_grad(model, fail)()
    assert model.weight is weight


def test_what_the_function_assigns_stays():
    model = nn.Linear(1, 1)
    model.freeze(keys="bias")

    def loss(x):
        model.bias = mx.ones((1,))
        return model(x).sum()

    nn.value_and_grad(model, loss)(mx.ones((1, 1)))
    assert model.bias.tolist() == [1]


def test_frozen_entries_of_lists_do_not_disturb():
    model = nn.Module()
    model.factors = [mx.array(2.0), mx.array(3.0)]
    model.freeze(keys="factors.0")
    _, gradients = nn.value_and_grad(model, lambda: model.factors[0] * model.factors[1])()
    assert gradients["factors"][1].item() == 2
    optim.SGD(1.0).update(model, gradients)
    assert [factor.item() for factor in model.factors] == [2, 1]


def test_value_and_grad_wants_a_module():
    with pytest.raises(TypeError, match="must be a Module; got int"):
        nn.value_and_grad(3, lambda: mx.array(0.0))  # type: ignore[arg-type]  # on purpose


def make_step(seed, dropout):
    """A model, its state, and a training step with fixed data."""
    mx.random.seed(seed)
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5 if dropout else 0.0), nn.Linear(8, 3)]
    model = nn.Sequential(*layers)
    optimizer = optim.Adam(optim.linear_schedule(0.01, 0.1, 5), bias_correction=True)
    rng = np.random.default_rng(seed)
    x = mx.array(rng.normal(size=(16, 4)).astype(np.float32))
    y = mx.array(rng.integers(0, 3, 16))
    state = [model.state, optimizer.state, mx.random.state]
    value_and_grad = nn.value_and_grad(model, lambda: nn.losses.cross_entropy(model(x), y, reduction="mean"))

    def step():
        loss, gradients = value_and_grad()
        gradients, _ = optim.clip_grad_norm(gradients, 1.0)
        optimizer.update(model, gradients)
        return loss

    return model, optimizer, state, step


def run(seed, dropout, compiled, prepared=True, steps=6):
    model, optimizer, state, step = make_step(seed, dropout)
    if prepared:
        optimizer.init(model.trainable_parameters())
    if compiled:
        step = mx.compile(step, inputs=state, outputs=state)
    losses = []
    for _ in range(steps):
        losses.append(step())
        mx.eval(state)
    assert model.state is state[0]
    assert optimizer.state is state[1]
    return [loss.item() for loss in losses], dict(tree_flatten(model.parameters())), optimizer


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("dropout", [False, True])
def test_a_compiled_step_trains_like_an_eager_one(dropout, prepared):
    eager_losses, eager_parameters, _ = run(3, dropout, compiled=False)
    losses, parameters, optimizer = run(3, dropout, compiled=True, prepared=prepared)
    np.testing.assert_allclose(losses, eager_losses, rtol=1e-5)
    for path, parameter in parameters.items():
        np.testing.assert_allclose(np.array(parameter), np.array(eager_parameters[path]), rtol=1e-4, atol=1e-5)
    assert optimizer.step.item() == 6
    np.testing.assert_allclose(optimizer.learning_rate.item(), 0.1, rtol=1e-6)
    assert len(set(losses)) == len(losses)


def test_training_lowers_the_loss():
    losses, _, _ = run(0, dropout=False, compiled=True, steps=40)
    assert losses[-1] < 0.5 * losses[0]


def test_modes_are_seen_by_a_compiled_evaluation():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    evaluate = mx.compile(lambda x: model(x), inputs=model.state)
    x = mx.ones((3, 2))
    assert mx.array_equal(evaluate(x), model.layers[0](x))
    model.layers[0].weight = mx.zeros((2, 2))
    assert mx.array_equal(evaluate(x), mx.broadcast_to(model.layers[0].bias, (3, 2)))


def test_modules_that_were_frozen_and_are_not_are_as_before():
    """Otherwise a compiled function would be traced again."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3))
    compiled = mx.compile(lambda x: model(x), inputs=model.state)
    x = mx.ones((4, 2))
    compiled(x)
    before = counters.traces
    model.freeze().unfreeze()
    compiled(x)
    assert counters.traces == before
    model.layers[0]._no_grad.add("bias")
    assert list(model.trainable_parameters()["layers"][0]) == ["weight"]
    compiled(x)
    assert counters.traces == before + 1
