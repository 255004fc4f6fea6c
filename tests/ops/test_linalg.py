"""Linear algebra beyond the operation table: failures, empty and thin matrices, stacks, the choice of eigenvectors."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import weft.core as mx
import weft.primitives as p
from tests.ops.row import numpy_dtype, to_array
from tests.sampling import Cases

DTYPES = (mx.float32, mx.float64, mx.complex64)
NAN = float("nan")


def name_of(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def random_stack(rng: np.random.Generator, dtype: mx.Dtype, *shape: int) -> np.ndarray:
    values = rng.normal(size=shape)
    if dtype == mx.complex64:
        values = values + 1j * rng.normal(size=shape)
    return values.astype(numpy_dtype(name_of(dtype)))


def in_weft(x: np.ndarray) -> mx.array:
    """The same numbers; a dtype is given, because Weft makes float32 of NumPy's float64 otherwise."""
    return to_array(x)


def definite(x: np.ndarray) -> np.ndarray:
    return x @ np.swapaxes(x, -1, -2).conj() + x.shape[-1] * np.eye(x.shape[-1], dtype=x.dtype)


FUNCTIONS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "inv": (mx.linalg.inv, True),
    "tri_inv": (mx.linalg.tri_inv, True),
    "cholesky": (mx.linalg.cholesky, True),
    "cholesky_inv": (mx.linalg.cholesky_inv, True),
    "det": (mx.linalg.det, True),
    "slogdet": (mx.linalg.slogdet, True),
    "eig": (mx.linalg.eig, True),
    "eigvals": (mx.linalg.eigvals, True),
    "eigh": (mx.linalg.eigh, True),
    "eigvalsh": (mx.linalg.eigvalsh, True),
    "solve": (lambda a: mx.linalg.solve(a, a), True),
    "solve_triangular": (lambda a: mx.linalg.solve_triangular(a, a), True),
    "lu": (mx.linalg.lu, False),
    "lu_factor": (mx.linalg.lu_factor, False),
    "qr": (mx.linalg.qr, False),
    "svd": (mx.linalg.svd, False),
    "pinv": (mx.linalg.pinv, False),
}
"""Functions of one matrix, and whether it must be square."""


def results(name: str, a: Any) -> list[Any]:
    found = FUNCTIONS[name][0](a)
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_no_matrix_is_refused(name: str) -> None:
    for wrong in (mx.array(1.0), mx.ones((3,))):
        with pytest.raises(ValueError, match="at least two dimensions"):
            results(name, wrong)
    if FUNCTIONS[name][1]:
        with pytest.raises(ValueError, match=rf"\[linalg\.{name}\].*square matrix; got shape \(2, 3\)"):
            results(name, mx.ones((2, 3)))
    if name not in ("det", "slogdet"):
        for dtype in (mx.float16, mx.bfloat16, mx.int32, mx.bool_):
            with pytest.raises(ValueError, match="must be float32, float64 or complex64; got"):
                results(name, mx.ones((2, 2), dtype))


@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0), (1, 1), (3, 1, 1)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_empty_stacks_and_matrices(name: str, shape: tuple[int, ...]) -> None:
    """Results have the shapes that follow from the rule for larger matrices."""
    found = results(name, mx.full(shape, 4.0))
    for result, of_five in zip(found, results(name, mx.eye(5)), strict=True):
        assert result.shape == (*shape[:-2], *[shape[-1]] * of_five.ndim)
        assert np.isfinite(np.array(result)).all()
    if shape == (0, 0) and name == "det":
        assert found[0].item() == 1.0


@pytest.mark.parametrize("name", ["lu", "lu_factor", "qr", "svd", "pinv"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (3, 1)], ids=str)
def test_thin_matrices(name: str, shape: tuple[int, ...]) -> None:
    a = np.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
    found = [np.array(x) for x in results(name, in_weft(a))]
    if name == "svd":
        u, s, vt = found
        assert [x.shape for x in found] == [(shape[0],) * 2, (min(shape),), (shape[1],) * 2]
        np.testing.assert_allclose(u.T @ u, np.eye(shape[0]), atol=1e-12)
        np.testing.assert_allclose(vt.T @ vt, np.eye(shape[1]), atol=1e-12)
        np.testing.assert_allclose(u[:, : len(s)] * s @ vt[: len(s)], a, atol=1e-12)
    elif name == "qr":
        np.testing.assert_allclose(found[0] @ found[1], a, atol=1e-12)
    elif name == "lu":
        np.testing.assert_allclose(found[1][found[0]] @ found[2], a, atol=1e-12)
    elif name == "pinv":
        np.testing.assert_allclose(found[0], np.linalg.pinv(a), atol=1e-12)


