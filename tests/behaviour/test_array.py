"""The user's array: construction, operators, in-place operators, conversions, printing, interchange."""

from __future__ import annotations

import array as python_array
import copy
import math
import operator
import pickle
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft.core as mx
from weft.dtypes import ALL_DTYPES, Dtype
from weft.errors import TraceError
from weft.graph.node import Node
from weft.ops import nested


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, "array(3, dtype=int32)"),
        (2**31, "array(2147483648, dtype=int64)"),
        (True, "array(True, dtype=bool)"),
        (1e300, "array(inf, dtype=float32)"),
        (1j, "array(0+1j, dtype=complex64)"),
        ([], "array([], dtype=float32)"),
        ([[], []], "array([[],\n       []], dtype=float32)"),
        ([1, 2.5], "array([1, 2.5], dtype=float32)"),
        ([True, 2], "array([1, 2], dtype=int32)"),
        ([1, 2**40], "array([1, 1099511627776], dtype=int64)"),
        ([1, 1j], "array([1+0j, 0+1j], dtype=complex64)"),
        (((1, 2), [3, 4]), "array([[1, 2],\n       [3, 4]], dtype=int32)"),
        ([np.float64(1)], "array([1], dtype=float32)"),
        (np.float64(3.5), "array(3.5, dtype=float32)"),
        (np.int64(3), "array(3, dtype=int64)"),
        (np.arange(2.0), "array([0, 1], dtype=float32)"),
        (np.arange(2, dtype=">i2"), "array([0, 1], dtype=int16)"),
        ([np.arange(2.0), [1, 2]], "array([[0, 1],\n       [1, 2]], dtype=float32)"),
        (b"ab", "array([97, 98], dtype=uint8)"),
        (python_array.array("d", [1, 2]), "array([1, 2], dtype=float32)"),
    ],
    ids=repr,
)
def test_made_of(value: Any, expected: str) -> None:
    assert repr(mx.array(value)) == expected


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3.7, mx.int32, "array(3, dtype=int32)"),
        ([1.5, -2.7], mx.int32, "array([1, -2], dtype=int32)"),
        ([1, 0, 2], mx.bool_, "array([True, False, True], dtype=bool)"),
        (2**63 + 5, mx.uint64, "array(9223372036854775813, dtype=uint64)"),
        ([2**63], mx.uint64, "array([9223372036854775808], dtype=uint64)"),
        (np.arange(2.0), mx.float64, "array([0, 1], dtype=float64)"),
        ([1, 2], mx.bfloat16, "array([1, 2], dtype=bfloat16)"),
        (300.0, mx.uint8, "array(255, dtype=uint8)"),
        (-1e20, mx.int32, "array(-2147483648, dtype=int32)"),
        ([1e20, -1.5, float("nan")], mx.uint8, "array([255, 0, 0], dtype=uint8)"),
        (np.array([1e20, -np.inf, np.nan]), mx.int64, f"array([{2**63 - 1}, {-(2**63)}, 0], dtype=int64)"),
        (np.array([1.5 + 2j]), mx.float32, "array([1.5], dtype=float32)"),
        (np.array([2j]), mx.bool_, "array([True], dtype=bool)"),
    ],
)
def test_made_of_with_a_dtype(value: Any, dtype: Dtype, expected: str) -> None:
    assert repr(mx.array(value, dtype)) == expected


def test_lists_may_hold_arrays() -> None:
    a, b = mx.array([1, 2]), mx.array([3, 4.5])
    assert repr(mx.array([a, b])) == "array([[1, 2],\n       [3, 4.5]], dtype=float32)"
    assert repr(mx.array([[3, 4], a])) == "array([[3, 4],\n       [1, 2]], dtype=int32)"
    assert repr(mx.array([mx.array(1, mx.int8), True])) == "array([1, 1], dtype=int8)"
    assert repr(mx.array([a, a], mx.float16)) == "array([[1, 2],\n       [1, 2]], dtype=float16)"
    assert mx.grad(lambda x: mx.array([x, x * x, 1.0]).sum())(mx.array(3.0)).item() == 7


