"""Schedules of `weft.optimizers`, and the clipping of gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft.core as mx
import weft.optimizers as optim
from weft.optimizers.clipping import clip_grad_norm_sharded

SCHEDULES = [
    lambda o: o.exponential_decay(0.1, 0.9),
    lambda o: o.step_decay(0.1, 0.5, 4),
    lambda o: o.cosine_decay(0.1, 10),
    lambda o: o.cosine_decay(0.1, 10, 0.05),
    lambda o: o.linear_schedule(0.0, 1.0, 10),
    lambda o: o.linear_schedule(1.0, 0.2, 7),
    lambda o: o.join_schedules([o.linear_schedule(0.0, 1.0, 3), o.cosine_decay(1.0, 5)], [3]),
    lambda o: o.join_schedules(
        [o.linear_schedule(0.0, 1.0, 3), o.cosine_decay(1.0, 5), o.step_decay(2.0, 0.5, 2)], [3, 6]
    ),
    lambda o: o.join_schedules([o.exponential_decay(1.0, 0.5)], []),
]


def test_integers_decay_as_floating_numbers() -> None:
    assert optim.exponential_decay(1, 2)(mx.array(40)).item() == 2.0**40


@pytest.mark.parametrize("make", SCHEDULES)
def test_schedules_against_mlx(mlx_package, make):
    ours, theirs = make(optim), make(mlx_package.optimizers)
    for step in range(14):
        value = ours(mx.array(step, mx.uint64))
        assert value.dtype == mx.float32
        expected = theirs(mlx_package.core.array(step, mlx_package.core.uint64)).item()
        assert value.item() == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert ours(step).item() == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.step_decay(0.1, 0.5, 0), r"\[step_decay\] step_size must be at least 1; got 0"),
        (lambda: optim.cosine_decay(0.1, 0), "decay_steps"),
        (lambda: optim.linear_schedule(0.0, 1.0, -1), "steps must be at least 1; got -1"),
        (lambda: optim.join_schedules([], []), "at least one schedule"),
        (lambda: optim.join_schedules([optim.cosine_decay(1.0, 5)], [3]), "1 schedules need 0 boundaries; got 1"),
    ],
)
def test_schedules_check_their_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schedules_work_while_traced():
    schedule = mx.compile(optim.join_schedules([optim.linear_schedule(0.0, 1.0, 4), optim.cosine_decay(1.0, 4)], [4]))
    assert schedule(mx.array(2)).item() == 0.5
    assert schedule(mx.array(4)).item() == 1
    assert schedule(mx.array(8)).item() == pytest.approx(0, abs=1e-6)


def test_clip_grad_norm():
    tree = {"a": mx.array([3.0, 0.0]), "b": [mx.array([[4.0]])]}
    clipped, norm = optim.clip_grad_norm(tree, 1.0)
    assert norm.item() == 5
    np.testing.assert_allclose(np.array(clipped["a"]), [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(np.array(clipped["b"][0]), [[0.8]], rtol=1e-6)
    same, _ = optim.clip_grad_norm(tree, 10.0)
    assert same["a"].tolist() == [3, 0]
    in_a_group_of_one, norm = clip_grad_norm_sharded(tree, 1.0, mx.distributed.init())
    assert norm.item() == 5
    assert in_a_group_of_one["a"].tolist() == clipped["a"].tolist()


def test_clip_grad_norm_at_the_edges():
    assert optim.clip_grad_norm({}, 1.0)[1].item() == 0
    zeros, norm = optim.clip_grad_norm({"a": mx.zeros((2,))}, 1.0)
    assert (zeros["a"].tolist(), norm.item()) == ([0, 0], 0)
    half, norm = optim.clip_grad_norm({"a": mx.array([300.0, 400.0]).astype(mx.float16)}, 1.0)
    assert half["a"].dtype == mx.float16
    assert norm.item() == 500
    assert not math.isinf(half["a"][0].item())
