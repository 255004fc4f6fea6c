"""Products with operands that were converted from half precision: the kernel reads the original array, and gives the
same bits."""

from __future__ import annotations

import math
from itertools import product

import pytest

import weft.core as mx
from tests.checks import assert_same_bits
from tests.codegen.planned import plans_of
from tests.sampling import Cases

# Rows, terms and columns: blocks, few rows, few columns, rows of the matrix side by side.
EXTENTS = [(60, 300, 70), (5, 40, 90), (1, 600, 64), (90, 33, 3), (2, 300, 5000), (130, 64, 260), (1, 128, 3000)]
HALVES = [mx.float16, mx.bfloat16]


def numbers(*shape: int, dtype: mx.Dtype) -> mx.array:
    x = mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)
    mx.eval(x)
    return x


def test_bits_are_those_of_converted_operands(cases: Cases) -> None:
    kinds = [(mx.float32, half) for half in HALVES] + [(half, mx.float32) for half in HALVES] + [tuple(HALVES)]
    ways = list(product(EXTENTS, kinds, [(False, False), (True, False), (False, True)]))
    for extents, dtypes, turned in cases.some(3, ways):
        rows, inner, columns = extents
        a, b = [
            mx.swapaxes(numbers(2, *shape[::-1], dtype=dtype), 1, 2) if is_turned else numbers(2, *shape, dtype=dtype)
            for shape, dtype, is_turned in zip([(rows, inner), (inner, columns)], dtypes, turned, strict=True)
        ]
        wide = [x.astype(mx.float32) for x in (a, b)]
        mx.eval(wide)
        assert_same_bits(a.astype(mx.float32) @ b.astype(mx.float32), wide[0] @ wide[1])


@pytest.mark.parametrize("dtype", HALVES)
def test_a_converted_operand_takes_no_memory(dtype: mx.Dtype) -> None:
    a, b = numbers(64, 512, dtype=mx.float32), numbers(300, 512, dtype=dtype)
    (plan,) = plans_of(lambda: a @ b.astype(mx.float32).T)
    assert (plan.steps.count, plan.arena) == (1, 0)


# Beside those above: stacks of small matrices, whose rows are converted together; tiles of one vector and of several; a
# block of terms and one term more.
ROUNDED = [*EXTENTS, (4, 4, 4), (8, 8, 8), (16, 16, 16), (24, 24, 24), (64, 64, 64), (33, 256, 112), (33, 257, 17)]
ROUNDED += [(3, 5, 7), (12, 12, 12), (16, 256, 40), (7, 257, 33), (5, 0, 4)]


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_are_rounded_once_where_they_are_stored(dtype: mx.Dtype, cases: Cases) -> None:
    """The bits are those of products of float32 that another operation rounds, also of subnormal numbers, infinities
    and NaN."""
    extreme = [0.0, -0.0, 1e-8, 6e-8, 6e4, float("inf"), float("nan"), 1.0] if dtype is mx.float16 else []
    extreme = extreme or [0.0, -0.0, 1e-39, 1e-30, 3e38, float("inf"), float("nan"), 1.0]
    ways = list(product(ROUNDED, [(False, False), (True, False), (False, True)], [False, True]))
    for (rows, inner, columns), turned, has_extremes in cases.some(5, ways):
        operands = []
        for shape, is_turned in zip([(rows, inner), (inner, columns)], turned, strict=True):
            x = numbers(3, *(shape[::-1] if is_turned else shape), dtype=dtype)
            if has_extremes:
                chosen = mx.array(extreme, dtype=dtype)[(1000 * mx.abs(x)).astype(mx.int32) % 8]
                x = mx.contiguous(mx.where(mx.abs(x) > 2, chosen, x))
            operands.append(mx.swapaxes(x, 1, 2) if is_turned else x)
        a, b = operands
        wide = [x.astype(mx.float32) for x in (a, b)]
        mx.eval(wide)
        sums = wide[0] @ wide[1]
        mx.eval(sums)
        assert_same_bits(a @ b, sums.astype(dtype))
        assert_same_bits(mx.compile(lambda a, b: mx.maximum(a @ b, 1) * 3)(a, b), mx.maximum(sums.astype(dtype), 1) * 3)


@pytest.mark.parametrize("dtype", HALVES)
def test_matrices_that_are_converted_together_are_those_of_a_stack(dtype: mx.Dtype) -> None:
    """Stacks of more matrices than are converted together, also ones that are not neighbours in memory, have two axes,
    or share one matrix."""
    sizes = ((700, 4, 7), (130, 8, 7), (130, 8, 8), (1000, 3, 7), (40, 16, 7), (45, 16, 16), (5, 16, 7), (15, 20, 7))
    for count, extent, columns in (*sizes, (25, 30, 7)):
        a, b = numbers(count, extent, extent, dtype=dtype), numbers(count, extent, columns, dtype=dtype)
        for left in (a, a[::-1], mx.swapaxes(a, 1, 2), mx.repeat(a, 2, axis=0)[::2], a[:1]):
            wide = left.astype(mx.float32) @ b.astype(mx.float32)
            mx.eval(left, wide)
            assert_same_bits(left @ b, wide.astype(dtype))
        both = mx.reshape(a, (5, -1, extent, extent)) @ mx.reshape(b, (5, -1, extent, columns))
        assert_same_bits(mx.reshape(both, (count, extent, columns)), a @ b)


