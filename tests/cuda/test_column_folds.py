"""Kernels of rows that fold columns, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft.core as mx
from tests.cuda.device import ENGINE
from tests.ops.row import bits
from weft.compiler.cuda import joining
from weft.compiler.planning.planner import planner_of
from weft.compiler.program import Program
from weft.compiler.running import evaluate
from weft.primitives import reductions


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also few rows are folded in parts."""
    monkeypatch.setattr(reductions, "PARTED_SIZE", 256)
    monkeypatch.setattr(joining, "ENOUGH_PARTS", 1)
    evaluate.forget_plans()
    yield
    evaluate.forget_plans()


def of_softmax(x: mx.array) -> list[mx.array]:
    y = mx.softmax(x, axis=-1)
    return [y, mx.sum(x * y, axis=0), mx.max(x, axis=0)]


def gradients_of_layer_norm(x: mx.array) -> list[mx.array]:
    return mx.vjp(lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5), [x, x[0], x[1]], [mx.sin(x)])[1]


def gradients_of_rms_norm(x: mx.array) -> list[mx.array]:
    return mx.vjp(lambda x, w: mx.fast.rms_norm(x, w, 1e-5), [x, x[0]], [x + 1])[1]


def bits_of(function: Callable[[mx.array], list[mx.array]], x: mx.array) -> list[bytes]:
    """Of all results, which are evaluated together."""
    found = function(x)
    mx.eval(found)
    return [bits(np.array(one)) for one in found]


def is_joined(function: Callable[[mx.array], list[mx.array]], x: mx.array) -> bool:
    """Whether kernels are joined in a plan for GPUs."""
    mx.eval(x)
    program, found = Program(), function(x)
    program.add([one.node for one in found])
    outputs = [program.position(one.node) for one in found]
    return bool(planner_of(program.entries, outputs, ENGINE.target).joined)


@pytest.mark.parametrize(
    "function",
    [
        gradients_of_rms_norm,
        *[pytest.param(one, marks=pytest.mark.slow) for one in (of_softmax, gradients_of_layer_norm)],
    ],
)
def test_columns_are_folded_where_rows_are_done(
    function: Callable[[mx.array], list[mx.array]], rng: np.random.Generator
) -> None:
    x = mx.array(rng.normal(size=(512, 128)).astype(np.float32))
    assert is_joined(function, x)
    wanted = bits_of(function, x)
    with mx.stream(mx.gpu):
        assert bits_of(function, x) == wanted


def test_what_does_not_fit_is_not_joined() -> None:
    """A row that is not held in registers; parts of which the last one has fewer rows; other elements than those of
    the rows; a sum of numbers that are wider."""
    fits = mx.ones((512, 128))
    assert is_joined(of_softmax, fits)
    for x in (mx.ones((512, 120)), mx.ones((513, 128)), mx.ones((512, 128), dtype=mx.float64)):
        assert not is_joined(of_softmax, x)
    assert not is_joined(lambda x: [mx.softmax(x, axis=-1), mx.sum(mx.sin(x[::-1]), axis=0)], fits)
