"""Gradients of updates that are dropped, repeated or moved to the nearest index."""

from __future__ import annotations

from collections.abc import Callable

import weft.core as mx

WEIGHTS = mx.array([1.0, 10.0, 100.0])


def gradient(update: Callable[[mx.array], mx.array], u: list[float]) -> list[float]:
    return mx.grad(lambda v: (update(v) * WEIGHTS).sum())(mx.array(u)).tolist()


def test_a_dropped_update_has_no_gradient() -> None:
    index = mx.array([1, 7])
    assert gradient(lambda v: mx.zeros(3).at[index].add(v), [1.0, 2.0]) == [10.0, 0.0]
    assert gradient(lambda v: mx.ones(3).at[index].multiply(v), [2.0, 5.0]) == [10.0, 0.0]
    assert gradient(lambda v: mx.zeros(3).at[index].maximum(v), [1.0, 2.0]) == [10.0, 0.0]


def test_an_overwritten_update_has_no_gradient() -> None:
    def update(v: mx.array) -> mx.array:
        x = mx.zeros(3)
        x[mx.array([2, 0, 2])] = v
        return x

    assert gradient(update, [1.0, 2.0, 3.0]) == [0.0, 1.0, 100.0]


def test_products_of_repeated_updates() -> None:
    index = mx.array([0, 0, 2])
    assert gradient(lambda v: (mx.ones(3) * 3).at[index].multiply(v), [2.0, 5.0, 7.0]) == [15.0, 6.0, 300.0]
    assert gradient(lambda v: (mx.ones(3) * 3).at[index].multiply(v), [0.0, 5.0, 0.0]) == [15.0, 0.0, 300.0]
    assert gradient(lambda v: (mx.ones(3) * 3).at[index].multiply(v), [0.0, 0.0, 1.0]) == [0.0, 0.0, 300.0]


def test_what_was_read_at_the_nearest_index_gets_its_gradient() -> None:
    assert mx.grad(lambda x: mx.take(x, mx.array([1, 7])).sum())(mx.array([1.0, 2.0, 3.0])).tolist() == [0.0, 1.0, 1.0]


def test_equal_updates_share_the_gradient_of_an_extreme() -> None:
    index = mx.array([0, 2, 0, 2, 0])
    assert gradient(lambda v: mx.zeros(3).at[index].maximum(v), [4.0, 1.0, 4.0, 2.0, 3.0]) == [0.5, 0, 0.5, 100, 0]
    assert gradient(lambda v: mx.zeros(3).at[index].minimum(-v), [4.0, 1.0, 4.0, 2.0, 3.0]) == [-0.5, 0, -0.5, -100, 0]
    assert gradient(lambda v: mx.full(3, 4.0).at[index].maximum(v), [4.0, 5.0, 4.0, 5.0, 3.0]) == [0, 50, 0, 50, 0]
    tangent = mx.jvp(lambda v: mx.zeros(3).at[index].maximum(v), [mx.ones(5)], [mx.arange(5.0)])[1][0]
    assert tangent.tolist() == [2.0, 0.0, 2.0]


def test_shares_of_a_gradient_are_as_precise_as_the_updates() -> None:
    index = mx.array([0, 0, 0])
    shares = mx.grad(lambda v: mx.zeros(1, dtype=mx.float64).at[index].maximum(v).sum())(mx.ones(3, dtype=mx.float64))
    assert shares.tolist() == [1 / 3, 1 / 3, 1 / 3]
