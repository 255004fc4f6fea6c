"""Layers with quantised weights, and `nn.quantize`."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.nn.layer_oracle import Row, check_beginning, check_bfloat16, check_numbers, numbers
from tests.sampling import Cases

UNTYPED: Any = nn  # so that the type checker lets wrong arguments pass
INDICES = np.array([[1, 9, 0], [3, 3, 7]])

ROWS = {
    "linear": Row(lambda nn: nn.QuantizedLinear(128, 5), (numbers(2, 3, 128),)),
    "linear without bias": Row(lambda nn: nn.QuantizedLinear(64, 5, False, 32, 8), (numbers(2, 64),)),
    "linear mxfp4": Row(lambda nn: nn.QuantizedLinear(64, 5, mode="mxfp4"), (numbers(64),)),
    "linear mxfp8": Row(lambda nn: nn.QuantizedLinear(64, 5, mode="mxfp8"), (numbers(3, 64),)),
    "linear nvfp4": Row(lambda nn: nn.QuantizedLinear(64, 5, mode="nvfp4"), (numbers(3, 64),)),
    "linear of 3 bits": Row(lambda nn: nn.Linear(64, 5).to_quantized(32, 3), (numbers(3, 64),)),
    "embedding": Row(lambda nn: nn.QuantizedEmbedding(10, 128), (INDICES,)),
    "embedding mxfp8": Row(lambda nn: nn.QuantizedEmbedding(10, 64, mode="mxfp8"), (INDICES,)),
    "embedding nvfp4": Row(lambda nn: nn.Embedding(10, 64).to_quantized(mode="nvfp4"), (INDICES,)),
}


def test_numbers_against_mlx(mlx_package: Any, tmp_path: Path, cases: Cases) -> None:
    for name in cases.some(2, list(ROWS)):
        check_numbers(mlx_package, ROWS[name], tmp_path)


def test_bfloat16_against_mlx(mlx_package: Any, tmp_path: Path, cases: Cases) -> None:
    for name in cases.some(2, list(ROWS)):
        check_bfloat16(mlx_package, ROWS[name], tmp_path)


BEGINNINGS = {
    **ROWS,
    "both quantised": Row(lambda nn: nn.QQLinear(64, 5), ()),
    "both quantised, mxfp8": Row(lambda nn: nn.QQLinear(64, 5, mode="mxfp8"), ()),
    "both quantised, evaluating": Row(lambda nn: nn.QQLinear(64, 5).eval(), ()),
    "both quantised, training again": Row(lambda nn: nn.QQLinear(64, 5).eval().train(), ()),
    "from linear": Row(lambda nn: nn.QQLinear.from_linear(nn.Linear(64, 5, bias=False).eval()), ()),
}


def test_beginnings_against_mlx(mlx_package: Any, cases: Cases) -> None:
    for name in cases.some(3, list(BEGINNINGS)):
        check_beginning(mlx_package, BEGINNINGS[name])


def test_an_embedding_takes_single_numbers_and_none() -> None:
    table = nn.QuantizedEmbedding(10, 64)
    assert mx.array_equal(table(mx.array(3)), table(mx.array([3]))[0])
    assert table(mx.zeros((2, 0), mx.int32)).shape == (2, 0, 64)


def test_an_embedding_as_the_last_layer_is_the_product_with_its_rows() -> None:
    table, x = nn.QuantizedEmbedding(10, 64), mx.array(numbers(3, 64))
    np.testing.assert_allclose(table.as_linear(x), x @ table(mx.arange(10)).T, rtol=1e-5, atol=1e-6)


def test_a_layer_with_quantised_inputs_multiplies_quantised_numbers(cases: Cases) -> None:
    for mode, shape in cases.some(1, list(product(["nvfp4", "mxfp4", "mxfp8"], [(64,), (3, 64), (2, 3, 64)]))):
        check_quantised_inputs(mode, shape)


def check_quantised_inputs(mode: str, shape: tuple[int, ...]) -> None:
    layer = nn.QQLinear(64, 5, mode=mode)
    x = mx.array(numbers(*shape))

    def rounded(array: mx.array) -> mx.array:
        whole = array if array.ndim > 1 else array[None]
        values = mx.dequantize(*mx.quantize(whole, mode=mode), mode=mode, dtype=mx.float32)
        return values.reshape(array.shape)

    expected = rounded(x) @ rounded(layer.weight).T
    training = layer(x)
    np.testing.assert_allclose(training, expected, rtol=1e-5, atol=1e-5)
    # The gradient is that of a product with the rounded numbers.
    gradients = nn.value_and_grad(layer, lambda x: layer(x).sum())(x)[1]
    np.testing.assert_allclose(gradients["weight"][0], rounded(x).reshape(-1, 64).sum(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.eval()(x), training, rtol=1e-5, atol=1e-5)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 64)
        self.layers: list[Any] = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64, bias=False)]


def kinds(model: Model) -> list[str]:
    return [type(layer).__name__ for layer in [model.table, *model.layers]]


def test_quantize_replaces_what_the_predicate_chooses() -> None:
    model = Model()
    nn.quantize(model)
    assert kinds(model) == ["QuantizedEmbedding", "QuantizedLinear", "ReLU", "QuantizedLinear"]
    nn.quantize(model)  # nothing is left to replace
    seen = []

    def predicate(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        seen.append(path)
        return {"mode": "mxfp8", "quantize_input": True} if path == "layers.2" else path == "table"

    model = Model()
    nn.quantize(model, 32, 8, class_predicate=predicate)
    assert seen == ["table", "layers.0", "layers.1", "layers.2"]
    assert kinds(model) == ["QuantizedEmbedding", "Linear", "ReLU", "QQLinear"]
    assert repr(model.table) == "QuantizedEmbedding(10, 64, group_size=32, bits=8, mode=affine)"
    assert model.layers[2].mode == "mxfp8"


def test_layers_of_others_are_asked_only_for_what_is_wanted() -> None:
    """`nn.quantize` passes ``quantize_input`` only if it is set: layers of others may not accept it."""

    class Own(nn.Linear):
        def to_quantized(self, group_size: int | None, bits: int | None, mode: str) -> nn.Linear:  # type: ignore[override]
            return nn.Linear(1, 1)

    model = nn.Sequential(Own(64, 64))
    nn.quantize(model)
    assert type(model.layers[0]) is nn.Linear
    with pytest.raises(TypeError, match=r"`layers.0` cannot be quantised: .* 'quantize_input'"):
        nn.quantize(nn.Sequential(Own(64, 64)), mode="nvfp4", quantize_input=True)


def test_a_quantised_model_is_close_to_the_model() -> None:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 4))
    x = mx.random.normal((5, 64))
    before = model(x)
    nn.quantize(model, bits=8)
    assert mx.abs(model(x) - before).max() < 0.02


ERRORS = {
    "a size that groups do not divide": (
        lambda: nn.QuantizedLinear(100, 3),
        ValueError,
        r"\[QuantizedLinear\] .* 64 .* 100",
    ),
    "rows that groups do not divide": (
        lambda: nn.QuantizedEmbedding(9, 8),
        ValueError,
        r"\[QuantizedEmbedding\] .* dims",
    ),
    "inputs that groups do not divide": (lambda: nn.QQLinear(8, 9), ValueError, r"\[QQLinear\] .* 16 .* input_dims, 8"),
    "numbers of bits": (lambda: nn.QuantizedLinear(64, 3, bits=7), ValueError, r"\[QuantizedLinear\] bits .* got 7"),
    "text as a size": (lambda: UNTYPED.QuantizedEmbedding("a", 64), TypeError, r"\[QuantizedEmbedding\] num_embed"),
    "a mode": (lambda: nn.QQLinear(64, 3, mode="affine"), ValueError, r"\[QQLinear\] .* not 'affine'"),
    "a wrong input": (lambda: nn.QuantizedLinear(64, 3)(mx.ones((2, 3))), ValueError, r"64; got shape \(2, 3\)"),
    "a bias": (
        lambda: nn.Linear(64, 3).to_quantized(mode="nvfp4", quantize_input=True),
        NotImplementedError,
        r"\[QQLinear\] has no bias",
    ),
    "a table of inputs": (lambda: nn.Embedding(4, 64).to_quantized(quantize_input=True), ValueError, "quantize_input"),
    "the path": (
        lambda: nn.quantize(nn.Sequential(nn.Linear(64, 3), nn.Linear(3, 2))),
        ValueError,
        r"\[quantize\] `layers.1` cannot be quantised: .*groups of 64 do not divide input_dims, 3",
    ),
    "a layer that cannot be": (
        lambda: nn.quantize(nn.Sequential(nn.ReLU()), class_predicate=lambda path, layer: True),
        ValueError,
        "`layers.0` cannot be quantised: ReLU has no to_quantized",
    ),
    "a predicate": (
        lambda: UNTYPED.quantize(nn.Sequential(nn.ReLU()), class_predicate=lambda path, layer: None),
        TypeError,
        r"class_predicate must return a bool or a dict; got None",
    ),
    "the layer itself": (lambda: nn.quantize(nn.Linear(64, 3)), ValueError, r"to_quantized\(\) of Linear"),
    "no model": (lambda: UNTYPED.quantize(3), TypeError, r"\[quantize\] takes a Module; got 3"),
}


@pytest.mark.parametrize(("make", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
