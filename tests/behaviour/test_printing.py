"""Arrays print as in MLX: `array([1, 2, 3], dtype=int32)`."""

from __future__ import annotations

import pytest

import weft.core as mx

PRINTED = [
    (mx.array([1, 2, 3]), "array([1, 2, 3], dtype=int32)"),
    (mx.array(3), "array(3, dtype=int32)"),
    (mx.array(-1.0), "array(-1, dtype=float32)"),
    (mx.array([True, False]), "array([True, False], dtype=bool)"),
    (mx.array([]), "array([], dtype=float32)"),
    (mx.zeros((2, 0)), "array([[],\n       []], dtype=float32)"),
    (mx.array([[1.5, 2], [3, 4]]), "array([[1.5, 2],\n       [3, 4]], dtype=float32)"),
    (
        mx.zeros((2, 2, 2)),
        "array([[[0, 0],\n        [0, 0]],\n       [[0, 0],\n        [0, 0]]], dtype=float32)",
    ),
    (mx.array([0.1, 1 / 3, 123456.7]), "array([0.1, 0.333333, 123457], dtype=float32)"),
    (mx.array([1e5, 1e6, 1e10, 1e-5]), "array([100000, 1e+06, 1e+10, 1e-05], dtype=float32)"),
    (mx.array([-0.0, 0.001]), "array([-0, 0.001], dtype=float32)"),
    (mx.array([float("nan"), float("inf"), -float("inf")]), "array([nan, inf, -inf], dtype=float32)"),
    (mx.array([1.5, 65504], dtype=mx.float16), "array([1.5, 65504], dtype=float16)"),
    (mx.array([1.1, 2], dtype=mx.bfloat16), "array([1.10156, 2], dtype=bfloat16)"),
    (mx.array([0.1, 1 / 3], dtype=mx.float64), "array([0.1, 0.333333], dtype=float64)"),
    (mx.array([1, 255], dtype=mx.uint8), "array([1, 255], dtype=uint8)"),
    (mx.array([1, -2], dtype=mx.int8), "array([1, -2], dtype=int8)"),
    (mx.array(2**63 - 1), "array(9223372036854775807, dtype=int64)"),
    (mx.array([[1 + 1j, 2 - 0.5j]]), "array([[1+1j, 2-0.5j]], dtype=complex64)"),
    (mx.arange(6), "array([0, 1, 2, 3, 4, 5], dtype=int32)"),
    (mx.arange(7), "array([0, 1, 2, ..., 4, 5, 6], dtype=int32)"),
    (
        mx.arange(14).reshape(7, 2),
        "array([[0, 1],\n       [2, 3],\n       [4, 5],\n       ...,\n"
        "       [8, 9],\n       [10, 11],\n       [12, 13]], dtype=int32)",
    ),
]


@pytest.mark.parametrize(("array", "expected"), PRINTED, ids=[text.split("\n")[0] for _, text in PRINTED])
def test_printed(array: mx.array, expected: str) -> None:
    assert repr(array) == expected
    assert str(array) == expected


def test_printing_evaluates() -> None:
    assert repr(mx.ones(2) + mx.array([1, 2])) == "array([2, 3], dtype=float32)"


def test_printing_a_view() -> None:
    assert repr(mx.arange(6).reshape(2, 3).T[::-1]) == "array([[2, 5],\n       [1, 4],\n       [0, 3]], dtype=int32)"


def test_the_precision_can_be_chosen() -> None:
    before = mx.get_printoptions().precision
    mx.set_printoptions(precision=2)
    try:
        assert "0.33" in repr(mx.array(1 / 3))
        assert "0.333" not in repr(mx.array(1 / 3))
    finally:
        mx.set_printoptions(precision=before)


@pytest.mark.parametrize("name", ["int32", "float32", "bfloat16", "complex64"])
def test_dtypes_print_their_name(name: str) -> None:
    assert repr(getattr(mx, name)).endswith(f".{name}")
    assert repr(mx.bool_).endswith(".bool")
