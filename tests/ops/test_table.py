"""Values, dtypes and shapes of every row of the operation table, for every dtype, layout and kind of special value."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.ops import elementwise_rows, linalg_rows
from tests.ops.row import (
    KINDS,
    Row,
    assert_near,
    bits,
    checked,
    flat,
    is_floating,
    is_inexact,
    to_array,
    to_numpy,
    widened,
)
from tests.ops.table import FAMILIES, ROWS
from tests.sampling import Cases

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 1e-3)


def results(row: Row, arrays: list[Any], namespace: Any = mx) -> list[Any]:
    return flat(row.function(namespace, *arrays))


@pytest.mark.parametrize("row", checked("value", ROWS))
def test_value(row: Row, cases: Cases, seed: int) -> None:
    """In the row's first dtype, and in one dtype of each of some kinds."""
    kinds = [found for kind in KINDS if (found := [dtype for dtype in kind if dtype in row.dtypes])]
    for dtype in cases.one_of_each(row.dtypes[0], cases.some(2, kinds)):
        check_value(row, dtype, seed)


def check_value(row: Row, dtype: str, seed: int) -> None:
    arguments = row.sample(seed, dtype)
    got = results(row, [to_array(x) for x in arguments])
    wanted = row.expected(arguments)
    assert len(got) == len(wanted)
    for result, want in zip(got, wanted, strict=True):
        inferred = result.shape
        assert_near(to_numpy(result), want, row.tolerance(dtype), row.elementwise)
        assert inferred == np.shape(want)


def _known_to_mlx(mlx: Any, row: Row) -> bool:
    module, _, name = row.name.rpartition(".")
    return module == "array" or hasattr(getattr(mlx, module) if module else mlx, name)


@pytest.mark.parametrize("row", checked("mlx", ROWS))
def test_dtype_shape_and_value_are_those_of_mlx(row: Row, mlx: Any, seed: int) -> None:
    assert _known_to_mlx(mlx, row), "a public name that MLX does not have"
    for dtype in row.mlx_dtypes or row.dtypes:
        arguments = row.sample(seed, dtype)
        ours = results(row, [to_array(x) for x in arguments])
        theirs = results(row, [to_array(x, mlx) for x in arguments], mlx)
        for mine, other in zip(ours, theirs, strict=True):
            assert str(mine.dtype).removeprefix("weft.core.") == str(other.dtype).removeprefix("mlx.core."), dtype
            assert mine.shape == other.shape, dtype
            if dtype in ("float32", "int32"):
                got, want = (widened(to_numpy(mine)), widened(to_numpy(other, mlx)))
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=dtype)


LAYOUTS: dict[str, Callable[[np.ndarray], mx.array]] = {
    "transposed": lambda x: mx.transpose(to_array(np.array(x.T, order="C"))),
    "strided": lambda x: to_array(np.repeat(x, 2, axis=-1))[..., ::2],
    "reversed": lambda x: to_array(np.array(x[::-1], order="C"))[::-1],
    "inside": lambda x: to_array(np.pad(x, 1, mode="wrap"))[tuple(slice(1, -1) for _ in range(x.ndim))],
}
"""Ways to have the same numbers as a view of other memory."""


def layouts(x: np.ndarray) -> list[str]:
    """The layouts that an argument can have."""
    if not x.ndim:
        return ["transposed"]
    return [name for name in LAYOUTS if x.size or name != "inside"]


@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("layout", ROWS))
def test_layout_of_the_arguments_does_not_matter(row: Row, cases: Cases, seed: int) -> None:
    arguments = row.sample(seed, row.dtypes[0])
    wanted = [to_numpy(x) for x in results(row, [to_array(x) for x in arguments])]
    every = [(position, layout) for position, x in enumerate(arguments) for layout in layouts(x)]
    for (position, layout), evaluated in cases.some(1, list(itertools.product(every, ["lazy", "evaluated"]))):
        view = LAYOUTS[layout](arguments[position])
        if evaluated == "evaluated":
            mx.eval(view)
        arrays = [to_array(x) for x in arguments]
        arrays[position] = view
        for got, want in zip(results(row, arrays), wanted, strict=True):
            if row.dtypes[0] == "complex64" and from_library(row, "complex64"):
                # The library may add up in another order for another layout.
                np.testing.assert_allclose(to_numpy(got), want, rtol=1e-5, atol=1e-6)
            else:
                assert bits(to_numpy(got)) == bits(want)


GENERATED_LINALG = (
    *("cholesky", "cholesky_inv", "det", "inv", "lu", "lu_factor", "qr", "slogdet", "solve"),
    *("solve_triangular", "tri_inv"),
)
"""Functions of `mx.linalg` that have generated code for small real matrices, such as those of the table."""


