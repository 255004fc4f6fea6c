"""The calls of cuSOLVER and cuBLAS, without a card: LAPACK computes here what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
import weft.primitives as p
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.fake_solvers import FakeSolvers
from tests.gpu.test_fourier import on_the_card
from weft.compiler.codegen import nvptx
from weft.compiler.cuda.solvers import decompositions, factors, kernels
from weft.compiler.cuda.solvers.operations import OPERATIONS
from weft.compiler.running import evaluate
from weft.runtime.cuda.driver import CudaError
from weft.runtime.cuda.solvers import calls, libraries, problems


@pytest.fixture
def library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSolvers]:
    library = FakeSolvers(driver)
    monkeypatch.setattr(calls, "missing", lambda: "")
    monkeypatch.setattr(libraries, "functions", lambda: library)
    monkeypatch.setattr(problems, "_MOST_WORK", 8)
    on_the_card(set(OPERATIONS))
    yield library
    mx.set_default_device(mx.cpu)


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrices of a stack are computed by separate calls."""
    monkeypatch.setattr(factors, "_TOGETHER", 0)
    monkeypatch.setattr(decompositions, "_TOGETHER", 0)
    monkeypatch.setattr(decompositions, "_MANY_SVD", 0)


DTYPES = [mx.float32, mx.float64, mx.complex64]


def drawn(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    rng = np.random.default_rng(sum(shape))
    numbers = rng.normal(size=shape)
    if dtype == mx.complex64:
        return mx.array((numbers + 1j * rng.normal(size=shape)).astype(np.complex64))
    return mx.array(numbers).astype(dtype)


def positive(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    with mx.stream(mx.cpu):
        a = drawn(*shape, dtype=dtype)
        found = a @ mx.conj(mx.swapaxes(a, -1, -2)) + mx.eye(shape[-1]).astype(dtype)
        mx.eval(found)
    return found


def regular(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    with mx.stream(mx.cpu):
        found = drawn(*shape, dtype=dtype) + 3 * mx.eye(shape[-1]).astype(dtype)
        mx.eval(found)
    return found


def up_to_signs(results: Any) -> Any:
    return [mx.abs(one) for one in results]


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., mx.array]]] = {
    "cholesky": (mx.linalg.cholesky, positive),
    "cholesky, upper": (lambda a: mx.linalg.cholesky(a, upper=True), positive),
    "lu": (mx.linalg.lu, regular),
    "lu_factor": (mx.linalg.lu_factor, regular),
    "solve": (lambda a: mx.linalg.solve(a, a[..., :2] + 1), regular),
    "solve for a vector": (lambda a: mx.linalg.solve(a, mx.ones((a.shape[-1],), a.dtype)), regular),
    "solve_triangular": (lambda a: mx.linalg.solve_triangular(a, a[..., :3]), regular),
    "solve_triangular, upper": (lambda a: mx.linalg.solve_triangular(a, a + 1, upper=True), regular),
    "inv": (mx.linalg.inv, regular),
    "tri_inv": (mx.linalg.tri_inv, regular),
    "tri_inv, upper": (lambda a: mx.linalg.tri_inv(a, upper=True), regular),
    "qr": (mx.linalg.qr, regular),
    "eigvalsh": (mx.linalg.eigvalsh, positive),
    "eigh": (lambda a: up_to_signs(mx.linalg.eigh(a)), positive),
    "eigh, upper": (lambda a: up_to_signs(mx.linalg.eigh(a, UPLO="U")), drawn),
    "svd": (lambda a: up_to_signs(mx.linalg.svd(a)), drawn),
    "singular values": (lambda a: mx.linalg.svd(a, compute_uv=False), drawn),
    "pinv": (mx.linalg.pinv, drawn),
    "det": (mx.linalg.det, drawn),
}


