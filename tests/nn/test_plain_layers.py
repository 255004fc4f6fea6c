"""Linear, normalising and other plain layers, activations and initialisers of `weft.nn`, alone and against MLX."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn


def assert_close(actual, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.array(actual), np.array(expected), rtol=rtol, atol=atol)


def test_linear():
    layer = nn.Linear(2, 3)
    layer.update({"weight": mx.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "bias": mx.array([0.0, 1.0, 2.0])})
    assert layer(mx.array([[1.0, 1.0]])).tolist() == [[3, 8, 13]]
    assert "bias" not in nn.Linear(2, 3, bias=False)
    assert nn.Linear(2, 3, bias=False)(mx.ones((5, 4, 2))).shape == (5, 4, 3)
    bound = 1 / math.sqrt(100)
    weight = np.array(nn.Linear(100, 200).weight)
    assert bound * 0.99 < np.abs(weight).max() <= bound
    with pytest.raises(ValueError, match=r"Linear\(input_dims=2.*last size of the input must be 2.*\(4, 5\)"):
        layer(mx.ones((4, 5)))
    with pytest.raises(ValueError, match=r"\[Linear\] input_dims must be at least 1; got 0"):
        nn.Linear(0, 3)


def test_embedding():
    table = nn.Embedding(4, 2)
    assert mx.array_equal(table(mx.array([[1, 3]]))[0, 1], table.weight[3])
    assert_close(table.as_linear(mx.array([1.0, 0.0])), table.weight[:, 0])


def test_dropout():
    x = mx.ones((10_000,))
    dropped = np.array(nn.Dropout(0.25)(x))
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(dropped.mean() - 1) < 0.05
    assert nn.Dropout(0.25).eval()(x) is x
    assert nn.Dropout(0.0)(x) is x
    assert nn.Dropout(0.5)(x.astype(mx.float16)).dtype == mx.float16
    for p in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            nn.Dropout(p)


@pytest.mark.parametrize("layer", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_normalisation_against_mlx(mlx_package, layer, dtype):
    x = np.random.default_rng(0).normal(2, 3, (4, 8)).astype(dtype)
    weight = np.linspace(0, 1, 8).astype(dtype)
    results = []
    for core, layers in ((mx, nn), (mlx_package.core, mlx_package.nn)):
        norm = getattr(layers, layer)(8).update({"weight": core.array(weight)})
        norm.set_dtype(getattr(core, dtype))
        results.append(np.array(norm(core.array(x))))
    assert results[0].dtype == results[1].dtype
    assert_close(*results, **({} if dtype == "float32" else {"rtol": 2e-3, "atol": 2e-3}))


@pytest.mark.parametrize("layer", ["LayerNorm", "RMSNorm"])
def test_normalised_integers_are_float32(mlx_package, layer):
    x = np.array([[1, 2, 4], [0, -5, 3]])
    actual = getattr(nn, layer)(3)(mx.array(x))
    assert actual.dtype == mx.float32
    assert_close(actual, getattr(mlx_package.nn, layer)(3)(mlx_package.core.array(x)))


def test_normalisation_checks_the_size():
    for norm in (nn.LayerNorm(3), nn.RMSNorm(3)):
        with pytest.raises(ValueError, match=r"Norm\(3.*last size of the input must be 3; got shape \(2, 4\)"):
            norm(mx.ones((2, 4)))
    assert nn.LayerNorm(3, affine=False).parameters() == {}
    assert set(nn.LayerNorm(3, bias=False).parameters()) == {"weight"}


def test_sequential_and_identity():
    assert nn.Sequential()(3) == 3
    assert nn.Sequential(mx.abs, nn.Identity("anything", key=1))(mx.array([-1.0])).tolist() == [1]


ACTIVATIONS = [
    ("relu", "ReLU"),
    ("leaky_relu", "LeakyReLU"),
    ("elu", "ELU"),
    ("gelu", "GELU"),
    ("gelu_approx", None),
    ("gelu_fast_approx", None),
    ("silu", "SiLU"),
    ("sigmoid", "Sigmoid"),
    ("tanh", "Tanh"),
    ("softplus", "Softplus"),
    ("softmax", "Softmax"),
    ("log_softmax", "LogSoftmax"),
    ("celu", "CELU"),
    ("selu", "SELU"),
    ("relu2", "ReLU2"),
    ("relu6", "ReLU6"),
    ("hard_tanh", "HardTanh"),
    ("hardswish", "Hardswish"),
    ("hard_shrink", "HardShrink"),
    ("softshrink", "Softshrink"),
    ("softsign", "Softsign"),
    ("log_sigmoid", "LogSigmoid"),
    ("mish", "Mish"),
    ("softmin", "Softmin"),
]


@pytest.mark.parametrize(("function", "layer"), ACTIVATIONS)
def test_activations_against_mlx(mlx_package, function, layer):
    x = np.array([[-40.0, -3.0, -0.5, 0.0], [0.5, 1.0, 2.0, 7.0]], np.float32)
    ours, theirs = getattr(nn, function), getattr(mlx_package.nn, function)
    assert_close(ours(mx.array(x)), theirs(mlx_package.core.array(x)))
    weights = np.arange(8, dtype=np.float32).reshape(2, 4)
    gradient = mx.grad(lambda v: (ours(v) * mx.array(weights)).sum())(mx.array(x))
    expected = mlx_package.core.grad(lambda v: (theirs(v) * mlx_package.core.array(weights)).sum())(
        mlx_package.core.array(x)
    )
    assert_close(gradient, expected)
    integers = np.array([-2, 0, 3])
    assert_close(ours(mx.array(integers)), theirs(mlx_package.core.array(integers)))
    assert ours(mx.array(x).astype(mx.float16)).dtype == mx.float16
    if layer is not None:
        assert mx.array_equal(getattr(nn, layer)()(mx.array(x)), ours(mx.array(x)))
        assert repr(getattr(nn, layer)()) == f"{layer}()"


def test_derivatives_at_zero():
    x, alpha = mx.zeros(1), mx.array([0.25])
    assert mx.grad(lambda x: nn.leaky_relu(x).sum())(x).item() == 1.0  # MLX's, unlike that of its relu
    assert mx.grad(lambda x: nn.prelu(x, alpha).sum())(x).item() == 1.0
    assert mx.grad(lambda x: nn.relu(x).sum())(x).item() == 0.0


def test_activation_settings():
    x = mx.array([-2.0, 3.0])
    assert nn.leaky_relu(x, 2.0).tolist() == nn.LeakyReLU(negative_slope=2.0)(x).tolist() == [-4, 3]
    assert mx.array_equal(nn.ELU(alpha=3.0)(x), nn.elu(x, 3.0))
    columns = mx.zeros((2, 4))
    assert nn.softmax(columns, axis=0).tolist() == [[0.5] * 4] * 2
    assert_close(nn.log_softmax(columns, axis=0), np.full((2, 4), -math.log(2)))
    assert mx.array_equal(nn.GELU("tanh")(x), nn.gelu_approx(x))
    assert mx.array_equal(nn.GELU("precise")(x), nn.gelu_approx(x))
    assert mx.array_equal(nn.GELU("fast")(x), nn.gelu_fast_approx(x))
    with pytest.raises(ValueError, match=r"\[GELU\] approx must be one of .* got 'coarse'"):
        nn.GELU("coarse")


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_the_slope_of_elu_in_zero_is_that_from_the_left(alpha):
    assert mx.grad(lambda x: nn.elu(x, alpha))(mx.array(0.0)).item() == alpha


def test_gradients_stay_finite_where_a_branch_is_not_taken():
    assert mx.grad(lambda x: nn.elu(x).sum())(mx.array([100.0])).tolist() == [1]
    gradient = mx.grad(lambda p: nn.losses.binary_cross_entropy(p, mx.array([1.0, 0.0]), with_logits=False))
    assert np.isfinite(np.array(gradient(mx.array([0.0, 1.0])))).all()


@pytest.mark.parametrize(
    ("initializer", "arguments", "deviation"),
    [
        (nn.init.normal(0.0, 2.0), {}, 2.0),
        (nn.init.uniform(-3.0, 3.0), {}, 3 / math.sqrt(3)),
        (nn.init.glorot_normal(), {}, math.sqrt(2 / (200 * 3 + 100 * 3))),
        (nn.init.glorot_uniform(), {"gain": 2.0}, 2 * math.sqrt(2 / (200 * 3 + 100 * 3))),
        (nn.init.he_normal(), {}, 1 / math.sqrt(100 * 3)),
        (nn.init.he_normal(), {"mode": "fan_out", "gain": 2.0}, 2 / math.sqrt(200 * 3)),
        (nn.init.he_uniform(), {}, 1 / math.sqrt(100 * 3)),
    ],
)
def test_initialisers_have_their_spread(initializer, arguments, deviation):
    values = np.array(initializer(mx.zeros((200, 3, 100)), **arguments))
    assert values.shape == (200, 3, 100)
    assert abs(values.mean()) < 0.02 * deviation
    assert abs(values.std() / deviation - 1) < 0.02


def test_plain_initialisers():
    assert nn.init.constant(2, mx.float16)(mx.zeros((2,))).tolist() == [2, 2]
    assert nn.init.constant(2, mx.float16)(mx.zeros((2,))).dtype == mx.float16
    assert nn.init.identity()(mx.zeros((2, 2))).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(ValueError, match=r"square matrix; got shape \(2, 3\)"):
        nn.init.identity()(mx.zeros((2, 3)))
    for initializer in (nn.init.glorot_normal(), nn.init.he_uniform()):
        with pytest.raises(ValueError, match=r"_(normal|uniform)\] At least two axes .* got shape \(3,\)"):
            initializer(mx.zeros((3,)))
    with pytest.raises(ValueError, match=r"\[he_normal\] .* got 'fan'"):
        nn.init.he_normal()(mx.zeros((2, 2)), mode="fan")  # type: ignore[arg-type]  # on purpose
