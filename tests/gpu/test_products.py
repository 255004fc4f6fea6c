"""The calls of cuBLASLt for matrix products, without a card: NumPy computes here what the manual says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest

import weft
import weft.core as mx
import weft.primitives as p
from tests.checks import assert_same_bits
from tests.gpu.fake_driver import FakeDriver, FakeTarget
from tests.sampling import Cases
from weft.compiler.cuda import few_rows
from weft.compiler.cuda.target import CudaTarget
from weft.compiler.planning import templates
from weft.compiler.planning.plan import parts_of
from weft.runtime.cuda import cublas
from weft.runtime.engine import engine_of

ELEMENTS = {
    cublas.FLOAT32: np.float32,
    cublas.FLOAT64: np.float64,
    cublas.FLOAT16: np.float16,
    cublas.BFLOAT16: ml_dtypes.bfloat16,
    cublas.COMPLEX64: np.complex64,
}


class FakeLibrary:
    """A cuBLASLt that queues products on the streams of a driver."""

    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self.computed: list[cublas.MatmulProblem] = []

    def handle(self) -> object:
        return object()

    def way(self, problem: cublas.MatmulProblem, alignments: Any, handle: Any, title: str) -> Any:
        assert all(alignment >= 2 for alignment in alignments)
        return cublas.ProductWay(problem, *problem[:3], None, problem.scratch)

    def multiply(self, handle: Any, problem: cublas.MatmulProblem, one: Any, *operands: Any) -> int:
        a, _, b, _, zero, c, _, d, _, _, scratch, size, stream = operands
        assert c == d
        assert next(iter(one)) == 1
        assert not any(zero)
        assert size <= problem.scratch
        assert scratch % 256 == 0
        self.computed.append(problem)
        self._driver._queue(stream, partial(self._multiply, problem, a, b, d, scratch))
        return 0

    def _multiply(self, problem: cublas.MatmulProblem, a: int, b: int, result: int, scratch: int) -> None:
        memory = self._driver.memory
        memory.write(scratch, np.arange(problem.scratch), np.full(problem.scratch, 0xEE, np.uint8))
        for number in range(problem.batch):
            left, right = [
                memory.read(address, self._places(matrix, number), np.dtype(ELEMENTS[matrix.kind]))
                for address, matrix in ((a, problem.left), (b, problem.right))
            ]
            left, right = [x.T if turn else x for x, turn in zip((left, right), problem.transposed, strict=True)]
            element = np.dtype(ELEMENTS[problem.result.kind])
            wide = np.complex128 if element.kind == "c" else np.float64
            found = (left.astype(wide) @ right.astype(wide)).astype(element)
            assert found.shape == (problem.result.rows, problem.result.columns)
            memory.write(result, self._places(problem.result, number), found)

    def _places(self, matrix: cublas.MatrixLayout, number: int) -> np.ndarray:
        """The offsets in bytes of the elements of a matrix from the first one."""
        rows, columns = np.arange(matrix.rows)[:, None], np.arange(matrix.columns)
        assert matrix.leading >= matrix.rows
        return (rows + columns * matrix.leading + number * matrix.stride) * np.dtype(ELEMENTS[matrix.kind]).itemsize


def multiplying(driver: FakeDriver) -> None:
    """The default device is a card that multiplies matrices."""
    target = cast(FakeTarget, engine_of(mx.Device(mx.gpu)).target)
    target.routines = {p.matmul}
    target.code_is_general = CudaTarget.code_is_general
    mx.set_default_device(mx.gpu)


@pytest.fixture
def library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    library = FakeLibrary(driver)
    monkeypatch.setattr(few_rows, "MOST_ROWS", 0)  # as for larger matrices
    monkeypatch.setattr(cublas, "missing", lambda: "")
    monkeypatch.setattr(cublas, "_library", lambda: library)
    multiplying(driver)
    return library


def numbers(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Small integers, whose sums are exact."""
    drawn = np.random.default_rng(sum(shape)).integers(-4, 5, shape)
    return mx.array(drawn.astype(np.float32)).astype(dtype)


