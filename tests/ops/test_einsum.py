"""The order in which `einsum` contracts several operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits

CASES: list[tuple[str, list[tuple[int, ...]]]] = [
    ("ij,jk,kl->il", [(2, 30), (30, 4), (4, 50)]),
    ("ij,jk,kl,lm", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("a,ab,abc->abc", [(2,), (2, 3), (2, 3, 4)]),
    ("i,i,i", [(3,), (3,), (3,)]),
    ("i,j,k->ijk", [(2,), (3,), (4,)]),
    ("ii,jj,kk", [(2, 2), (3, 3), (4, 4)]),
    ("...ij,jk,...kl->...l", [(2, 3, 4), (4, 5), (2, 5, 6)]),
    ("ij,jk,kl->il", [(2, 1), (3, 4), (4, 5)]),
    ("ijk,ilm,njm,nlk,abc->", [(4, 4, 4)] * 5),
    ("bqd,bkd,bkv->bqv", [(2, 3, 4), (2, 5, 4), (2, 5, 6)]),
    ("ab,bc,cd,de,ef,fg,gh,hi,ij,jk,kl", [*[(2, 3), (3, 4), (4, 2)] * 3, (2, 3), (3, 4)]),
]


@pytest.mark.parametrize(("subscripts", "shapes"), CASES)
def test_values(subscripts: str, shapes: list[tuple[int, ...]], rng: np.random.Generator) -> None:
    operands = [rng.normal(size=shape) for shape in shapes]
    got = mx.einsum(subscripts, *[mx.array(x, dtype=mx.float64) for x in operands])
    np.testing.assert_allclose(np.array(got), np.einsum(subscripts, *operands), rtol=1e-10, atol=1e-10)


def operations(text: str) -> tuple[int, int]:
    """The numbers of operations of the chosen path, and of one contraction of all operands at once."""
    naive, best = [int(line.rpartition(":")[2]) for line in text.splitlines()[-2:]]
    return best, naive


@pytest.mark.parametrize(("subscripts", "shapes"), CASES)
def test_the_path_costs_no_more_than_that_of_mlx(mlx: Any, subscripts: str, shapes: list[tuple[int, ...]]) -> None:
    path, text = mx.einsum_path(subscripts, *[mx.zeros(shape) for shape in shapes])
    their_path, their_text = mlx.einsum_path(subscripts, *[mlx.zeros(shape) for shape in shapes])
    ours, theirs = text.splitlines(), their_text.splitlines()
    assert [line.partition(":")[0] for line in ours] == [line.partition(":")[0] for line in theirs]
    assert ours[:2] + ours[3:4] == theirs[:2] + theirs[3:4]
    if path == their_path:
        assert text == their_text
    best, naive = operations(text)
    if all(len(step) == 2 for step in their_path):
        assert best <= operations(their_text)[0]
    assert best <= naive


def test_one_and_two_operands_have_one_step() -> None:
    assert mx.einsum_path("ij->i", mx.ones((2, 3)))[0] == [(0,)]
    assert mx.einsum_path("ij,jk", mx.ones((2, 3)), mx.ones((3, 4)))[0] == [(0, 1)]
    with pytest.raises(ValueError, match=r"\[einsum_path\] .* describes 2 operands; 1 are given"):
        mx.einsum_path("ij,jk", mx.ones((2, 3)))


def test_the_order_is_that_of_the_shapes(rng: np.random.Generator) -> None:
    small, large = mx.array(rng.normal(size=(2, 2))), mx.array(rng.normal(size=(2, 50)))
    assert mx.einsum_path("ij,jk,kl->il", small, small, large)[0][0] == (0, 1)
    assert mx.einsum_path("ij,jk,kl->il", large.T, small, small)[0][0] == (1, 2)


def test_one_trace_serves_shapes_with_other_best_orders(rng: np.random.Generator) -> None:
    compiled = mx.compile(lambda *x: mx.einsum("ij,jk,kl->il", *x), shapeless=True)
    gradient = mx.compile(
        mx.grad(lambda *x: (mx.einsum("ij,jk,kl->il", *x) ** 2).sum(), argnums=(0, 1, 2)), shapeless=True
    )
    first = set()
    for i, j, k, n in ((2, 3, 3, 9), (20, 3, 9, 1), (1, 4, 4, 1), (9, 2, 9, 2)):
        operands = [mx.array(rng.normal(size=shape)) for shape in ((i, j), (j, k), (k, n))]
        first.add(mx.einsum_path("ij,jk,kl->il", *operands)[0][0])
        assert_same_bits(compiled(*operands), mx.einsum("ij,jk,kl->il", *operands))
        expected = mx.grad(lambda *x: (mx.einsum("ij,jk,kl->il", *x) ** 2).sum(), argnums=(0, 1, 2))(*operands)
        assert_same_bits(list(gradient(*operands)), list(expected))
    assert first == {(0, 1), (1, 2)}


def test_half_precision_is_rounded_once(rng: np.random.Generator) -> None:
    operands = [rng.normal(size=(30, 30)).astype(np.float16) for _ in range(3)]
    got = np.array(mx.einsum("ij,jk,kl->il", *[mx.array(x) for x in operands]))
    exact = np.einsum("ij,jk,kl->il", *[x.astype(np.float64) for x in operands])
    np.testing.assert_array_less(
        abs(got - exact), 0.6 * np.spacing(abs(exact).astype(np.float16)).astype(np.float64) + 1e-3
    )


def test_integers_are_summed_in_32_bits() -> None:
    x = mx.full((2, 100), 2, mx.int8)
    assert mx.einsum("ij,k->ik", x, mx.array([3], mx.int8)).tolist() == [[600], [600]]
    assert mx.einsum("ij,kj,l->ik", x, x, mx.array([3], mx.int8)).tolist() == [[1200] * 2] * 2
