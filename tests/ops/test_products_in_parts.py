"""Sums of many terms are computed in parts if there are many threads; their bits are the same."""

from __future__ import annotations

import pytest

from tests.checks import run_python

SHOW = """
    import hashlib
    import numpy as np
    import weft.core as mx
    from weft.runtime import recording

    def show(function, *arguments):
        mx.eval(*arguments)
        with recording.recorded() as recorder:
            found = function(*arguments)
            mx.eval(found)
        steps = sum(run.plan.steps.count for run in recorder.runs)
        print(steps, hashlib.sha256(np.array(found).tobytes()).hexdigest())

"""

GRADIENTS = """
    def of_convolution(array, weights, transposed=False, dtype=mx.float32, **geometry):
        rng = np.random.default_rng(0)
        x, w = (mx.array(rng.normal(size=shape), dtype) for shape in (array, weights))
        convolve = mx.conv_transpose2d if transposed else mx.conv2d
        y = convolve(x, w, **geometry)
        ct = mx.array(rng.normal(size=y.shape), dtype)
        show(lambda x, w, ct: mx.vjp(lambda w: convolve(x, w, **geometry), [w], [ct])[1][0], x, w, ct)

    def of_matrices(left, right, function=lambda x, y: x.swapaxes(-1, -2) @ y, dtype=mx.float32):
        rng = np.random.default_rng(0)
        show(function, *[mx.array(rng.normal(size=shape), dtype) for shape in (left, right)])

    for batch in (8, 9, 10):
        of_convolution((batch, 16, 17, 32), (64, 3, 3, 16), groups=2, padding=1)
    of_convolution((8, 20, 20, 32), (24, 4, 4, 32), transposed=True, stride=2, padding=1)
    of_convolution((8, 39, 41, 17), (19, 3, 2, 17), stride=2, dtype=mx.float64)
    of_convolution((6, 19, 15, 16), (40, 3, 3, 16), padding=(3, 0))
    of_matrices((9000, 64), (9000, 200))
    of_matrices((6100, 70), (6100, 50), dtype=mx.float64)
    of_matrices((2, 6000, 40), (2, 6000, 30))
    of_matrices((40, 9000), (9000, 30), lambda x, y: mx.maximum(x @ y + 1, 0))
    of_matrices((9000, 2, 64), (9000, 2, 48), lambda x, y: x.reshape(-1, 64).T @ y[::-1].reshape(-1, 48))
"""


FEW_ROWS = """
    rng = np.random.default_rng(0)
    for rows, inner, columns, dtype in (
        (1, 1024, 1024, mx.float32),
        (3, 1024, 1024, mx.float32),
        (1, 2048, 512, mx.float64),
        (1, 4096, 512, mx.bfloat16),
        (2, 1024, 1000, mx.float32),
    ):
        x, w = (mx.array(rng.normal(size=shape), dtype) for shape in ((rows, inner), (inner, columns)))
        show(lambda x, w: mx.maximum((x @ w).astype(mx.float32), 1), x, w)
"""


@pytest.fixture(scope="module")
def of_one_thread() -> list[list[str]]:
    return _found(1)


def _found(threads: int, program: str = GRADIENTS) -> list[list[str]]:
    """How many steps each product has, and its bits."""
    lines = run_python(SHOW + program, timeout=120, WEFT_NUM_THREADS=str(threads), WEFT_DISK_CACHE="").splitlines()
    return [line.split() for line in lines]


@pytest.mark.parametrize("threads", [2, 7, 16])
def test_bits_do_not_depend_on_threads(threads: int, of_one_thread: list[list[str]]) -> None:
    found = _found(threads)
    assert [bits for _, bits in found] == [bits for _, bits in of_one_thread]
    more = [int(steps) - int(before) for (steps, _), (before, _) in zip(found, of_one_thread, strict=True)]
    assert threads == 2 or all(more)


def test_few_rows_have_the_same_bits_in_parts() -> None:
    """All threads must have equally many blocks of terms, and the rows of the matrix whole KB."""
    alone = _found(1, FEW_ROWS)
    for threads, in_parts in ((2, [1, 1, 0, 1, 0]), (7, [0, 0, 0, 0, 0]), (16, [1, 1, 1, 1, 0])):
        found = _found(threads, FEW_ROWS)
        assert [bits for _, bits in found] == [bits for _, bits in alone]
        more = [int(steps) > int(before) for (steps, _), (before, _) in zip(found, alone, strict=True)]
        assert more == [bool(shared) for shared in in_parts]
