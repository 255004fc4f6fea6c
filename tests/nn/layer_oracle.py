"""Layers compared with those of MLX that have the same weights: a row says how to make a layer and which arguments its
calls get."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import weft
import weft.core as mx
import weft.nn
from weft.utils import tree_flatten

WEFT: Any = weft
NAMED_FUNCTION = r"(?<=nonlinearity=)(\w+|<.*?>)"


class Row(NamedTuple):
    """A layer and the arguments of its call: NumPy data are made arrays, anything else is passed on unchanged."""

    make: Callable[[Any], Any]
    """Makes the layer, given `weft.nn` or `mlx.nn`."""

    inputs: tuple[Any, ...]
    """Gradients are taken with respect to the first one, if it is of floating point, and to all parameters."""


def numbers(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray[Any, Any]:
    """Data that look random, and are the same in every run."""
    return np.random.default_rng(abs(hash(shape))).uniform(low, high, shape).astype(np.float32)


def check_numbers(mlx_package: Any, row: Row, folder: Path, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Values and gradients are those of MLX, with weights that were saved and loaded by both."""
    ours, theirs = _pair(mlx_package, row, folder)
    found, expected = _values_and_gradients(WEFT, ours, row), _values_and_gradients(mlx_package, theirs, row)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=rtol, atol=atol, err_msg=name)


def check_bfloat16(mlx_package: Any, row: Row, folder: Path) -> None:
    """In bfloat16, results have the dtypes of MLX, and are about as close as MLX's to those in float32."""
    ours, theirs = _pair(mlx_package, row, folder)
    other = mlx_package.core
    found, expected = _outputs(mx, ours, row, mx.bfloat16), _outputs(other, theirs, row, other.bfloat16)
    for result, beside, exact in zip(found, expected, _outputs(mx, ours, row, mx.float32), strict=True):
        assert _dtype(result) == _dtype(beside)
        error, usual = (abs(_plain(core, array) - exact).max() for core, array in ((mx, result), (other, beside)))
        assert error <= 2 * usual + 0.01 * abs(np.array(exact)).max()


def check_beginning(mlx_package: Any, row: Row) -> None:
    """A new layer prints as MLX's does, has the same parameters, and the same numbers for the same seed."""
    layers = []
    for package in (WEFT, mlx_package):
        package.core.random.seed(7)
        layers.append(row.make(package.nn))
    ours, theirs = layers
    assert re.sub(NAMED_FUNCTION, "", repr(ours)) == re.sub(NAMED_FUNCTION, "", repr(theirs))
    assert _names(ours.trainable_parameters()) == _names(theirs.trainable_parameters())
    expected = dict(_flat(theirs.parameters()))
    assert _names(ours.parameters()) == list(expected)
    for name, array in _flat(ours.parameters()):
        other = expected[name]
        assert _dtype(array) == _dtype(other)
        np.testing.assert_array_equal(_plain(mx, array), _plain(mlx_package.core, other), err_msg=name)


def _dtype(array: Any) -> str:
    return str(array.dtype).rpartition(".")[2]


def _plain(core: Any, array: Any) -> np.ndarray[Any, Any]:
    """NumPy data of an array; bfloat16, which NumPy lacks, becomes float32."""
    return np.array(array.astype(core.float32) if array.dtype == core.bfloat16 else array)


def _flat(tree: Any) -> list[tuple[str, Any]]:
    return sorted(tree_flatten(tree))


def _names(tree: Any) -> list[str]:
    return [name for name, _ in _flat(tree)]


def _pair(mlx_package: Any, row: Row, folder: Path) -> tuple[Any, Any]:
    """Layers of Weft and of MLX with the same parameters, none of them all zero or all one."""
    core = mlx_package.core
    ours, theirs = row.make(WEFT.nn), row.make(mlx_package.nn)

    def changed(array: Any) -> Any:
        if not core.issubdtype(array.dtype, core.floating):
            return array
        return array + core.array(numbers(*array.shape, low=-0.2, high=0.2))

    theirs.update(mlx_package.utils.tree_map(changed, theirs.parameters()))
    theirs.save_weights(str(folder / "theirs.safetensors"))
    ours.load_weights(str(folder / "theirs.safetensors"))
    ours.save_weights(str(folder / "ours.npz"))
    theirs.load_weights(str(folder / "ours.npz"))
    return ours, theirs


def _values_and_gradients(package: Any, layer: Any, row: Row) -> dict[str, Any]:
    core = package.core
    first, *rest = [core.array(value) if isinstance(value, np.ndarray) else value for value in row.inputs]

    def loss(parameters: Any, first: Any) -> Any:
        layer.update(parameters)
        core.random.seed(3)
        outputs = [array for _, array in _flat(layer(first, *rest))]
        weighted = [(output * core.array(numbers(*output.shape))).sum() for output in outputs]
        return sum(weighted), outputs

    arguments = (0, 1) if core.issubdtype(first.dtype, core.floating) else (0,)
    parameters = layer.trainable_parameters()
    if parameters or len(arguments) > 1:
        (_, outputs), gradients = core.value_and_grad(loss, arguments)(parameters, first)
    else:
        outputs, gradients = loss(parameters, first)[1], {}
    found = [*_flat({"gradient": gradients}), *_flat({"output": outputs})]
    return {name: _plain(core, array) for name, array in found}


def _outputs(core: Any, layer: Any, row: Row, dtype: Any) -> list[Any]:
    """The results in evaluation mode, in a dtype, with parameters and inputs that bfloat16 represents exactly."""
    layer.set_dtype(dtype)

    def converted(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        array = core.array(value)
        return array.astype(core.bfloat16).astype(dtype) if core.issubdtype(array.dtype, core.floating) else array

    return [array for _, array in _flat(layer.eval()(*map(converted, row.inputs)))]
