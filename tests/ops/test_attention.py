"""Attention beyond the table: shapeless traces, blocks, memory, no keys, vmap, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
import weft.primitives as p
from tests.checks import assert_same_bits
from weft.graph.node import reachable
from weft.runtime import executor

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


def by_definition(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, sinks: np.ndarray, cotangent: np.ndarray
) -> list[np.ndarray]:
    """Attention with a scale of 0.3, and the cotangents of all arguments; a mask of bool hides scores."""
    q, k, v, sinks, cotangent = [x.astype(np.float64) for x in (q, k, v, sinks, cotangent)]
    shared = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, shared, 1), np.repeat(v, shared, 1)
    scores = 0.3 * q @ keys.swapaxes(-1, -2)
    scores = np.where(mask, scores, -1e30) if mask.dtype == bool else scores + mask
    scores = np.concatenate([np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1)), scores], -1)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    of_weights = np.insert(cotangent @ values.swapaxes(-1, -2), 0, 0.0, axis=-1)
    change = weights * (of_weights - (weights * of_weights).sum(-1, keepdims=True))
    of_scores = change[..., 1:] if mask.dtype != bool else np.where(mask, change[..., 1:], 0)
    of_keys = [x.swapaxes(-1, -2) @ y for x, y in ((0.3 * of_scores, q), (weights[..., 1:], cotangent))]
    summed = [x.reshape(x.shape[0], -1, shared, *x.shape[2:]).sum(2) for x in of_keys]
    of_mask = of_scores.sum((0, 1))
    return [weights[..., 1:] @ values, 0.3 * of_scores @ keys, *summed, of_mask, change[..., 0].sum((0, 2))]


@pytest.mark.parametrize(
    ("queries", "keys", "kind", "with_sinks"),
    [
        (200, 260, "causal", True),  # blocks that see more and more keys
        (260, 200, "causal", False),  # the first blocks see no key
        (600, 500, "added", True),  # in blocks because of its size
        (600, 500, "hidden", False),
    ],
)
def test_blocks_give_what_the_definition_gives(
    rng: np.random.Generator, queries: int, keys: int, kind: str, with_sinks: bool
) -> None:
    q, k, v = arrays(rng, (1, 4, queries, 8), (1, 2, keys, 8), (1, 2, keys, 6))
    sinks, cotangent, added = arrays(rng, (4,), (1, 4, queries, 6), (queries, keys))
    seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    masks = {"causal": seen, "hidden": rng.random((4, queries, keys)) < 0.8, "added": np.array(added)}
    given = {"causal": "causal", "hidden": mx.array(masks["hidden"])}

    def attend(q: mx.array, k: mx.array, v: mx.array, mask: mx.array, sinks: mx.array) -> mx.array:
        return attention(q, k, v, scale=0.3, mask=given.get(kind, mask), sinks=sinks if with_sinks else None)

    found, cotangents = mx.vjp(attend, [q, k, v, added, sinks], [cotangent])
    shown = np.array(sinks) if with_sinks else np.full(4, -np.inf)
    right = by_definition(np.array(q), np.array(k), np.array(v), masks[kind], shown, np.array(cotangent))
    wanted = [True, True, True, True, kind == "added", with_sinks]
    for x, y, want in zip((*found, *cotangents), right, wanted, strict=True):
        if want:
            np.testing.assert_allclose(np.array(x), y, rtol=1e-4, atol=3e-6 * np.abs(y).max())


def test_scores_are_never_in_memory_as_a_whole(rng: np.random.Generator) -> None:
    q, k, v = arrays(rng, *[(4, 8, 512, 16)] * 3)
    whole = 4 * 8 * 512 * 512 * 4
    threads = executor.thread_count()
    executor.set_thread_count(2)  # each thread takes memory for the part that it works on
    function = mx.value_and_grad(lambda *x: mx.sum(attention(*x, scale=0.3, mask="causal")), argnums=(0, 1, 2))
    for call in (lambda *x: attention(*x, scale=0.3), function):
        compiled = mx.compile(call)
        mx.eval(compiled(q, k, v))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(compiled(q, k, v))
        assert mx.get_peak_memory() - before < whole / 2
    executor.set_thread_count(threads)


@pytest.mark.parametrize(
    ("mask", "part", "part_with_gradients"),
    [pytest.param(None, 16, 12, marks=pytest.mark.slow), pytest.param("causal", 16, 5, marks=pytest.mark.slow)],
)
def test_long_sequences_need_a_small_part_of_the_scores(mask: str | None, part: int, part_with_gradients: int) -> None:
    """They also never hold a whole causal mask."""
    q = mx.zeros((1, 1, 16384, 4))

    def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return attention(q, k, v, scale=0.3, mask=mask)

    gradients = mx.grad(lambda *x: mx.sum(mx.square(attend(*x))), argnums=(0, 1, 2))
    for function, smaller in ((attend, part), (gradients, part_with_gradients)):
        explained = mx.compile(function).explain(q, q, q)
        assert explained.temporary_bytes < 4 * 16384**2 / smaller
        assert explained.argument_bytes < 4 * q.nbytes


@pytest.mark.parametrize(("queries", "keys", "mask"), [(300, 290, "causal"), (290, 300, "causal"), (300, 290, None)])
def test_blocks_may_be_divided(queries: int, keys: int, mask: str | None, rng: np.random.Generator) -> None:
    """As the blocks of long sequences are. Here a part may have hardly any bytes, so parts have as few queries as
    possible."""
    q, k, v = arrays(rng, (1, 4, queries, 4), (1, 2, keys, 4), (1, 2, keys, 4))

    def loss(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.sum(mx.square(attention(q, k, v, scale=0.3, mask=mask)))

    made = reachable([x.node for x in mx.grad(loss, argnums=(0, 1, 2))(q, k, v)])
    for primitive in (p.attention, p.attention_gradients):
        (node,) = [node for node in made if node.primitive is primitive]
        for x, y in zip(primitive.in_blocks(node, 16), primitive.in_blocks(node, 1 << 30), strict=True):
            np.testing.assert_allclose(np.array(p.wrap(x)), np.array(p.wrap(y)), rtol=1e-4, atol=1e-5)


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


def test_mapped_queries_and_scales_of_one_example(rng: np.random.Generator) -> None:
    """Keys that are not mapped are used by all examples; a scale may be mapped, and has derivatives."""
    k, v = (mx.array(rng.normal(size=(1, 2, 5, 4)).astype(np.float32)) for _ in range(2))
    queries, scales = mx.array(rng.normal(size=(3, 1, 2, 5, 4)).astype(np.float32)), mx.array([0.1, 0.5, 0.9])

    def attend(q: mx.array, scale: Any) -> mx.array:
        return attention(q, k, v, scale=scale)

    def in_plain_operations(q: mx.array, scale: mx.array) -> mx.array:
        return mx.softmax(scale * q @ mx.swapaxes(k, -1, -2), axis=-1) @ v

    mapped = mx.vmap(attend)(queries, scales)
    assert_same_bits(mapped, mx.stack([attend(q, scale) for q, scale in zip(queries, scales, strict=True)]))
    for axes in ((0, None), (None, 0)):
        given = [x if axis == 0 else x[0] for x, axis in zip((queries, scales), axes, strict=True)]
        found, wanted = (
            mx.vmap(mx.grad(lambda q, scale, f=f: mx.sum(f(q, scale) ** 2), argnums=(0, 1)), axes)(*given)
            for f in (attend, in_plain_operations)
        )
        for one, right in zip(found, wanted, strict=True):
            assert np.allclose(np.array(one), np.array(right), atol=1e-4)
