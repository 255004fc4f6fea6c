"""Layers compared with those of MLX that have the same weights: results, gradients, dtypes, modes, files."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.checks import Counted, assert_same_bits
from tests.nn.layer_rows import ROWS, Row
from tests.sampling import Cases
from weft.utils import tree_flatten, tree_unflatten

NAMES = list(ROWS)


class Side:
    """One of the two packages."""

    def __init__(self, core: Any, layers: Any) -> None:
        self.core, self.layers = core, layers

    def array(self, x: np.ndarray[Any, Any], dtype: str = "float32") -> Any:
        return self.core.array(x).astype(getattr(self.core, dtype))

    def layer(self, row: Row, parameters: dict[str, np.ndarray[Any, Any]], dtype: str = "float32") -> Any:
        self.core.random.seed(7)
        layer = row.make(self.layers)
        weights = [(path, self.array(value, dtype)) for path, value in parameters.items()]
        if weights:
            layer.update(tree_unflatten(weights))
        self.core.random.seed(8)
        return layer

    def result(self, layer: Any, row: Row, inputs: list[Any]) -> Any:
        return layer(*inputs, **row.keywords)

    def gradients(self, layer: Any, row: Row, inputs: list[Any]) -> dict[str, Any]:
        """Gradients of a sum in which each element of the result has another weight."""

        def loss(parameters: Any, inputs: list[Any]) -> Any:
            layer.update(parameters)
            result = self.result(layer, row, inputs).astype(self.core.float32)
            return (result * self.core.cos(self.core.arange(result.size)).reshape(result.shape)).sum()

        parameters = layer.trainable_parameters()
        of_parameters, of_inputs = self.core.grad(loss, argnums=(0, 1))(parameters, inputs)
        layer.update(parameters)
        return dict(tree_flatten({"parameters": of_parameters, "inputs": of_inputs}))


WEFT = Side(mx, nn)


@pytest.fixture
def mlx_side(mlx_package: Any) -> Side:
    return Side(mlx_package.core, mlx_package.nn)


def numbers(row: Row, rng: np.random.Generator) -> tuple[dict[str, Any], list[Any]]:
    """Parameters and inputs that float16 and bfloat16 represent exactly."""
    layer = row.make(nn)
    parameters = {path: drawn(value.shape, rng) for path, value in tree_flatten(layer.parameters())}
    for path in parameters:
        if path.endswith("running_var"):
            parameters[path] = np.abs(parameters[path]) + 0.5
    return parameters, [drawn(shape, rng) for shape in row.inputs]


def drawn(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.normal(size=shape).astype(ml_dtypes.bfloat16).astype(np.float32)


def assert_close(found: Any, expected: Any, tolerance: float, what: str) -> None:
    a, b = np.array(found.astype(mx.float32)), np.array(expected).astype(np.float64)
    assert a.shape == b.shape, what
    scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale, err_msg=what)


@pytest.mark.parametrize("training", [True, False])
def test_forward_and_gradients(training: bool, cases: Cases, rng: np.random.Generator, mlx_side: Side) -> None:
    different = [name for name in NAMES if name.startswith(("BatchNorm", "Dropout"))]
    for name in cases.some(6, NAMES) if training else cases.some(2, different):
        row = ROWS[name]
        parameters, arrays = numbers(row, rng)
        ours, theirs = [side.layer(row, parameters).train(training) for side in (WEFT, mlx_side)]
        assert_close(
            WEFT.result(ours, row, [WEFT.array(x) for x in arrays]),
            mlx_side.result(theirs, row, [mlx_side.array(x) for x in arrays]),
            1e-5,
            name,
        )
        state = dict(tree_flatten(theirs.parameters()))
        for path, found in tree_flatten(ours.parameters()):
            assert_close(found, state.pop(path), 1e-5, f"{name} {path}")
        assert not state
        if "gradients" in row.without:
            continue
        for side in (WEFT, mlx_side):
            side.core.random.seed(9)
        expected = mlx_side.gradients(theirs, row, [mlx_side.array(x) for x in arrays])
        for path, found in WEFT.gradients(ours, row, [WEFT.array(x) for x in arrays]).items():
            assert_close(found, expected.pop(path), 2e-5, f"{name}, gradient of {path}")
        assert not expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, cases: Cases, rng: np.random.Generator, mlx_side: Side) -> None:
    """Results have MLX's dtype; their numbers are those in float32 up to some roundings."""
    for name in cases.some(4, NAMES):
        row = ROWS[name]
        parameters, arrays = numbers(row, rng)
        theirs = mlx_side.layer(row, parameters, dtype)
        expected = mlx_side.result(theirs, row, [mlx_side.array(x, dtype) for x in arrays])
        found = WEFT.result(WEFT.layer(row, parameters, dtype), row, [WEFT.array(x, dtype) for x in arrays])
        assert str(found.dtype).split(".")[-1] == str(expected.dtype).split(".")[-1], name
        wide = mlx_side.result(mlx_side.layer(row, parameters), row, [mlx_side.array(x) for x in arrays])
        assert_close(found, wide, 2**-6 if dtype == "bfloat16" else 2**-9, name)


