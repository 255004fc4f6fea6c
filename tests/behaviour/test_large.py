"""More elements than 32 bits can count: without memory for them, in views and fused kernels; and with it, if
available."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.sampling import Cases
from weft.runtime import host

N = 2**31 + 100
HUGE = 2**40


def column() -> mx.array:
    """HUGE rows, of which only one is in memory."""
    return mx.broadcast_to(mx.array([[1, 2, 3, 4]], dtype=mx.int8), (HUGE, 4))


VIEWS: dict[str, tuple[Callable[[], Any], Any]] = {
    "size": (lambda: (column().size, column().nbytes, len(column())), (4 * HUGE, 4 * HUGE, HUGE)),
    "slice": (lambda: column()[HUGE // 2 : HUGE // 2 + 2, 1:3], [[2, 3], [2, 3]]),
    "last": (lambda: column()[-1], [1, 2, 3, 4]),
    "step": (lambda: column()[:: HUGE // 2, 0], [1, 1]),
    "step backwards": (lambda: column()[:: -HUGE // 2, 3], [4, 4]),
    "sum": (lambda: column()[2**39 : 2**39 + 3].sum(axis=0), [3, 6, 9, 12]),
    "elementwise": (lambda: column()[-2:] * 2 + mx.array([[1], [2]]), [[3, 5, 7, 9], [4, 6, 8, 10]]),
    "product": (lambda: column()[-1:].astype(mx.float32) @ mx.ones((4, 2)), [[10, 10]]),
    "take": (lambda: mx.take(column(), mx.array([HUGE - 1, 2**33]), axis=0), [[1, 2, 3, 4]] * 2),
    "take along": (
        lambda: mx.take_along_axis(column(), mx.array([[HUGE - 1] * 4, [2**32] * 4]), axis=0),
        [[1, 2, 3, 4]] * 2,
    ),
    "computed indices": (lambda: column()[mx.array([-1, 2**35]), mx.array([2, -1])], [3, 4]),
    "transpose": (lambda: column().T[1:3, -2:], [[2, 2], [3, 3]]),
    "more axes": (lambda: mx.expand_dims(column(), (0, 2))[0, 2**36, 0, 3], 4),
    "vmap": (lambda: mx.vmap(lambda row: row[1])(column()[-2:]), [2, 2]),
    "compiled": (lambda: mx.compile(lambda x: mx.broadcast_to(x, (HUGE, 2))[-1] + 1)(mx.array([1, 2])), [2, 3]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_with_more_elements_than_32_bits_count(name: str) -> None:
    compute, expected = VIEWS[name]
    result = compute()
    assert (result.tolist() if isinstance(result, mx.array) else result) == expected


FUSED: dict[str, tuple[Callable[[mx.array], mx.array], int]] = {
    "sum": (lambda x: (x >= N - 3).sum(), 3),
    "max": (lambda x: x.max(), N - 1),
    "argmax": (lambda x: mx.argmax(x), N - 1),
    "argmin": (lambda x: mx.argmin(mx.abs(x - (N - 5))), N - 5),
    "any": (lambda x: mx.any(x == N - 1), 1),
    "all": (lambda x: mx.all(x < N), 1),
}


def test_reductions_over_more_elements_than_32_bits_count(cases: Cases) -> None:
    """The elements are computed while they are reduced, and not stored."""
    for name in cases.some(2, list(FUSED)):
        compute, expected = FUSED[name]
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        assert compute(mx.arange(N, dtype=mx.int64)).item() == expected
        # Results of parts of 16,384 elements are in memory.
        assert mx.get_peak_memory() < before + N * 8 // 4096


def test_there_is_no_memory_for_it() -> None:
    for x in (mx.zeros((HUGE, 4)), mx.zeros((HUGE, HUGE)), mx.zeros((2**31, 2**31, 2**31))):
        assert x[-1].shape == x.shape[1:]
        with pytest.raises(MemoryError, match="bytes"):
            mx.eval(x + 1)


def test_what_memory_and_swap_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the system promises every amount, and ends the process when it is used."""
    monkeypatch.setattr(host, "_largest_block", lambda: 1 << 22)
    with pytest.raises(MemoryError, match="no memory for an array of 4800004 bytes"):
        mx.eval(mx.ones(1_200_001) + 1)
    assert (mx.ones(3) + 1).tolist() == [2, 2, 2]


