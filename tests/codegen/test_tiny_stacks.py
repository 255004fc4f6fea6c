"""Products of stacks of matrices of a few elements, which are computed in vectors of several rows or matrices."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

import weft.core as mx
from tests.checks import run_python
from tests.sampling import Cases
from weft import dtypes
from weft.compiler.codegen import host
from weft.compiler.cpu.products import matmul
from weft.compiler.cpu.products.tiny import converted_stacks, single_columns
from weft.compiler.cpu.products.tiny import stacks as tiny_stacks
from weft.compiler.cpu.products.tiny.groups import Tiny
from weft.primitives.routine import Operand, RoutineCall
from weft.runtime.precision import REPRODUCIBLE

DTYPES = [mx.float32, mx.float64, mx.int32, mx.int64, mx.uint32, mx.float16, mx.bfloat16]
NUMBERS = range(1, tiny_stacks.MOST_EXTENT + 1)
EXTENTS = [(r, c, k) for r, c, k in product(NUMBERS, NUMBERS, NUMBERS) if r * c * k <= tiny_stacks.MOST_WORK]
"""Rows, columns and terms."""
NARROW = [(6, 6, 6), (8, 8, 8), (1, 8, 8), (4, 8, 8), (2, 10, 8), (10, 4, 2), (32, 2, 2), (20, 1, 6), (12, 6, 4)]
NARROW += [(12, 12, 3), (16, 4, 16), (7, 4, 12), (10, 10, 10), (16, 3, 9), (1, 12, 16), (12, 2, 24)]
"""Larger matrices with few columns."""
IN_ROWS = [(7, 7, 7), (9, 9, 9), (4, 16, 16), (24, 8, 8), (17, 16, 9), (5, 13, 3), (8, 4, 8), (9, 3, 20), (3, 12, 2)]
IN_ROWS += [(1, 16, 16), (16, 16, 16), (2, 5, 32), (31, 6, 5), (12, 12, 12), (17, 17, 17), (32, 24, 20), (4, 32, 16)]
IN_ROWS += [(40, 16, 12), (3, 20, 40), (16, 1, 16)]
IN_ROWS += [(5, 8, 9), (7, 6, 8), (11, 7, 15), (7, 4, 4), (7, 3, 4), (10, 5, 16), (3, 8, 24), (6, 4, 10), (3, 7, 7)]
"""More of those that are multiplied row by row."""
IN_STRIPS = [(4, 64, 64), (64, 9, 40), (33, 40, 20), (13, 24, 17), (6, 33, 16), (27, 48, 48), (2, 20, 20), (5, 56, 8)]
"""Those that are multiplied strip by strip on processors with short vectors."""
SINGLES = [(8, 1, 4), (7, 1, 6), (8, 1, 9), (9, 1, 70), (15, 1, 16), (16, 1, 17), (17, 1, 33), (24, 1, 24), (31, 1, 5)]
SINGLES += [
    (50, 1, 50),
    (64, 1, 64),
    (6, 1, 256),
    (1, 24, 24),
    (1, 9, 35),
    (1, 33, 6),
    (2, 1, 8),
    (3, 1, 24),
    (5, 1, 12),
    (1, 4, 9),
]
"""Those with a vector each, in vectors of rows of several matrices."""
KINDS = [[*EXTENTS, *NARROW, *IN_ROWS, *IN_STRIPS], SINGLES]

pytestmark = pytest.mark.skipif(
    not tiny_stacks.may_take((1, 1, 1), dtypes.float32), reason="this processor computes them row by row"
)


def numbers(*shape: int, dtype: mx.Dtype) -> mx.array:
    """Numbers of all magnitudes, with some that are subnormal, infinite or NaN if they are not integers."""
    rng = np.random.default_rng(sum(shape))
    if not dtype.is_floating:
        return mx.array(rng.integers(-(1 << 40), 1 << 40, shape).astype(f"int{8 * dtype.size}"), dtype=dtype)
    x = mx.array(rng.standard_normal(shape).astype(np.float32)).astype(dtype)
    small = 6e-8 if dtype is mx.float16 else 1e-39
    extreme = mx.array([0.0, -0.0, small, -small, 3 * small, float("inf"), float("nan"), 1.0]).astype(dtype)
    chosen = extreme[mx.array(rng.integers(0, 8, shape))]
    return mx.contiguous(mx.where(mx.array(rng.random(shape) < 0.05), chosen, x))


def bits(x: mx.array) -> np.ndarray:
    return np.array(mx.contiguous(x).view({2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[x.dtype.size]))


def assert_same(found: mx.array, wanted: mx.array) -> None:
    """The same bits, apart from those of NaN."""
    both_nan = np.array(mx.isnan(found) & mx.isnan(wanted))
    assert found.dtype == wanted.dtype
    assert (both_nan | (bits(found) == bits(wanted))).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrices_of_a_stack_are_those_of_single_products(dtype: mx.Dtype, cases: Cases) -> None:
    ways = list(
        product(
            [*EXTENTS, *NARROW, *NARROW, *IN_ROWS, *IN_ROWS, *IN_STRIPS, *IN_STRIPS, *SINGLES],
            [(False, False), (True, False), (False, True), (True, True)],
            [2, 37, 230],
        )
    )
    for (rows, columns, inner), turned, count in cases.some(3, ways):
        shapes = (rows, inner), (inner, columns)
        stored = [numbers(count, *(s[::-1] if t else s), dtype=dtype) for s, t in zip(shapes, turned, strict=True)]
        a, b = [mx.swapaxes(x, 1, 2) if t else x for x, t in zip(stored, turned, strict=True)]
        wanted = mx.stack([a[n] @ b[n] for n in range(count)])
        mx.eval(a, b, wanted)
        assert_same(a @ b, wanted)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.int32, mx.int64], ids=str)
def test_matrices_with_a_vector_each(dtype: mx.Dtype, cases: Cases) -> None:
    """Vectors of rows end inside of matrices, and pieces of rows overlap."""
    for (rows, columns, inner), count in cases.some(8, list(product(SINGLES, [1, 2, 3, 5, 37]))):
        rows, transposed = max(rows, columns), rows == 1
        a, x = numbers(count, rows, inner, dtype=dtype), numbers(count, inner, dtype=dtype)
        wanted = mx.stack([a[n] @ x[n] for n in range(count)])
        mx.eval(a, x, wanted)
        found = x[:, None] @ a.mT if transposed else a @ x[..., None]
        assert_same(found.reshape(count, rows), wanted)


def test_vectors_are_multiplied_in_vectors_of_rows() -> None:
    """With a transposed matrix, or with few rows or terms, or many, they are not."""
    for extents in SINGLES:
        rows, columns, inner = extents if extents[1] == 1 else (extents[1], 1, extents[2])
        tiny = Tiny(dtypes.float32, dtypes.float32, (rows, columns, inner), (inner, 1, 1, 1))
        assert single_columns.takes(tiny)
        assert not single_columns.takes(tiny._replace(strides=(1, rows, 1, 1)))
        assert not single_columns.takes(tiny._replace(source=dtypes.float16))
    for few in [(5, 1, 7), (6, 1, 6), (1, 1, 24), (9, 1, 3), (6, 1, 257), (65, 1, 64), (9, 2, 9)]:
        assert not single_columns.takes(Tiny(dtypes.float32, dtypes.float32, few, (few[2], 1, 1, 1)))


STACKS = """
import hashlib, numpy as np, weft.core as mx
rng, found = np.random.default_rng(0), hashlib.sha1()
extents = (2, 3, 5), (9, 2, 9), (4, 4, 7), (7, 7, 7), (8, 8, 8), (9, 12, 9), (3, 6, 300), (1, 3, 600)
extents += (9, 1, 35), (1, 24, 24)
for rows, columns, terms in extents:
    for dtype in (mx.float32, mx.float64, mx.bfloat16, mx.float16):
        half = terms // 2
        a, b = rng.normal(size=(3, rows, terms)), rng.normal(size=(3, terms, columns))
        # What is left of sums that cancel shows how they are rounded.
        a[..., half : 2 * half], b[:, half : 2 * half] = a[..., :half], -b[:, :half]
        a, b = mx.array(a).astype(dtype), mx.array(b).astype(dtype)
        mx.eval(a, b)
        bits = [np.array(x.astype(mx.float64)).tobytes() for x in (a @ b, mx.stack([x @ y for x, y in zip(a, b)]))]
        assert bits[0] == bits[1], (rows, columns, terms, dtype)
        found.update(bits[0])