def test_another_batch_needs_no_trace(cases: Cases, rng: np.random.Generator) -> None:
    for name in cases.some(3, [name for name in NAMES if "shapeless" not in ROWS[name].without]):
        row = ROWS[name]
        layer = row.make(nn).eval()
        called = Counted(partial(layer, **row.keywords))
        compiled = mx.compile(called.function, shapeless=True)
        for more in (0, 1):
            inputs = [mx.array(drawn((shape[0] + more, *shape[1:]), rng)) for shape in row.inputs]
            assert_same_bits(compiled(*inputs), WEFT.result(layer, row, inputs))
        assert called.calls == 1, name


def test_initial_weights_and_texts(cases: Cases, mlx_side: Side) -> None:
    for name in cases.some(20, NAMES):
        row = ROWS[name]
        ours, theirs = WEFT.layer(row, {}), mlx_side.layer(row, {})
        for (path, found), (_, expected) in zip(
            sorted(tree_flatten(ours.parameters())), sorted(tree_flatten(theirs.parameters())), strict=True
        ):
            assert_close(found, expected, 1e-6, f"{name} {path}")
        if "antialias" not in name and "Sinusoidal" not in name:
            assert repr(ours) == repr(theirs)


def test_parameters_come_in_the_same_order(mlx_side: Side) -> None:
    """Programs may assign weights of another framework in the order of ``tree_flatten``."""
    for name, row in ROWS.items():
        found, expected = [
            [path for path, _ in tree_flatten(side.layer(row, {}).parameters())] for side in (WEFT, mlx_side)
        ]
        assert found == expected, name


def test_layers_can_be_pickled_and_copied() -> None:
    for row in ROWS.values():
        layer = row.make(nn).eval()
        for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
            assert repr(twin) == repr(layer)
            assert [path for path, _ in tree_flatten(twin)] == [path for path, _ in tree_flatten(layer)]
            assert twin.training is False


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_files_are_read_by_the_other(suffix: str, cases: Cases, tmp_path: Path, mlx_side: Side) -> None:
    for name in cases.some(5, [name for name in NAMES if WEFT.layer(ROWS[name], {}).parameters()]):
        file = str(tmp_path / f"weights.{suffix}")
        row = ROWS[name]
        ours, theirs = row.make(nn), row.make(mlx_side.layers)
        for writer, reader in ((ours, theirs), (theirs, ours)):
            writer.save_weights(file)
            reader.load_weights(file)
            for path, expected in tree_flatten(writer.parameters()):
                found = dict(tree_flatten(reader.parameters()))[path]
                np.testing.assert_array_equal(np.array(found), np.array(expected))
