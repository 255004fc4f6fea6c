"""Attention beyond the table: sizes that are open, no keys, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx

attention = mx.fast.scaled_dot_product_attention


def arrays(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[mx.array]:
    return [mx.array(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def test_one_shapeless_trace_serves_caches_of_all_lengths(rng: np.random.Generator) -> None:
    def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return attention(q, k, v, scale=0.3, mask="causal")

    compiled = mx.compile(attend, shapeless=True)
    for batch, queries, keys in ((1, 3, 5), (2, 1, 9), (3, 4, 2)):
        qkv = arrays(rng, (batch, 4, queries, 8), (batch, 2, keys, 8), (batch, 2, keys, 6))
        assert mx.array_equal(compiled(*qkv), attend(*qkv)).item()


def test_without_keys_there_is_nothing() -> None:
    result = attention(mx.ones((1, 2, 3, 4)), mx.ones((1, 2, 0, 4)), mx.ones((1, 2, 0, 5)), scale=1.0)
    assert result.shape == (1, 2, 3, 5)
    assert not mx.any(result).item()


def test_large_scores_do_not_overflow() -> None:
    q, k, v = mx.full((1, 1, 1, 2), 1e15), mx.array([[[[1e15, 0.0], [0.0, 1e15]]]]), mx.array([[[[1.0], [3.0]]]])
    assert attention(q, k, v, scale=1.0).item() == 2.0


Q, K = mx.zeros((1, 4, 3, 8)), mx.zeros((1, 2, 5, 8))
ERRORS = [
    (lambda: attention(Q[0], K, K, scale=1.0), r"must have the axes \(batch, heads, positions, features\); q, k and v"),
    (lambda: attention(Q[:, :3], K, K, scale=1.0), r"The heads of q must be a multiple of those of k and v"),
    (lambda: attention(Q, K[..., :7], K, scale=1.0), r"must agree in B, M, S and D; q, k and v have the shapes"),
    (lambda: attention(Q, K, K[:, :, :4], scale=1.0), r"must agree in B, M, S and D"),
    (lambda: attention(Q, K, K, scale=1.0, mask="full"), r"mask must be None, 'causal' or an array; got 'full'"),
    (
        lambda: attention(Q, K, K, scale=1.0, mask=mx.ones((4, 5))),
        r"mask must broadcast to .* \(1, 4, 3, 5\); its shape",
    ),
    (lambda: attention(Q, K, K, scale=1.0, mask=mx.ones((2, 4, 3, 5))), r"mask must broadcast to .* \(1, 4, 3, 5\)"),
    (
        lambda: attention(*(x.astype(mx.float16) for x in (Q, K, K)), scale=1.0, mask=mx.ones((3, 5))),
        r"mask of float32 would change the dtype of the result, float16. Convert it",
    ),
    (lambda: attention(Q, K, K, scale=1.0, sinks=mx.ones(2)), r"sinks must have one number for each of 4 heads"),
    (lambda: attention(Q.astype(mx.int32), K.astype(mx.int32), K.astype(mx.int32), scale=1.0), r"not of int32"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_say_what_fits(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
