"""Convolutions and attention by cuDNN on a card, compared with float64: the bound is the sum of all rounding errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.attention_heads import Heads
from tests.gpu.card import require_card

require_card()
pytestmark = pytest.mark.gpu

EPSILON = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8, mx.float64: 2.0**-53}
"""The largest relative error of rounding to a dtype."""


@pytest.fixture(autouse=True)
def _on_card() -> Any:
    mx.set_default_device(mx.gpu)
    yield
    mx.set_default_device(mx.cpu)


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: mx.Dtype) -> tuple[mx.array, np.ndarray]:
    """Normal numbers on the card, and the same ones in float64."""
    x = mx.array(rng.normal(size=shape).astype(np.float32)).astype(dtype)
    return x, wide(x)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float64, stream=mx.cpu))


def done_by(function: Any, *arguments: mx.array) -> set[tuple[str, str]]:
    """The titles and places of the calls of routines."""
    steps = mx.compile(function).explain(*arguments).steps
    return {(step.kind, step.runs_on) for step in steps}


class Geometry(NamedTuple):
    """The shapes and parameters of a call of `mx.conv_general`."""

    array: tuple[int, ...]
    weights: tuple[int, ...]
    more: dict[str, Any]


GEOMETRIES = {
    "3x3": Geometry((2, 14, 14, 16), (24, 3, 3, 16), {"padding": 1}),
    "stem": Geometry((2, 30, 30, 3), (16, 7, 7, 3), {"stride": 2, "padding": 3}),
    "1x1": Geometry((2, 8, 8, 16), (32, 1, 1, 16), {}),
    "unlike axes": Geometry(
        (2, 20, 21, 5), (7, 3, 2, 5), {"stride": (2, 1), "padding": (2, 1), "kernel_dilation": (2, 3)}
    ),
    "groups": Geometry((2, 10, 10, 16), (32, 3, 3, 4), {"groups": 4, "padding": 1}),
    "small groups": Geometry((2, 10, 10, 4), (2, 3, 3, 2), {"groups": 2, "padding": 1}),
    "channel by channel": Geometry((2, 10, 10, 8), (8, 3, 3, 1), {"groups": 8, "padding": 1}),
    "one axis": Geometry((3, 40, 6), (8, 5, 6), {"padding": 2}),
    "three axes": Geometry((2, 6, 8, 10, 8), (16, 3, 3, 3, 8), {"padding": 1, "stride": (1, 2, 1)}),
    "transposed": Geometry((2, 7, 8, 8), (6, 4, 3, 8), {"input_dilation": 2, "padding": 2, "flip": True}),
    "backwards": Geometry((2, 9, 9, 4), (8, 3, 3, 4), {"flip": True, "padding": 1}),
    "unlike zeros": Geometry((2, 9, 9, 4), (8, 4, 4, 4), {"padding": ([1, 0], [2, 3]), "stride": 2}),
    "less than nothing": Geometry((2, 9, 9, 4), (8, 3, 3, 4), {"padding": ([-1, 0], [0, -2])}),
}
DTYPES = [mx.float32, mx.float16, mx.bfloat16]


def convolve(geometry: Geometry, stream: Any = None) -> Any:
    return lambda x, w: mx.conv_general(x, w, **geometry.more, stream=stream)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolutions(name: str, dtype: mx.Dtype, rng: np.random.Generator) -> None:
    """The result, and the cotangents of both operands."""
    geometry = GEOMETRIES[name]
    (x, x64), (w, w64) = drawn(rng, geometry.array, dtype), drawn(rng, geometry.weights, dtype)
    on_card, on_host = convolve(geometry), convolve(geometry, mx.cpu)
    ct, ct64 = drawn(rng, on_card(x, w).shape, dtype)

    def all_of(convolution: Any) -> Any:
        def found(x: mx.array, w: mx.array, ct: mx.array) -> list[mx.array]:
            (out,), cotangents = mx.vjp(convolution, [x, w], [ct])
            return [out, *cotangents]

        return found

    function = mx.compile(all_of(on_card))
    found = function(x, w, ct)
    terms = [int(np.prod(w.shape[1:])), int(np.prod(w.shape[:-1])), int(np.prod(ct.shape[:-1]))]
    with mx.stream(mx.cpu):
        wanted = all_of(on_host)(*map(mx.array, (x64, w64, ct64)))
        sizes = all_of(on_host)(*[mx.array(abs(one)) for one in (x64, w64, ct64)])
    for one, right, size, count in zip(found, wanted, sizes, terms, strict=True):
        assert one.dtype == dtype
        bound = EPSILON[mx.float32] * (count + 2) * wide(size) + EPSILON[dtype] * abs(wide(right)) + 1e-7
        assert (abs(wide(one) - wide(right)) <= bound).all(), (name, abs(wide(one) - wide(right)).max())
    for _ in range(3):
        assert_same_bits(function(x, w, ct), found)
    assert all(place == "" for _, place in done_by(all_of(on_card), x, w, ct))


HEADS = {
    "plain": Heads(2, 4, 4, 64, 64, 64, 64),
    "more keys": Heads(2, 4, 4, 40, 133, 64, 64),
    "shared keys": Heads(2, 8, 2, 64, 96, 128, 128),
    "one query": Heads(3, 4, 4, 1, 77, 64, 64),
    "wide values": Heads(1, 2, 2, 64, 64, 64, 128),
}
MASKS = ("none", "causal", "boolean", "added", "padding")


def mask_of(kind: str, heads: Heads, rng: np.random.Generator, dtype: mx.Dtype) -> tuple[Any, np.ndarray]:
    """A mask as users give it, and as numbers that are added in float64."""
    shape = (heads.rows, heads.length)
    if kind == "none":
        return None, np.zeros((1, 1, *shape))
    if kind == "causal":
        return "causal", np.where(np.tri(*shape, heads.length - heads.rows) > 0, 0, -np.inf)[None, None]
    if kind == "added":
        return drawn(rng, (1, heads.queries, *shape), dtype)
    seen = rng.random((heads.batch, 1, shape[0] if kind == "boolean" else 1, shape[1])) < 0.6
    seen[..., 0] = True
    return mx.array(seen), np.broadcast_to(np.where(seen, 0, -np.inf), (heads.batch, 1, *shape))


class Exact(NamedTuple):
    """Attention and cotangents in float64, and for each the largest error that rounding to half precision may cause."""

    found: list[np.ndarray]
    bounds: list[np.ndarray]


def exact(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, ct: np.ndarray, scale: float, added: np.ndarray, step: float
) -> Exact:
    groups = q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    scores = scale * q @ keys.swapaxes(-1, -2) + added
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    out = weights @ values
    of_weights = ct @ values.swapaxes(-1, -2)
    mean = (ct * out).sum(-1, keepdims=True)
    of_scores = weights * (of_weights - mean)
    # Weights and cotangents of scores are rounded, and so is the output, from which the mean is made.
    unsure = (
        2 * abs(of_scores) + weights * 2 * (abs(ct) * abs(out)).sum(-1, keepdims=True) + weights * abs(of_weights) / 8
    )
    found = [out, scale * of_scores @ keys, scale * of_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ ct]
    bounds = [weights @ abs(values), scale * unsure @ abs(keys), scale * unsure.swapaxes(-1, -2) @ abs(q)]
    bounds.append(weights.swapaxes(-1, -2) @ abs(ct))
    for number in (2, 3):
        batch, _, *rest = k.shape if number == 2 else v.shape
        found[number], bounds[number] = (x[number].reshape(batch, -1, groups, *rest).sum(2) for x in (found, bounds))
    return Exact(found, [step * (2 * bound + 2 * abs(x)) + 1e-6 for x, bound in zip(found, bounds, strict=True)])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("turned", [False, True], ids=["heads first", "positions first"])
def test_attention(name: str, mask: str, dtype: mx.Dtype, turned: bool, rng: np.random.Generator) -> None:
    heads = HEADS[name]
    shapes = [
        (heads.batch, heads.queries, heads.rows, heads.features),
        (heads.batch, heads.keys, heads.length, heads.features),
        (heads.batch, heads.keys, heads.length, heads.width),
        (heads.batch, heads.queries, heads.rows, heads.width),
    ]
    given = [drawn(rng, (a, c, b, d) if turned else (a, b, c, d), dtype) for a, b, c, d in shapes]
    masking, added = mask_of(mask, heads, rng, dtype)
    scale = heads.features**-0.5

    def attend(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        straight = [mx.swapaxes(x, 1, 2) if turned else x for x in (q, k, v)]
        out = mx.fast.scaled_dot_product_attention(*straight, scale=scale, mask=masking)
        return mx.swapaxes(out, 1, 2) if turned else out

    def all_of(q: mx.array, k: mx.array, v: mx.array, ct: mx.array) -> list[mx.array]:
        (out,), cotangents = mx.vjp(attend, [q, k, v], [ct])
        return [out, *cotangents]

    function, arrays = mx.compile(all_of), [x for x, _ in given]
    found = function(*arrays)
    q, k, v, ct = [x.swapaxes(1, 2) if turned else x for _, x in given]
    right = exact(q, k, v, ct, scale, added, EPSILON[dtype])
    for one, wanted, bound in zip(found, *right, strict=True):
        assert one.dtype == dtype
        apart = abs((wide(one).swapaxes(1, 2) if turned else wide(one)) - wanted)
        assert (apart <= bound).all(), (name, mask, (apart / bound).max())
    for _ in range(3):
        assert_same_bits(function(*arrays), found)
    assert_same_bits(mx.compile(attend)(*arrays[:3]), found[0])
    assert all(place == "" for _, place in done_by(all_of, *arrays))


def test_a_query_that_sees_no_key_gets_the_mean(rng: np.random.Generator) -> None:
    (q, _), (k, _), (v, v64) = (drawn(rng, (1, 2, 16, 64), mx.bfloat16) for _ in range(3))
    seen = np.ones((16, 16), bool)
    seen[3] = False
    found = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask=mx.array(seen))
    assert abs(wide(found)[:, :, 3] - v64.mean(2)).max() <= 0.02
    late = mx.fast.scaled_dot_product_attention(q, k[:, :, :9], v[:, :, :9], scale=0.1, mask="causal")
    assert abs(wide(late)[:, :, 0] - v64[:, :, :9].mean(2)).max() <= 0.02


def test_gradients_in_parts(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many heads are more than one call, with the same bits."""
    from weft.compiler.cuda.cudnn import attention
    from weft.compiler.running import evaluate

    arrays = [drawn(rng, (4, n, 64, 64), mx.bfloat16)[0] for n in (6, 3, 3)]

    def gradients(*arrays: mx.array) -> Any:
        return mx.grad(
            lambda q, k, v: (mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1) ** 2).sum(), (0, 1, 2)
        )(*arrays)

    whole = gradients(*arrays)
    mx.eval(whole)
    for most in (64 * 64 * 2, 64 * 64 * 12):
        monkeypatch.setattr(attention, "_MOST_SCORES", most)
        evaluate.forget_plans()
        assert_same_bits(gradients(*arrays), whole)


def test_training_steps_with_attention_and_convolutions_are_captured(rng: np.random.Generator) -> None:
    q, w = drawn(rng, (2, 4, 64, 64), mx.bfloat16)[0], drawn(rng, (8, 3, 3, 64), mx.bfloat16)[0]

    def step(q: mx.array, w: mx.array) -> mx.array:
        out = mx.fast.scaled_dot_product_attention(q, q, q, scale=0.125, mask="causal")
        return mx.conv2d(mx.swapaxes(out, 1, 2), w).sum()

    function = mx.compile(mx.grad(step, (0, 1)))
    found = [function(q, w) for _ in range(5)]
    for one in found[1:]:
        assert_same_bits(one, found[0])
