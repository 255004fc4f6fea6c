"""Linear algebra on a card: results satisfy their defining equations, and every run gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.gpu.card import require_card
from weft.runtime.cuda.solvers import calls

require_card()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(calls.missing()), reason=f"no cuSOLVER: {calls.missing()}"),
]

DTYPES = [mx.float32, mx.float64, mx.complex64]
ROUNDING = {mx.float32: 2.0**-24, mx.float64: 2.0**-53, mx.complex64: 2.0**-24}
SHAPES = [(1, 1), (7, 7), (200, 200), (5, 3, 3), (100, 8, 8), (3, 2, 33, 33), (3, 270, 270)]
OBLONG = [(5, 3), (3, 5), (300, 1), (1, 300), (200, 70), (70, 200), (6, 9, 4), (3, 40, 35), (3, 35, 40), (50, 1, 2)]


@pytest.fixture(autouse=True)
def _on_the_card() -> Any:
    with mx.stream(mx.gpu):
        yield


def drawn(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    rng = np.random.default_rng(sum(shape))
    numbers = rng.normal(size=shape)
    if dtype == mx.complex64:
        return mx.array((numbers + 1j * rng.normal(size=shape)).astype(np.complex64))
    return mx.array(numbers.astype(np.float32)).astype(dtype)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x).astype(np.complex128 if x.dtype == mx.complex64 else np.float64)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def positive(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    a = wide(drawn(*shape, dtype=dtype))
    product = a @ adjoint(a) / shape[-1] + np.eye(shape[-1])
    return mx.array(product.astype(np.complex64 if dtype == mx.complex64 else np.float64)).astype(dtype)


def assert_near(found: np.ndarray, wanted: np.ndarray, x: mx.array, factor: float = 30) -> None:
    """Within a bound that grows with the extent of matrices like ``x``."""
    assert found.shape == wanted.shape
    allowed = factor * max(x.shape[-2:]) * ROUNDING[x.dtype] * max(float(abs(wanted).max(initial=0)), 1)
    assert abs(found - wanted).max(initial=0) <= allowed, (abs(found - wanted).max(), allowed, x.shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cholesky(dtype: mx.Dtype) -> None:
    for shape in SHAPES:
        a = positive(*shape, dtype=dtype)
        lower, upper = wide(mx.linalg.cholesky(a)), wide(mx.linalg.cholesky(a, upper=True))
        assert_near(lower @ adjoint(lower), wide(a), a)
        assert_near(adjoint(upper) @ upper, wide(a), a)
        assert np.array_equal(lower, np.tril(lower))
        assert np.array_equal(upper, np.triu(upper))
        half = mx.tril(a)
        assert_same_bits(mx.linalg.cholesky(half), mx.linalg.cholesky(a))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lu(dtype: mx.Dtype) -> None:
    for shape in [*SHAPES, *OBLONG]:
        a = drawn(*shape, dtype=dtype)
        order, lower, upper = mx.linalg.lu(a)
        rows = np.array(order).astype(np.int64)
        assert np.array_equal(np.sort(rows, axis=-1), np.broadcast_to(np.arange(shape[-2]), rows.shape))
        product = np.take_along_axis(wide(lower) @ wide(upper), rows[..., None], axis=-2)
        assert_near(product, wide(a), a)
        assert abs(wide(lower)).max() <= np.sqrt(2) + 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_solve_and_invert(dtype: mx.Dtype) -> None:
    for shape in SHAPES:
        a = positive(*shape, dtype=dtype)
        for columns in (1, 5, shape[-1]):
            b = drawn(*shape[:-1], columns, dtype=dtype)
            x = mx.linalg.solve(a, b)
            assert_near(wide(a) @ wide(x), wide(b), a, 200)
        x = mx.linalg.solve(a, b[..., 0] if len(shape) == 2 else b)
        mx.eval(x)
        inverse = mx.linalg.inv(a)
        assert_near(wide(a) @ wide(inverse), np.broadcast_to(np.eye(shape[-1]), shape), a, 200)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangles(dtype: mx.Dtype) -> None:
    for shape in SHAPES:
        a = positive(*shape, dtype=dtype)
        for upper in (False, True):
            triangle = np.triu(wide(a)) if upper else np.tril(wide(a))
            for columns in (1, 4):
                b = drawn(*shape[:-1], columns, dtype=dtype)
                assert_near(triangle @ wide(mx.linalg.solve_triangular(a, b, upper=upper)), wide(b), a, 200)
            inverse = wide(mx.linalg.tri_inv(a, upper=upper))
            assert_near(triangle @ inverse, np.broadcast_to(np.eye(shape[-1]), shape), a, 200)
            assert np.array_equal(inverse, np.triu(inverse) if upper else np.tril(inverse))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_qr(dtype: mx.Dtype) -> None:
    for shape in [*SHAPES, *OBLONG]:
        a = drawn(*shape, dtype=dtype)
        q, r = map(wide, mx.linalg.qr(a))
        assert_near(q @ r, wide(a), a)
        assert_near(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*shape[:-2], *[q.shape[-1]] * 2)), a)
        assert np.array_equal(r, np.triu(r))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eigh(dtype: mx.Dtype) -> None:
    for shape in SHAPES:
        a = positive(*shape, dtype=dtype)
        for part in "LU":
            values, vectors = mx.linalg.eigh(a, UPLO=part)
            v = wide(vectors)
            assert_near(wide(a) @ v, wide(values)[..., None, :] * v, a)
            assert_near(adjoint(v) @ v, np.broadcast_to(np.eye(shape[-1]), shape), a)
            assert_near(wide(values), np.linalg.eigvalsh(wide(a)), a)
            assert_near(wide(mx.linalg.eigvalsh(a, UPLO=part)), np.linalg.eigvalsh(wide(a)), a)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_svd(dtype: mx.Dtype) -> None:
    for shape in [*SHAPES, *OBLONG]:
        a = drawn(*shape, dtype=dtype)
        u, s, vt = map(wide, mx.linalg.svd(a))
        k = s.shape[-1]
        assert_near(u[..., :k] * s[..., None, :] @ vt[..., :k, :], wide(a), a)
        for square in (u, vt):
            n = square.shape[-1]
            assert_near(adjoint(square) @ square, np.broadcast_to(np.eye(n), (*shape[:-2], n, n)), a)
        assert_near(s, np.linalg.svd(wide(a), compute_uv=False), a)
        assert_near(wide(mx.linalg.svd(a, compute_uv=False)), s, a)
        a = a if shape[-1] != shape[-2] else positive(*shape, dtype=dtype)
        assert_near(wide(mx.linalg.pinv(a)), np.linalg.pinv(wide(a)), a, 1000)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_svd_of_singular_matrices(dtype: mx.Dtype) -> None:
    for shape in ((9, 9), (3, 20, 12), (90, 90), (150, 130), (2, 60, 140)):
        *batch, m, n = shape
        k = min(m, n) // 2
        product = wide(drawn(*batch, m, k)) @ wide(drawn(*batch, k, n))
        for x in (product, np.zeros(shape), np.ones(shape), np.broadcast_to(np.eye(m, n), shape)):
            a = mx.array(x.astype(np.float32)).astype(dtype)
            u, s, vt = map(wide, mx.linalg.svd(a))
            rank = min(m, n)
            assert_near(u[..., :rank] * s[..., None, :] @ vt[..., :rank, :], wide(a), a)
            assert_near(s, np.linalg.svd(wide(a), compute_uv=False), a)
            for square in (u, vt):
                extent = square.shape[-1]
                assert_near(adjoint(square) @ square, np.broadcast_to(np.eye(extent), (*batch, extent, extent)), a)


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (40, 40), (3, 40, 40), (300, 300)], ids=str)
def test_failures(shape: tuple[int, ...]) -> None:
    """Matrices for which the algorithm fails become NaN, as on the CPU."""
    a = np.array(positive(*shape))
    which = (shape[0] - 1,) if len(shape) == 3 else ()
    bad, singular, infinite = a.copy(), a.copy(), a.copy()
    bad[(*which, 2, 2)] = -1
    singular[(*which, slice(None), 1)] = 0
    infinite[(*which, 2, 2)] = np.inf
    for function, broken in [
        (mx.linalg.cholesky, bad),
        (mx.linalg.inv, singular),
        (lambda x: mx.linalg.solve(x, x), singular),
        (lambda x: mx.linalg.solve_triangular(x, x), singular),
        (mx.linalg.tri_inv, singular),
        (mx.linalg.eigvalsh, infinite),
        (lambda x: mx.linalg.eigh(x)[1], infinite),
        (lambda x: mx.linalg.svd(x)[2], infinite),
    ]:
        found, wanted = np.array(function(mx.array(broken))), np.array(function(mx.array(a)))
        assert np.isnan(found[which]).all()
        if which:
            assert not np.isnan(found[:-1]).any()
        assert not np.isnan(wanted).any()


FUNCTIONS: dict[str, Callable[[mx.array], Any]] = {
    "cholesky": mx.linalg.cholesky,
    "lu": lambda a: mx.linalg.lu(a)[1:],
    "solve": lambda a: mx.linalg.solve(a, a[..., :2] + 1),
    "solve_triangular": lambda a: mx.linalg.solve_triangular(a, a + 1),
    "inv": mx.linalg.inv,
    "qr": lambda a: tuple(mx.linalg.qr(a)),
    "eigvalsh": mx.linalg.eigvalsh,
    "eigh": lambda a: mx.abs(mx.linalg.eigh(a)[1]),
    "svd": lambda a: mx.linalg.svd(a, compute_uv=False),
    "det": mx.linalg.det,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_run_has_the_same_bits(name: str) -> None:
    for shape in ((70, 70), (50, 6, 6)):
        a = positive(*shape)
        compiled = mx.compile(lambda a: FUNCTIONS[name](a * 1))
        wanted = compiled(a)
        mx.eval(wanted)
        for _ in range(4):
            assert_same_bits(compiled(a), wanted)
        with mx.stream(mx.new_stream(mx.gpu)):
            assert_same_bits(compiled(a), wanted)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transformations(name: str) -> None:
    """Compared with the CPU in float64."""

    def total(a: mx.array) -> mx.array:
        results = FUNCTIONS[name](a)
        results = results if isinstance(results, list | tuple) else [results]
        return sum([mx.sum(mx.sin(one)) for one in results], mx.array(0.0))

    for shape in ((12, 12), (3, 5, 5)):
        a, t = positive(*shape), drawn(*shape) * 0.1
        t = t + mx.swapaxes(t, -1, -2)
        found = [mx.grad(total)(a), mx.jvp(total, [a], [t])[1][0], mx.vmap(total)(a) if len(shape) == 3 else total(a)]
        with mx.stream(mx.cpu):
            b, u = a.astype(mx.float64), t.astype(mx.float64)
            wanted = [
                mx.grad(total)(b),
                mx.jvp(total, [b], [u])[1][0],
                mx.vmap(total)(b) if len(shape) == 3 else total(b),
            ]
            mx.eval(wanted)
        for one, exact in zip(found, wanted, strict=True):
            x, y = wide(one), wide(exact)
            assert np.allclose(x, y, rtol=2e-3, atol=2e-3 * max(float(abs(y).max()), 1)), abs(x - y).max()