@pytest.mark.parametrize("dtype", HALVES)
def test_rounded_products_are_one_step(dtype: mx.Dtype) -> None:
    for extents in [(4, 4, 4), (16, 16, 16), (64, 64, 64), (1, 256, 64)]:
        rows, inner, columns = extents
        a, b = numbers(10, rows, inner, dtype=dtype), numbers(10, inner, columns, dtype=dtype)
        (plan,) = plans_of(lambda a=a, b=b: a @ b)
        assert (plan.steps.count, plan.arena) == (1, 0)


@pytest.mark.parametrize("dtype", HALVES)
def test_few_rows_or_columns_that_are_neighbours_in_each_term(dtype: mx.Dtype, cases: Cases) -> None:
    """They are converted as they lie. Stacks are one matrix, several at once, and with gaps between matrices; sums have
    one block of terms or several."""
    ways = list(product([2, 3, 5, 8, 9, 16, 31], [5, 40, 256, 257, 600], [1, 3, 50], [1, 2], [False, True]))
    for few, inner, matrices, step, as_rows in cases.some(8, ways):
        x, w = [numbers(matrices * step, inner, extent, dtype=dtype)[::step] for extent in (few, 37)]
        a, b = (mx.swapaxes(x, 1, 2), w) if as_rows else (mx.swapaxes(w, 1, 2), x)
        wide = [y.astype(mx.float32) for y in (mx.contiguous(a), b)]
        mx.eval(wide)
        assert_same_bits(a @ b, (wide[0] @ wide[1]).astype(dtype))
        assert_same_bits(a.astype(mx.float32) @ b.astype(mx.float32), wide[0] @ wide[1])


@pytest.mark.parametrize("dtype", HALVES)
def test_columns_that_are_converted_for_several_blocks_of_rows(dtype: mx.Dtype, cases: Cases) -> None:
    """Columns fill strips, or a vector is left over or cut; the left operand is stored by rows or by columns."""
    extents = list(product([9, 17, 33, 64, 101, 128], [1, 40, 256, 257, 700], [8, 16, 33, 64, 80, 100, 120, 300]))
    in_parts = (64, 700, 64), 3, False  # with two threads: the last part has fewer terms
    chosen = [in_parts, *cases.some(10, list(product(extents, [1, 3], [False, True])))]
    for (rows, inner, columns), matrices, turned in chosen:
        a, b = numbers(matrices, rows, inner, dtype=dtype), numbers(matrices, inner, columns, dtype=dtype)
        if turned:
            a = mx.swapaxes(mx.contiguous(mx.swapaxes(a, 1, 2)), 1, 2)
        wide = [x.astype(mx.float32) for x in (a, b)]
        mx.eval(wide)
        sums = wide[0] @ wide[1]
        mx.eval(sums)
        assert_same_bits(a @ b, sums.astype(dtype))
        assert_same_bits(wide[0] @ b.astype(mx.float32), sums)
        assert_same_bits(mx.compile(lambda a, b: mx.maximum(a @ b, 1))(a, b), mx.maximum(sums.astype(dtype), 1))


def test_pairs_of_columns(cases: Cases) -> None:
    """Few rows times a matrix of bfloat16, whose columns are read and stored in pairs, apart from a last vector."""
    extreme = mx.array([math.inf, -math.inf, math.nan, 1e-40, -1e-39, 3e38, -3e38, 0.0])
    ways = list(product([1, 3, 4, 8, 12, 30], [1, 8, 250, 257, 600], [16, 32, 48, 64, 65, 96, 100, 200], [1, 5]))
    for rows, inner, columns, matrices in cases.some(15, ways):
        a, b = numbers(matrices, rows, inner, dtype=mx.bfloat16), numbers(matrices, inner, columns, dtype=mx.bfloat16)
        unusual = extreme[(1000 * mx.abs(b)).astype(mx.int32) % 8].astype(mx.bfloat16)
        for y in (b, mx.where(mx.abs(b) > 2.5, unusual, b)):
            wide = [x.astype(mx.float32) for x in (a, y)]
            mx.eval(wide, y)
            sums = wide[0] @ wide[1]
            mx.eval(sums)
            assert_same_bits(a @ y, sums.astype(mx.bfloat16))
            assert_same_bits(a.astype(mx.float32) @ y.astype(mx.float32), sums)
            assert_same_bits(wide[0] @ y.astype(mx.float32), sums)


def test_few_rows_and_columns_whose_terms_are_neighbours(cases: Cases) -> None:
    """The columns are transposed in pairs of terms: one square, several, an odd number of them, and parts of one; two
    blocks of terms side by side, if columns are 2 KB apart, or staggered vectors, if they are 4 KB apart. Up to 8
    columns of float16 are transposed one by one."""
    terms = [20, 31, 32, 64, 97, 256, 360, 600, 512, 1040]
    ways = list(product(HALVES, [1, 2, 4, 8], terms, [6, 8, 16, 32, 33, 70], [1, 2]))
    apart = [(mx.float16, 2, 1024, 8, 1), (mx.float16, 2, 2048, 70, 1), (mx.bfloat16, 3, 2048, 33, 1)]
    for dtype, rows, inner, columns, step in [*apart, *cases.some(10, ways)]:
        a, w = numbers(rows, inner, dtype=dtype), numbers(columns, inner * step, dtype=dtype)[:, :inner]
        wide = [x.astype(mx.float32) for x in (a, mx.contiguous(w.T))]
        mx.eval(wide)
        sums = wide[0] @ wide[1]
        mx.eval(sums)
        assert_same_bits(a @ w.T, sums.astype(dtype))
        assert_same_bits(a.astype(mx.float32) @ w.T.astype(mx.float32), sums)