@pytest.mark.parametrize(
    ("value", "error", "parts"),
    [
        ([[1, 2], [3]], ValueError, ["element [0]", "(2,)", "element [1]", "(1,)"]),
        ([[[1], [2]], [[3], [4, 5]]], ValueError, ["element [1][0]", "element [1][1]", "(2,)"]),
        ([1, [2]], ValueError, ["element [0]", "()", "element [1]", "(1,)"]),
        ([None], TypeError, ["None"]),
        (["a"], TypeError, ["'a'", "str"]),
        ([[1], ["a"]], TypeError, ["'a'", "str"]),
        ("abc", TypeError, ["abc", "str"]),
        (None, TypeError, ["None"]),
        ({1, 2}, TypeError, ["set"]),
        ([2**63], ValueError, ["9223372036854775808", "int64"]),
        ([-1, 2**63], ValueError, ["9223372036854775808", "int64"]),
        (2**63, ValueError, ["9223372036854775808", "int64"]),
        ([2**64], ValueError, ["18446744073709551616"]),
        (np.array(["a"]), TypeError, ["<U1"]),
    ],
    ids=repr,
)
def test_made_of_nothing_sensible(value: Any, error: type[Exception], parts: list[str]) -> None:
    with pytest.raises(error) as caught:
        mx.array(value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(300, mx.uint8), ([1, 300], mx.uint8), ([-1], mx.uint32), (-129, mx.int8), ([2**63, -1], mx.uint64)],
)
def test_integers_that_do_not_fit(value: Any, dtype: Dtype) -> None:
    with pytest.raises(ValueError, match=dtype.name):
        mx.array(value, dtype)


def test_an_array_of_an_array_is_another_handle() -> None:
    a = mx.array([1, 2])
    for b in (mx.array(a), mx.asarray(a), +a, a.astype(mx.int32), a[...], copy.copy(a), copy.deepcopy(a)):
        assert b is not a
        b += 1
        assert a.tolist() == [1, 2]
        assert b.tolist() == [2, 3]


def test_asarray_and_copies() -> None:
    a = mx.array([1, 2])
    assert mx.asarray(a, copy=False).tolist() == [1, 2]
    for value, dtype in (([1], None), (np.arange(2), None), (a, mx.float32)):
        with pytest.raises(ValueError, match="copy"):
            mx.asarray(value, dtype, copy=False)


def test_no_subclasses() -> None:
    with pytest.raises(TypeError, match="subclassed"):
        type("Mine", (mx.array,), {})
    assert type(mx.zeros(2)) is mx.array


def test_properties() -> None:
    a = mx.zeros((2, 3, 4), mx.float16)
    assert (a.shape, a.ndim, a.size, a.dtype, a.itemsize, a.nbytes) == ((2, 3, 4), 3, 24, mx.float16, 2, 48)
    assert type(a.shape) is tuple
    assert all(type(extent) is int for extent in a.shape)
    assert a.T.shape == (4, 3, 2)
    assert a.mT.shape == (2, 4, 3)
    z = mx.array([1 + 2j])
    assert (z.real.tolist(), z.imag.tolist()) == ([1.0], [2.0])
    assert mx.array([5]).imag.tolist() == [0]
    with pytest.raises(ValueError, match="2 dimensions"):
        _ = mx.zeros(3).mT


def test_identity_is_what_is_hashed() -> None:
    a, b = mx.array([1, 2]), mx.array([1, 2])
    assert len({a, b}) == 2
    assert {a: "a"}[a] == "a"
    assert a in [a, b]


OPERATORS: list[tuple[Any, Any]] = [
    (operator.add, np.add),
    (operator.sub, np.subtract),
    (operator.mul, np.multiply),
    (operator.truediv, np.true_divide),
    (operator.floordiv, np.floor_divide),
    (operator.mod, np.remainder),
    (operator.pow, np.power),
    (operator.lt, np.less),
    (operator.le, np.less_equal),
    (operator.gt, np.greater),
    (operator.ge, np.greater_equal),
    (operator.eq, np.equal),
    (operator.ne, np.not_equal),
]
INTEGER_OPERATORS: list[tuple[Any, Any]] = [
    (operator.and_, np.bitwise_and),
    (operator.or_, np.bitwise_or),
    (operator.xor, np.bitwise_xor),
    (operator.lshift, np.left_shift),
    (operator.rshift, np.right_shift),
]


