"""Matrix products in generated code, on their own and through `matmul`."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial
from itertools import product as combinations
from types import SimpleNamespace

import numpy as np
import pytest

import weft.core as mx
from tests.codegen.planned import plans_of
from tests.sampling import Cases
from weft import dtypes
from weft.compiler.codegen import host, loading
from weft.compiler.cpu.products import tiles as product_tiles
from weft.compiler.cpu.products.few_rows import rows_at_once
from weft.compiler.cpu.products.few_rows import step as few_rows
from weft.compiler.cpu.products.few_rows.strip import LONG_VECTOR, MOST_ROWS_OF_LITTLE, Strip, for_first_cache
from weft.compiler.cpu.products.half_squares import SHORT_VECTOR
from weft.compiler.cpu.products.packed import blocks as product
from weft.compiler.cpu.products.packed import pairs as product_pairs
from weft.compiler.cpu.products.step import SQUARE, Block, Sources
from weft.compiler.cpu.products.tiles import Way
from weft.primitives.products import DEPTH

NUMPY = {dtypes.float32: np.float32, dtypes.float64: np.float64, dtypes.complex64: np.complex64}
SHAPES = [
    (1, 1, 1),
    (2, 3, 4),
    (12, 16, 32),
    (13, 17, 33),
    (5, 300, 7),
    (100, 513, 70),
    (257, 260, 300),
    (3, 0, 4),
    (24, 256, 64),
    (30, 31, 1),
    (1, 31, 30),
    (300, 5, 2),
    (3, 135, 70),
    (70, 135, 1),
]


def defined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product as docs/architecture.md defines it: blocks of terms, each summed in order with exactly rounded
    operations."""
    if a.dtype.kind == "c":
        return np.ascontiguousarray(defined(*of_real(a, b))).view(a.dtype)
    result = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for start in range(0, a.shape[1], DEPTH):
        block = np.zeros_like(result)
        for term in range(start, min(start + DEPTH, a.shape[1])):
            exact = np.multiply.outer(a[:, term], b[term], dtype=np.longdouble) + block
            block = exact.astype(a.dtype)
        result = result + block
    return result


def packed(rng: np.random.Generator, shape: tuple[int, int], transposed: bool, dtype: type) -> np.ndarray:
    extents = shape[::-1] if transposed else shape
    values = rng.normal(size=extents) + (1j * rng.normal(size=extents) if dtype is np.complex64 else 0)
    values = values.astype(dtype)
    return values.T if transposed else values