def available_memory() -> int:
    """Bytes that can be used without disturbing other processes."""
    with open("/proc/meminfo") as facts:
        for line in facts:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


@pytest.fixture
def memory() -> Iterator[Callable[[int], None]]:
    """Skip a test if less than twice the gigabytes that it needs are available; free everything at its end."""

    def require(gigabytes: int) -> None:
        try:
            free = available_memory()
        except OSError:
            free = 0
        if free < 2 * gigabytes << 30:
            pytest.skip(f"it needs {gigabytes} GB, and {free >> 30} GB are free: half of that is left to others")

    gc.collect()
    mx.clear_cache()
    yield require
    gc.collect()
    mx.clear_cache()


def numbered() -> mx.array:
    """N elements, from 0 to 112 again and again."""
    x = mx.remainder(mx.arange(N, dtype=mx.uint32), 113).astype(mx.int8)
    mx.eval(x)
    mx.clear_cache()
    return x


def at(index: int) -> int:
    return index % 113


INDICES = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, N - 1]


@pytest.mark.slow
def test_parts_of_a_large_array(memory: Callable[[int], None]) -> None:
    memory(3)
    x = numbered()
    assert x.shape == (N,)
    assert x.nbytes == N
    assert x[-5:].tolist() == [at(k) for k in range(N - 5, N)]
    assert x[2**31 - 2 : 2**31 + 2].tolist() == [at(k) for k in range(2**31 - 2, 2**31 + 2)]
    assert x[::-1][:3].tolist() == [at(k) for k in (N - 1, N - 2, N - 3)]
    assert x[:: 2**29].tolist() == [at(k) for k in range(0, N, 2**29)]
    assert [x[index].item() for index in INDICES] == [at(index) for index in INDICES]
    assert x.reshape(4, -1)[3, -2:].tolist() == [at(N - 2), at(N - 1)]
    assert x.reshape(-1, 4)[-1].tolist() == [at(k) for k in range(N - 4, N)]
    assert np.array(x, copy=False)[-1] == at(N - 1)


