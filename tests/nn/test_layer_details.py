"""Properties of single layers that `test_layers` does not compare: state, masks, integers, seeds, compiled
functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.nn as nn
import weft.optimizers as optim
from weft.utils import tree_flatten


def test_running_statistics_are_saved_but_never_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm(3))
    saved = [path for path, _ in tree_flatten(model.parameters())]
    assert {"layers.1.running_mean", "layers.1.running_var"} <= set(saved)
    model.freeze()
    for unfrozen in (model.unfreeze(), model.unfreeze(keys=["running_mean", "weight"])):
        trained = [path for path, _ in tree_flatten(unfrozen.trainable_parameters())]
        assert not any("running" in path for path in trained)
        assert "layers.1.weight" in trained


def test_running_statistics_move_while_training_only() -> None:
    layer = nn.BatchNorm(2, momentum=0.5)
    x = mx.array([[1.0, 2.0], [3.0, 6.0]])
    layer(x)
    assert layer.running_mean.tolist() == [1.0, 2.0]
    assert layer.running_var.tolist() == [1.5, 4.5]
    layer.eval()(x)
    assert layer.running_mean.tolist() == [1.0, 2.0]


def test_a_compiled_step_moves_running_statistics_as_an_eager_one() -> None:
    def steps(compiled: bool) -> tuple[dict[str, Any], mx.array]:
        mx.random.seed(0)
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm(2), nn.relu, nn.MaxPool2d(2), nn.Dropout2d(0.5))
        optimizer = optim.SGD(0.1)
        loss = nn.value_and_grad(model, lambda x: mx.square(model(x)).mean())
        state = [model.state, optimizer.state, mx.random.state]

        def step(x: mx.array) -> mx.array:
            value, gradients = loss(x)
            optimizer.update(model, gradients)
            return value

        run = mx.compile(step, inputs=state, outputs=state) if compiled else step
        x = mx.random.normal((4, 6, 6, 1))
        for _ in range(3):
            value = run(x)
        return dict(tree_flatten(model.parameters())), value

    (eager, value), (compiled, same) = steps(False), steps(True)
    assert value.item() == same.item()
    for path, array in eager.items():
        assert array.tolist() == compiled[path].tolist(), path


def test_statistics_of_half_precision_are_computed_in_float32(rng: np.random.Generator) -> None:
    x = (rng.normal(size=(4096, 3)) + 300).astype(np.float16)
    for layer in (nn.BatchNorm(3), nn.InstanceNorm(3), nn.GroupNorm(3, 3)):
        shaped = x if isinstance(layer, nn.BatchNorm) else x[None]
        wide = shaped.astype(np.float64)
        axes = tuple(range(wide.ndim - 1))
        expected = (wide - wide.mean(axes)) / np.sqrt(wide.var(axes) + 1e-5)
        layer.set_dtype(mx.float16)
        np.testing.assert_allclose(np.array(layer(mx.array(shaped))), expected, rtol=2**-10, atol=2e-3)


def test_functions_among_layers_are_part_of_the_state() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), mx.exp)
    traced = []

    def step(x: mx.array) -> mx.array:
        traced.append(x.shape)
        return model(x)

    run = mx.compile(step, inputs=model.state, outputs=model.state)
    x = mx.ones((1, 2))
    for function in (mx.exp, mx.exp, mx.sin, mx.sin, mx.exp):
        model.layers[1] = function
        assert mx.array_equal(run(x), model(x))
    assert len(traced) == 2
    model.layers[1] = object()
    with pytest.raises(ValueError, match=r"\[compile\] .*layers.*object"):
        run(x)


def test_pooling_of_integers_and_booleans() -> None:
    x = mx.array([-5, -3, -4]).reshape(1, 3, 1)
    assert nn.MaxPool1d(2, 2, 1)(x).flatten().tolist() == [-5, -3]
    assert nn.MaxPool1d(2, 2, 1)(x < -3).flatten().tolist() == [True, True]
    assert nn.MaxPool1d(2, 2, 1)(x > -5).flatten().tolist() == [False, True]
    assert nn.AvgPool1d(2, 1)(x).flatten().tolist() == [-4.0, -3.5]


def test_equal_largest_elements_share_the_gradient() -> None:
    for pool in (nn.MaxPool2d(2), nn.MaxPool2d(2, 1)):
        gradient = mx.grad(lambda x, pool=pool: pool(x).sum())(mx.ones((1, 2, 2, 1)))
        assert gradient.flatten().tolist() == [0.25] * 4


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AvgPool2d(2, 3)])
def test_pooling_transforms(pool: Any, rng: np.random.Generator) -> None:
    x = mx.array(rng.normal(size=(2, 6, 7, 3)).astype(np.float32))
    v = mx.array(rng.normal(size=x.shape).astype(np.float32))
    value, tangent = mx.jvp(pool, [x], [v])
    ct = mx.array(rng.normal(size=value[0].shape).astype(np.float32))
    _, pulled = mx.vjp(pool, [x], [ct])
    np.testing.assert_allclose(mx.sum(tangent[0] * ct).item(), mx.sum(pulled[0] * v).item(), rtol=1e-4)
    mapped = mx.vmap(pool, in_axes=2, out_axes=1)(mx.stack([x, v], axis=2))
    assert mx.array_equal(mapped, mx.stack([pool(x), pool(v)], axis=1))
    assert mx.array_equal(mx.compile(pool)(x), value[0])


def test_upsampled_integers_stay_integers_unless_interpolated() -> None:
    x = mx.array([1, 2]).reshape(1, 2, 1)
    assert nn.Upsample(2)(x).flatten().tolist() == [1, 1, 2, 2]
    assert nn.Upsample(2)(x).dtype == mx.int32
    assert nn.Upsample(2, "linear")(x).flatten().tolist() == [1.0, 1.25, 1.75, 2.0]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_nothing_can_be_upsampled(mode: Any) -> None:
    assert nn.Upsample(2, mode)(mx.zeros((0, 3, 2))).shape == (0, 6, 2)
    assert nn.Upsample(2, mode)(mx.zeros((1, 0, 2))).shape == (1, 0, 2)


def test_masks_of_alibi() -> None:
    scores = mx.zeros((1, 1, 1, 3))
    biases = nn.ALiBi()(scores).flatten()
    seen = nn.ALiBi()(scores, mask=mx.array([True, False, True])).flatten().tolist()
    assert seen == [biases[0].item(), -np.inf, biases[2].item()]
    added = nn.ALiBi()(scores, mask=mx.array([0.0, 1.0, 2.0])).flatten().tolist()
    assert added == (biases + mx.array([0.0, 1.0, 2.0])).tolist()


def test_positions_may_differ_by_example() -> None:
    x = mx.random.normal((2, 3, 4))
    both = nn.RoPE(4)(x, offset=mx.array([0, 5]))
    assert mx.array_equal(both[1:], nn.RoPE(4)(x[1:], offset=5))


def test_the_base_of_rotations_may_be_set_later():
    """Programs make the layer with what a configuration says, which may be nothing, and then replace it."""
    x = mx.arange(12.0).reshape(1, 3, 4)
    layer = nn.RoPE(4, base=None)
    with pytest.raises(ValueError, match="base"):
        layer(x)
    layer.base = 100.0
    assert mx.array_equal(layer(x), nn.RoPE(4, base=100.0)(x))


def test_inputs_of_bilinear_broadcast() -> None:
    layer = nn.Bilinear(2, 3, 4)
    x1, x2 = mx.random.normal((5, 1, 2)), mx.random.normal((6, 3))
    expected = mx.einsum("asi,bj,oji->abo", x1, x2, layer.weight) + layer.bias
    assert mx.allclose(layer(x1, x2), expected, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slopes_of_alibi_are_those_of_mlx(heads: int, dtype: str, mlx_package: Any) -> None:
    found, expected = (m.nn.ALiBi.create_alibi_slope(heads, getattr(m.core, dtype)) for m in (weft, mlx_package))
    assert found.dtype == getattr(mx, dtype)
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2)])
def test_orthogonal_matrices_are_those_of_mlx(shape: tuple[int, int], mlx_package: Any) -> None:
    mx.random.seed(3)
    mlx_package.core.random.seed(3)
    found, expected = nn.init.orthogonal(2.0)(mx.zeros(shape)), mlx_package.nn.init.orthogonal(2.0)
    np.testing.assert_allclose(np.array(found), np.array(expected(mlx_package.core.zeros(shape))), atol=1e-5)
    assert nn.init.orthogonal(dtype=mx.bfloat16)(mx.zeros(shape)).dtype == mx.bfloat16


@pytest.mark.parametrize("sparsity", [0, 0.3, 0.5, 1])
def test_sparse_matrices_are_those_of_mlx(sparsity: float, mlx_package: Any) -> None:
    mx.random.seed(3)
    mlx_package.core.random.seed(3)
    found = nn.init.sparse(sparsity, 1.0, 2.0)(mx.zeros((4, 7)))
    expected = mlx_package.nn.init.sparse(sparsity, 1.0, 2.0)(mlx_package.core.zeros((4, 7)))
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=1e-5)
