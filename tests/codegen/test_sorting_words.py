"""Sorting of words in generated code: by parting, by sorting networks, and by digits where parting takes too long."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from weft import dtypes
from weft.compiler.codegen import jit
from weft.compiler.codegen.keys import WordForm
from weft.compiler.cpu.sorting import words
from weft.compiler.cpu.sorting.vectors import is_fast

COUNTS = [1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 511, 1000, 5000]
KINDS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "different": lambda rng, count: rng.permutation(count),
    "few": lambda rng, count: rng.integers(0, 3, count),
    "equal": lambda rng, count: np.full(count, 7),
    "ascending": lambda rng, count: np.arange(count),
    "descending": lambda rng, count: np.arange(count)[::-1],
    "up and down": lambda rng, count: np.minimum(np.arange(count), np.arange(count)[::-1]),
    "up again and again": lambda rng, count: np.arange(count) % 89,
    "largest": lambda rng, count: rng.choice([-1, -2, 0], count),
}


FORMS = {
    "16 bits": WordForm(dtypes.uint16, indices=False),
    "32 bits": WordForm(dtypes.uint32, indices=False),
    "64 bits": WordForm(dtypes.uint64, indices=False),
    "float64": WordForm(dtypes.float64, indices=False),
    "with indices": WordForm(dtypes.uint32, indices=True),
}


def words_of(form: WordForm, drawn: np.ndarray) -> np.ndarray:
    """Words whose keys are the numbers ``drawn``."""
    if form.is_double:
        bits = drawn.astype(np.float64).view(np.int64)
        return np.where(bits < 0, ~bits, bits ^ np.int64(-(1 << 63))).view(np.uint64)
    found = drawn.astype(form.key.numpy)
    return found.astype(np.uint64) << 32 | np.arange(drawn.size, dtype=np.uint64) if form.carries else found


@pytest.mark.some_rows(5)
@pytest.mark.parametrize(
    ("name", "depth"), [*[("32 bits", depth) for depth in (0, 3)], *product(FORMS, (None, 1))], ids=str
)
def test_words_are_sorted(name: str, depth: int | None, rng: np.random.Generator) -> None:
    """Also a part of an array alone; the words after the part stay as they are."""
    form = FORMS[name]
    if not is_fast(form.size) and depth is not None:
        pytest.skip("this processor does not part words")
    address = jit.load(words.generate(form, depth), "sort_words")["sort_words"]
    sort = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64] * 2, ctypes.c_int64)(address)
    for kind, draw in KINDS.items():
        for count in COUNTS:
            wanted = words_of(form, draw(rng, count))
            for start, stop in ((0, count), (count // 3, count // 2 + 1)):
                memory, other = np.full((2, count + 64), 123, wanted.dtype)
                memory[:count] = wanted
                sort(memory.ctypes.data, count, other.ctypes.data, start, stop)
                found = memory[start:stop]
                np.testing.assert_array_equal(found, np.sort(wanted)[start:stop], f"{kind} {count} {start} {stop}")
                assert (memory[count:] == 123).all(), f"{kind} {count}"
