"""Convolutions beyond the table: random geometries, shapes that are unknown when they are traced, extents of zero,
errors."""

from __future__ import annotations

import tracemalloc
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.codegen.planned import plans_of
from tests.ops.convolution_rows import convolved
from tests.ops.row import to_numpy
from weft.compiler.cpu.products import convolutions
from weft.compiler.cpu.products.windows.in_memory import window_numbers


@st.composite
def geometries(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    extents, sizes, before, behind = numbers(1, 6), numbers(1, 3), numbers(-1, 3), numbers(-1, 3)
    arguments = {
        "stride": numbers(1, 3),
        "padding": (before, behind),
        "kernel_dilation": numbers(1, 2),
        "input_dilation": numbers(1, 3),
        "groups": groups,
        "flip": draw(st.booleans()),
    }
    for axis in range(rank):
        spread = (extents[axis] - 1) * arguments["input_dilation"][axis] + 1
        assume(spread + min(before[axis], 0) + min(behind[axis], 0) > 0)
        assume(spread + before[axis] + behind[axis] > (sizes[axis] - 1) * arguments["kernel_dilation"][axis])
    channels, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    return (2, *extents, channels * groups), (outputs * groups, *sizes, channels), arguments


@settings(max_examples=25, deadline=None)
@given(geometries())
def test_any_geometry(convolution: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]) -> None:
    """The values are right, and derivatives are adjoint to each other."""
    (first, second, arguments), rng = convolution, np.random.default_rng(5)
    x, w, dx, dw = (mx.array(rng.normal(size=shape), mx.float64) for shape in (first, second, first, second))
    (out,), (change,) = mx.jvp(lambda x, w: mx.conv_general(x, w, **arguments), [x, w], [dx, dw])
    oracle = {"kernel_dilation": "spacing", "input_dilation": "dilation"}
    want = convolved(to_numpy(x), to_numpy(w), **{oracle.get(word, word): value for word, value in arguments.items()})
    np.testing.assert_allclose(to_numpy(out), want, rtol=1e-12, atol=1e-12)
    ct = mx.array(rng.normal(size=out.shape), mx.float64)
    _, (for_x, for_w) = mx.vjp(lambda x, w: mx.conv_general(x, w, **arguments), [x, w], [ct])
    forwards, backwards = mx.sum(ct * change).item(), (mx.sum(for_x * dx) + mx.sum(for_w * dw)).item()
    assert forwards == pytest.approx(backwards, rel=1e-10, abs=1e-10)


def test_one_shapeless_trace_serves_all_sizes(rng: np.random.Generator) -> None:
    def loss(x: mx.array, w: mx.array) -> mx.array:
        return mx.sum(mx.square(mx.conv2d(x, w, stride=2, padding=1)))

    compiled = mx.compile(mx.grad(loss, argnums=(0, 1)), shapeless=True)
    for first, second in (((2, 5, 6, 3), (4, 3, 2, 3)), ((1, 9, 4, 2), (1, 2, 3, 2)), ((3, 2, 2, 1), (5, 1, 1, 1))):
        x, w = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in (first, second))
        for got, want in zip(compiled(x, w), mx.grad(loss, argnums=(0, 1))(x, w), strict=True):
            assert mx.array_equal(got, want).item()


