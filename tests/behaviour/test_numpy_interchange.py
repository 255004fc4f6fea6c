"""Interchange with NumPy and others: `np.array`, the buffer protocol, DLPack, `__array_interface__`, Python scalars."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.checks import assert_same_bits

DTYPES = {
    "bool_": np.bool_,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float16,
    "float32": np.float32,
    "complex64": np.complex64,
}


@pytest.mark.parametrize("name", DTYPES)
def test_there_and_back(name: str) -> None:
    numbers: np.ndarray = (np.arange(12).reshape(3, 4) % 2 if name == "bool_" else np.arange(12).reshape(3, 4)).astype(
        DTYPES[name]
    )
    array = mx.array(numbers)
    assert array.dtype == getattr(mx, name)
    back = np.array(array)
    assert back.dtype == numbers.dtype
    np.testing.assert_array_equal(back, numbers)


def test_float64_of_numpy_becomes_float32_unless_asked_for() -> None:
    numbers = np.array([0.1, 0.2])
    assert mx.array(numbers).dtype == mx.float32
    kept = mx.array(numbers, dtype=mx.float64)
    assert kept.dtype == mx.float64
    assert np.array(kept).dtype == np.float64
    assert np.array(kept).tolist() == [0.1, 0.2]


def test_bfloat16_goes_through_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = mx.array([1.5, -2.0], dtype=mx.bfloat16)
    numbers = np.array(array)
    assert numbers.dtype == ml_dtypes.bfloat16
    assert numbers.astype(np.float32).tolist() == [1.5, -2.0]
    back = mx.array(numbers)
    assert back.dtype == mx.bfloat16
    assert back.tolist() == [1.5, -2.0]


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3, 4)])
def test_every_shape(shape: tuple[int, ...]) -> None:
    numbers = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    array = mx.array(numbers)
    assert array.shape == shape
    np.testing.assert_array_equal(np.array(array), numbers)


@pytest.mark.parametrize(
    "numbers",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4).T,
        np.arange(24, dtype=np.float32)[::-2],
        np.broadcast_to(np.array([1, 2, 3], np.float32), (4, 3)),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(4, dtype=">i4"),
        np.frombuffer(b"\x00" + np.arange(4, dtype=np.float32).tobytes(), dtype=np.uint8)[1:].view(np.float32),
    ],
    ids=["transposed", "backwards", "broadcast", "Fortran order", "big endian", "not aligned"],
)
def test_every_layout(numbers: np.ndarray) -> None:
    array = mx.array(numbers)
    np.testing.assert_array_equal(np.array(array), numbers)
    np.testing.assert_array_equal(np.array(array + 0), numbers)


def test_an_array_made_from_numpy_is_a_copy() -> None:
    numbers = np.ones(3, np.float32)
    array = mx.array(numbers)
    lazy = array * 2
    numbers[0] = 100
    assert array.tolist() == [1.0, 1.0, 1.0]
    assert lazy.tolist() == [2.0, 2.0, 2.0]


def test_a_numpy_array_made_from_an_array_is_a_copy_unless_told_otherwise() -> None:
    array = mx.array([1.0, 2.0])
    numbers = np.array(array)
    numbers[0] = 100
    assert array.tolist() == [1.0, 2.0]


def test_without_a_copy_the_memory_is_shared() -> None:
    array = mx.arange(6, dtype=mx.float32).reshape(2, 3)
    mx.eval(array)
    first, second = np.asarray(array), np.array(array, copy=False)
    assert np.shares_memory(first, second)
    assert first.tolist() == array.tolist()


def test_shared_memory_outlives_the_array() -> None:
    array = mx.arange(1000, dtype=mx.float32) * 2
    numbers = np.asarray(array)
    del array
    mx.eval([mx.ones((1000,)) for _ in range(5)])
    assert numbers[-1] == 1998.0


def test_shared_memory_is_never_reused_for_results() -> None:
    x = mx.arange(1000, dtype=mx.float32) + 0
    numbers = np.asarray(x)
    x = x * 2
    mx.eval(x)
    x = x + 1
    mx.eval(x)
    assert numbers.tolist() == list(range(1000))


def test_views_keep_their_strides() -> None:
    array = mx.arange(12, dtype=mx.float32).reshape(3, 4)
    numbers = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(np.asarray(array.T), numbers.T)
    np.testing.assert_array_equal(np.asarray(array[:, ::2]), numbers[:, ::2])


def test_an_array_that_is_not_evaluated_is_evaluated_first() -> None:
    assert np.array(mx.ones(3) * 2).tolist() == [2.0] * 3
    assert np.asarray(mx.ones(3) * 3, dtype=np.int64).tolist() == [3, 3, 3]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python classes have a buffer protocol from 3.12 on (PEP 688)")
def test_buffer_protocol() -> None:
    array = mx.array([[1, 2, 3], [4, 5, 6]])
    view: Any = memoryview(array)
    assert view.shape == (2, 3)
    assert view.itemsize == 4
    assert view.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert bytes(memoryview(mx.array([1, 2], dtype=mx.uint8))) == b"\x01\x02"


def test_no_elements_may_begin_behind_the_memory() -> None:
    nothing = mx.as_strided(mx.arange(2), (0, 3), (1, 1), 5)
    for convert in (np.array, np.asarray, np.from_dlpack):
        assert convert(nothing).shape == (0, 3)
    assert nothing.tolist() == []


def test_array_interface() -> None:
    array = mx.array([[1.0, 2.0], [3.0, 4.0]])
    interface = array.__array_interface__
    assert interface["shape"] == (2, 2)
    assert interface["typestr"] == "<f4"
    assert interface["version"] == 3


def test_dlpack() -> None:
    array = mx.arange(6, dtype=mx.float32).reshape(2, 3)
    numbers = np.from_dlpack(array)
    np.testing.assert_array_equal(numbers, np.arange(6).reshape(2, 3))
    assert array.__dlpack_device__() == (1, 0)
    back = mx.from_dlpack(np.arange(4, dtype=np.int32))
    assert repr(back) == "array([0, 1, 2, 3], dtype=int32)"


def test_an_object_with_array_works() -> None:
    class Wrapper:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(3, dtype=np.float32)

    assert mx.array(np.asarray(Wrapper())).tolist() == [0.0, 1.0, 2.0]


def test_operators_between_both_give_weft_arrays() -> None:
    array, numbers = mx.ones((2, 3)), np.full((2, 3), 2, np.float32)
    result = array + numbers
    assert isinstance(result, mx.array)
    assert result.tolist() == [[3.0] * 3] * 2
    assert mx.add(array, mx.array(numbers)).tolist() == result.tolist()


@pytest.mark.parametrize(
    ("array", "number", "expected"),
    [
        (mx.array([1.0]), np.float32(2), "float32"),
        (mx.array([1.0]), np.float64(2), "float32"),
        (mx.array([1]), np.int64(2), "int32"),
    ],
)
def test_numpy_scalars_are_weak_like_those_of_python(array: mx.array, number: Any, expected: str) -> None:
    result = array * number
    assert isinstance(result, mx.array)
    assert result.dtype == getattr(mx, expected)


def test_from_python() -> None:
    assert mx.array(True).dtype == mx.bool_
    assert mx.array(3).dtype == mx.int32
    assert mx.array(2**40).dtype == mx.int64
    assert mx.array(3.0).dtype == mx.float32
    assert mx.array(1j).dtype == mx.complex64
    assert mx.array([1, 2.5, True]).tolist() == [1.0, 2.5, 1.0]
    assert mx.array([]).dtype == mx.float32
    assert mx.array([[], []]).shape == (2, 0)
    assert mx.array((1, (2))).tolist() == [1, 2]
    assert mx.array([mx.array(1), mx.array(2)]).tolist() == [1, 2]
    assert mx.array([1, 2], dtype=mx.float16).dtype == mx.float16


def test_to_python() -> None:
    array = mx.array([[1, 2], [3, 4]])
    assert array.tolist() == [[1, 2], [3, 4]]
    assert all(type(value) is int for row in array.tolist() for value in row)
    assert type(mx.array(2.5).item()) is float
    assert type(mx.array(True).item()) is bool
    assert mx.array(1 + 2j).item() == 1 + 2j
    assert mx.array([7]).item() == 7
    assert (float(mx.array(2)), int(mx.array(2.7)), complex(mx.array(1j))) == (2.0, 2, 1j)
    assert bool(mx.array([3]))
    assert not bool(mx.array(0.0))
    assert list(range(mx.array(3))) == [0, 1, 2]
    assert f"{mx.array(1.5):.3f}" == "1.500"
    assert len(mx.zeros((4, 2))) == 4
    assert [row.tolist() for row in array] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**31, -(2**31) - 1])
def test_large_integers_keep_their_value(value: int) -> None:
    assert mx.array(value).item() == value


def test_sizes() -> None:
    array = mx.zeros((2, 3), dtype=mx.float16)
    assert (array.shape, array.ndim, array.size, array.itemsize, array.nbytes) == ((2, 3), 2, 6, 2, 12)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))])
def test_copies_are_independent(duplicate: Any) -> None:
    original = mx.array([1.0, 2.0])
    other = duplicate(original)
    assert_same_bits(other, original)
    other[0] = 9
    assert original.tolist() == [1.0, 2.0]


NUMPY_FUNCTIONS: dict[str, Any] = {
    "all": lambda a: np.all(a > 0),
    "any": lambda a: np.any(a, axis=0),
    "sum": lambda a: np.sum(a, axis=1, keepdims=True),
    "sum in another dtype": lambda a: np.sum(a, dtype=np.float64),
    "prod": np.prod,
    "mean": lambda a: np.mean(a, axis=0),
    "std": lambda a: np.std(a, ddof=1),
    "var": lambda a: np.var(a, axis=(0, 1)),
    "max": np.max,
    "min": lambda a: np.min(a, axis=-1),
    "argmax": np.argmax,
    "argmin": lambda a: np.argmin(a, axis=0),
    "round": lambda a: np.round(a / 3, 1),
    "transpose": np.transpose,
    "squeeze": np.squeeze,
}


@pytest.mark.parametrize("name", NUMPY_FUNCTIONS)
def test_functions_of_numpy_give_weft_arrays(name: str) -> None:
    numbers = np.array([[3.0, -1.0, 2.0], [5.0, 4.0, 0.5]], np.float32)
    got, want = NUMPY_FUNCTIONS[name](mx.array(numbers)), NUMPY_FUNCTIONS[name](numbers)
    assert isinstance(got, mx.array)
    assert (got.dtype == mx.float64) == (want.dtype == np.float64)
    np.testing.assert_allclose(np.array(got), want, rtol=1e-6)


def test_functions_of_numpy_that_compare() -> None:
    numbers = np.array([1.0, 2.0], np.float32)
    array = mx.array(numbers)
    assert np.all(numbers == array)
    assert np.allclose(array, numbers)
    assert np.allclose(numbers, array)
    assert np.array_equal(array, numbers)


@pytest.mark.parametrize(
    "arguments",
    [{"out": np.zeros(())}, {"where": np.array([True, False])}, {"initial": 3.0}],
    ids=lambda one: next(iter(one)),
)
def test_what_methods_do_not_take_from_numpy(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"\[sum\] {next(iter(arguments))}= is not supported"):
        np.sum(mx.array([1.0, 2.0]), **arguments)


def test_comparisons_with_what_is_no_number() -> None:
    array = mx.array([1.0, 2.0])
    assert (array == "text") is False
    assert (array == None) is False  # noqa: E711  # what `in` and libraries do
    assert (array != None) is True  # noqa: E711
    assert array not in [None, "text"]


def test_astype_takes_a_stream_by_position() -> None:
    assert mx.array([1.5]).astype(mx.int32, mx.cpu).tolist() == [1]
    assert mx.array([1.5]).astype(dtype=mx.int32).dtype == mx.int32


def test_format() -> None:
    assert f"{mx.array(1.256):.2f} {mx.array(7):03d} {mx.array(0.5)}" == "1.26 007 0.5"
    assert f"{mx.array([1.5])}" == "array([1.5], dtype=float32)"
    for array in (mx.array([1.5]), mx.zeros((2, 2))):
        with pytest.raises(TypeError, match=r"'\.2f'.*no scalar"):
            f"{array:.2f}"