def assert_near(found: Any, wanted: Any, rtol: float = 2e-4) -> None:
    one, other = [x if isinstance(x, list | tuple) else [x] for x in (found, wanted)]
    for left, right in zip(one, other, strict=True):
        assert left.dtype == right.dtype
        x, y = np.array(left), np.array(right)
        assert np.array_equal(np.isnan(x), np.isnan(y))
        assert np.allclose(x, y, rtol=rtol, atol=rtol * np.nanmax(abs(y), initial=1), equal_nan=True)


def on_both(function: Callable[..., Any], *inputs: mx.array) -> tuple[Any, Any]:
    found = []
    for device in (mx.gpu, mx.cpu):
        with mx.stream(device):
            result = function(*inputs)
            mx.eval(result)
            found.append(result)
    return found[0], found[1]


@pytest.mark.some_rows(40)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("together", [False, True])
def test_values(
    library: FakeSolvers, name: str, dtype: mx.Dtype, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One matrix, several, and transposed ones; those of stacks one by one, or together."""
    if not together:
        one_by_one(monkeypatch)
    function, matrices = FUNCTIONS[name]
    for shape in ((5, 5), (1, 1), (3, 4, 4), (2, 2, 3, 3)):
        a = matrices(*shape, dtype=dtype)
        assert_near(*on_both(function, a))
        assert_near(*on_both(lambda a: function(mx.swapaxes(a, -1, -2)), a))
    assert library.called


@pytest.mark.some_rows(12)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["lu", "qr", "svd", "singular values", "pinv"])
@pytest.mark.parametrize("together", [False, True])
def test_shapes(
    library: FakeSolvers, name: str, dtype: mx.Dtype, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not together:
        one_by_one(monkeypatch)
    function, _ = FUNCTIONS[name]
    for shape in ((5, 3), (3, 5), (2, 1, 4), (2, 4, 1)):
        found, wanted = on_both(function, drawn(*shape, dtype=dtype))
        if name == "svd":  # any basis is right in what makes them square
            k = min(shape[-2:])
            found, wanted = [(u[..., :k], s, vt[..., :k, :]) for u, s, vt in (found, wanted)]
        assert_near(found, wanted)


def test_singular_values_in_both_ways(library: FakeSolvers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for singular matrices, for which the faster way fails."""
    one_by_one(monkeypatch)
    for rows in (1, 1000):
        monkeypatch.setattr(problems, "_FEWEST_POLAR_ROWS", rows)
        for shape in ((6, 6), (3, 5, 4), (4, 7)):
            for a in (drawn(*shape), mx.ones(shape), drawn(*shape, dtype=mx.complex64)):
                u, s, vt = mx.linalg.svd(a)
                k = s.shape[-1]
                assert_near((u[..., :k] * mx.expand_dims(s, -2)) @ vt[..., :k, :], a)
                assert_near(*on_both(lambda a: mx.linalg.svd(a, compute_uv=False), a))
        assert ("gesvdp" in library.called) == (rows == 1)
        assert {"gesvd", "geam"} <= set(library.called)
        library.called.clear()
        evaluate.forget_plans()


def test_full_singular_vectors(library: FakeSolvers) -> None:
    for shape in ((5, 3), (3, 5)):
        a = drawn(*shape)
        u, s, vt = mx.linalg.svd(a)
        k = min(shape)
        assert_near((u[:, :k] * s) @ vt[:k], a)
        assert_near(u @ u.T, mx.eye(shape[0]))
        assert_near(vt @ vt.T, mx.eye(shape[1]))


def test_failures(library: FakeSolvers) -> None:
    """Matrices for which the algorithm fails become NaN, as on the CPU."""
    bad = np.array(positive(3, 4, 4))
    bad[1] = -bad[1]
    assert_near(*on_both(mx.linalg.cholesky, mx.array(bad)))
    singular = np.array(regular(3, 4, 4))
    singular[2, :, 1] = 0
    for name in ("inv", "solve", "det", "lu_factor"):
        assert_near(*on_both(FUNCTIONS[name][0], mx.array(singular)))
    flat = np.array(regular(3, 4, 4))
    flat[0, 2, 2] = 0
    for name in ("solve_triangular", "tri_inv"):
        assert_near(*on_both(FUNCTIONS[name][0], mx.array(flat)))
    infinite = np.array(positive(3, 4, 4))
    infinite[1, 2, 2] = np.inf
    infinite[2, 0, 0] = np.nan
    for name in ("eigh", "eigvalsh", "svd", "singular values"):
        assert_near(*on_both(FUNCTIONS[name][0], mx.array(infinite)))


def test_no_elements(library: FakeSolvers) -> None:
    for shape in ((0, 0), (0, 3, 3), (2, 0, 0)):
        for name in ("cholesky", "inv", "qr", "eigh", "svd", "lu_factor"):
            assert_near(*on_both(FUNCTIONS[name][0], mx.zeros(shape)))
    assert mx.linalg.solve(mx.eye(3), mx.zeros((3, 0))).shape == (3, 0)


@pytest.mark.parametrize("name", ["cholesky", "solve", "inv", "qr", "eigh", "singular values", "solve_triangular"])
def test_transformations(library: FakeSolvers, name: str) -> None:
    function, matrices = FUNCTIONS[name]
    a, t = matrices(4, 4), positive(4, 4) * 0.1

    def total(a: mx.array) -> mx.array:
        results = function(a)
        results = results if isinstance(results, list | tuple) else [results]
        return sum([mx.sum(mx.sin(one)) for one in results if one.dtype == mx.float32], mx.array(0.0))

    assert_near(*on_both(mx.grad(total), a), rtol=1e-3)
    assert_near(*on_both(lambda a: mx.jvp(total, [a], [t])[1][0], a), rtol=1e-3)
    assert_near(*on_both(mx.vmap(function, in_axes=2), mx.stack([a, a + t], axis=2)))
    assert_near(*on_both(mx.compile(total), a))


def test_runs_are_captured(library: FakeSolvers, driver: FakeDriver) -> None:
    compiled = mx.compile(lambda a: mx.linalg.solve(a * 2, a) + 1)
    a = regular(4, 4)
    for _ in range(4):
        assert_near(compiled(a), mx.full((4, 4), 1) + mx.eye(4) * 0.5)
    assert driver.calls["launch_graph"] >= 2


def test_a_failure_is_named(library: FakeSolvers, monkeypatch: pytest.MonkeyPatch) -> None:
    a = positive(4, 4)
    monkeypatch.setitem(library.named, "cusolverDnSpotrf", lambda *arguments: 7)
    with pytest.raises(weft.errors.EvaluationError, match=r"status 7.*cholesky"):
        mx.eval(mx.linalg.cholesky(a))


@pytest.mark.parametrize(
    ("code", "called", "is_memory"),
    [(2, "cusolverDnCreate", True), (3, "cublasCreate_v2", True), (3, "cusolverDnCreate", False)],
)
def test_too_little_memory_of_a_library(code: int, called: str, is_memory: bool) -> None:
    with pytest.raises(CudaError, match=f"status {code}.*{called}") as caught:
        libraries.check(code, called)
    assert isinstance(caught.value, MemoryError) is is_memory


def test_without_the_libraries_the_cpu_computes(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "missing", lambda: "libcusolver.so.12 is missing: pip install nvidia-cusolver")
    on_the_card({*OPERATIONS, p.cholesky})
    a = positive(4, 4)
    assert_near(*on_both(mx.linalg.cholesky, a))
    explained = str(mx.compile(mx.linalg.cholesky).explain(a))
    assert "(on the CPU: libcusolver.so.12 is missing: pip install nvidia-cusolver)" in explained


def test_ptx() -> None:
    for text in (
        kernels.write_addresses("kernel"),
        kernels.write_order("kernel"),
        kernels.write_exchange(4, True, "kernel"),
        kernels.write_exchange(8, False, "kernel"),
    ):
        assert ".entry kernel(" in nvptx.ptx(text, "sm_90")