LAYOUTS: dict[str, Callable[..., mx.array]] = {
    "by rows": lambda *shape: numbers(*shape),
    "by columns": lambda *shape: mx.swapaxes(numbers(*shape[:-2], shape[-1], shape[-2]), -1, -2),
    "a slice": lambda *shape: numbers(*shape[:-2], shape[-2] + 2, shape[-1] + 3)[..., 1:-1, 2:-1],
    "a slice of columns": lambda *shape: mx.swapaxes(numbers(*shape[:-2], shape[-1] + 4, shape[-2] + 3), -1, -2)[
        ..., 1:-2, :-4
    ],
    "every other element": lambda *shape: numbers(*shape[:-1], 2 * shape[-1])[..., ::2],
    "backwards": lambda *shape: numbers(*shape)[..., ::-1, :],
    "one row everywhere": lambda *shape: mx.broadcast_to(numbers(*shape[:-2], 1, shape[-1]), shape),
    "one matrix everywhere": lambda *shape: mx.broadcast_to(numbers(*shape[-2:]), shape),
    "heads of tokens": lambda *shape: mx.moveaxis(numbers(*shape[:-3], *shape[-2:], *shape[-3:-2]), -1, -3),
    "tokens of heads": lambda *shape: (
        mx.swapaxes(numbers(*shape[:-3], shape[-2], *shape[-3:-2], shape[-1]), 0, -2)
        if len(shape) == 3
        else numbers(*shape)
    ),
}


def test_layouts(library: FakeLibrary, cases: Cases) -> None:
    """Each operand in each layout; some have to be copied."""
    every = [(m, k, n, left, right) for m, k, n in SIZES for left in LAYOUTS for right in LAYOUTS]
    for m, k, n, left, right in cases.some(6, every):
        for batch in ((), (3,), (2, 3)):
            if batch or not {left, right} & {"one matrix everywhere", "heads of tokens", "tokens of heads"}:
                a, b = LAYOUTS[left](*batch, m, k), LAYOUTS[right](*batch, k, n)
                assert a.shape[-2:] == (m, k)
                assert b.shape[-2:] == (k, n)
                found = np.array(a @ b)
                assert np.array_equal(found, np.matmul(np.array(a), np.array(b))), (batch, m, k, n, left, right)
    assert library.computed


SIZES = [(4, 5, 6), (1, 5, 6), (4, 1, 6), (4, 5, 1), (1, 5, 1), (1, 1, 1)]


def test_one_call_for_a_stack(library: FakeLibrary) -> None:
    a, b = numbers(2, 3, 4, 5), numbers(2, 3, 5, 6)
    mx.eval(a @ b)
    assert [problem.batch for problem in library.computed] == [6]


def test_nothing_to_multiply(library: FakeLibrary) -> None:
    assert (numbers(3, 0) @ numbers(0, 2)).tolist() == [[0, 0]] * 3
    assert (numbers(0, 4) @ numbers(4, 2)).shape == (0, 2)
    assert not library.computed


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.float64, mx.complex64])
def test_dtypes(library: FakeLibrary, dtype: mx.Dtype) -> None:
    a, b = numbers(4, 5, dtype=dtype), numbers(5, 6, dtype=dtype)
    found = a @ b
    assert found.dtype == dtype
    assert np.array_equal(
        np.array(found.astype(mx.complex64)), np.array(a.astype(mx.complex64)) @ np.array(b.astype(mx.complex64))
    )
    (problem,) = library.computed
    assert problem.left.kind == problem.right.kind == problem.result.kind


def test_half_precision_is_rounded_by_the_library(library: FakeLibrary) -> None:
    """So is the transposed product. The operands of a product in float32 stay in half precision too."""
    a, b = numbers(4, 5, dtype=mx.bfloat16), numbers(5, 6, dtype=mx.bfloat16)
    for function in (lambda a, b: a @ b, lambda a, b: mx.swapaxes(a @ b, 0, 1)):
        assert len(mx.compile(function).explain(a, b).steps) == 1
    wide = mx.compile(lambda a, b: a.astype(mx.float32) @ b.astype(mx.float32))
    assert wide(a, b).dtype == mx.float32
    assert library.computed[-1].left.kind == cublas.BFLOAT16
    assert library.computed[-1].result.kind == cublas.FLOAT32