print(found.hexdigest())
"""


def test_processors_have_the_same_bits() -> None:
    assert len({run_python(STACKS, WEFT_CPU=level) for level in ("", "x86-64-v3")}) == 1


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_sums_that_stay_in_float32(dtype: mx.Dtype, cases: Cases) -> None:
    """Their operands are converted, but not the result. Operands may have different dtypes."""
    for (rows, columns, inner), other in cases.some(
        4, list(product([*EXTENTS, *NARROW, *IN_ROWS, *IN_STRIPS], [mx.float16, mx.bfloat16]))
    ):
        a, b = numbers(203, rows, inner, dtype=dtype), numbers(203, inner, columns, dtype=other)
        wide = [x.astype(mx.float32) for x in (a, b)]
        mx.eval(wide)
        assert_same(a.astype(mx.float32) @ b.astype(mx.float32), wide[0] @ wide[1])


class Guarded:
    """Memory of some bytes between two pages that must not be accessed."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        room = -(-size // page) * page
        self.memory = mmap.mmap(-1, room + 2 * page)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for guard in (first, first + page + room):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
        self.address = first + page + room - size


Run = Callable[[int], None]
"""Computes so many units of a step, from the first one on."""


def step_in(memory: Sequence[int], count: int, extents: tuple[int, int, int], dtype: dtypes.Dtype) -> tuple[Run, int]:
    """The step for a stack of matrices at addresses in ``memory``, and its number of units."""
    rows, columns, inner = extents
    shapes = [(count, rows, inner), (count, inner, columns), (count, rows, columns)]
    a, b, c = [Operand(x, dtype, (x[1] * x[2], x[2], 1), slot, 0) for slot, x in enumerate(shapes)]
    made = matmul.steps(RoutineCall({"precision": REPRODUCIBLE}, (a, b), (c,), (0, 0)))
    assert isinstance(made, list)
    (step,) = made
    table = (ctypes.c_void_p * 3)(*memory)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(step.code)
    numbers = (ctypes.c_int64 * len(step.numbers))(*step.numbers)
    return lambda units: native(numbers, table, 0, units), step.units


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=str)
def test_no_memory_behind_a_stack_is_read_or_written(
    kind: list[tuple[int, int, int]], dtype: dtypes.Dtype, cases: Cases
) -> None:
    for extents, count in cases.some(3, list(product(kind, [2, 31, 64, 700]))):
        rows, columns, inner = extents
        sizes = rows * inner, inner * columns, rows * columns
        memory = [Guarded(count * size * dtype.size) for size in sizes]
        run, units = step_in([one.address for one in memory], count, extents, dtype)
        run(units)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=str)