@pytest.mark.parametrize(("operate", "reference"), OPERATORS, ids=lambda f: f.__name__)
def test_operators(operate: Any, reference: Any) -> None:
    x, y = np.array([1, 5, 3], np.float32), np.array([2, 4, 3], np.float32)
    a, b = mx.array(x), mx.array(y)
    for result, expected in (
        (operate(a, b), reference(x, y)),
        (operate(a, 2), reference(x, 2)),
        (operate(2, a), reference(2, x)),
        (operate(a, y), reference(x, y)),
        (operate(x, b), reference(x, y)),
        (operate(np.float64(2), b), reference(2, y)),
    ):
        assert isinstance(result, mx.array)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-6)


@pytest.mark.parametrize(("operate", "reference"), INTEGER_OPERATORS, ids=lambda f: f.__name__)
def test_integer_operators(operate: Any, reference: Any) -> None:
    x, y = np.array([1, 5, 3], np.int32), np.array([2, 4, 3], np.int32)
    a, b = mx.array(x), mx.array(y)
    for result, expected in (
        (operate(a, b), reference(x, y)),
        (operate(a, 2), reference(x, 2)),
        (operate(2, a), reference(2, x)),
    ):
        assert result.dtype is mx.int32
        assert result.tolist() == expected.tolist()


IN_PLACE = [
    (operator.iadd, operator.add),
    (operator.isub, operator.sub),
    (operator.imul, operator.mul),
    (operator.itruediv, operator.truediv),
    (operator.ifloordiv, operator.floordiv),
    (operator.imod, operator.mod),
    (operator.ipow, operator.pow),
]


@pytest.mark.parametrize(("in_place", "operate"), IN_PLACE, ids=lambda f: f.__name__)
def test_in_place_operators_rename(in_place: Any, operate: Any) -> None:
    a = mx.array([1.0, 5.0, 3.0])
    same, node = a, a.node
    expected = operate(a, 2).tolist()
    a = in_place(a, 2)
    assert a is same
    assert same.tolist() == expected
    assert mx.array([1.0, 5.0, 3.0]).tolist() == np.asarray(_handle(node)).tolist()


def _handle(node: Node) -> mx.array:
    a = mx.array(0)
    a.node = node
    return a


def test_in_place_integer_operators() -> None:
    for in_place, operate in (
        (operator.iand, operator.and_),
        (operator.ior, operator.or_),
        (operator.ixor, operator.xor),
        (operator.ilshift, operator.lshift),
        (operator.irshift, operator.rshift),
    ):
        a = mx.array([1, 6])
        expected = operate(a, 3).tolist()
        assert in_place(a, 3) is a
        assert a.tolist() == expected
    m = mx.array([[1.0, 2.0], [3.0, 4.0]])
    m @= m
    assert m.tolist() == [[7, 10], [15, 22]]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32, mx.float64], ids=str)
def test_powers_of_two_divide_by_multiplying_with_the_same_bits(dtype: Dtype) -> None:
    patterns = np.random.default_rng(0).integers(0, 2**16, 4000, np.uint16)
    values = [*np.ldexp(1.0, np.arange(-149, 128)).tolist(), 0.0, -0.0, np.inf, -np.inf, np.nan]
    x = mx.concatenate([mx.array(patterns).view(mx.bfloat16).astype(dtype), mx.array(values, dtype)])
    for divisor in (2, -4.0, 0.5, 2.0**14, -(2.0**-14)):
        expected = x / mx.array(divisor, dtype)
        assert mx.array_equal(x / divisor, expected, equal_nan=True)
        numbers = ~mx.isnan(x)
        assert mx.array_equal(mx.signbit(x / divisor)[numbers], mx.signbit(expected)[numbers])
    by_two, by_three = (mx.compile(lambda x, d=d: x / d).explain(x).steps[0].operations for d in (2, 3))
    assert (by_two, by_three) == ({"multiply": 1}, {"divide": 1})