@pytest.mark.parametrize(
    ("first", "second"),
    [((0, 5, 2), (3, 2, 2)), ((1, 5, 0), (3, 2, 0)), ((1, 5, 2), (0, 2, 2)), ((40, 5, 16), (0, 2, 16))],
)
def test_extents_of_zero(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    x, w = mx.ones(first), mx.ones(second)
    out = mx.conv1d(x, w)
    assert out.shape == (first[0], 4, second[0])
    assert not mx.any(out).item()
    for gradient, of in zip(mx.grad(lambda x, w: mx.sum(mx.conv1d(x, w)), argnums=(0, 1))(x, w), (x, w), strict=True):
        assert gradient.shape == of.shape
        assert not mx.any(gradient).item()


X, W = mx.zeros((1, 5, 5, 4)), mx.zeros((4, 2, 2, 4))
ERRORS = [
    (lambda: mx.conv2d(X[0], W), r"\[conv2d\] Both operands need 2 axes between the first and the last; input has"),
    (lambda: mx.conv_general(X[0, 0], W[0, 0]), r"\[conv_general\] Both operands need one to three axes"),
    (lambda: mx.conv2d(X, W[..., :3]), r"In 1 groups the last axis of input must be 1 times that of weight"),
    (lambda: mx.conv2d(X, W[:3, ..., :2], groups=2), r"and the first axis of weight a multiple of 2; input has the"),
    (lambda: mx.conv2d(X, W, stride=0), r"\[conv2d\] stride must be at least 1; got \(0, 0\)"),
    (
        lambda: mx.conv_general(X, W, stride=(1, 2, 3)),
        r"stride must be one number or 2, one for each axis; got \(1, 2, 3\)",
    ),
    (
        lambda: mx.conv2d(X[:, :1], W),
        r"A window is longer than its axis: input has the shape \(1, 1, 5, 4\) with \(0, 0\)",
    ),
    (lambda: mx.conv2d(X.astype(mx.int32), W.astype(mx.int32)), r"Convolutions are of floating numbers, not of int32"),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors_say_what_fits(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (2, 0)], ids=["cotangents", "arrays", "both"])
def test_gradients_of_weights_are_mapped(axes: tuple[int | None, int | None], rng: np.random.Generator) -> None:
    def gradient(ct: mx.array, x: mx.array) -> mx.array:
        w = mx.zeros((6, 2, 3, 2), mx.float64)
        return mx.vjp(lambda w: mx.conv2d(x, w, stride=(1, 2), groups=2), [w], [ct])[1][0]

    shapes = [(2, 3, 2, 6), (2, 4, 5, 4)]
    full = [
        shape if axis is None else (*shape[:axis], 3, *shape[axis:]) for shape, axis in zip(shapes, axes, strict=True)
    ]
    ct, x = (mx.array(rng.normal(size=shape), mx.float64) for shape in full)
    found = mx.vmap(gradient, in_axes=axes)(ct, x)
    for number in range(3):
        one = [
            n if axis is None else mx.take(n, mx.array(number), axis=axis)
            for n, axis in zip((ct, x), axes, strict=True)
        ]
        np.testing.assert_allclose(to_numpy(found[number]), to_numpy(gradient(*one)), rtol=1e-12)


def test_zeros_between_elements_are_not_multiplied() -> None:
    """The gradient of a convolution of stride 2 is four products, each with a part of the weights; one if a window has
    one element. Steps of the CPU are counted, because on GPUs a library may compute the whole."""
    with mx.stream(mx.cpu):
        x, w, ct = mx.zeros((2, 8, 8, 16)), mx.zeros((24, 3, 3, 16)), mx.zeros((2, 4, 4, 24))
        one = mx.zeros((24, 1, 1, 16))
        mx.eval(x, w, ct, one)
        for weights, products, work in ((w, 4, 9), (one, 1, 1)):
            padding = weights.shape[1] // 2

            def gradient(x: mx.array, weights: mx.array = weights, padding: int = padding) -> mx.array:
                return mx.vjp(lambda x: mx.conv2d(x, weights, stride=2, padding=padding), [x], [ct])[1][0]

            (plan,) = plans_of(gradient, x)
            calls = [record for record in plan.describe().records if record.kind == "call"]
            arithmetic = sum(record.arithmetic for record in calls)
            assert (len(calls), arithmetic) == (products, 2 * work * 2 * 4 * 4 * 24 * 16)


@pytest.mark.parametrize(("channels", "outputs"), [(40, 64), (64, 100), (3, 130), (130, 16), (64, 3)], ids=str)
def test_results_of_many_blocks_of_terms_have_the_bits_of_a_product(
    channels: int, outputs: int, rng: np.random.Generator
) -> None:
    """The bits are those of windows that are stored in memory, times the weights, also with a kernel after the
    convolution."""
    x = rng.normal(size=(2, 43, 37, channels)).astype(np.float32)
    w = rng.normal(size=(outputs, 3, 5, channels)).astype(np.float32)
    found = mx.conv2d(mx.array(x), mx.array(w), padding=(1, 2))
    padded = np.pad(x, ((0, 0), (1, 1), (2, 2), (0, 0)))
    shown = np.moveaxis(np.lib.stride_tricks.sliding_window_view(padded, (3, 5), (1, 2)), 3, 5)
    rows = mx.array(np.ascontiguousarray(shown).reshape(-1, 15 * channels))
    want = to_numpy(rows @ mx.array(w.reshape(outputs, -1).T)).reshape(found.shape)
    np.testing.assert_array_equal(to_numpy(found), want)
    behind = mx.compile(lambda x, w: mx.maximum(mx.conv2d(x, w, padding=(1, 2)), 0))
    np.testing.assert_array_equal(to_numpy(behind(mx.array(x), mx.array(w))), np.maximum(want, 0))


@st.composite
def windowed(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    extents, sizes, before, behind = numbers(3, 13), numbers(1, 4), numbers(-1, 4), numbers(-1, 4)
    channels, outputs = draw(st.sampled_from([16, 20, 33, 64, 130])), draw(st.sampled_from([9, 16, 32, 47, 100]))
    arguments = {
        "stride": numbers(1, 3),
        "padding": (before, behind),
        "kernel_dilation": numbers(1, 2),
        "input_dilation": numbers(1, 2) if draw(st.booleans()) else [1] * rank,
        "groups": groups,
        "flip": draw(st.booleans()),
    }
    for axis, size in enumerate(sizes):
        spread = (extents[axis] - 1) * arguments["input_dilation"][axis] + 1
        assume(spread + before[axis] + behind[axis] > (size - 1) * arguments["kernel_dilation"][axis])
    examples = draw(st.sampled_from([4, 9]))
    return (examples, *extents, channels * groups), (outputs * groups, *sizes, channels), arguments


def copied_windows(x: Any, sizes: Any, arguments: dict[str, Any]) -> Any:
    """The windows ``(N, counts, sizes, C)`` of an array without zeros between elements."""
    padding = list(zip(*arguments["padding"], strict=True))
    inside = [slice(max(-low, 0), n - max(-high, 0)) for n, (low, high) in zip(x.shape[1:-1], padding, strict=True)]
    padded = np.pad(x[:, *inside], [(0, 0), *[(max(low, 0), max(high, 0)) for low, high in padding], (0, 0)])
    spread = [(n - 1) * step + 1 for n, step in zip(sizes, arguments["kernel_dilation"], strict=True)]
    axes = tuple(range(1, 1 + len(sizes)))
    shown: Any = np.lib.stride_tricks.sliding_window_view(padded, spread, axes)
    shown = shown[:, *[slice(None, None, step) for step in arguments["stride"]]]
    shown = shown[..., *[slice(None, None, step) for step in arguments["kernel_dilation"]]]
    return np.moveaxis(shown, len(sizes) + 1, -1)


def by_group(shown: Any, groups: int, rank: int) -> list[mx.array]:
    """Matrices ``(windows, numbers of a window)``, one for each group of channels."""
    parts = np.split(shown, groups, axis=-1)
    return [mx.array(np.ascontiguousarray(one).reshape(prod(shown.shape[: 1 + rank]), -1)) for one in parts]


def of_copies(x: Any, w: Any, arguments: dict[str, Any]) -> Any:
    """The convolution of an array without zeros between elements as a product of copies of its windows."""
    (_, *sizes, _), groups = w.shape, arguments["groups"]
    rank = len(sizes)
    w = np.flip(w, tuple(range(1, 1 + rank))) if arguments["flip"] else w
    shown = copied_windows(x, sizes, arguments)
    found = [
        to_numpy(rows @ mx.array(weights.reshape(len(weights), -1).T))
        for rows, weights in zip(by_group(shown, groups, rank), np.split(w, groups), strict=True)
    ]
    return np.concatenate(found, axis=-1).reshape(*shown.shape[: 1 + rank], -1)


def weights_of_copies(ct: Any, x: Any, w: Any, arguments: dict[str, Any]) -> Any:
    """The cotangent of the weights, in the same way."""
    (_, *sizes, channels), groups = w.shape, arguments["groups"]
    rank = len(sizes)
    found = [
        to_numpy(rows.T @ mx.array(one.reshape(-1, one.shape[-1]))).T.reshape(-1, *sizes, channels)
        for rows, one in zip(
            by_group(copied_windows(x, sizes, arguments), groups, rank), np.split(ct, groups, axis=-1), strict=True
        )
    ]
    whole = np.concatenate(found)
    return np.flip(whole, tuple(range(1, 1 + rank))) if arguments["flip"] else whole


@settings(max_examples=25, deadline=None)
@given(windowed())
def test_windows_that_are_read_in_place_have_the_bits_of_copies(
    convolution: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
) -> None:
    (first, second, arguments), rng = convolution, np.random.default_rng(5)

    def gradient(ct: mx.array, x: mx.array, w: mx.array) -> mx.array:
        return mx.vjp(lambda w: mx.conv_general(x, w, **arguments), [w], [ct])[1][0]

    x, w = (rng.normal(size=shape).astype(np.float32) for shape in (first, second))
    with mx.stream(mx.cpu):
        found = to_numpy(mx.conv_general(mx.array(x), mx.array(w), **arguments))
        ct = rng.normal(size=found.shape).astype(np.float32)
        of_weights = to_numpy(gradient(*[mx.array(n) for n in (ct, x, w)]))
        if all(n == 1 for n in arguments["input_dilation"]):
            np.testing.assert_array_equal(found, of_copies(x, w, arguments))
            np.testing.assert_array_equal(of_weights, weights_of_copies(ct, x, w, arguments))
        exact = gradient(*[mx.array(n, mx.float64) for n in (ct, x, w)])
    np.testing.assert_allclose(of_weights, to_numpy(exact), rtol=1e-4, atol=1e-3)
    oracle = {"kernel_dilation": "spacing", "input_dilation": "dilation"}
    want = convolved(x.astype(float), w.astype(float), **{oracle.get(n, n): value for n, value in arguments.items()})
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("groups", [1, 4])
def test_arrays_are_not_copied_to_pad_them(groups: int, rng: np.random.Generator) -> None:
    """A convolution with padding is one step, also with what follows it and if the array is a view."""
    with mx.stream(mx.cpu):
        x, w = (mx.array(rng.normal(size=n).astype(np.float32)) for n in ((2, 20, 20, 128), (64, 3, 3, 64 // groups)))
        bias = mx.array(rng.normal(size=64).astype(np.float32))
        mx.eval(x, w, bias)

        def layer(x: mx.array) -> mx.array:
            return mx.maximum(mx.conv2d(x[:, ::2, :, 32:96], w, padding=1, stride=(1, 2), groups=groups) + bias, 0)

        (plan,) = plans_of(layer, x)
        assert plan.steps.count == 1
        plain = mx.conv2d(mx.array(to_numpy(x)[:, ::2, :, 32:96].copy()), w, padding=1, stride=(1, 2), groups=groups)
        np.testing.assert_array_equal(to_numpy(layer(x)), np.maximum(to_numpy(plain) + to_numpy(bias), 0))


@pytest.mark.parametrize("examples", [2, 9])
def test_padding_is_zeros_that_are_multiplied(examples: int) -> None:
    """So an infinite weight gives NaN where it meets padding, and only there."""
    x, w = np.ones((examples, 6, 9, 24), np.float32), np.ones((40, 3, 3, 24), np.float32)
    x[1, 0, 8, 3], w[4, 0, 0, 23] = np.inf, np.inf
    found = to_numpy(mx.conv2d(mx.array(x), mx.array(w), padding=1))
    assert np.isnan(found[:, 0, :, 4]).all()
    assert np.isnan(found[:, :, 0, 4]).all()
    assert np.isinf(found[1, :2, 7:, 5]).all()
    assert np.isfinite(found[1, :, :7, 5]).all()
    assert np.isfinite(np.delete(found[0], 4, axis=-1)).all()


def zeros_of(dtype: Any, sign: int, examples: int, channels: int) -> tuple[Any, Any]:
    """Arguments of a convolution whose products are too small for the dtype, with weights that have one sign, but for
    some."""
    least = float(np.finfo(dtype).smallest_subnormal)
    w = np.full((100, 3, 3, channels), -least, dtype)
    w[::7, :, :, ::5] = sign * least
    return np.full((examples, 5, 5, channels), least, dtype), w


@pytest.mark.parametrize("sign", [-1, 0, 1])
@pytest.mark.parametrize("examples", [8, 12])
@pytest.mark.parametrize(("dtype", "channels"), [(np.float32, 40), (np.float32, 300), (np.float64, 40)])
def test_padding_that_is_skipped_changes_no_sign(dtype: Any, channels: int, examples: int, sign: int) -> None:
    """Sums of products that are too small are -0; a zero times a positive weight makes them 0, and times a negative
    one does not."""
    x, w = zeros_of(dtype, sign, examples, channels)
    with mx.stream(mx.cpu):
        kind = mx.float32 if dtype == np.float32 else mx.float64
        found = to_numpy(mx.conv2d(mx.array(x, kind), mx.array(w, kind), padding=1))
        one = [to_numpy(mx.conv2d(mx.array(x[:1], kind), mx.array(w, kind), padding=1))] * examples
    assert found.dtype == dtype
    assert np.signbit(found).any()
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.concatenate(one)))


@pytest.mark.parametrize(
    ("examples", "extent", "together"), [(8, 7, 8), (30, 7, 10), (11, 7, 11), (7, 7, 0), (8, 60, 0)]
)
def test_padding_is_skipped_where_there_is_much(
    examples: int, extent: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the windows of some examples in the same place are side by side."""
    made = []

    def noted(pitch: int, channels: int, example: int, skips: bool, axes: Any) -> list[int]:
        made.append(axes[-1].counts if skips else 0)
        return window_numbers(pitch, channels, example, skips, axes)

    monkeypatch.setattr(convolutions, "window_numbers", noted)
    with mx.stream(mx.cpu):
        x, w = mx.zeros((examples, extent, extent, 32)), mx.zeros((64, 3, 3, 32))
        mx.eval(x, w)
        plans_of(lambda: mx.conv2d(x, w, padding=1))
    assert set(made) == {together}


@settings(max_examples=100, deadline=None)
@given(*[st.integers(1, 9)] * 5, st.integers(-3, 9))
def test_the_part_of_windows_that_is_inside_is_counted(
    extent: int, count: int, size: int, step: int, spacing: int, low: int
) -> None:
    places = np.add.outer(np.arange(count) * step, np.arange(size) * spacing) - low
    found = convolutions.part_inside(extent, count, size, step, spacing, low)
    assert found == np.mean((places >= 0) & (places < extent))


def test_windows_of_long_signals_are_counted_without_a_list_of_them() -> None:
    tracemalloc.start()
    found = convolutions.part_inside(100_000, 100_000, 31, 1, 1, 15)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == 1 - 2 * sum(range(1, 16)) / 3_100_000
    assert most < 10_000


@pytest.mark.parametrize("outputs", range(1, 9))
@pytest.mark.parametrize("width", [16, 37, 130, 300])
def test_lines_that_are_read_in_place_have_the_bits_of_copies(
    outputs: int, width: int, rng: np.random.Generator
) -> None:
    """Few outputs: the products read lines of windows in place."""
    channels = 150 if outputs == 3 else 9
    arguments: dict[str, Any] = {"stride": [1, 1], "padding": ([1, 1], [1, 1]), "kernel_dilation": [1, 1]}
    arguments |= {"groups": 1, "flip": False}
    x, w = (rng.normal(size=n).astype(np.float32) for n in ((2, 5, width, channels), (outputs, 3, 3, channels)))
    found = mx.conv_general(mx.array(x), mx.array(w), **arguments, stream=mx.cpu)
    np.testing.assert_array_equal(to_numpy(found), of_copies(x, w, arguments))


@pytest.mark.parametrize("outputs", [1, 3, 8])
@pytest.mark.parametrize("stride", [1, (2, 1), 2], ids=str)
def test_few_outputs_in_long_lines(outputs: int, stride: Any, rng: np.random.Generator) -> None:
    """A convolution with few outputs, and the gradient of one with few channels."""
    x, w = rng.normal(size=(2, 9, 37, 11)), rng.normal(size=(outputs, 3, 2, 11))
    found = mx.conv2d(mx.array(x, mx.float64), mx.array(w, mx.float64), stride=stride, padding=(2, 1))
    want = convolved(x, w, stride=stride, padding=((2, 1), (2, 1)))
    np.testing.assert_allclose(to_numpy(found), want, rtol=1e-12, atol=1e-12)
    few, turned = (mx.array(n, mx.float64) for n in (rng.normal(size=(2, 9, 40, outputs)), np.swapaxes(w, 0, 3)))
    ct = mx.array(rng.normal(size=mx.conv2d(few, turned, stride=stride).shape), mx.float64)
    (out,), (gradient,) = mx.vjp(lambda x: mx.conv2d(x, turned, stride=stride), [few], [ct])
    # The convolution is a linear function of its array.
    assert mx.sum(out * ct).item() == pytest.approx(mx.sum(gradient * few).item(), rel=1e-10)


@st.composite
def depthwise(draw: Any) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    rank = draw(st.integers(1, 2))

    def numbers(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))

    extents, sizes, before, behind = numbers(1, 12), numbers(1, 3), numbers(0, 3), numbers(0, 3)
    channels = draw(st.sampled_from([2, 7, 16, 33, 140]))
    arguments = {
        "stride": numbers(1, 3),
        "padding": (before, behind),
        "kernel_dilation": numbers(1, 2),
        "groups": channels,
        "flip": draw(st.booleans()),
    }
    for axis, size in enumerate(sizes):
        assume(extents[axis] + before[axis] + behind[axis] > (size - 1) * arguments["kernel_dilation"][axis])
    return (2, *extents, channels), (channels, *sizes, 1), arguments


@settings(max_examples=25, deadline=None)
@given(depthwise())
def test_depthwise_steps_have_the_bits_of_sums(
    convolution: tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]],
) -> None:
    """Fused kernels compute convolutions with two outputs per channel; with zeros for the second, the bits are those of
    the step for one output."""
    (first, second, arguments), rng = convolution, np.random.default_rng(5)
    x, w = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in (first, second))
    two = mx.reshape(mx.stack([w, mx.zeros_like(w)], axis=1), (2 * second[0], *second[1:]))
    ct = rng.normal(size=mx.conv_general(x, w, **arguments).shape).astype(np.float32)
    ct_of_two = mx.array(np.stack([ct, np.zeros_like(ct)], axis=-1).reshape(*ct.shape[:-1], -1))
    one_step, fused = (
        mx.vjp(lambda x, w: mx.conv_general(x, w, **arguments), [x, weights], [cotangent])
        for weights, cotangent in ((w, mx.array(ct)), (two, ct_of_two))
    )
    np.testing.assert_array_equal(to_numpy(one_step[0][0]), to_numpy(fused[0][0])[..., ::2])
    np.testing.assert_array_equal(to_numpy(one_step[1][1]), to_numpy(fused[1][1])[::2])
    np.testing.assert_allclose(to_numpy(one_step[1][0]), to_numpy(fused[1][0]), rtol=1e-4, atol=1e-4)


def test_depthwise_convolutions_keep_infinities_to_themselves() -> None:
    """Padding is zeros that are multiplied as other elements, so an infinite weight gives NaN there, and only there."""
    x, w = np.ones((1, 3, 13, 20), np.float32), np.ones((20, 3, 3, 1), np.float32)
    x[0, 0, 12, 3], w[4, 0, 0, 0] = np.inf, np.inf
    found = to_numpy(mx.conv2d(mx.array(x), mx.array(w), padding=1, groups=20))
    assert np.isinf(found[0, :2, 11:, 3]).all()
    assert np.isfinite(found[0, :, :11, 3]).all()
    assert np.isnan(found[0, 0, :, 4]).all()
    assert np.isnan(found[0, :, 0, 4]).all()
    assert np.isfinite(found[..., 5:]).all()


def test_weights_in_phases_are_copied_once(rng: np.random.Generator) -> None:
    """Each phase of a transposed convolution has the weights that it uses in memory, as rows of a matrix."""
    x, w = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((2, 9, 9, 16), (20, 4, 4, 16)))
    explained = mx.compile(lambda x, w: mx.conv_transpose2d(x, w, stride=2, padding=1)).explain(x, w)
    assert [step.kind for step in explained.steps if step.kind == "kernel"] == ["kernel"] * 4


def test_cotangents_of_weights_in_phases_are_written_once(rng: np.random.Generator) -> None:
    """Each phase writes its own weights. There are zeros before only if some weights are in no phase."""
    x = mx.array(rng.normal(size=(2, 9, 9, 16)).astype(np.float32))
    for size, stride in ((4, 2), (3, 2), (2, 3)):
        w = mx.array(rng.normal(size=(20, size, size, 16)).astype(np.float32))
        of_weights = mx.grad(lambda w, n=stride: mx.sum(mx.square(mx.conv_transpose2d(x, w, stride=n))))
        names = [name for step in mx.compile(of_weights).explain(w).steps for name in step.operations]
        assert "slice_update" not in names


@pytest.mark.parametrize("window", [(13, 1), (1, 13), (5, 5)])
def test_lanes_go_along_windows_of_one_channel(window: tuple[int, int]) -> None:
    """Such a filter of an image is a fused kernel. Of two channels, of which the other one is zero, it has the bits of
    the step whose lanes go along channels."""
    rng = np.random.default_rng(3)
    x, w = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((2, 20, 33, 1), (1, *window, 1)))
    one = mx.compile(lambda x, w: mx.conv2d(x, w, padding=2))
    assert {step.kind for step in one.explain(x, w).steps} == {"kernel"}
    pair, weights = (mx.concatenate([a, mx.zeros_like(a)], axis=axis) for a, axis in ((x, -1), (w, 0)))
    found = mx.conv2d(pair, weights, padding=2, groups=2)
    np.testing.assert_array_equal(to_numpy(one(x, w))[..., 0], to_numpy(found)[..., 0])


def test_copied_windows_of_one_channel_are_written_line_by_line(rng: np.random.Generator) -> None:
    """The cotangent of 256 such filters is a product of copied windows: lanes go along lines of windows, not along the
    three elements of a window that are neighbours in the array."""
    x, w, ct = (mx.array(rng.normal(size=shape)) for shape in ((8, 30, 32, 1), (256, 3, 3, 1), (8, 30, 32, 256)))
    gradient = mx.compile(lambda x, w, ct: mx.vjp(lambda w: mx.conv2d(x, w, padding=1), [w], [ct])[1][0])
    copied = gradient.explain(x, w, ct).steps[0]
    assert (copied.kind, copied.loops) == ("kernel", "3x3x8x30x32")
    around = np.pad(to_numpy(x)[..., 0], ((0, 0), (1, 1), (1, 1)))
    shown = np.lib.stride_tricks.sliding_window_view(around, (3, 3), axis=(1, 2))
    wanted = np.einsum("nijyx,nijo->oyx", shown.astype(float), to_numpy(ct).astype(float))
    np.testing.assert_allclose(to_numpy(gradient(x, w, ct))[..., 0], wanted, rtol=1e-4, atol=1e-4)


def test_long_sums_for_few_weights_are_made_in_parts(rng: np.random.Generator) -> None:
    x, ct = (mx.array(rng.normal(size=(8, 40, 40, n)).astype(np.float32)) for n in (2, 3))
    w = mx.zeros((3, 1, 1, 2))
    (found,) = mx.vjp(lambda w: mx.conv2d(x, w), [w], [ct])[1]
    arrays = [to_numpy(array).astype(float) for array in (ct, x)]
    want, of_sizes = (np.einsum("nijo,nijc->oc", *terms) for terms in (arrays, [abs(array) for array in arrays]))
    # A sum near zero loses digits, so errors are compared with the sum of the sizes.
    assert (abs(to_numpy(found)[:, 0, 0] - want) <= np.finfo(np.float32).eps / 4 * of_sizes).all()