def test_a_share_of_a_stack_leaves_other_results_alone(
    kind: list[tuple[int, int, int]], dtype: dtypes.Dtype, cases: Cases
) -> None:
    for extents, count in cases.some(3, list(product(kind, [2, 31, 64]))):
        rows, columns, inner = extents
        a, b, c = [np.zeros(count * n * dtype.size, np.uint8) for n in (rows * inner, inner * columns, rows * columns)]
        run, units = step_in([x.ctypes.data for x in (a, b, c)], count, extents, dtype)
        if units != count:
            continue
        for share in range(0, count, 3):
            c[:] = 99
            run(share)
            done = share * rows * columns * dtype.size
            assert (c[:done] == 0).all()
            assert (c[done:] == 99).all()


@pytest.mark.parametrize("level", ["+avx2", "+avx512f"])
def test_groups_fit_the_memory_for_converted_elements(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "current", lambda: host.Host("", "", level, "", ""))
    for rows, columns, inner in [*EXTENTS, *NARROW]:
        tiny = Tiny(dtypes.float32, dtypes.float32, (rows, columns, inner), (inner, 1, columns, 1))
        sizes = tiny.sizes
        fits = tiny.group * max(sizes.values()) <= converted_stacks.GROUP_ELEMENTS
        assert fits or (rows, columns, inner) in NARROW
        groups = tiny_stacks.in_order(tiny)
        groups.function("groups")
        assert all(groups.ends[x] - tiny.group * sizes[x] <= converted_stacks.ELEMENTS_BEHIND for x in "ab")
