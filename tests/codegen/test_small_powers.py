"""Powers of e and 2 that are smaller than the normal numbers."""

from __future__ import annotations

import ctypes
import platform
from ctypes.util import find_library
from typing import Any

import numpy as np
import pytest

from tests.codegen.kernels import kernel
from weft import dtypes
from weft.compiler.codegen.math import exponential

FE_UNDERFLOW = 0x10
"""The flag of x86-64 for a result that is rounded and smaller than the normal numbers."""


def near_the_smallest(dtype: Any, base: float) -> Any:
    """Exponents whose powers are subnormal or 0, and their neighbours."""
    info = np.finfo(dtype.numpy)
    lowest, normal = (float(info.minexp - info.nmant - 3), float(info.minexp + 3))
    numbers = np.linspace(lowest, normal, 1 << 18) / np.log2(base)
    return np.concatenate([numbers, np.arange(lowest, normal), [-1e30, -np.inf, np.nan]]).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize(("function", "base"), [(exponential.exp, np.e), (exponential.exp2, 2.0)])
def test_vectors_round_them_as_products_do(function: Any, base: float, dtype: Any) -> None:
    """A single lane multiplies by the power of two."""
    x = near_the_smallest(dtype, base)
    x = np.resize(np.concatenate([x, -x]), (len(x) * 2 + 15) // 16 * 16)
    vectors, single = kernel(function, dtype)(x), kernel(function, dtype, width=1)(x)
    assert vectors.tobytes() == single.tobytes()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags have other numbers elsewhere")
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
@pytest.mark.parametrize(("function", "base"), [(exponential.exp, np.e), (exponential.exp2, 2.0)])
def test_no_product_underflows(function: Any, base: float, dtype: Any) -> None:
    """With a product that underflows, a vector takes Intel's processors ten times as long."""
    library = find_library("m")
    assert library is not None
    flags = ctypes.CDLL(library)
    run, x = kernel(function, dtype), near_the_smallest(dtype, base)
    x = np.resize(x, (len(x) + 15) // 16 * 16)
    flags.feclearexcept(FE_UNDERFLOW)
    run(x)
    assert not flags.fetestexcept(FE_UNDERFLOW)
