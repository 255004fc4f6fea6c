"""Panels of a matrix that several products read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product as combinations

import numpy as np
import pytest

import weft.core as mx
from tests.checks import bits, run_python
from tests.codegen.planned import plans_of

FLOATS = (mx.float32, mx.float64, mx.bfloat16, mx.float16)


def drawn(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    found = mx.array(np.random.default_rng(shape).normal(size=shape)).astype(dtype)
    mx.eval(found)
    return found


def products(left: Sequence[mx.array], matrix: mx.array, transposed: bool) -> list[mx.array]:
    """Products, to some of which a kernel may be attached."""
    found = [x @ (matrix.T if transposed else matrix) for x in left]
    return [mx.tanh(x + 1) if number % 2 else x for number, x in enumerate(found)]


def packings(rows: Sequence[int], inner: int, columns: int, transposed: bool, dtype: mx.Dtype = mx.float32) -> int:
    """How often a matrix is packed by a step of its own."""
    matrix = drawn(*((columns, inner) if transposed else (inner, columns)), dtype=dtype)
    left = [drawn(count, inner, dtype=dtype) + number for number, count in enumerate(rows)]
    mx.eval(left)
    found = mx.compile(products).explain(left, matrix, transposed)
    return sum(step.name == "pack" for step in found.calls)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [((32,) * 4, 256, 320), ((17, 40, 33, 20), 300, 90), ((65, 40, 9, 64), 700, 257), ((9, 12, 10, 9), 1000, 49)],
    ids=str,
)
def test_bits_are_those_of_products_alone(rows: tuple[int, ...], inner: int, columns: int, dtype: mx.Dtype) -> None:
    for transposed in (False, True):
        matrix = drawn(*((columns, inner) if transposed else (inner, columns)), dtype=dtype)
        left = [drawn(count, inner, dtype=dtype) + number for number, count in enumerate(rows)]
        mx.eval(left)
        alone = [products([x], matrix, transposed)[0] for x in left]
        mx.eval(alone[0])
        for number, x in enumerate(alone):
            wanted = mx.tanh(x + 1) if number % 2 else x
            mx.eval(wanted)
            alone[number] = wanted
        for x, wanted in zip(mx.compile(products)(left, matrix, transposed), alone, strict=True):
            assert bits(x) == bits(wanted)


def test_a_matrix_is_packed_once_where_that_saves_time() -> None:
    assert packings((32, 32, 32, 32), 256, 320, True) == 1
    assert packings((32, 20, 200, 60), 256, 320, True) == 1
    assert packings((32, 32, 32), 256, 320, True) == 0, "that is not worth the memory"
    assert packings((32, 32, 32, 300), 256, 320, True) == 0, "with many rows packing takes little of the time"
    assert packings([3] * 30, 256, 320, True) == 0, "few rows read the matrix in place"
    assert packings([32] * 4, 256, 320, False) == 0, "caches hold rows that are read in place"
    assert packings([32] * 60, 256, 320, False) == 1, "which takes a little longer each time"
    assert packings([32] * 4, 16, 64, True) == 0, "the first cache holds the matrix"


def test_each_layout_of_a_matrix_is_packed_once() -> None:
    matrix = drawn(320, 256)

    def there_and_back(x: mx.array) -> mx.array:
        for _ in range(90):
            x = mx.tanh(mx.tanh(x @ matrix.T) @ matrix)
        return x

    found = mx.compile(there_and_back).explain(drawn(32, 256))
    assert [step.loops for step in found.calls if step.name == "pack"] == ["256x320", "320x256"]


def test_the_memory_of_panels_is_free_after_the_last_product() -> None:
    matrix = drawn(512, 512)

    def one_after_the_other(x: mx.array, matrix: mx.array) -> mx.array:
        for number in range(8):
            for _ in range(4):
                x = mx.tanh(x @ (matrix + number).T)
        return x

    (plan,) = plans_of(mx.compile(one_after_the_other), drawn(32, 512), matrix)
    assert str(plan).count("call pack") == 8
    assert plan.arena < 3 * matrix.nbytes


def test_a_matrix_may_be_updated_in_place_afterwards() -> None:
    def step(x: mx.array, matrix: mx.array) -> tuple[mx.array, mx.array]:
        for _ in range(4):
            x = mx.tanh(x @ matrix.T)
        return x, matrix * 0.5

    def alone(x: mx.array, matrix: mx.array) -> mx.array:
        for _ in range(4):
            x = mx.tanh(x @ matrix.T)
            mx.eval(x)
        return x

    compiled = mx.compile(step)
    for _ in range(3):
        x, matrix = drawn(32, 256), drawn(256, 256)
        wanted = bits(alone(x, matrix))
        matrix = matrix + 0
        mx.eval(matrix)
        y, matrix = compiled(x, matrix)
        assert bits(y) == wanted
        assert bits(matrix) == bits(drawn(256, 256) * 0.5)


def test_other_extents_are_planned_from_a_template() -> None:
    """With ``WEFT_CHECKS=1``, as in these tests, plans from templates are compared with others."""
    for rows, inner, columns in combinations((32, 33, 40), (256, 300, 512), (320, 400)):
        assert packings([rows] * 4, inner, columns, True) == 1


STEPS = """
import hashlib, numpy as np, weft.core as mx
rng = np.random.default_rng(0)
w, x = mx.array(rng.normal(size=(600, 300)), mx.float32), mx.array(rng.normal(size=(40, 300)), mx.float32)
def steps(x):
    for _ in range(5):
        x = mx.tanh(x @ w.T)[:, 100:400]
    return x
print(hashlib.sha1(np.array(steps(x))).hexdigest())
"""


@pytest.mark.parametrize("level", ["", "x86-64-v3"])
def test_threads_change_no_bit(level: str) -> None:
    run = partial(run_python, STEPS, WEFT_CPU=level)
    assert len({run(WEFT_NUM_THREADS=str(count)) for count in (1, 2, 7)}) == 1
