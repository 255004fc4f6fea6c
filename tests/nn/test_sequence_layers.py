"""Recurrent, attention and transformer layers, compared with those of MLX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.nn as nn
from tests.nn.layer_oracle import Row, check_beginning, check_bfloat16, check_numbers, numbers
from tests.sampling import Cases
from weft.utils import tree_flatten

UNTYPED: Any = nn  # so that the type checker lets wrong arguments pass
SEQUENCES = numbers(2, 4, 3)
STATE = numbers(2, 5)
WIDE, MEMORY = numbers(2, 4, 16), numbers(2, 3, 16)
CAUSAL = np.triu(np.full((4, 4), -1e9, np.float32), 1)

ROWS = {
    "RNN": Row(lambda nn: nn.RNN(3, 5), (SEQUENCES,)),
    "RNN with a state": Row(lambda nn: nn.RNN(3, 5, bias=False), (SEQUENCES, STATE)),
    "RNN of positive numbers": Row(lambda nn: nn.RNN(3, 5, nonlinearity=nn.silu), (numbers(4, 3),)),
    "GRU": Row(lambda nn: nn.GRU(3, 5), (SEQUENCES,)),
    "GRU with a state": Row(lambda nn: nn.GRU(3, 5), (SEQUENCES, STATE)),
    "GRU without bias": Row(lambda nn: nn.GRU(3, 5, bias=False), (numbers(4, 3), numbers(5))),
    "LSTM": Row(lambda nn: nn.LSTM(3, 5), (SEQUENCES,)),
    "LSTM with a state": Row(lambda nn: nn.LSTM(3, 5), (SEQUENCES, STATE, STATE + 1)),
    "LSTM with cells only": Row(lambda nn: nn.LSTM(3, 5, bias=False), (numbers(3, 2, 4, 3), None, numbers(3, 2, 5))),
    "attention": Row(lambda nn: nn.MultiHeadAttention(16, 4), (WIDE, WIDE, WIDE, "causal")),
    "attention of other sizes": Row(
        lambda nn: nn.MultiHeadAttention(8, 2, 3, 5, 6, 12, 7, bias=True),
        (numbers(2, 4, 3), numbers(2, 3, 5), numbers(2, 3, 6), numbers(2, 1, 4, 3)),
    ),
    "encoder layer": Row(lambda nn: nn.TransformerEncoderLayer(16, 4, 24, 0.25), (WIDE, None)),
    "decoder layer": Row(
        lambda nn: nn.TransformerDecoderLayer(16, 4, 24, 0.25, nn.gelu, norm_first=False), (WIDE, MEMORY, CAUSAL, None)
    ),
    "encoder": Row(lambda nn: nn.TransformerEncoder(2, 16, 4, checkpoint=True, norm_first=False), (WIDE, CAUSAL)),
    "decoder": Row(lambda nn: nn.TransformerDecoder(2, 16, 4, 8), (WIDE, MEMORY, CAUSAL, None)),
    "transformer": Row(lambda nn: nn.Transformer(16, 2, 1, 1, dropout=0.5), (MEMORY, WIDE, None, CAUSAL, None)),
}


def test_numbers_against_mlx(mlx_package: Any, tmp_path: Path, cases: Cases) -> None:
    for name in cases.some(2, list(ROWS)):
        check_numbers(mlx_package, ROWS[name], tmp_path)


def test_bfloat16_against_mlx(mlx_package: Any, tmp_path: Path, cases: Cases) -> None:
    for name in cases.some(1, list(ROWS)):
        check_bfloat16(mlx_package, ROWS[name], tmp_path)


def test_beginnings_against_mlx(mlx_package: Any, cases: Cases) -> None:
    for name in cases.some(5, list(ROWS)):
        check_beginning(mlx_package, ROWS[name])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_no_steps_are_no_states(kind: Any) -> None:
    outputs = kind(3, 5)(mx.zeros((2, 0, 3)), mx.zeros((5,)))
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        assert (output.shape, output.dtype) == ((2, 0, 5), mx.float32)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_the_steps_of_a_gru(bias: bool, begun: bool) -> None:
    """The formulas in NumPy: the last bias is added before the reset gate multiplies."""
    layer = nn.GRU(3, 5, bias=bias)
    weights = {name: np.array(array, np.float64) for name, array in layer.parameters().items()}
    (w_r, w_z, w_n), (u_r, u_z, u_n) = (np.split(weights[name], 3) for name in ("Wx", "Wh"))
    b_r, b_z, b_n = np.split(weights.get("b", np.zeros(15)), 3)
    b_hn = weights.get("bhn", np.zeros(5))
    x, hidden = numbers(4, 3), numbers(5) if begun else np.zeros(5)
    states = []
    for step in x.astype(np.float64):
        reset, update = (
            1 / (1 + np.exp(-(w @ step + u @ hidden + b))) for w, u, b in ((w_r, u_r, b_r), (w_z, u_z, b_z))
        )
        new = np.tanh(w_n @ step + b_n + reset * (u_n @ hidden + b_hn))
        hidden = (1 - update) * new + update * hidden
        states.append(hidden)
    assert bool(weights.get("bhn", np.zeros(5)).any()) == bias
    found = layer(mx.array(x), mx.array(numbers(5))) if begun else layer(mx.array(x))
    np.testing.assert_allclose(found, states, rtol=1e-5, atol=1e-6)


def test_a_state_may_have_the_batch() -> None:
    layer, states = nn.GRU(3, 5), mx.array(STATE)
    steps = mx.array(numbers(4, 3))
    together = layer(steps, states)
    for row in range(2):
        np.testing.assert_allclose(together[row], layer(steps, states[row]), rtol=1e-5, atol=1e-6)


def test_sequences_go_through_every_transformation() -> None:
    layer, x = nn.LSTM(3, 5), mx.array(SEQUENCES)

    def loss(x: mx.array) -> mx.array:
        return (layer(x)[0] ** 2).sum()

    gradient = mx.grad(loss)(x)
    direction = mx.array(numbers(2, 4, 3, low=0))
    (_, slope) = mx.jvp(loss, [x], [direction])
    np.testing.assert_allclose(slope[0], (gradient * direction).sum(), rtol=1e-4)
    np.testing.assert_allclose(mx.vmap(mx.grad(loss))(x), gradient, rtol=1e-4, atol=1e-6)
    assert mx.array_equal(mx.compile(mx.grad(loss))(x), gradient)


def test_checkpoints_change_no_number() -> None:
    x = mx.array(WIDE)
    encoder = nn.TransformerEncoder(1, 16, 4, dropout=0.5)

    def gradients() -> Any:
        mx.random.seed(1)
        return tree_flatten(nn.value_and_grad(encoder, lambda: encoder(x, None).sum())()[1])

    plain = gradients()
    encoder.checkpoint = True
    for (name, expected), (_, found) in zip(plain, gradients(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_encoders_and_decoders_may_be_other_functions() -> None:
    model = nn.Transformer(16, 4, custom_encoder=lambda x, mask: x + 1, custom_decoder=lambda x, memory, *masks: memory)
    assert mx.array_equal(model(mx.array(WIDE), mx.array(MEMORY), None, None, None), mx.array(WIDE) + 1)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_additive_causal_masks(mlx_package: Any, name: str) -> None:
    core = mlx_package.core
    mask = nn.MultiHeadAttention.create_additive_causal_mask(3, getattr(mx, name))
    expected = mlx_package.nn.MultiHeadAttention.create_additive_causal_mask(3, getattr(core, name))
    assert mask.dtype == getattr(mx, name)
    np.testing.assert_array_equal(mask.astype(mx.float32), np.array(expected.astype(core.float32)))


ERRORS = {
    "no steps": (lambda: nn.RNN(3, 5)(mx.ones((3,))), ValueError, r"\[RNN\(.*\(\.\.\., length, 3\); got \(3,\)"),
    "features": (lambda: nn.GRU(3, 5)(mx.ones((2, 4))), ValueError, r"\[GRU\(.*length, 3\); got \(2, 4\)"),
    "a state": (
        lambda: nn.GRU(3, 5)(mx.ones((2, 3)), mx.ones((4,))),
        ValueError,
        r"hidden .* \(\.\.\., 5\); got \(4,\)",
    ),
    "a batch": (
        lambda: nn.LSTM(3, 5)(mx.ones((2, 2, 3)), None, mx.ones((3, 5))),
        ValueError,
        r"\[LSTM.* cell of shape \(3, 5\) does not broadcast with a batch of shape \(2,\)",
    ),
    "a list": (lambda: UNTYPED.LSTM(3, 5)([1.0]), TypeError, r"\[LSTM.*list"),
    "sizes": (lambda: UNTYPED.LSTM(3, 0), ValueError, r"\[LSTM\] hidden_size must be at least 1; got 0"),
    "no function": (lambda: UNTYPED.RNN(3, 5, nonlinearity=3), ValueError, r"\[RNN\] nonlinearity .* got 3"),
    "heads": (lambda: nn.MultiHeadAttention(16, 5), ValueError, r"5 heads do not divide dims, 16"),
    "heads of values": (lambda: nn.MultiHeadAttention(16, 4, value_dims=6), ValueError, r"4 heads .* value_dims, 6"),
    "no batch": (
        lambda: nn.MultiHeadAttention(4, 2)(*[mx.ones((3, 4))] * 3),
        ValueError,
        r"\[MultiHeadAttention\] queries have the shape \(batch, T, features\).* got \(3, 4\), \(3, 4\)",
    ),
    "keys without values": (
        lambda: nn.MultiHeadAttention(4, 2)(mx.ones((1, 2, 4)), mx.ones((1, 2, 4)), mx.ones((1, 3, 4))),
        ValueError,
        r"\(1, 2, 4\), \(1, 2, 4\) and \(1, 3, 4\)",
    ),
    "layers": (lambda: UNTYPED.TransformerEncoder(-1, 4, 2), ValueError, r"\[TransformerEncoder\] num_layers"),
    "no activation": (
        lambda: UNTYPED.TransformerDecoderLayer(4, 2, activation=3),
        TypeError,
        r"\[TransformerDecoderLayer\] activation must be a function",
    ),
    "an integer mask": (
        lambda: nn.MultiHeadAttention.create_additive_causal_mask(2, mx.int32),
        ValueError,
        "finfo",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
