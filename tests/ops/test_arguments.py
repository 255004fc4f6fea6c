"""The arguments that public functions accept, their promotion and broadcasting, and the errors for other arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx

A = mx.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
I = mx.array([1, 2, 3])  # noqa: E741 - integers


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        (mx.array([1], mx.int8), 2, mx.int8),
        (mx.array([1], mx.int8), 2.5, mx.float32),
        (mx.array([1], mx.float16), 2.5, mx.float16),
        (mx.array([1.0]), np.float64(2), mx.float32),
        (mx.array([1]), np.int64(2), mx.int32),
        (mx.array([1]), 1j, mx.complex64),
        (mx.array([True]), 1, mx.int32),
        (mx.array([True]), True, mx.bool_),
        (mx.array([1], mx.int8), mx.array([1], mx.uint8), mx.int16),
        (mx.array([1]), np.array([0.5, 1.5]), mx.float32),
        (mx.array([1]), np.array([1, 2]), mx.int32),
        (mx.array([1], mx.uint8), np.array([1, 255]), mx.uint8),
        (mx.array([1], mx.uint8), np.array([1, 256]), mx.int64),
        (mx.array([1], mx.uint8), np.array([-1]), mx.int64),
        (mx.array([1], mx.uint8), np.array([True]), mx.uint8),
        (mx.array([True]), np.array([1]), mx.int64),
        (mx.array([1.0], mx.bfloat16), np.array([0.5, 1.5]), mx.bfloat16),
        (mx.array([1.0], mx.float16), np.array([1.0], np.float32), mx.float16),
        (mx.array([1.0], mx.float64), np.array([1.0], np.float32), mx.float64),
        (mx.array([1.0], mx.float16), np.array([[1j]]), mx.complex64),
        (2, 3, mx.int32),
        (2, 0.5, mx.float32),
        (np.array([1], np.int8), 2, mx.int32),
        (np.array([1], np.float16), 0.5, mx.float32),
        (np.int64(2), 1, mx.int64),
        (np.int8(2), True, mx.int8),
        (np.int64(2), np.int8(1), mx.int64),
        (np.array([1], np.int16), np.array([1], np.int8), mx.int16),
    ],
)
def test_promotion(a: Any, b: Any, dtype: mx.Dtype) -> None:
    assert mx.add(a, b).dtype == dtype
    assert mx.add(b, a).dtype == dtype


def test_arrays_as_numbers() -> None:
    """Arrays are evaluated and read where integers are expected; in a compiled function that is an error."""
    array: Any = mx.array  # the annotations of functions name the intended types: ints
    numpy: Any = np.array([1])
    two, one = array(2), array(1, mx.uint8)
    assert mx.zeros((two, 3)).shape == A.reshape(one + 1, -1).shape == A.reshape(array([2, 3])).shape == (2, 3)
    assert A.reshape(np.array([3, 2])).shape == A.T.transpose(array([0, 1])).shape == (3, 2)
    for axis, total in ((0, [5.0, 7.0, 9.0]), (1, [6.0, 15.0])):
        assert mx.sum(A, axis=array(axis)).tolist() == mx.sum(A, axis=array([axis])).tolist() == total
    assert mx.sum(A, array([0, 1])).item() == 21
    places: list[Any] = [array([1]), np.array([1]), [one], (1,)]
    for where in places:
        assert [x.tolist() for x in mx.split(I, where)] == [[1], [2, 3]]
    for width, padded in ((1, [0, 1, 2, 3]), (2, [0, 0, 1, 2, 3])):
        assert mx.pad(I, [(array(width), 0)]).tolist() == padded
    assert mx.roll(I, one).tolist() == mx.roll(I, numpy).tolist() == [3, 1, 2]
    assert mx.tile(I, two).shape == mx.repeat(I, two).shape == (6,)
    assert mx.topk(I, two).shape == mx.linspace(0, array(1.0), two).shape == (2,)
    assert mx.addmm(array(1), I, I, alpha=two).item() == 29
    wrong: list[Callable[[], Any]] = [
        lambda: mx.zeros((array(2.0), 3)),
        lambda: mx.sum(A, array(0.0)),
        lambda: mx.tile(I, array(A)),
    ]
    for bad in wrong:
        with pytest.raises(TypeError, match="an int"):
            bad()
    with pytest.raises(TypeError, match="an int"):
        mx.compile(lambda n: mx.zeros((n,)))(two)


def test_numbers_of_numpy_arrays_stay_what_they_are() -> None:
    assert (mx.array([0, 1], mx.uint8) == np.array([256, 1])).tolist() == [False, True]
    assert mx.where(mx.array([True, False]), mx.array([1.0, 2.0], mx.bfloat16), np.ones(2)).dtype == mx.bfloat16
    assert (mx.array([1.0, 2.0], mx.float64) + np.array([0.1, 0.2])).tolist() == [1.1, 2.2]
    assert (np.arange(3) + mx.arange(3)).dtype == mx.int32


def test_scalars_on_either_side() -> None:
    assert mx.subtract(1.0, A).tolist()[0] == [0.0, -1.0, -2.0]
    assert mx.subtract(A, 1.0).tolist()[0] == [0.0, 1.0, 2.0]
    assert mx.power(2, I).tolist() == [2, 4, 8]
    assert mx.less(2.5, I).tolist() == [False, False, True]


def test_a_result_is_a_handle_of_its_own() -> None:
    """Assigning to the result of a function leaves its argument unchanged, also where nothing had to be computed."""
    calls: list[Callable[[Any], Any]] = [
        mx.positive,
        mx.contiguous,
        mx.real,
        mx.conjugate,
        lambda x: mx.astype(x, mx.float32),
        lambda x: mx.reshape(x, (3,)),
        lambda x: mx.broadcast_to(x, (3,)),
        lambda x: mx.squeeze(x),
        lambda x: mx.transpose(x),
        lambda x: mx.flatten(x),
        lambda x: mx.roll(x, 0),
        lambda x: mx.tile(x, ()),
        lambda x: mx.diff(x, 0),
        lambda x: mx.pad(x, 0),
        lambda x: mx.concatenate([x]),
        lambda x: mx.broadcast_arrays(x)[0],
        lambda x: mx.atleast_1d(x),
    ]
    for call in calls:
        x = mx.array([1.0, 2.0, 3.0])
        y = call(x)
        y[0] = 9.0
        assert x.tolist() == [1.0, 2.0, 3.0]


def test_shapes_and_dtypes() -> None:
    assert mx.broadcast_shapes((3, 1), (2, 1, 4), ()) == (2, 3, 4)
    assert mx.result_type(mx.array([1]), mx.float16) == mx.float16
    assert mx.can_cast(mx.array([1]), mx.float32)
    assert not mx.can_cast(mx.float32, mx.int32)


def test_second_names_of_arguments() -> None:
    assert mx.var(A, correction=1).item() == mx.var(A, ddof=1).item() == A.var(correction=1).item()
    assert A.std(None, False, 0, correction=1).item() == mx.std(A, ddof=1).item()
    assert A.var(correction=1.0).item() == mx.var(A, ddof=1).item()
    assert mx.var(mx.array([0.0, 3.0]), correction=0.5).item() == 3
    assert mx.var(mx.array([0.0, 3.0]), correction=2.5).item() == mx.inf
    assert mx.compile(lambda x: mx.std(x, correction=0.5), shapeless=True)(
        mx.array([0.0, 6.0, 0.0])
    ).item() == pytest.approx((24 / 2.5) ** 0.5)
    rows = mx.array([[0.0, 3.0], [3.0, 9.0]])
    assert mx.var(rows, axis=1, correction=0.5).tolist() == [3, 12]
    assert mx.std(rows[:, None], axis=(0, -1), keepdims=True, correction=-2.0).shape == (1, 1, 1)
    assert mx.compile(lambda x: x.var(axis=0, keepdims=True, correction=0.5), shapeless=True)(rows).tolist() == [
        [3, 12]
    ]
    assert mx.vmap(lambda x: mx.var(x, axis=0, correction=0.5))(mx.stack([rows, rows + 1])).tolist() == [[3, 12]] * 2
    assert A.astype(mx.int32, mx.cpu).dtype == A.astype(dtype=mx.int32).dtype == mx.int32


ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: mx.add(A, mx.zeros((4,))), ValueError, r"\[add\] Shapes \(2, 3\) and \(4,\) cannot be broadcast"),
    (lambda: mx.where(A > 1, A, mx.zeros(2)), ValueError, r"\[where\].*\(2, 3\).*\(2,\)"),
    (lambda: mx.add(A, [1, 2, 3]), TypeError, r"\[add\] b must be an array.*list.*mx\.array"),
    (lambda: mx.sin("x"), TypeError, r"\[sin\] a must be an array.*'x' of type str"),
    (lambda: mx.add(A, None), TypeError, r"\[add\] b must be"),
    (lambda: mx.add(mx.array([1], mx.uint8), 300), ValueError, "300 does not fit uint8"),
    (lambda: mx.floor(mx.array([1j])), TypeError, r"\[floor\] does not support complex64"),
    (lambda: mx.bitwise_and(A, A), TypeError, r"\[bitwise_and\] does not support float32"),
    (lambda: mx.clip(A, None, None), ValueError, "at least one limit"),
    (lambda: mx.sum(A, axis=2), IndexError, "Axis 2 is out of range for an array with 2 dimensions"),
    (lambda: mx.sum(A, axis=(0, -2)), ValueError, "named twice"),
    (lambda: mx.sum(A, axis=1.0), TypeError, "An axis must be an int"),  # type: ignore[arg-type]  # on purpose
    (lambda: mx.vecdot(A, mx.ones((2, 1))), ValueError, r"\[vecdot\] Shapes \(2, 3\) and \(2, 1\) do not fit"),
    (lambda: mx.vecdot(mx.ones((4, 3)), mx.ones(3), axis=0), ValueError, r"\[vecdot\].*along axis 0"),
    (lambda: mx.max(mx.zeros((0, 3)), axis=0), ValueError, r"\[max\].*no elements"),
    (lambda: mx.argmax(mx.zeros((0,))), ValueError, r"\[argmax\].*no elements"),
    (lambda: mx.reshape(A, (4, -1)), ValueError, r"\(2, 3\) with 6 elements into shape \(4, -1\)"),
    (lambda: mx.reshape(A, (-1, -1)), ValueError, "Only one extent can be -1"),
    (lambda: mx.reshape(mx.zeros((0, 3)), (0, -1)), ValueError, "there are no elements"),
    (lambda: mx.reshape(A, (2.0, 3)), TypeError, "must be an int"),  # type: ignore[arg-type]  # on purpose
    (lambda: mx.transpose(A, (0, 0)), ValueError, "named twice"),
    (lambda: mx.transpose(A, (0,)), ValueError, "1 axes are given for an array with 2 dimensions"),
    (lambda: mx.squeeze(A, 0), ValueError, "Cannot squeeze"),
    (lambda: mx.expand_dims(A, 3), IndexError, "out of range"),
    (lambda: mx.broadcast_to(A, (3, 3)), ValueError, r"\(2, 3\).*\(3, 3\)"),
    (lambda: mx.flatten(A, 1, 0), ValueError, "behind"),
    (lambda: mx.concatenate([]), ValueError, "empty"),
    (lambda: mx.concatenate([A, I]), ValueError, r"\(2, 3\), \(3,\)"),
    (lambda: mx.stack([A, I]), ValueError, r"\(2, 3\), \(3,\)"),
    (lambda: mx.concatenate(3), TypeError, "takes a list of arrays"),  # type: ignore[arg-type]  # on purpose
    (lambda: mx.split(I, 2), ValueError, "does not divide into 2 equal parts"),
    (lambda: mx.split(I, 0), ValueError, "must be positive"),
    (lambda: mx.repeat(I, -1), ValueError, "cannot be negative"),
    (lambda: mx.tile(I, -1), ValueError, "cannot be negative"),
    (lambda: mx.roll(I, (1, 2), (0, 0, 0)), ValueError, "2 shifts are given for 3 axes"),
    (lambda: mx.pad(I, -1), ValueError, "cannot be negative"),
    (lambda: mx.pad(A, ((1, 1), (1, 1), (1, 1))), ValueError, "3 pairs of widths"),
    (lambda: mx.pad(I, 1, "wrap"), ValueError, "'wrap'"),  # type: ignore[arg-type]  # on purpose
    (lambda: mx.pad(mx.zeros((0,)), 1, "edge"), ValueError, "no elements"),
    (lambda: mx.matmul(A, A), ValueError, r"\(2, 3\) and \(2, 3\) do not fit"),
    (lambda: mx.matmul(I > 1, I > 1), ValueError, "bool.*astype"),
    (lambda: mx.addmm(mx.array(1), I, I, beta=0.5), ValueError, "whole number.*int32"),
    (lambda: mx.matmul(mx.array(1.0), A), ValueError, "at least one dimension"),
    (lambda: mx.addmm(mx.zeros((3,)), A, A.T), ValueError, r"\[addmm\]"),
    (lambda: mx.tensordot(A, A, 1), ValueError, "differ in the axes"),
    (lambda: mx.tensordot(A, A, 3), ValueError, "3 axes"),
    (lambda: mx.einsum("ij,jk", A), ValueError, "describes 2 operands; 1 are given"),
    (lambda: mx.einsum("ijk", A), ValueError, "does not fit an operand with 2 dimensions"),
    (lambda: mx.einsum("ij->k", A), ValueError, "must name letters of the operands"),
    (lambda: mx.einsum("ij,ij->", A, A.T), ValueError, "has extents"),
    (lambda: mx.arange(0, 1, 0), ValueError, "must not be zero"),
    (lambda: mx.arange(float("inf")), ValueError, "no finite number"),
    (lambda: mx.arange("x"), TypeError, "must be an int or a float"),  # type: ignore[arg-type]  # on purpose
    (lambda: mx.linspace(0, 1, -1), ValueError, "cannot be negative"),
    (lambda: mx.linspace(0, 1j, 3, dtype=mx.float64), ValueError, "float64"),
    (lambda: mx.zeros((-1,)), ValueError, "cannot be negative"),
    (lambda: mx.zeros("x"), TypeError, "an int or a sequence of ints"),
    (lambda: mx.full((2,), I), ValueError, r"\(3,\) and \(2,\)"),
    (lambda: mx.eye(-1), ValueError, "cannot be negative"),
    (lambda: mx.tril(I), ValueError, "at least 2 dimensions"),
    (lambda: mx.diagonal(A, 0, 1, 1), ValueError, "different axes"),
    (lambda: mx.diag(mx.zeros((2, 2, 2))), ValueError, "3 dimensions"),
    (lambda: mx.astype(A, "float32"), TypeError, "mx.float32"),  # type: ignore[arg-type]  # on purpose
]


@pytest.mark.parametrize(("call", "kind", "message"), ERRORS, ids=[str(n) for n in range(len(ERRORS))])
def test_errors(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


def test_arrays_are_close_to_numbers() -> None:
    assert mx.isclose(A, 2.0, atol=1.0).tolist() == [[True, True, True], [False, False, False]]
    assert mx.isclose(3.0, I, rtol=0.5).tolist() == [False, True, True]
    assert mx.allclose(A, 3.5, atol=2.5).item()
    assert mx.isclose(2.0, 2.0).item()


@pytest.mark.parametrize(
    ("function", "arguments", "written"),
    [
        (mx.zeros, (3, 4), "zeros] shape is one argument: write (3, 4)"),
        (mx.ones, (2, 3, 4), "ones] shape is one argument: write (2, 3, 4)"),
        (mx.full, (3, 4, 5), "full] shape is one argument: write (3, 4)"),
        (mx.random.normal, (3, 4), "normal] shape is one argument: write (3, 4)"),
        (mx.random.uniform, (0, 1, 3, 4), "uniform] shape is one argument: write (3, 4)"),
        (mx.random.randint, (0, 9, 3, 4), "randint] shape is one argument: write (3, 4)"),
        (mx.reshape, (A, 3, 2), "reshape] shape is one argument: write (3, 2)"),
        (mx.transpose, (A, 1, 0), "transpose] axes is one argument: write (1, 0)"),
        (mx.tile, (A, 2, 2), "tile] reps is one argument: write (2, 2)"),
        (mx.concatenate, (A, A), "concatenate] The arrays are one argument: write [a, b]"),
        (mx.zeros, ((3,), 4), "zeros] dtype must be one of"),
        (mx.zeros, (10**5000, 1, 2), "takes from 1 to 2 positional arguments but 3 were given"),
        (mx.sin, (A, A), "takes 1 positional argument but 2 were given"),
    ],
)
def test_what_is_one_argument(function: Callable[..., Any], arguments: tuple[Any, ...], written: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(*arguments)
    assert written in str(caught.value)