SINGULAR = [[1.0, 2.0], [2.0, 4.0]]
NO_RESULT: dict[str, tuple[Callable[[Any], Any], list[list[float]]]] = {
    "inv": (mx.linalg.inv, SINGULAR),
    "solve": (lambda a: mx.linalg.solve(a, a), SINGULAR),
    "tri_inv": (mx.linalg.tri_inv, [[0.0, 0.0], [1.0, 1.0]]),
    "solve_triangular": (lambda a: mx.linalg.solve_triangular(a, a), [[1.0, 0.0], [1.0, 0.0]]),
    "cholesky": (mx.linalg.cholesky, [[1.0, 2.0], [2.0, 1.0]]),
    "svd": (lambda a: mx.linalg.svd(a)[1], [[1.0, NAN], [0.0, 1.0]]),
    "eigh": (lambda a: mx.linalg.eigh(a)[1], [[1.0, 0.0], [float("inf"), 1.0]]),
    "eig": (lambda a: mx.linalg.eig(a)[0], [[1.0, 0.0], [NAN, 1.0]]),
    "pinv": (mx.linalg.pinv, [[1.0, NAN], [0.0, 1.0]]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("name", NO_RESULT)
def test_where_there_is_no_result_it_is_nan(name: str, dtype: mx.Dtype) -> None:
    """The result is NaN for that matrix of a stack, and for no other."""
    function, wrong = NO_RESULT[name]
    stack = mx.array([[[4.0, 1.0], [1.0, 2.0]], wrong, [[2.0, 0.5], [0.5, 1.0]]], dtype=mx.float32).astype(dtype)
    found = np.array(function(stack))
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_singular_matrices_with_a_result() -> None:
    a = mx.array(SINGULAR)
    assert mx.linalg.det(a).item() == 0.0
    sign, logarithm = mx.linalg.slogdet(a)
    assert (sign.item(), logarithm.item()) == (0.0, -float("inf"))
    order, lower, upper = mx.linalg.lu(a)
    np.testing.assert_array_equal(np.array(lower)[np.array(order)] @ np.array(upper), SINGULAR)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_stacks_are_loops(name: str, cases: Cases, rng: np.random.Generator) -> None:
    """Also stacks of more matrices than there are units of work, and of matrices larger than LAPACK's blocks."""
    for dtype, shape in cases.some(2, list(itertools.product(DTYPES, [(150, 3), (2, 3, 5), (3, 70), (1, 1, 2)]))):
        a = definite(random_stack(rng, dtype, *shape, shape[-1]))
        many = [np.array(x) for x in results(name, in_weft(a))]
        for index in list(np.ndindex(*shape[:-1]))[::17]:
            for stacked, single in zip(many, results(name, in_weft(a[index])), strict=True):
                np.testing.assert_array_equal(stacked[index], np.array(single))


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("shape", [(130, 130), (130, 40), (40, 130), (130, 150)], ids=str)
def test_factors_of_larger_matrices(dtype: mx.Dtype, shape: tuple[int, int], rng: np.random.Generator) -> None:
    a = random_stack(rng, dtype, *shape)
    tolerance: dict[str, Any] = {"rtol": 0, "atol": 1e-10 if dtype == mx.float64 else 3e-4}
    u, s, vt = [np.array(x) for x in mx.linalg.svd(in_weft(a))]
    np.testing.assert_allclose(u[:, : len(s)] * s @ vt[: len(s)], a, **tolerance)
    np.testing.assert_allclose(u @ u.conj().T, np.eye(len(u)), **tolerance)
    np.testing.assert_allclose(vt @ vt.conj().T, np.eye(len(vt)), **tolerance)
    q, r = [np.array(x) for x in mx.linalg.qr(in_weft(a))]
    np.testing.assert_allclose(q @ r, a, **tolerance)
    np.testing.assert_allclose(q.conj().T @ q, np.eye(q.shape[1]), **tolerance)
    np.testing.assert_array_equal(np.tril(r, -1), 0)
    order, lower, upper = [np.array(x) for x in mx.linalg.lu(in_weft(a))]
    np.testing.assert_allclose(lower[order] @ upper, a, **tolerance)
    if shape[0] == shape[1]:
        w, v = [np.array(x) for x in mx.linalg.eigh(in_weft(a + a.conj().T))]
        np.testing.assert_allclose(v * w @ v.conj().T, a + a.conj().T, rtol=0, atol=tolerance["atol"] * 10)


def test_pivots_are_those_of_scipy(rng: np.random.Generator) -> None:
    a = rng.normal(size=(40, 40))
    factors, pivots = mx.linalg.lu_factor(in_weft(a))
    wanted, order = scipy.linalg.lu_factor(a)
    np.testing.assert_allclose(np.array(factors), wanted, atol=1e-10)
    np.testing.assert_array_equal(np.array(pivots), order)
    assert pivots.dtype == mx.uint32


@pytest.mark.parametrize("upper", [False, True])
def test_only_one_triangle_is_read(upper: bool, rng: np.random.Generator) -> None:
    a = definite(rng.normal(size=(4, 4)))
    half = mx.array(np.where(np.triu(np.ones((4, 4))) if upper else np.tril(np.ones((4, 4))), a, NAN), dtype=mx.float64)
    factor = np.linalg.cholesky(a).T if upper else np.linalg.cholesky(a)
    np.testing.assert_allclose(np.array(mx.linalg.cholesky(half, upper)), factor)
    np.testing.assert_allclose(
        np.array(mx.linalg.eigvalsh(mx.where(mx.isnan(half), 99, half), "LU"[upper])), np.linalg.eigvalsh(a)
    )
    triangle = in_weft(factor) + (half * 0)
    np.testing.assert_allclose(np.array(mx.linalg.tri_inv(triangle, upper)), np.linalg.inv(factor), atol=1e-14)
    np.testing.assert_allclose(
        np.array(mx.linalg.solve_triangular(triangle, mx.eye(4, dtype=mx.float64), upper=upper)),
        np.linalg.inv(factor),
        atol=1e-14,
    )


@pytest.mark.parametrize("dtype", [mx.float32, mx.complex64], ids=name_of)
def test_eigenvectors_keep_their_length_and_phase(dtype: mx.Dtype, rng: np.random.Generator) -> None:
    """The derivative is that of the eigenvectors as they are returned: of length 1 and with real largest elements."""
    a = (random_stack(rng, dtype, 4, 4) * 0.3 + np.diag([1.0, 2, 3, 4])).astype(numpy_dtype(name_of(dtype)))
    a[0, 3], a[3, 0] = 3, -3
    t = random_stack(rng, dtype, 4, 4)
    (w, v), (of_w, of_v) = mx.jvp(mx.linalg.eig, [mx.array(a)], [mx.array(t)])
    step = 1e-6

    def exact(sign: int) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eig(a.astype(np.complex128) + sign * step * t)
        order = np.argmin(abs(values[:, None] - np.array(w)), axis=0)
        vectors = vectors[:, order]
        largest = np.take_along_axis(vectors, abs(vectors).argmax(0)[None], 0)
        given = np.take_along_axis(np.array(v), abs(np.array(v)).argmax(0)[None], 0)
        return values[order], vectors / largest * abs(largest) * np.sign(given.real)

    (ahead, vectors), (behind, others) = exact(1), exact(-1)
    np.testing.assert_allclose(np.array(of_w), (ahead - behind) / (2 * step), atol=2e-3)
    np.testing.assert_allclose(np.array(of_v), (vectors - others) / (2 * step), atol=2e-3)


def test_derivatives_where_eigenvalues_are_equal() -> None:
    """There, sums of eigenvalues or singular values have derivatives, but factors have none."""
    eye = mx.eye(3, dtype=mx.float64)
    np.testing.assert_array_equal(np.array(mx.grad(lambda a: mx.linalg.eigvalsh(a).sum())(eye)), np.eye(3))
    np.testing.assert_allclose(np.array(mx.grad(lambda a: mx.linalg.norm(a, "nuc"))(eye)), np.eye(3))
    np.testing.assert_allclose(np.array(mx.grad(lambda a: mx.linalg.pinv(a).sum())(eye)), -np.ones((3, 3)))
    assert not np.isfinite(np.array(mx.grad(lambda a: mx.linalg.eigh(a)[1].sum())(eye))).all()


@pytest.mark.parametrize("dtype", [mx.float64, mx.complex64], ids=name_of)
def test_gradients_of_determinants_of_singular_matrices(dtype: mx.Dtype, rng: np.random.Generator) -> None:
    """The gradients are the cofactors; they are not all zero if the rank is one less than full."""
    a = random_stack(rng, dtype, 4, 4, 4)
    a[1, 2] = a[1, 0] * 2
    a[2, :, 1] = 0
    a[3, 1:] = 0
    cofactors = np.zeros_like(a)
    for k, i, j in np.ndindex(a.shape):
        minor = np.delete(np.delete(a[k], i, 0), j, 1)
        cofactors[k, i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    found = mx.grad(lambda a: mx.real(mx.linalg.det(a)).sum() if dtype == mx.complex64 else mx.linalg.det(a).sum())
    tolerance = 1e-4 if dtype == mx.complex64 else 1e-12
    np.testing.assert_allclose(np.array(found(in_weft(a))), cofactors.conj(), rtol=tolerance, atol=tolerance)


def test_the_gradient_of_a_symmetric_matrix_is_symmetric(rng: np.random.Generator) -> None:
    a = mx.array(definite(rng.normal(size=(3, 3))), dtype=mx.float64)
    weights = mx.array(rng.normal(size=(3, 3)), dtype=mx.float64)
    for function in (mx.linalg.cholesky, lambda a: mx.linalg.eigh(a)[1]):
        gradient = np.array(mx.grad(lambda a, function=function: (function(a) * weights).sum())(a))
        np.testing.assert_array_equal(gradient, gradient.T)


def test_pseudoinverse_of_lower_rank(rng: np.random.Generator) -> None:
    """The derivative along a path on which the rank stays the same."""
    a, left, right = rng.normal(size=(5, 2)) @ rng.normal(size=(2, 4)), rng.normal(size=(5, 5)), rng.normal(size=(4, 4))

    def along(step: float) -> np.ndarray:
        return np.linalg.pinv((np.eye(5) + step * left) @ a @ (np.eye(4) + step * right), rcond=1e-9)

    (value,), (change,) = mx.jvp(mx.linalg.pinv, [in_weft(a)], [in_weft(left @ a + a @ right)])
    np.testing.assert_allclose(np.array(value), along(0), atol=1e-10)
    np.testing.assert_allclose(np.array(change), (along(1e-6) - along(-1e-6)) / 2e-6, rtol=1e-5, atol=1e-5)


def test_many_right_sides_of_one_matrix_are_columns(rng: np.random.Generator) -> None:
    """Also those that vmap adds: the matrix is factored once, and not repeated."""
    a, b = rng.normal(size=(4, 4)) + 4 * np.eye(4), rng.normal(size=(6, 4))
    found = mx.vmap(mx.linalg.solve, in_axes=(None, 0))(in_weft(a), in_weft(b))
    np.testing.assert_allclose(np.array(found), np.linalg.solve(a, b.T).T, atol=1e-12)
    calls = mx.compile(mx.vmap(mx.linalg.solve, in_axes=(None, 0))).explain(in_weft(a), in_weft(b)).calls
    assert [call.loops for call in calls] == ["4x4", "4x6"]


@pytest.mark.parametrize("b", [(2, 3), (3, 2), (4,), ()], ids=str)
def test_right_sides_that_do_not_fit(b: tuple[int, ...]) -> None:
    a = mx.eye(5) if len(b) != 1 else mx.eye(3)
    for function in (mx.linalg.solve, mx.linalg.solve_triangular):
        with pytest.raises(ValueError, match="do not fit"):
            function(a, mx.ones(b))


def test_dtypes_of_right_sides() -> None:
    assert mx.linalg.solve(mx.eye(2), mx.array([1, 2])).dtype == mx.float32
    assert mx.linalg.solve(mx.eye(2), mx.ones((2,), mx.float64)).dtype == mx.float64
    with pytest.raises(ValueError, match="got int32"):
        mx.linalg.solve(mx.eye(2, dtype=mx.int32), mx.array([1, 2]))


def test_factors_from_elsewhere() -> None:
    """A file may contain a node with any inputs: factors that do not fit are refused, and no pivot refers to a row
    outside."""
    a, b, pivots = mx.eye(3), mx.ones((3, 2)), mx.array([7, 1, 4_000_000_000], mx.uint32)
    found = p.solve_factored(a, a, pivots, b, adjoint=False)
    np.testing.assert_array_equal(np.array(found), np.ones((3, 2)))
    for factors, wrong in ((mx.eye(2), pivots), (a, pivots[:2]), (a, pivots.astype(mx.int32)), (b, pivots)):
        with pytest.raises(ValueError, match="no factors"):
            p.solve_factored(a, factors, wrong, b, adjoint=False)
    with pytest.raises(ValueError, match="float64"):
        p.eig(mx.eye(3, dtype=mx.float64), vectors=True)


def test_too_large_for_lapack() -> None:
    """The error is raised before anything is computed or in memory."""
    for shape, function in (((40_000, 40_000), mx.linalg.svd), ((1, 1 << 26), mx.linalg.qr)):
        with pytest.raises(ValueError, match="too large for LAPACK"):
            function(mx.zeros(shape))


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: mx.linalg.eigh(mx.eye(2), "X"), ValueError, "UPLO must be 'L' or 'U'"),
    (lambda: mx.linalg.norm(mx.ones((2, 3)), "x"), ValueError, "no norm 'x' over 2 axes"),
    (lambda: mx.linalg.norm(mx.ones((3,)), "fro"), ValueError, "no norm 'fro' over 1 axis"),
    (lambda: mx.linalg.norm(mx.ones((2, 3)), 3), ValueError, "no matrix norm with ord=3"),
    (lambda: mx.linalg.norm(mx.ones((2, 3, 4)), 2), ValueError, "one axis or two, not 3"),
    (lambda: mx.linalg.norm(mx.ones((2, 3)), 2, (0, 0)), ValueError, "named twice"),
    (lambda: mx.linalg.norm(mx.ones((2, 3)), 2, 2), IndexError, "Axis 2 is out of range"),
    (lambda: mx.linalg.norm(mx.ones((2, 3)), True), TypeError, "ord must be"),
    (lambda: mx.linalg.cross(mx.ones((4,)), mx.ones((4,))), ValueError, "2 or 3 components"),
    (lambda: mx.linalg.cross(mx.ones((3,)), mx.ones((3,)), 1), IndexError, "Axis 1 is out of range"),
    (lambda: mx.linalg.cross(mx.ones((2, 3)), mx.ones((4, 3))), ValueError, "cannot be broadcast"),
    (lambda: mx.linalg.inv([[1.0]]), TypeError, r"\[linalg.inv\] a must be an array"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_wrong_arguments(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_half_precision_and_integers(mlx: Any) -> None:
    """Determinants and most norms accept them, and give the same as MLX."""
    for dtype in ("float16", "bfloat16", "int32", "bool_"):
        a, other = mx.eye(3, dtype=getattr(mx, dtype)), mlx.eye(3).astype(getattr(mlx, dtype))
        for function in ("det", "norm"):
            mine, theirs = getattr(mx.linalg, function)(a), getattr(mlx.linalg, function)(other)
            assert str(mine.dtype).rpartition(".")[2] == str(theirs.dtype).rpartition(".")[2]
            assert mine.item() == theirs.item()


def test_two_threads_at_once(rng: np.random.Generator) -> None:
    """Each thread has scratch memory of its own."""
    stacks = [definite(rng.normal(size=(40, 20, 20))) for _ in range(4)]
    found: dict[int, list[np.ndarray]] = {}

    def work(number: int) -> None:
        a = in_weft(stacks[number])
        found[number] = [np.array(mx.linalg.inv(a)), np.array(mx.linalg.svd(a)[1])]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, a in enumerate(stacks):
        np.testing.assert_allclose(found[number][0], np.linalg.inv(a), atol=1e-12)
        np.testing.assert_allclose(found[number][1], np.linalg.svd(a, compute_uv=False), atol=1e-10)


@pytest.mark.parametrize(("left", "right", "axis"), [((3, 5), (2, 5), 0), ((4, 3), (4, 3), -1), ((2,), (2,), 0)])
def test_cross_products_along_every_axis(left: Any, right: Any, axis: int, mlx: Any, rng: np.random.Generator) -> None:
    a, b = rng.normal(size=left).astype(np.float32), rng.normal(size=right).astype(np.float32)
    found = mx.linalg.cross(mx.array(a), mx.array(b), axis)
    np.testing.assert_allclose(np.array(found), np.array(mlx.linalg.cross(mlx.array(a), mlx.array(b), axis)), rtol=1e-5)


def test_files_of_functions_for_every_shape(tmp_path: Path, rng: np.random.Generator) -> None:
    """Parameters that are computed from extents have names in files, also in derivatives."""

    def function(a: mx.array) -> list[mx.array]:
        gradient = mx.grad(lambda a: mx.linalg.pinv(a).sum() + mx.linalg.lu(a)[1].sum() + mx.linalg.svd(a)[1].sum())
        return [mx.linalg.pinv(a), gradient(a)]

    file = str(tmp_path / "function.mlxfn")
    mx.export_function(file, function, mx.array(rng.normal(size=(4, 3))), shapeless=True)
    for shape in ((4, 3), (6, 5)):
        a = mx.array(rng.normal(size=shape))
        for found, wanted in zip(mx.import_function(file)(a), function(a), strict=True):
            np.testing.assert_array_equal(np.array(found), np.array(wanted))


def test_stream() -> None:
    stream = mx.new_stream(mx.cpu)
    a = mx.eye(3) * 2
    found = mx.linalg.inv(a, stream=stream)
    np.testing.assert_array_equal(np.array(mx.linalg.solve(found, a, stream=stream)), np.eye(3) * 4)
