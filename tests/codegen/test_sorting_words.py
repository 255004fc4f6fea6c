"""Words in generated code: parted, in networks, and by digits where parting them takes too long."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from weft import dtypes
from weft.compiler.codegen import jit
from weft.compiler.cpu.sorting import words
from weft.compiler.cpu.sorting.keys import Form
from weft.compiler.cpu.sorting.vectors import is_fast

COUNTS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 511, 1000, 5000]
KINDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "different": lambda rng, count: rng.permutation(count),
    "few": lambda rng, count: rng.integers(0, 3, count),
    "equal": lambda rng, count: np.full(count, 7),
    "ascending": lambda rng, count: np.arange(count),
    "descending": lambda rng, count: np.arange(count)[::-1],
    "largest": lambda rng, count: rng.choice([-1, -2, 0], count),
}


@pytest.mark.parametrize(
    ("dtype", "depth"),
    [*[(dtypes.uint32, depth) for depth in (None, 0, 1, 3)], *product((dtypes.uint16, dtypes.uint64), (None, 1))],
    ids=str,
)
def test_words_are_sorted(dtype: dtypes.Dtype, depth: int | None, rng: np.random.Generator) -> None:
    """Also a part of them alone; whatever stands behind them stays as it is."""
    if not is_fast(dtype.size) and depth is not None:
        pytest.skip("this processor does not part words")
    form = Form(dtype, indices=False)
    address = jit.load(words.generate(form, depth), "sort_words")["sort_words"]
    sort = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64] * 2, ctypes.c_int64)(address)
    for kind, draw in KINDS.items():
        for count in COUNTS:
            wanted = draw(rng, count).astype(dtype.numpy)
            for start, stop in ((0, count), (count // 3, count // 2 + 1)):
                memory, other = np.full((2, count + 64), 123, dtype.numpy)
                memory[:count] = wanted
                sort(memory.ctypes.data, count, other.ctypes.data, start, stop)
                found = memory[start:stop]
                np.testing.assert_array_equal(found, np.sort(wanted)[start:stop], f"{kind} {count} {start} {stop}")
                assert (memory[count:] == 123).all(), f"{kind} {count}"