@pytest.mark.parametrize("swapped", [False, True])
def test_operands_of_two_dtypes(library: FakeLibrary, swapped: bool) -> None:
    """The operand of half precision is converted to float32."""
    a, b = numbers(4, 5), numbers(5, 4, dtype=mx.bfloat16)
    found = b @ a if swapped else a @ b
    wanted = np.array(b.astype(mx.float32)) @ np.array(a) if swapped else np.array(a) @ np.array(b.astype(mx.float32))
    assert np.array_equal(np.array(found), wanted)
    assert library.computed[-1].left.kind == cublas.FLOAT32


def test_few_rows_need_no_library(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the bits of the CPU, and one graph runs them with any addresses."""
    monkeypatch.setattr(cublas, "missing", lambda: "libcublasLt.so.13 is missing: pip install nvidia-cublas")
    multiplying(driver)
    compiled = mx.compile(lambda x, w: mx.exp(x @ w) * 2)
    inputs = [(numbers(1, 40), numbers(40, 5) * n) for n in range(1, 8)]
    for x, w in inputs:
        assert_same_bits(compiled(x, w), mx.multiply(mx.exp(mx.matmul(x, w, stream=mx.cpu), stream=mx.cpu), 2))
    assert driver.calls["launch"] == 0
    assert not any(step.runs_on for step in compiled.explain(*inputs[0]).steps)


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint16, mx.int32, mx.uint64])
def test_integers_are_multiplied_by_a_kernel(library: FakeLibrary, dtype: mx.Dtype) -> None:
    """The kernel's sums wrap around."""
    rng = np.random.default_rng(0)
    for shapes in (((3, 5), (5, 4)), ((2, 3, 70), (2, 70, 4)), ((3, 1), (1, 2))):
        a, b = [mx.array(rng.integers(0, 100, shape)).astype(dtype) for shape in shapes]
        product = mx.compile(lambda a, b: a @ b)
        assert not any(step.runs_on for step in product.explain(a, b).steps)
        with np.errstate(over="ignore"):
            assert np.array_equal(np.array(product(a, b)), np.matmul(np.array(a), np.array(b)))
    assert not library.computed


def test_fast_products_of_float32_use_shorter_numbers(library: FakeLibrary) -> None:
    a = numbers(4, 4)
    mx.eval(a @ a)
    with weft.matmul_precision("fast"):
        mx.eval(a @ a)
    assert [x.compute for x in library.computed] == [cublas.COMPUTE_32F, cublas.COMPUTE_32F_FAST_TF32]


def test_gradients_copy_nothing(library: FakeLibrary) -> None:
    x, w = numbers(8, 4), numbers(4, 6)
    wanted = np.array(x).T @ np.ones((8, 6), np.float32)
    step = mx.compile(mx.grad(lambda w, x: (x @ w).sum()))
    assert np.array_equal(np.array(step(w, x)), wanted)
    assert len(step.explain(w, x).steps) <= 2


def test_a_growing_operand_is_not_planned_for_each_extent(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[Any] = []

    def counted(*arguments: Any) -> Any:
        planned.append(arguments)
        return parts_of(*arguments)

    monkeypatch.setattr(templates, "CHECKS", False)
    monkeypatch.setattr(templates, "parts_of", counted)
    q, keys = numbers(2, 1, 4), numbers(2, 30, 4)
    mx.eval(q, keys)
    lengths = range(16, 30)
    for length in lengths:
        k = keys[:, :length]
        found = np.array(mx.exp(q @ mx.swapaxes(k, -1, -2) * 0.1) @ k)
        k = np.array(keys)[:, :length]
        assert np.allclose(found, np.exp(np.array(q) @ k.swapaxes(1, 2) * 0.1) @ k, rtol=1e-5)
    assert 0 < len(planned) < len(lengths) / 2


def test_without_the_library_the_cpu_multiplies(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "missing", lambda: "libcublasLt.so.13 is missing: pip install nvidia-cublas")
    multiplying(driver)
    a = numbers(9, 9)
    assert np.array_equal(np.array(a @ a), np.array(a) @ np.array(a))
    assert "matmul (on the CPU: libcublasLt.so.13 is missing: pip install nvidia-cublas)" in str(
        mx.compile(lambda x: x @ x).explain(a)
    )