def test_in_place_operators_promote_but_do_not_divide_integers() -> None:
    a = mx.array([1, 2])
    a += 0.5
    assert repr(a) == "array([1.5, 2.5], dtype=float32)"
    b = mx.array([1, 2])
    with pytest.raises(ValueError, match="int32"):
        b /= 2
    assert b.tolist() == [1, 2]


def test_unary_operators() -> None:
    a = mx.array([-1, 2])
    assert ((-a).tolist(), (+a).tolist(), abs(a).tolist(), (~a).tolist()) == ([1, -2], [-1, 2], [1, 2], [0, -3])


def test_comparison_with_what_is_no_number() -> None:
    a = mx.array([1, 2])
    for other in (None, "a", object()):
        assert (a == other) is False
        assert (a != other) is True
    with pytest.raises(TypeError):
        _ = a < None
    with pytest.raises(TypeError, match="add"):
        _ = a + "a"


def test_python_scalars() -> None:
    assert (int(mx.array([3])), float(mx.array(2)), complex(mx.array(2.0)), bool(mx.array([[0]]))) == (3, 2.0, 2, False)
    assert [10, 20, 30][mx.array(1, mx.uint8)] == 20
    assert f"{mx.array(2.5):.2f} {mx.array(3)}" == "2.50 3"
    assert f"{mx.array([1])}" == "array([1], dtype=int32)"
    for convert in (bool, int, float, complex):
        for a in (mx.array([1, 2]), mx.array([])):
            with pytest.raises(ValueError, match="not one"):
                convert(a)
    with pytest.raises(ValueError, match=r"mx\.any"):
        bool(mx.array([1, 2]))
    with pytest.raises(TypeError):
        float(mx.array(1j))
    for a in (mx.array([1]), mx.array(1.0), mx.array(True)):
        with pytest.raises(TypeError, match="0-d array of integers"):
            operator.index(a)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: dtype.name)
def test_items_of_every_dtype(dtype: Dtype) -> None:
    values = [True, False] if dtype is mx.bool_ else [0, 1, 100]
    a = mx.array(values, dtype)
    kind = bool if dtype is mx.bool_ else complex if dtype.is_complex else float if dtype.is_floating else int
    assert a.tolist() == values
    for position, value in enumerate(values):
        for item in (a[position].item(), a.tolist()[position]):
            assert type(item) is kind
            assert item == value
    again = pickle.loads(pickle.dumps(a))
    assert again.dtype is dtype
    assert again.tolist() == values
    assert mx.array(np.asarray(a), dtype).tolist() == values


@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), 1e-45, 65504.0])
def test_floating_items_are_exact(value: float) -> None:
    for dtype, reference in ((mx.float16, np.float16), (mx.float32, np.float32), (mx.bfloat16, ml_dtypes.bfloat16)):
        expected = float(reference(value))
        assert repr(mx.array([value], dtype).item()) == repr(expected)
        assert repr(mx.array(value, dtype).item()) == repr(expected)


def test_membership() -> None:
    a = mx.array([[1, 2], [3, 4]])
    assert (3 in a, 7 in a, 1.5 in a, "x" in a, mx.array([3, 4]) in a) == (True, False, False, False, True)
    assert 1 not in mx.zeros((0, 2))
    assert 1 in mx.array(1)


def test_iteration() -> None:
    a = mx.array([[1, 2], [3, 4]])
    assert [row.tolist() for row in a] == [[1, 2], [3, 4]]
    assert (len(a), 3 in a[1], 7 in a[1]) == (2, True, False)
    rows = iter(a)
    a[0] = 9
    assert [row.tolist() for row in rows] == [[1, 2], [3, 4]]
    for function in (len, iter):
        with pytest.raises(TypeError, match="0-d"):
            function(mx.array(1))


def test_what_needs_a_value_says_so_while_tracing() -> None:
    actions: list[Any] = [repr, str, bool, int, np.asarray, bytes, pickle.dumps, mx.array.item, mx.array.tolist]
    for action in actions:

        def f(x: mx.array, action: Any = action) -> mx.array:
            action(x * 2)
            return x

        with pytest.raises(TraceError, match=r"test_array\.py.*compile\("):
            mx.compile(f)(mx.array(1))