@pytest.mark.slow
def test_taking_from_a_large_array(memory: Callable[[int], None]) -> None:
    memory(3)
    x = numbered()
    for dtype in (mx.int64, mx.uint32, mx.uint64):
        assert mx.take(x, mx.array(INDICES, dtype=dtype)).tolist() == [at(index) for index in INDICES]
    assert x[mx.array([-1, -N], dtype=mx.int64)].tolist() == [at(N - 1), 0]
    rows = x.reshape(-1, 2)
    assert mx.take(rows, mx.array([N // 2 - 1]), axis=0).tolist() == [[at(N - 2), at(N - 1)]]
    assert mx.take_along_axis(rows, mx.array([[N // 2 - 1, 2**30]]), axis=0).tolist() == [[at(N - 2), at(2**31 + 1)]]


@pytest.mark.slow
def test_reductions_of_a_large_array(memory: Callable[[int], None]) -> None:
    memory(3)
    x = numbered()
    assert (x == 112).sum().item() == N // 113
    whole, rest = divmod(N, 113)
    total = x.astype(mx.int64).sum()  # within an assertion pytest would hold, and so keep, the elements in 64 bits
    assert total.item() == whole * sum(range(113)) + sum(range(rest))
    assert x.max().item() == 112
    by_column = {k % 4: len(range(k, N, 452)) for k in (5, 118, 231, 344)}
    assert (x.reshape(-1, 4) == 5).sum(axis=0).tolist() == [by_column[column] for column in range(4)]
    quarter = N // 4
    assert (x.reshape(4, -1) == 5).sum(axis=1).tolist() == [
        len(range(5, quarter * (row + 1), 113)) - len(range(5, quarter * row, 113)) for row in range(4)
    ]


@pytest.mark.slow
def test_indices_in_a_large_array(memory: Callable[[int], None]) -> None:
    memory(5)
    x = numbered()
    x[N - 7] = 127
    x[2**31 + 3] = -128
    assert mx.argmax(x).item() == N - 7
    assert mx.argmin(x).item() == 2**31 + 3
    assert x[N - 8 : N - 5].tolist() == [at(N - 8), 127, at(N - 6)]
    x = x.at[mx.array([2**31 + 5, N - 1], dtype=mx.int64)].add(mx.array([1, 1], dtype=mx.int8))
    assert x[mx.array([2**31 + 5, N - 1], dtype=mx.int64)].tolist() == [at(2**31 + 5) + 1, at(N - 1) + 1]


@pytest.mark.slow
def test_elementwise_on_a_large_array(memory: Callable[[int], None]) -> None:
    memory(5)
    x = numbered().reshape(2, -1)
    y = mx.minimum(x, mx.array([[100], [7]], dtype=mx.int8))
    half = N // 2
    assert y[:, -3:].tolist() == [
        [min(at(k), 100) for k in range(half - 3, half)],
        [min(at(k), 7) for k in range(N - 3, N)],
    ]
    del y
    z = mx.where(x > mx.zeros((half,), dtype=mx.int8), x, 9)
    assert z[1, -300:].tolist() == [at(k) or 9 for k in range(N - 300, N)]


@pytest.mark.slow
def test_joining_large_arrays(memory: Callable[[int], None]) -> None:
    memory(5)
    x = numbered()
    y = mx.concatenate([x[:10], x, x[-3:]])
    assert y.shape == (N + 13,)
    assert y[-5:].tolist() == [at(k) for k in (N - 2, N - 1, N - 3, N - 2, N - 1)]
    assert y[8:13].tolist() == [8, 9, 0, 1, 2]
    del y
    z = mx.pad(x, (1, 2), constant_values=5)
    assert z[-4:].tolist() == [at(N - 2), at(N - 1), 5, 5]


@pytest.mark.slow
def test_a_large_transposed_copy(memory: Callable[[int], None]) -> None:
    memory(5)
    x = numbered().reshape(-1, 2)
    y = mx.reshape(x.T, (-1,))
    assert y[-2:].tolist() == [at(N - 3), at(N - 1)]
    assert y[N // 2 - 1 : N // 2 + 1].tolist() == [at(N - 2), at(1)]


@pytest.mark.slow
def test_offsets_in_bytes_beyond_32_bits(memory: Callable[[int], None]) -> None:
    """Fewer elements, but of four bytes each."""
    memory(7)
    count = 2**29 + 100
    x = mx.arange(count, dtype=mx.float32) * 1.0
    y = x[2**29 :] + x[:100]
    np.testing.assert_array_equal(np.array(y), np.float32(np.arange(2**29, count)) + np.arange(100, dtype=np.float32))


@pytest.mark.slow
def test_large_booleans(memory: Callable[[int], None]) -> None:
    memory(5)
    x = mx.remainder(mx.arange(N, dtype=mx.uint32), 113) == 7
    mx.eval(x)
    assert x.dtype == mx.bool_
    assert x.sum().item() == len(range(7, N, 113))
    assert mx.any(x).item()
    assert not mx.all(x).item()
    last = max(range(7, N, 113))
    assert mx.logical_not(x)[last - 1 : last + 2].tolist() == [True, False, True]


@pytest.mark.slow
def test_large_random_numbers_do_not_repeat(memory: Callable[[int], None]) -> None:
    memory(3)
    x = mx.random.randint(0, 128, (N,), dtype=mx.int8, key=mx.random.key(0))
    head = x[:100].tolist()
    assert x[2**31 :].tolist() != head
    assert x[2**30 : 2**30 + 100].tolist() != head