def of_real(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The real matrices whose product has the parts of a complex one as neighbouring columns."""
    parts = [np.stack([x.real, x.imag], axis=-1) for x in (a, b)]
    turned = np.stack([-b.imag, b.real], axis=-1)
    right = np.stack([parts[1], turned], axis=1)
    return parts[0].reshape(len(a), 2 * a.shape[1]), right.reshape(2 * len(b), 2 * b.shape[1])


@pytest.mark.parametrize("dtype", [*product.DTYPES, dtypes.complex64], ids=str)
def test_every_bit_is_as_defined(dtype: mx.Dtype) -> None:
    rng = np.random.default_rng(7)
    for rows, inner, columns in SHAPES:
        a, b = (packed(rng, extents, False, NUMPY[dtype]) for extents in ((rows, inner), (inner, columns)))
        wanted = a.astype(np.longdouble) @ b if dtype is dtypes.float64 else defined(a, b)
        for layout in combinations([False, True], repeat=2):
            x, y = (
                mx.array(np.ascontiguousarray(n.T), dtype=dtype).T if turned else mx.array(n, dtype=dtype)
                for n, turned in zip((a, b), layout, strict=True)
            )
            found, where = np.array(x @ y), f"{a.shape} times {b.shape}, transposed {layout}"
            if dtype is dtypes.float64:
                np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12, err_msg=where)
            else:
                np.testing.assert_array_equal(found, wanted, err_msg=where)


@pytest.mark.some_rows(3)
@pytest.mark.parametrize("dtype", product.DTYPES, ids=str)
@pytest.mark.parametrize("block", [(8, 3, 64), (6, 4, 64), (4, 3, 32), (6, 2, 32), (4, 2, 16)], ids=str)
def test_the_block_does_not_change_the_result(block: tuple[int, int, int], dtype: mx.Dtype) -> None:
    name = "_".join(map(str, ("tested", dtype.name, *block)))
    generate = partial(product.generate, Block(dtype, *block), Sources(dtype, dtype), name)
    address = loading.load(name, generate, (name,), lasting=False)[name]
    step = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    rng = np.random.default_rng(3)
    for (rows, inner, columns), (left, right) in combinations(SHAPES, combinations([False, True], repeat=2)):
        a = packed(rng, (rows, inner), left, NUMPY[dtype])
        b = packed(rng, (inner, columns), right, NUMPY[dtype])
        c = np.full((rows, columns), np.nan, NUMPY[dtype])
        strides = [*((1, rows) if left else (inner, 1)), *((1, inner) if right else (columns, 1))]
        tile = (2 * block[0], 2 * block[1] * block[2] // dtype.size)
        packed_left = Way.ALONG if left else Way.ACROSS
        ways = [(packed_left, Way.ACROSS)] if right else [(packed_left, Way.ALONG), (Way.IN_PLACE, Way.IN_PLACE)]
        units = -(-rows // tile[0]) * -(-columns // tile[1])
        table = (ctypes.c_uint64 * 3)(*[x.ctypes.data for x in (a.T if left else a, b.T if right else b, c)])
        x, y = mx.array(np.ascontiguousarray(a), dtype=dtype), mx.array(np.ascontiguousarray(b), dtype=dtype)
        wanted = np.array(x @ y)
        for way, terms in combinations(ways, (DEPTH, 2 * DEPTH)):
            places, extents = [(0, 0), (1, 0), (2, 0)], (rows, columns, inner)
            numbers = product.step_numbers(places, extents, strides, tile, way, [], terms=terms)
            c.fill(np.nan)
            step((ctypes.c_int64 * len(numbers))(*numbers), table, 0, units)
            np.testing.assert_array_equal(c, wanted)


@pytest.mark.some_rows(2)
@pytest.mark.parametrize(
    ("vector_bytes", "dtype"),
    [
        (64, dtypes.float32),
        (32, dtypes.float32),
        (64, dtypes.float64),
        (32, dtypes.float64),
        (16, dtypes.float32),
    ],
)
def test_strips_do_not_change_the_result(vector_bytes: int, dtype: mx.Dtype) -> None:
    """Products of few rows, with the result by rows and by columns, blocks of rows of which the last is smaller, and
    blocks of terms that are summed side by side, or staggered; with a matrix in a cache, of which whole lines may be
    read, and further away; with rows that are copied first."""
    rng = np.random.default_rng(3)
    kinds = [(1, 2, 1, True), (3, 1, 1, True), (1, 4, 1, True), (2, 1, 2, True)]
    near = [(1, 2, 1, False), (3, 1, 1, False), (1, 1, 2, False)]
    staggered = [(1, 2, 1, True, True), (3, 2, 1, True, True)] if vector_bytes == SHORT_VECTOR else []
    lines = [(1, 1, 1, False, False, True), (3, 1, 1, False, False, True)] if vector_bytes == LONG_VECTOR else []
    every = [*[(*kind, False, False) for kind in (*kinds, *near)], *[(*kind, False) for kind in staggered], *lines]
    all_kinds = combinations(every, [False, True], [False, True], [False, True])
    for (height, vectors, blocks, far, staggers, lines_at_once), right, apart, copies in all_kinds:
        left = right != apart
        if not right and (blocks > 1 or not far or staggers):
            continue
        if copies and (left or blocks > 1 or not right or vector_bytes != SHORT_VECTOR):
            continue
        whole_strip = Strip(dtype, height, vectors, vector_bytes, right, apart, not left, True, far, blocks)
        strip = replace(whole_strip, staggered=staggers, copies=copies, whole=lines_at_once)
        name = "_".join(map(str, ("tested", *vars(strip).values())))
        generate = partial(few_rows.generate, strip, Sources(dtype, dtype), name)
        address = loading.load(name, generate, (name,), lasting=False)[name]
        step = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
        wide = strip.columns
        for rows, inner, columns in [(1, 1, 1), (3, 7, 2 * wide + 3), (7, 513, wide + 1), (2, 0, 5), (3, 795, wide)]:
            a = packed(rng, (rows, inner), left, NUMPY[dtype])
            b = packed(rng, (inner, columns), right, NUMPY[dtype])
            c = np.full((columns, rows), np.nan, NUMPY[dtype]).T if apart else np.full((rows, columns), np.nan, a.dtype)
            strides = [stride // dtype.size for array in (a, b, c) for stride in array.strides]
            strides[2:4] = (1, inner) if right else (columns, 1)
            numbers = few_rows.step_numbers([(0, 0), (1, 0), (2, 0)], (rows, columns, inner), strides, strip, [])
            block_of_numbers = (ctypes.c_int64 * len(numbers))(*numbers)
            table = (ctypes.c_uint64 * 3)(*[x.ctypes.data for x in (a, b, c)])
            step(block_of_numbers, table, 0, -(-columns // strip.columns))
            whole = (
                np.zeros((MOST_ROWS_OF_LITTLE + 1, inner), a.dtype),
                np.zeros((inner, columns + 40), a.dtype),
            )
            whole[0][:rows], whole[1][:, :columns] = a, b
            of_blocks = np.array(mx.array(whole[0], dtype=dtype) @ mx.array(whole[1], dtype=dtype))
            np.testing.assert_array_equal(c, of_blocks[:rows, :columns])


@pytest.mark.parametrize(("vector_bytes", "dtype"), [(64, dtypes.float32), (32, dtypes.float64)])
def test_rows_at_once_do_not_change_the_result(vector_bytes: int, dtype: mx.Dtype) -> None:
    """Products of few rows with a matrix that is read along its rows: several strips, blocks of rows and of terms."""
    rng = np.random.default_rng(3)
    for (height, terms, ahead), apart in combinations([(1, 8, True), (3, 4, False)], [False, True]):
        at_once = rows_at_once.RowsAtOnce(dtype, height, terms, vector_bytes, apart, ahead)
        name = "_".join(map(str, ("tested", *vars(at_once).values())))
        generate = partial(rows_at_once.generate, at_once, Sources(dtype, dtype), name)
        address = loading.load(name, generate, (name,), lasting=False)[name]
        step = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
        for rows, inner, columns in [(1, 1, 1), (3, 7, 131), (7, 525, 3), (2, 0, 5)]:
            a, b = packed(rng, (rows, inner), apart, NUMPY[dtype]), packed(rng, (inner, columns), False, NUMPY[dtype])
            c = np.full((columns, rows), np.nan, NUMPY[dtype]).T if apart else np.full((rows, columns), np.nan, a.dtype)
            strides = [stride // dtype.size for array in (a, b, c) for stride in array.strides]
            strides[2:4] = columns, 1
            numbers = rows_at_once.step_numbers([(0, 0), (1, 0), (2, 0)], (rows, columns, inner), strides, 128, [])
            table = (ctypes.c_uint64 * 3)(*[x.ctypes.data for x in (a, b, c)])
            step((ctypes.c_int64 * len(numbers))(*numbers), table, 0, -(-columns // 128))
            padded = (
                np.zeros((MOST_ROWS_OF_LITTLE + 1, inner), a.dtype),
                np.zeros((inner, columns + 40), a.dtype),
            )
            padded[0][:rows], padded[1][:, :columns] = a, b
            of_blocks = np.array(mx.array(padded[0], dtype=dtype) @ mx.array(padded[1], dtype=dtype))
            np.testing.assert_array_equal(c, of_blocks[:rows, :columns])


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 4096, 4096), (4096, 1, 7), (24, 32, 1 << 20), (3000, 3000, 0)])
def test_tiles_cover_the_result(extents: tuple[int, int, int]) -> None:
    every = [*map(product_tiles.block_of, product.DTYPES), *map(product_pairs.block_of, (48, 64))]
    for block, matrices, threads in combinations(every, (1, 7), (1, 2, 64)):
        rows, columns = product_tiles.tile_of(block, extents, matrices, threads)
        assert rows % block.rows == columns % block.columns == 0
        assert rows > 0
        terms = -(-max(1, min(extents[2], DEPTH)) // (SQUARE * block.terms)) * SQUARE
        assert 0 < columns * terms * block.dtype.size <= product_tiles.TILE_BYTES


@pytest.mark.parametrize("threads", [16, 64])
def test_results_of_few_columns_are_cut_into_tiles_for_many_threads(threads: int) -> None:
    """Threads end at different times, so each has several tiles."""
    block = product_tiles.block_of(dtypes.float32)
    extents = 100_000, block.columns, 1000
    rows, _ = product_tiles.tile_of(
        block, extents, 1, threads, product_tiles.Lying(True, product_tiles.DirectReading.AS_PANELS)
    )
    assert extents[0] // rows >= 2 * threads


@pytest.mark.parametrize(("rows", "columns"), [(392, 512), (200, 320), (2048, 2048)])
def test_two_threads_end_at_about_the_same_time(rows: int, columns: int) -> None:
    """Also where units at the edges of the result are smaller than others."""
    block, lying = Block(dtypes.float32, 8, 3, 64), product_tiles.Lying(True, product_tiles.DirectReading.NOWHERE)
    high, wide = product_tiles.tile_of(block, (rows, columns, 4608), 1, 2, lying)
    done = [0, 0]
    for top in range(0, rows, high):
        for left in range(0, columns, wide):
            done[done.index(min(done))] += min(high, rows - top) * min(wide, columns - left)
    assert max(done) < 1.06 * sum(done) / 2


def test_columns_that_do_not_fill_a_vector_take_the_time_of_a_whole_one() -> None:
    """So all threads share results with few of them."""
    block, threads = product_tiles.block_of(dtypes.float32), 32
    extents = 1024, block.lanes // 2, 256
    rows, _ = product_tiles.tile_of(block, extents, 1, threads)
    assert extents[0] // rows >= threads


@pytest.mark.parametrize("extents", [(10_000, 64, 600), (10_000, 64, 1 << 20), (4000, 3000, 3000), (100, 64, 600)])
def test_terms_that_are_packed_at_once_fit_their_room(extents: tuple[int, int, int]) -> None:
    """Several blocks of terms are packed at once only for results of many rows and few columns, and if they fit a
    tile's memory."""
    rows, columns, _ = extents
    block = product_tiles.block_of(dtypes.float32)
    tile = product_tiles.tile_of(block, extents, 1, 1)
    terms = product_tiles.terms_of(block, extents, tile)
    panels = -(-min(tile[1], columns) // block.columns) * block.columns
    assert terms % DEPTH == 0
    assert terms == DEPTH or terms * panels * 4 <= product_tiles.TILE_BYTES
    assert (terms > DEPTH) == (rows > 1000 and columns < 100)


def test_few_rows_have_blocks_of_few_rows() -> None:
    """High blocks of short vectors would have many rows that do not exist."""
    wide, high = Block(dtypes.float32, 4, 3, 32), Block(dtypes.float32, 6, 2, 32)
    assert product_tiles.filled(wide, 1000, 1000) == product_tiles.filled(wide, 66, 128) == high
    assert product_tiles.filled(wide, 20, 1000) == product_tiles.filled(wide, 1000, 24) == wide


def test_terms_in_few_sets_of_caches_are_not_read_in_place() -> None:
    block, dtype = Block(dtypes.float32, 4, 3, 32), dtypes.float32
    for columns, reading in [
        (512, product_tiles.DirectReading.NOWHERE),
        (500, product_tiles.DirectReading.IN_FEW_ROWS),
        (20, product_tiles.DirectReading.AS_PANELS),
    ]:
        extents, strides = (64, columns, 300), (300, 1, columns, 1)
        assert product_tiles.reading_right(block, dtype, extents, strides) is reading


def test_a_first_cache_of_eight_ways_has_narrow_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of columns that are 4 KB apart, it holds 8 lines, of others twice as many, or all."""
    monkeypatch.setattr(host, "current", lambda: SimpleNamespace(name="znver4"))

    def chosen(dtype: mx.Dtype, stride: int, rows: int = 1, is_cached: bool = False) -> tuple[int, bool]:
        strip = Strip(dtype, rows, 2, LONG_VECTOR, True, False, True, True, False)
        found = for_first_cache(strip, dtype, rows, stride, is_cached)
        return found.vectors, found.whole

    assert [chosen(dtypes.float32, stride) for stride in (1024, 512, 256)] == [(1, True), (1, False), (2, False)]
    assert [chosen(dtypes.float64, stride) for stride in (512, 256)] == [(1, False), (2, False)]
    assert chosen(dtypes.float32, 1024, rows=8) == (2, False)
    assert chosen(dtypes.float32, 1024, is_cached=True) == (1, True)
    assert chosen(dtypes.float32, 512, is_cached=True) == (2, False)


def test_infinities_stay_in_their_row_and_column() -> None:
    a, b = np.ones((13, 20), np.float32), np.ones((20, 35), np.float32)
    a[12, 3], b[5, 34] = np.inf, np.nan
    found = np.array(mx.array(a) @ mx.array(b))
    assert np.all(found[:12, :34] == 20)
    assert np.all(np.isinf(found[12, :34]))
    assert np.all(np.isnan(found[:, 34]))


def test_the_sign_of_vanishing_terms_is_kept() -> None:
    """In every kind of product: of few rows along or across the matrix, or of blocks."""
    b = mx.full((4, 40), -1e-30)
    mx.eval(b)
    for rows, matrix in combinations([1, 3, 20], [b, mx.contiguous(b.T).T]):
        assert mx.all(mx.signbit(mx.full((rows, 4), 1e-30) @ matrix)).item()


def test_batches_of_views() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(3, 1, 20, 50)).astype(np.float32), rng.normal(size=(4, 60, 50)).astype(np.float32)
    found = np.array(mx.array(a)[:, :, ::2] @ mx.array(b).swapaxes(-1, -2))
    np.testing.assert_allclose(found, a[:, :, ::2] @ b.swapaxes(-1, -2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.complex64], ids=str)
def test_a_matrix_of_a_stack_is_multiplied_as_alone(dtype: mx.Dtype) -> None:
    """A kernel multiplies many matrices of a stack in one call, which may be shared, in another order, or not
    neighbours in memory. Rows and terms may be several blocks."""
    rng = np.random.default_rng(4)
    stacks = [
        (300, 4, 4, 4),
        (260, 3, 5, 2),
        (90, 8, 8, 8),
        (9, 12, 7, 12),
        (6, 20, 9, 33),
        (4, 6, 260, 5),
        (5, 2, 0, 3),
    ]
    for (count, *extents), turned in combinations(stacks, combinations([False, True], repeat=2)):
        rows, inner, columns = extents
        a, b = (
            np.stack([packed(rng, shape, False, NUMPY[dtype]) for _ in range(count)])
            for shape in ((rows, inner), (inner, columns))
        )
        x, y = (
            mx.array(n.swapaxes(1, 2).copy(), dtype=dtype).swapaxes(1, 2) if is_turned else mx.array(n, dtype=dtype)
            for n, is_turned in zip((a, b), turned, strict=True)
        )
        wanted = np.stack([defined(m, n) for m, n in zip(a, b, strict=True)])
        np.testing.assert_array_equal(np.array(x @ y), wanted)
        np.testing.assert_array_equal(np.array(x[::-1] @ y[::-1]), wanted[::-1])
        np.testing.assert_array_equal(np.array(x[::2] @ y[::2]), wanted[::2])
        np.testing.assert_array_equal(np.array(mx.repeat(x[:1], 3, axis=0) @ y[:1]), wanted[[0, 0, 0]])
        np.testing.assert_array_equal(np.array(x[1] @ y)[1], wanted[1])


@pytest.mark.parametrize(
    "dtype",
    [mx.float32, mx.int32, mx.float16, *[pytest.param(d, marks=pytest.mark.slow) for d in (mx.float64, mx.bfloat16)]],
    ids=str,
)
def test_right_operands_of_stacks_that_are_transposed_in_groups(dtype: mx.Dtype, cases: Cases) -> None:
    """Results are those with operands that need not be transposed: of whole squares and parts of some, more matrices
    than a group has, left operands of either kind with gaps between matrices, and more rows than columns."""
    rng = np.random.default_rng(6)
    stacks = [(300, 9, 9, 9), (70, 5, 5, 5), (30, 20, 30, 24), (9, 32, 32, 32), (40, 32, 16, 4), (50, 3, 4, 60)]
    stacks += [(40, 20, 9, 5), (5, 17, 60, 17), (9, 12, 3, 12), (4, 40, 9, 9), (3, 9, 0, 9)]
    for (count, rows, inner, columns), turned in cases.some(10, list(combinations(stacks, [False, True]))):
        left, right = ((inner, rows) if turned else (rows, inner)), (columns, inner)
        x, y = (mx.array(4 * rng.normal(size=(count, *shape))).astype(dtype) for shape in (left, right))
        x, y = (mx.swapaxes(x, 1, 2) if turned else x), mx.swapaxes(y, 1, 2)
        plain = mx.contiguous(y)
        mx.eval(x, y, plain)
        assert mx.array_equal(x @ y, x @ plain).item()
        assert mx.array_equal(x[::2] @ y[: -(-count // 2)], x[::2] @ plain[: -(-count // 2)]).item()
        assert mx.array_equal(x[1:] @ y[1:], x[1:] @ plain[1:]).item()


def test_a_transposed_product_is_made_as_it_is_wanted() -> None:
    rng = np.random.default_rng(5)
    x, y = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 20, 50), (3, 50, 40)))

    def alone(x: mx.array, y: mx.array) -> mx.array:
        return mx.exp((x @ y).swapaxes(1, 2))

    def both(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
        product = x @ y
        return mx.exp(product.swapaxes(1, 2)), product + 1

    (plan,) = plans_of(alone, x, y)
    assert "(3, 40, 20)" in str(plan)
    assert "transposed" not in str(plan)
    (plan,) = plans_of(both, x, y)
    assert "(3, 20, 40)" in str(plan)
    assert "(3, 40, 20)" not in str(plan).replace("extents (3, 40, 20)", "")
    np.testing.assert_array_equal(np.array(alone(x, y)), np.array(both(x, y)[0]))


@pytest.mark.parametrize("shape", [(2, 1024, 70), (8, 2048, 65), (1, 64, 2000), (3, 200, 700)], ids=str)
def test_columns_that_fill_few_sets_of_a_cache_or_end_soon(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    rng = np.random.default_rng(8)
    x, y = (rng.normal(size=extents).astype(np.float32) for extents in ((rows, inner), (columns, inner)))
    across, along = mx.array(x) @ mx.array(y).T, mx.array(x) @ mx.array(np.ascontiguousarray(y.T))
    np.testing.assert_array_equal(np.array(across), np.array(along))


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 31, 32, 33, 48, 49])
def test_narrow_results(columns: int) -> None:
    rng = np.random.default_rng(columns)
    a, b = rng.integers(-9, 9, (30, 70)).astype(np.float32), rng.integers(-9, 9, (70, columns)).astype(np.float32)
    np.testing.assert_array_equal(np.array(mx.array(a) @ mx.array(b)), a @ b)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "uint32", "int64"])
def test_integers_wrap_around(dtype: str) -> None:
    rng, limits = np.random.default_rng(2), np.iinfo(dtype)
    for (rows, inner, columns), turned in combinations([(13, 17, 33), (20, 300, 70), (3, 40, 50)], [False, True]):
        a, b = (
            rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
            for shape in ((rows, inner), (columns, inner) if turned else (inner, columns))
        )
        found = mx.array(a) @ (mx.array(b).T if turned else mx.array(b))
        np.testing.assert_array_equal(np.array(found), a @ (b.T if turned else b), strict=True)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 300, 40), (5, 20, 33), (17, 530, 70), (100, 64, 75), (42, 300, 39)], ids=str)
def test_half_precision_is_multiplied_as_float32(dtype: mx.Dtype, shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(5)
    rows, inner, columns = shape
    for left, right in combinations([False, True], repeat=2):
        x, y = (
            mx.array(rng.normal(size=extents[:: -1 if turned else 1]), dtype=dtype)
            for extents, turned in (((rows, inner), left), ((inner, columns), right))
        )
        a, b = (x.T if left else x), (y.T if right else y)
        wanted = (a.astype(mx.float32) @ b.astype(mx.float32)).astype(dtype)
        np.testing.assert_array_equal(np.array((a @ b).view(mx.uint16)), np.array(wanted.view(mx.uint16)))