def from_library(row: Row, dtype: str) -> bool:
    """Whether LAPACK computes a row, or a part of it; then its bits depend on the processor."""
    module, _, name = row.name.rpartition(".")
    if module != "linalg" or name == "cross":
        return False
    return name not in GENERATED_LINALG or dtype == "complex64"


@pytest.mark.some_variants
@pytest.mark.parametrize("row", checked("layout", [row for row in ROWS if row.elementwise]))
def test_broadcast_arguments(row: Row, seed: int) -> None:
    arguments = row.sample(seed, row.dtypes[0])
    stretched = [(np.broadcast_to(x[:1], x.shape) if x.ndim else x) for x in arguments]
    views = [mx.broadcast_to(to_array(x[:1]), x.shape) if x.ndim else to_array(x) for x in arguments]
    wanted = results(row, [to_array(np.array(x, order="C")) for x in stretched])
    for got, want in zip(results(row, views), wanted, strict=True):
        assert bits(to_numpy(got)) == bits(to_numpy(want))


ANY_SHAPE = [row for row in elementwise_rows.ROWS if row.shape == (2, 3, 4) and row.domains]
OTHERS = [
    row
    for family in FAMILIES
    for row in family.ROWS
    if family not in (elementwise_rows, linalg_rows) and row.shape == (2, 3, 4) and row.domains
]


def _free_shapes(rows: list[Row]) -> list[Any]:
    return [pytest.param(row, id=row.id) for row in rows if all(domain.shape is None for domain in row.domains)]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)], ids=str)
@pytest.mark.parametrize("row", _free_shapes(ANY_SHAPE))
def test_empty_and_zero_dimensional_arguments(row: Row, shape: tuple[int, ...], seed: int) -> None:
    _compare_for_shape(row, shape, seed)


@pytest.mark.parametrize("row", _free_shapes(OTHERS))
def test_arguments_with_an_empty_axis(row: Row, seed: int) -> None:
    """Where the oracle has a result, Weft has the same."""
    tried = 0
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        if _works_for(row, shape, row.dtypes[0]):
            tried += 1
            _compare_for_shape(row, shape, seed)
    if not tried:
        pytest.skip("the oracle has no result for empty axes either")


def _compare_for_shape(row: Row, shape: tuple[int, ...], seed: int) -> None:
    dtype = row.dtypes[0]
    arguments = row.sample(seed, dtype, shape)
    for got, want in zip(results(row, [to_array(x) for x in arguments]), row.expected(arguments), strict=True):
        assert_near(to_numpy(got), want, row.tolerance(dtype), True)


def _works_for(row: Row, shape: tuple[int, ...], dtype: str) -> bool:
    try:
        row.expected([domain.sample(np.random.default_rng(0), shape, dtype) for domain in row.domains])
    except (ValueError, IndexError, ZeroDivisionError):
        return False
    return True


def _special_arguments(count: int, dtype: str) -> list[np.ndarray]:
    """Every combination of special values, one combination per element."""
    kind = np.float32 if dtype == "float32" else np.float64
    combinations = np.array(list(itertools.product(SPECIAL, repeat=count)), kind)
    return [np.ascontiguousarray(column) for column in combinations.T]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "row",
    checked(
        "special",
        [
            row
            for row in ANY_SHAPE
            if {"float32", "float64"} <= set(row.dtypes) and all(domain.dtype is None for domain in row.domains)
        ],
    ),
)
def test_special_values(row: Row, dtype: str) -> None:
    arguments = _special_arguments(len(row.domains), dtype)
    for got, want in zip(results(row, [to_array(x) for x in arguments]), row.expected(arguments), strict=True):
        _assert_same_kind(to_numpy(got), np.asarray(want), row, arguments)


def _assert_same_kind(got: np.ndarray, want: np.ndarray, row: Row, arguments: list[np.ndarray]) -> None:
    if not is_inexact(got) or not is_floating(got):
        np.testing.assert_array_equal(got, want)
        return
    with np.errstate(over="ignore"):
        rounded = want.astype(got.dtype)
    shown = list(zip(*arguments, got.tolist(), rounded.tolist(), strict=False)) if got.ndim == 1 else []

    def told(wrong: np.ndarray) -> str:
        return f"(arguments, got, expected): {[shown[n] for n in np.flatnonzero(wrong)][:5]}" if shown else ""

    different = np.isnan(got) != np.isnan(rounded)
    assert not different.any(), told(different)
    different = np.isinf(got) & (got != rounded)
    assert not different.any(), told(different)
    if row.zero_sign:
        zeros = (got == 0) & (rounded == 0)
        different = zeros & (np.signbit(got) != np.signbit(rounded))
        assert not different.any(), told(different)
    finite = np.isfinite(rounded)
    assert_near(got[finite], want[finite].astype(np.float64), max(row.ulp, 1), True)
