"""Random vectors with given covariances: comparison with MLX, and their distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx

COVARIANCE = np.array([[2.0, 0.5], [0.5, 1.0]], np.float32)
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((), (), ()),
    ((), (), (2, 3)),
    ((4,), (), ()),
    ((), (4,), ()),
    ((5, 1), (4,), ()),
    ((4,), (), (3, 1)),
    ((), (), (0,)),
]


@pytest.mark.parametrize(("means", "matrices", "shape"), SHAPES)
def test_the_vectors_are_those_of_mlx(mlx: Any, means: Any, matrices: Any, shape: Any) -> None:
    found = []
    for m in (mx, mlx):
        covariance = m.broadcast_to(m.array(COVARIANCE), (*matrices, 2, 2))
        drawn = m.random.multivariate_normal(m.ones((*means, 2)), covariance, shape, key=m.random.key(3))
        found.append(np.array(drawn))
    assert found[0].shape == found[1].shape
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float64, mx.float32, mx.float16])
def test_distribution(dtype: mx.Dtype) -> None:
    covariance = np.diag([1.0, 4.0, 0.0]) + np.ones((3, 3))
    drawn = mx.random.multivariate_normal(
        mx.array([1.0, -2.0, 3.0]), mx.array(covariance), (50_000,), dtype, mx.random.key(0)
    )
    assert drawn.dtype == dtype
    numbers = np.array(drawn).astype(np.float64)
    np.testing.assert_allclose(numbers.mean(axis=0), [1, -2, 3], atol=0.05)
    np.testing.assert_allclose(np.cov(numbers.T), covariance, atol=0.1)


def test_derivatives_and_many_keys() -> None:
    """The covariance of the results is the matrix, so its derivative with respect to a factor of the matrix is
    known."""
    key, matrix = mx.random.key(1), mx.array(COVARIANCE)

    def squares(scale: mx.array) -> mx.array:
        return (mx.random.multivariate_normal(mx.zeros(2), matrix * scale, (20,), key=key) ** 2).sum()

    total = squares(mx.array(1.0))
    np.testing.assert_allclose(mx.grad(squares)(mx.array(1.0)).item(), total.item(), rtol=1e-5)
    keys = mx.random.split(key, 3)
    mapped = mx.vmap(lambda key: mx.random.multivariate_normal(mx.zeros(2), matrix, key=key))(keys)
    rows = [mx.random.multivariate_normal(mx.zeros(2), matrix, key=keys[n]) for n in range(3)]
    np.testing.assert_allclose(np.array(mapped), np.array(mx.stack(rows)), rtol=1e-6)


def test_arguments() -> None:
    draw = mx.random.multivariate_normal
    with pytest.raises(ValueError, match=r"mean of shape \(2,\) and cov of shape \(3, 3\) do not fit"):
        draw(mx.zeros(2), mx.eye(3))
    with pytest.raises(ValueError, match=r"\(3,\), \(4,\) and \(\) cannot be broadcast"):
        draw(mx.zeros((4, 2)), mx.eye(2), (3,))
    with pytest.raises(ValueError, match="not int32"):
        draw(mx.zeros(2), mx.eye(2), (), mx.int32)
