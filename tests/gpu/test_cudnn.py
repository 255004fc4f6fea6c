"""The graphs that Weft gives to cuDNN, without a card: NumPy computes their operations here."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from threading import Barrier, Event
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
import weft.compiler.cuda.target
import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.attention_heads import Heads
from tests.gpu.fake_cudnn import BAD, FakeCudnn
from tests.gpu.fake_driver import FakeDriver
from tests.sampling import Cases
from weft.compiler.cuda.cudnn import attention, convolution, operations
from weft.compiler.running import evaluate
from weft.runtime.cuda.cudnn import plans
from weft.runtime.cuda.cudnn.descriptors import Library
from weft.runtime.cuda.cudnn.plans import Note
from weft.runtime.cuda.shared_libraries import CUDNN
from weft.runtime.engine import engine_of


@pytest.fixture
def library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCudnn]:
    library = FakeCudnn(driver)
    engine: Any = engine_of(mx.Device(mx.gpu))
    engine.target.machine = engine
    engine.target.routines = {*attention.OPERATIONS, *convolution.OPERATIONS}
    monkeypatch.setattr(plans, "missing", lambda: "")
    monkeypatch.setattr(CUDNN, "text", lambda function, code: f"STATUS_{code}")
    monkeypatch.setattr(plans, "_library", lambda: Library(library.functions))
    monkeypatch.setattr(attention, "FEW_QUERIES", 0)
    mx.set_default_device(mx.gpu)
    yield library
    mx.set_default_device(mx.cpu)


def drawn(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)).astype(dtype)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float64, stream=mx.cpu))


class Geometry(NamedTuple):
    array: tuple[int, ...]
    weights: tuple[int, ...]
    more: dict[str, Any]


GEOMETRIES = {
    "plain": Geometry((2, 5, 6, 3), (4, 3, 2, 3), {}),
    "steps": Geometry((1, 7, 6, 2), (2, 3, 2, 2), {"stride": (2, 3), "padding": (1, 2)}),
    "groups": Geometry((1, 4, 5, 8), (8, 3, 3, 4), {"padding": 1, "groups": 2}),
    "channel by channel": Geometry((2, 4, 5, 3), (3, 3, 3, 1), {"padding": 1, "groups": 3}),
    "wide windows": Geometry((1, 9, 8, 2), (3, 3, 2, 2), {"kernel_dilation": (2, 3), "stride": (1, 2), "padding": 2}),
    "one axis": Geometry((2, 9, 3), (4, 4, 3), {"padding": 2, "stride": 2}),
    "three axes": Geometry((1, 3, 4, 3, 2), (2, 2, 2, 3, 2), {"padding": (0, 1, 1)}),
    "backwards": Geometry((1, 5, 5, 2), (3, 3, 2, 2), {"flip": True, "padding": 1}),
    "backwards with steps": Geometry((1, 6, 7, 2), (3, 3, 2, 2), {"flip": True, "padding": 1, "stride": 2}),
    "zeros between": Geometry((1, 4, 3, 2), (3, 3, 4, 2), {"input_dilation": (2, 3), "padding": 2}),
    "zeros between, with steps": Geometry((1, 4, 3, 2), (3, 3, 2, 2), {"input_dilation": 2, "stride": 3, "padding": 1}),
    "unlike zeros": Geometry((1, 6, 7, 2), (3, 2, 3, 2), {"padding": ([1, 0], [2, 3]), "stride": 2}),
    "less than nothing": Geometry((1, 6, 7, 2), (3, 2, 3, 2), {"padding": ([-1, 0], [0, -2])}),
}


def with_cotangents(convolution: Callable[..., mx.array]) -> Callable[..., list[mx.array]]:
    def found(x: mx.array, w: mx.array, ct: mx.array) -> list[mx.array]:
        (out,), cotangents = mx.vjp(convolution, [x, w], [ct])
        return [out, *cotangents]

    return found


def test_convolutions(library: FakeCudnn, cases: Cases) -> None:
    """The result and both cotangents are one call each."""
    for name in cases.some(3, list(GEOMETRIES)):
        geometry = GEOMETRIES[name]
        x, w = drawn(*geometry.array), drawn(*geometry.weights)
        found = []
        for stream in (mx.gpu, mx.cpu):
            with mx.stream(stream):
                ct = drawn(*mx.conv_general(x, w, **geometry.more).shape)
                found.append(with_cotangents(partial(mx.conv_general, **geometry.more))(x, w, ct))
        before = library.executed
        mx.eval(found)
        assert library.executed == before + 3, name
        for one, wanted in zip(*found, strict=True):
            assert np.allclose(wide(one), wide(wanted), rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float64], ids=str)
def test_convolutions_of_dtypes(library: FakeCudnn, dtype: mx.Dtype) -> None:
    x, w = drawn(1, 4, 4, 8, dtype=dtype), drawn(4, 2, 2, 8, dtype=dtype)
    found, wanted = mx.conv2d(x, w), mx.conv2d(x, w, stream=mx.cpu)
    assert found.dtype == dtype
    assert np.allclose(wide(found), wide(wanted), rtol=0.01, atol=0.01)
    assert library.executed == 1


def test_what_is_no_convolution_of_cudnn(library: FakeCudnn) -> None:
    assert mx.conv2d(drawn(0, 3, 3, 2), drawn(2, 2, 2, 2)).shape == (0, 2, 2, 2)
    assert mx.conv2d(drawn(1, 3, 3, 2), drawn(0, 2, 2, 2)).shape == (1, 2, 2, 0)
    x, w = drawn(1, 3, 3, 4), drawn(2, 2, 2, 2)
    found, wanted = (mx.conv2d(x, w, groups=2, stream=stream) for stream in (mx.gpu, mx.cpu))
    assert np.allclose(wide(found), wide(wanted), atol=1e-5)
    assert library.executed == 0


HEADS = {
    "plain": Heads(2, 2, 2, 4, 4, 8, 8),
    "more keys": Heads(1, 2, 2, 3, 5, 8, 16),
    "shared keys": Heads(2, 4, 2, 2, 3, 8, 8),
    "one query": Heads(1, 2, 1, 1, 6, 8, 8),
}


def mask_of(kind: str, heads: Heads, dtype: mx.Dtype = mx.bfloat16) -> Any:
    shape = (heads.rows, heads.length)
    masks: dict[str, Any] = {
        "none": None,
        "causal": "causal",
        "boolean": drawn(1, heads.queries, *shape) > -0.3,
        "padding": mx.arange(heads.length) < mx.array([heads.length - 1] * heads.batch).reshape(-1, 1, 1, 1),
        "of half precision": drawn(*shape, dtype=dtype),
    }
    return masks[kind]


MASKS = ("none", "causal", "boolean", "padding", "of half precision")


def arrays_of(heads: Heads, turned: bool, dtype: mx.Dtype) -> list[mx.array]:
    """Queries, keys, values, and a cotangent."""
    shapes = [
        (heads.batch, heads.queries, heads.rows, heads.features),
        (heads.batch, heads.keys, heads.length, heads.features),
        (heads.batch, heads.keys, heads.length, heads.width),
        (heads.batch, heads.queries, heads.rows, heads.width),
    ]
    arrays = [drawn(*((a, c, b, d) if turned else (a, b, c, d)), dtype=dtype) for a, b, c, d in shapes]
    mx.eval(arrays)
    return arrays


def attend(turned: bool, mask: Any, scale: float = 0.3) -> Callable[..., list[mx.array]]:
    def attention(*arrays: mx.array) -> mx.array:
        straight = [mx.swapaxes(x, 1, 2) if turned else x for x in arrays]
        out = mx.fast.scaled_dot_product_attention(*straight, scale=scale, mask=mask)
        return mx.swapaxes(out, 1, 2) if turned else out

    def found(*arrays: mx.array) -> list[mx.array]:
        (out,), cotangents = mx.vjp(attention, list(arrays[:3]), [arrays[3]])
        return [out, *cotangents]

    return found


def test_attention(library: FakeCudnn, cases: Cases) -> None:
    """The result and the cotangents are two calls; if the mask is an array, only the result is a call."""
    halves = (mx.bfloat16, mx.float16)
    every = [(*one, dtype) for one in product(HEADS, MASKS, (False, True)) for dtype in halves]
    for name, kind, turned, dtype in cases.some(3, every):
        arrays, mask = arrays_of(HEADS[name], turned, dtype), mask_of(kind, HEADS[name], dtype)
        before = library.executed
        found = mx.compile(attend(turned, mask))(*arrays)
        mx.eval(found)
        assert library.executed == before + (2 if kind in ("none", "causal") else 1)
        with mx.stream(mx.cpu):
            wanted = attend(turned, mask)(*arrays)
        for one, right in zip(found, wanted, strict=True):
            assert one.dtype == dtype
            assert np.allclose(wide(one), wide(right), rtol=0.06, atol=0.06), (name, kind, turned)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("refuses", [False, True])
def test_parts_of_one_array(library: FakeCudnn, batch: int, refuses: bool) -> None:
    """If queries, keys and values are side by side in one array, cuDNN reads them there, unless it cannot."""

    def attention(mixed: mx.array) -> mx.array:
        q, k, v = [mx.swapaxes(x.reshape(batch, 5, 2, 8), 1, 2) for x in mx.split(mixed, 3, axis=-1)]
        return mx.swapaxes(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask="causal"), 1, 2)

    def both(x: mx.array, ct: mx.array) -> list[mx.array]:
        (out,), (cotangent,) = mx.vjp(lambda x: attention(x * 2), [x], [ct])
        return [out, cotangent]

    rows_within: list[list[int]] = []

    def refused(strides: list[int]) -> bool:
        within = 48 in strides
        rows_within.extend([strides] if within else [])
        return within and refuses

    library.refuses = refused
    x, ct = drawn(batch, 5, 48, dtype=mx.bfloat16), drawn(batch, 5, 2, 8, dtype=mx.bfloat16)
    function = mx.compile(both)
    found = function(x, ct)
    with mx.stream(mx.cpu):
        wanted = both(x, ct)
    for one, right in zip(found, wanted, strict=True):
        assert np.allclose(wide(one), wide(right), rtol=0.06, atol=0.06)
    assert library.executed == 2
    assert rows_within


def test_a_query_that_sees_no_key(library: FakeCudnn) -> None:
    """Its result is the mean of all values."""
    q, k, v, _ = arrays_of(HEADS["plain"], False, mx.bfloat16)
    mean = wide(v).mean(2, keepdims=True)
    hidden = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mx.zeros((4, 4), dtype=mx.bool_))
    assert np.allclose(wide(hidden), np.broadcast_to(mean, hidden.shape), atol=0.02)
    lowest = mx.full((4, 4), float(mx.finfo(mx.bfloat16).min)).astype(mx.bfloat16)
    assert_same_bits(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=lowest), hidden)
    late = mx.fast.scaled_dot_product_attention(q, k[:, :, :2], v[:, :, :2], scale=0.3, mask="causal")
    assert np.allclose(wide(late)[:, :, 0], wide(v)[:, :, :2].mean(2), atol=0.02)
    assert library.executed == 2  # cuDNN does not compute causal attention with fewer keys than queries


def test_gradients_in_parts(library: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples, or heads of keys with their queries, in separate calls."""
    arrays = arrays_of(HEADS["shared keys"], True, mx.bfloat16)
    whole = attend(True, None)(*arrays)
    mx.eval(whole)
    for most, calls in ((12 * 2, 2), (12, 4)):
        monkeypatch.setattr(attention, "_MOST_SCORES", most)
        evaluate.forget_plans()
        found, before = attend(True, None)(*arrays), library.executed
        mx.eval(found)
        assert_same_bits(found, whole)
        assert library.executed == before + 1 + calls