def test_a_leaked_array_says_what_it_is() -> None:
    leaked = []

    def f(x: mx.array) -> mx.array:
        leaked.append(x + 1)
        return x

    mx.compile(f)(mx.array([1.0, 2.0]))
    text = repr(leaked[0])
    assert "float32[2]" in text
    assert "compile(" in text
    assert "without a value" in text
    with pytest.raises(TraceError, match="return value"):
        leaked[0].tolist()


def test_memory_that_numpy_sees_stays_what_it_was() -> None:
    a = mx.arange(1000, dtype=mx.float32) * 1
    views = [np.asarray(a), np.array(a, copy=False), np.asarray(a.__array__())]
    node_values = a.tolist()
    a += 1
    del a
    mx.eval([mx.full((1000,), 7.0) + 0 for _ in range(5)])
    for view in views:
        assert view.tolist() == node_values


def test_numpy_arrays_of_views() -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    a = mx.array(x)
    for index in ((slice(None, None, -1), slice(1, None, 2)), (1,), (slice(None), 0), (slice(0, 0),)):
        part = a[index]
        np.testing.assert_array_equal(np.asarray(part), x[index])
        np.testing.assert_array_equal(np.asarray(part.T), x[index].T)
    np.testing.assert_array_equal(np.add(a, 1), x + 1)
    assert np.asarray(a, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="copy"):
        a.__array__(np.float64, copy=False)
    copied = np.array(a)
    copied[0] = 0
    assert a.tolist() == x.tolist()


def test_bfloat16_with_numpy() -> None:
    a = mx.array([1.5, 2.0], mx.bfloat16)
    assert np.asarray(a).dtype == ml_dtypes.bfloat16
    assert not hasattr(a, "__array_interface__")
    with pytest.raises(BufferError, match="bfloat16"):
        a.__buffer__(0)


def test_dlpack() -> None:
    a = mx.arange(6, dtype=mx.float32).reshape(2, 3).T
    np.testing.assert_array_equal(np.from_dlpack(a), np.arange(6).reshape(2, 3).T)
    assert mx.from_dlpack(np.arange(3)).dtype is mx.int64
    assert mx.from_dlpack(np.arange(3), device=mx.cpu).device == mx.cpu
    with pytest.raises(TypeError, match="__dlpack__"):
        mx.from_dlpack([1])
    with pytest.raises(ValueError, match="copied"):
        mx.from_dlpack(np.arange(3), copy=False)


def test_the_buffer() -> None:
    a = mx.array([[1, 2], [3, 4]])
    view: Any = a.__buffer__(0)
    assert view.tolist() == [[1, 2], [3, 4]]
    if sys.version_info >= (3, 12):  # the first version in which Python classes have buffers
        assert memoryview(a).tolist() == view.tolist()
    assert bytes(mx.array([1, 2], mx.uint8)) == b"\x01\x02"


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        (0, -1, 2**31 - 1, -(2**31)),
        [1, 2**31],
        [2**70],
        [10**400],
        [1.5, -0.0, 1e300, -1e300, 3.4028235677973366e38],
        [math.nan, math.inf, 1e-46, 1e-40, -1e-45, 0.1],
        [1, 2.5],
        [1, 2**70, 2.5],
        [True, False],
        [True, 1],
        [1j],
        [],
    ],
    ids=lambda values: str(values)[:30],
)
@pytest.mark.parametrize("dtype", [None, mx.float32, mx.int32, mx.uint8, mx.float16], ids=str)
def test_a_few_numbers_give_the_array_that_many_do(
    values: Any, dtype: mx.Dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Any:
        try:
            found = mx.array(values, dtype)
        except (ValueError, TypeError, OverflowError) as error:
            return type(error), str(error)
        return found.dtype, found.shape, np.array(found).tobytes()

    few = made()
    monkeypatch.setattr(nested, "_FEW", 0)
    assert made() == few
