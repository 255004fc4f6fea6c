"""Each function of the operation table with the dtypes that its row leaves out: a correct value, or a clear error."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.ops.elementwise_rows import BINARY_ROWS
from tests.ops.elementwise_rows import ROWS as ELEMENTWISE_ROWS
from tests.ops.fold_rows import REDUCTION_ROWS
from tests.ops.row import EVERY, Row, flat, is_inexact, to_array, to_numpy, widened

ROWS = [*ELEMENTWISE_ROWS, *REDUCTION_ROWS]
NAMES = sorted({row.name for row in ROWS})

OTHER_NAMES = {"divmod": ("floor_divide", "remainder"), "minmax": ("min", "max")}
"""Functions whose errors name another function, which they call."""

REFUSED = {
    ("floor_divide", "complex64"): "MLX rounds the quotient down in some way; NumPy refuses",
    ("max", "complex64"): "complex numbers have no extremes: see test_found.py",
    ("min", "complex64"): "complex numbers have no extremes: see test_found.py",
    ("minmax", "complex64"): "complex numbers have no extremes: see test_found.py",
    ("argmax", "complex64"): "complex numbers have no extremes: see test_found.py",
    ("argmin", "complex64"): "complex numbers have no extremes: see test_found.py",
    ("nan_to_num", "complex64"): "the message says how to treat the parts",
}
"""What Weft refuses although MLX or NumPy returns something, with the reason."""

NO_COMMON_VALUE = {("divmod", "bool_"): "each divides by zero (False) in its own way, and MLX's may end the process"}

TOLERANCES = {"float64": 1e-12, "float16": 2e-2, "bfloat16": 1e-1}


def attempt(compute: Callable[..., Any], *arguments: Any) -> tuple[list[Any] | None, str]:
    """The outputs, or the message of the error that refuses them."""
    try:
        return flat(compute(*arguments)), ""
    except (TypeError, ValueError, RuntimeError) as error:
        return None, f"{type(error).__name__}: {error}"


def computed(row: Row, arguments: list[np.ndarray], namespace: ModuleType) -> list[np.ndarray]:
    outputs = flat(row.function(namespace, *[to_array(x, namespace) for x in arguments]))
    return [to_numpy(x, namespace) for x in outputs]


def agree(got: list[np.ndarray], wanted: list[np.ndarray] | None) -> bool:
    """Whether an oracle returned these values; dtypes are compared elsewhere."""
    if wanted is None:
        return False
    return all(
        x.shape == y.shape and np.allclose(widened(x), widened(y), rtol=tolerance, atol=tolerance, equal_nan=True)
        for x, y in zip(got, wanted, strict=True)
        for tolerance in [TOLERANCES.get(x.dtype.name, 1e-5) if is_inexact(x) else 0]
    )


def sample(name: str, dtype: str, seed: int) -> tuple[Row, list[np.ndarray]]:
    """Arguments of the dtype, for the first row of the function whose domains contain numbers of it."""
    for row in ROWS:
        if row.name == name:
            with contextlib.suppress(ValueError):
                return row, row.sample(seed, dtype)
    raise AssertionError(f"no row of {name} has numbers of {dtype}")


@pytest.mark.parametrize("name", NAMES)
def test_dtypes_that_the_table_leaves_out(name: str, mlx: ModuleType, seed: int) -> None:
    covered = {dtype for row in ROWS if row.name == name for dtype in row.dtypes}
    for dtype in EVERY:
        if dtype in covered or (name, dtype) in NO_COMMON_VALUE:
            continue
        row, arguments = sample(name, dtype, seed)
        got, error = attempt(computed, row, arguments, mx)
        oracles = [
            attempt(computed, row, arguments, mlx)[0],
            attempt(row.expected, arguments)[0],
        ]
        if got is None:
            assert re.match(refusal(name), error), error
            assert (name, dtype) in REFUSED or None in oracles, f"only Weft refuses {dtype}: {error}"
        else:
            assert (name, dtype) not in REFUSED, f"{dtype}: the reason for refusing it is outdated"
            assert any(agree(got, wanted) for wanted in oracles), f"{dtype}: {got} is in none of {oracles}"


def refusal(name: str) -> str:
    return rf"ArgumentTypeError: \[({'|'.join([name, *OTHER_NAMES.get(name, ())])})\] does not support (bool|\w+\d)"


BINARY = sorted({row.name for row in BINARY_ROWS if len(row.domains) == 2})


@pytest.mark.parametrize("name", BINARY)
def test_the_dtype_of_two_dtypes_together(name: str, mlx: ModuleType) -> None:
    """MLX's dtype, or a refusal where MLX refuses, too."""
    for first, second in itertools.product(EVERY, EVERY):
        got, error = attempt(dtypes_of, mx, name, (first, second))
        wanted, _ = attempt(dtypes_of, mlx, name, (first, second))
        if got is None:
            assert re.match(refusal(name), error), error
            together = "complex64" if "complex64" in (first, second) else ""
            assert wanted is None or (name, together) in REFUSED, f"only Weft refuses {first} and {second}: {error}"
        else:
            assert got == wanted, f"{first} and {second}"


def dtypes_of(namespace: ModuleType, name: str, pair: tuple[str, str]) -> list[str]:
    arguments = [namespace.ones((1,), dtype=getattr(namespace, dtype)) for dtype in pair]
    return [str(x.dtype).split(".")[-1] for x in flat(getattr(namespace, name)(*arguments))]