def test_a_gradient_is_the_same_whenever_it_is_evaluated(library: FakeCudnn) -> None:
    arrays = arrays_of(HEADS["plain"], False, mx.bfloat16)
    together = attend(False, "causal")(*arrays)
    mx.eval(together)
    one_by_one = attend(False, "causal")(*arrays)
    for found, wanted in zip(one_by_one, together, strict=True):
        assert_same_bits(found, wanted)


def test_attention_that_cudnn_does_not_know(library: FakeCudnn) -> None:
    """Odd numbers of features, float32, and sinks are not computed by cuDNN."""
    q = drawn(1, 2, 3, 6, dtype=mx.bfloat16)
    wider = drawn(1, 2, 3, 8)
    half = wider.astype(mx.bfloat16)
    sinks = mx.array([0.5, 1.0]).astype(mx.bfloat16)
    for x, more in ((q, {}), (wider, {}), (half, {"sinks": sinks})):
        found = mx.fast.scaled_dot_product_attention(x, x, x, scale=0.3, **more)
        wanted = mx.fast.scaled_dot_product_attention(x, x, x, scale=0.3, **more, stream=mx.cpu)
        assert np.allclose(wide(found), wide(wanted), atol=0.02)
    assert library.executed == 0


@pytest.mark.parametrize("kind", MASKS)
def test_few_queries(library: FakeCudnn, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are products of matrices, with any number of features and with sinks."""
    monkeypatch.setattr(attention, "FEW_QUERIES", 8)
    for heads in (HEADS["shared keys"], HEADS["one query"]._replace(features=5)):
        *arrays, _ = arrays_of(heads, True, mx.bfloat16)
        sinks = drawn(heads.queries, dtype=mx.bfloat16) if kind == "causal" else None
        found, wanted = (
            mx.fast.scaled_dot_product_attention(
                *[mx.swapaxes(x, 1, 2) for x in arrays],
                scale=0.3,
                mask=mask_of(kind, heads),
                sinks=sinks,
                stream=stream,
            )
            for stream in (mx.gpu, mx.cpu)
        )
        assert found.dtype == mx.bfloat16
        assert np.allclose(wide(found), wide(wanted), atol=0.03)
    assert library.executed == 0


def test_the_result_is_not_converted_to_float32_and_back(library: FakeCudnn) -> None:
    arrays = arrays_of(HEADS["plain"], True, mx.bfloat16)
    function = mx.compile(lambda *arrays: attend(True, None)(*arrays)[0])
    names = [name for step in function.explain(*arrays).steps for name in step.operations]
    assert "attention (cuDNN)" in names
    assert not any("astype" in name for name in names)


def test_scores_have_another_factor_in_the_same_plan(library: FakeCudnn) -> None:
    arrays = arrays_of(HEADS["plain"], False, mx.bfloat16)
    for number, scale in enumerate((0.1, 0.7, 0.1, 1.5)):
        before = weft.counters()
        found = attend(False, None, scale)(*arrays)
        mx.eval(found)
        assert (weft.counters() - before).plans == (number == 0)
        with mx.stream(mx.cpu):
            wanted = attend(False, None, scale)(*arrays)
        assert np.allclose(wide(found[0]), wide(wanted[0]), atol=0.03)


def test_planning_keeps_no_nodes(library: FakeCudnn) -> None:
    def known() -> int:
        gc.collect()
        return sum([len(operation._results) for operation in attention.OPERATIONS])

    before = known()
    mx.eval(attend(False, "causal")(*arrays_of(HEADS["plain"], False, mx.bfloat16)))
    assert library.executed == 2
    assert known() <= before


def test_engines_are_chosen(library: FakeCudnn) -> None:
    """One that gives the same bits each time, can be planned, and does not round float32 before it multiplies."""
    x, w = drawn(1, 3, 3, 2), drawn(2, 2, 2, 2)
    library.engines = [([Note.TENSOR_CORE], True), ([], True)]
    mx.eval(mx.conv2d(x, w))
    library.engines = [([Note.TENSOR_CORE], True)]
    mx.eval(mx.conv2d(x[:, :, :2], w))
    assert library.executed == 1
    mx.eval(mx.conv2d(x.astype(mx.bfloat16), w.astype(mx.bfloat16)))
    assert library.executed == 2
    library.engines = [([Note.WINOGRAD], True), ([], False)]
    y = drawn(2, 3, 3, 2)
    assert np.allclose(wide(mx.conv2d(y, w)), wide(mx.conv2d(y, w, stream=mx.cpu)), atol=1e-5)
    assert library.executed == 2


def test_plans_of_a_program_are_made_at_the_same_time(library: FakeCudnn) -> None:
    library.engines = [([], True)]
    library.before_plan = Barrier(2, timeout=60).wait
    mx.eval(attend(False, "causal")(*arrays_of(HEADS["plain"], False, mx.bfloat16)))
    assert library.executed == 2


def test_a_program_is_planned_again_without_what_cudnn_refuses(
    library: FakeCudnn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it refuses is only known when the rest is planned, and when the kernels are there."""
    library.engines, is_placed, scratch = [([], False)], Event(), operations.ExpectedPlan.scratch
    kernels = []

    def asked(plan: operations.ExpectedPlan) -> int:
        kernels.append(weft.counters().kernels)
        is_placed.set()
        return scratch(plan)

    monkeypatch.setattr(operations.ExpectedPlan, "scratch", asked)
    library.before_plan = partial(is_placed.wait, 60)
    arrays = arrays_of(HEADS["plain"], False, mx.bfloat16)
    mx.eval(arrays)
    before = weft.counters().kernels
    found = [x * 1.7 - mx.sin(x) for x in attend(False, None)(*arrays)]
    mx.eval(found)
    assert kernels[0] > before
    assert library.executed == 0
    with mx.stream(mx.cpu):
        wanted = [x * 1.7 - mx.sin(x) for x in attend(False, None)(*arrays)]
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(wide(one), wide(other), atol=0.03)


def test_operands_that_begin_anywhere(library: FakeCudnn, driver: FakeDriver) -> None:
    """They are copied in each run to where cuDNN can read them."""
    function, w = mx.compile(lambda x, w: mx.conv2d(x, w)), drawn(2, 2, 2, 3)
    x = drawn(5, 3, 3, 3) + 0  # on the card
    mx.eval(x, w)
    wanted = wide(mx.conv2d(x, w, stream=mx.cpu))
    for _ in range(3):
        for number in range(5):
            assert np.allclose(wide(function(x[number : number + 1], w))[0], wanted[number], atol=1e-5)
    assert driver.calls["copy"] == 9  # those that begin at 1, 2 and 3 times 108 bytes


def test_descriptors_end(library: FakeCudnn) -> None:
    """The descriptors of the addresses of runs are destroyed; plans stay in a cache."""
    function, w = mx.compile(lambda x, w: mx.conv2d(x, w)), drawn(2, 2, 2, 2)
    held = []
    for _ in range(4):
        held.append(function(drawn(1, 3, 3, 2), w))
        mx.eval(held)
    before = library.count()
    for _ in range(20):
        held.append(function(drawn(1, 3, 3, 2), w))
        mx.eval(held)
    assert library.count() <= before + 4


def test_an_error_names_the_step(library: FakeCudnn, driver: FakeDriver) -> None:
    y = mx.conv2d(drawn(1, 3, 3, 2), drawn(2, 2, 2, 2))
    driver.library_codes = [BAD]
    with pytest.raises(weft.errors.EvaluationError, match=r"STATUS_2000.*convolution \(1, 3, 3, 2\)"):
        mx.eval(y)


def test_without_the_library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "missing", lambda: "libcudnn.so.9 is missing")
    mx.set_default_device(mx.gpu)
    x, w = drawn(1, 3, 3, 2), drawn(2, 2, 2, 2)
    assert np.allclose(wide(mx.conv2d(x, w)), wide(mx.conv2d(x, w, stream=mx.cpu)), atol=1e-5)


def test_an_array_that_is_reshaped_before_it_is_copied(library: FakeCudnn) -> None:
    """What a call needs copied is a view of a view: the copy reads what both show."""
    x = mx.array([1.0, 2.0, 4.0]).reshape(1, 3, 1)
    found = mx.conv_general(x, mx.ones((1, 2, 1)), padding=([1], [0]), input_dilation=2)
    assert wide(found).flatten().tolist() == [1, 1, 2, 2, 4]
