"""The printing of arrays, compared with literal strings, and with real MLX where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from weft.dtypes import ALL_DTYPES, Dtype, bfloat16, bool_, complex64, float16, float32, float64, int32, uint64
from weft.formatting import PrintOptions, format_array, get_printoptions, printoptions, set_printoptions

NAN, INF = float("nan"), float("inf")
REALS = [
    0.0, -0.0, 1.0, 1.5, 2.5, 0.5, 0.1, 1 / 3, 2 / 3, 123456789.0, 1e10, 1e-4, 1e-5, 0.001, 1e20, 3.4e38, 1e-45,
    65504.0, NAN, -NAN, INF, -INF, 99999.95, 100000.0, 999999.0, 999999.5, 1000000.0, 1234567.0, -1234.5678, -7e-8,
]  # fmt: skip
COMPLEX_PARTS = [0.0, -0.0, 1.0, -1.5, 1 / 3, 1e20, -1e-20, NAN, -NAN, INF, -INF]
SHAPES = [
    (), (0,), (1,), (6,), (7,), (8,), (0, 3), (3, 0), (7, 0), (1, 0, 1), (2, 7, 0), (2, 2), (1, 1, 1), (3, 1), (7, 1),
    (7, 8), (6, 6), (2, 3, 4), (2, 7, 3), (8, 1, 9), (2, 1, 3, 2), (1, 2, 1, 7), (7, 7, 7), (1, 1, 1, 1, 2),
]  # fmt: skip
PRECISIONS = [-1, 0, 1, 4, 20]


def values(data, dtype: Dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(data).astype(dtype.numpy)


def shown(data, dtype: Dtype, precision: int | None = None) -> str:
    return format_array(values(data, dtype), dtype, precision)


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        ([1, 2, 3], int32, "array([1, 2, 3], dtype=int32)"),
        (7, int32, "array(7, dtype=int32)"),
        (1.0, float32, "array(1, dtype=float32)"),
        ([], float32, "array([], dtype=float32)"),
        ([True, False], bool_, "array([True, False], dtype=bool)"),
        (2**64 - 1, uint64, "array(18446744073709551615, dtype=uint64)"),
        ([0.0, -0.0, 0.5, 1 / 3], float32, "array([0, -0, 0.5, 0.333333], dtype=float32)"),
        ([1e6, 1e-5, 123456.7, 1e20], float32, "array([1e+06, 1e-05, 123457, 1e+20], dtype=float32)"),
        ([NAN, -NAN, INF, -INF], float64, "array([nan, nan, inf, -inf], dtype=float64)"),
        ([0.1, -NAN, 1e5], bfloat16, "array([0.100098, nan, 99840], dtype=bfloat16)"),
        ([0.1, 1e5], float16, "array([0.0999756, inf], dtype=float16)"),
        ([1 + 2j, 0 - 0.5j], complex64, "array([1+2j, 0-0.5j], dtype=complex64)"),
        (complex(-0.0, -0.0), complex64, "array(-0+-0j, dtype=complex64)"),
        (complex(NAN, -INF), complex64, "array(nan-infj, dtype=complex64)"),
        (complex(-NAN, -NAN), complex64, "array(nan+nanj, dtype=complex64)"),
        ([[1, -2], [300, 4]], int32, "array([[1, -2],\n       [300, 4]], dtype=int32)"),
        ([[[1], [2]], [[3], [4]]], int32, "array([[[1],\n        [2]],\n       [[3],\n        [4]]], dtype=int32)"),
        (np.zeros((2, 0)), int32, "array([[],\n       []], dtype=int32)"),
        (range(6), int32, "array([0, 1, 2, 3, 4, 5], dtype=int32)"),
        (range(7), int32, "array([0, 1, 2, ..., 4, 5, 6], dtype=int32)"),
        (
            [[i] for i in range(9)],
            int32,
            "array([[0],\n       [1],\n       [2],\n       ...,\n       [6],\n       [7],\n       [8]], dtype=int32)",
        ),
    ],
)
def test_printing(data, dtype, expected):
    assert shown(data, dtype) == expected


@pytest.mark.parametrize(
    ("data", "dtype", "precision", "expected"),
    [
        ([1.5, 2.5, 1e10, -0.0], float32, 0, "array([2, 2, 10000000000, -0], dtype=float32)"),
        ([1 / 3, NAN], float64, 3, "array([0.333, nan], dtype=float64)"),
        (1.25 - 2j, complex64, 1, "array(1.2-2.0j, dtype=complex64)"),
        ([1, 2], int32, 3, "array([1, 2], dtype=int32)"),
        (1 / 3, float32, -1, "array(0.333333, dtype=float32)"),
    ],
)
def test_precision(data, dtype, precision, expected):
    assert shown(data, dtype, precision) == expected
    with printoptions(precision):
        assert shown(data, dtype) == expected


def test_strided_data():
    data = np.arange(24, dtype=np.int32).reshape(4, 6)
    assert format_array(data.T[::3], int32) == "array([[0, 6, 12, 18],\n       [3, 9, 15, 21]], dtype=int32)"


def test_only_what_is_shown_is_read():
    huge = np.broadcast_to(np.float32(1), (10**6, 10**6, 10**6))
    assert format_array(huge, float32).count("1") == 6**3


def test_options_are_set_and_restored():
    try:
        set_printoptions(precision=2)
        assert get_printoptions() == PrintOptions(2)
        context = printoptions(precision=5)
        with context, context, printoptions():
            assert shown(0.5, float32) == "array(0.5, dtype=float32)"
        assert shown(0.5, float32) == "array(0.50, dtype=float32)"

        def fails_inside():
            with printoptions(4):
                raise KeyError

        with pytest.raises(KeyError):
            fails_inside()
        assert get_printoptions().precision == 2
        get_printoptions().precision = 9
        assert get_printoptions().precision == 2
    finally:
        set_printoptions()
    assert get_printoptions().precision == -1


def test_wrong_precision():
    with pytest.raises(ValueError, match="got -2"):
        set_printoptions(-2)
    with pytest.raises(ValueError, match="got -2"):
        printoptions(-2)
    with pytest.raises(TypeError):
        set_printoptions(2.5)  # type: ignore[arg-type]  # on purpose
    assert get_printoptions().precision == -1


@pytest.fixture(scope="module")
def mlx_text(mlx):
    """The text that real MLX prints for data of a dtype, without the signs of NaNs."""

    def text(data: np.ndarray, dtype: Dtype, precision: int) -> str:
        with mlx.stream(mlx.cpu), mlx.printoptions(precision=precision):
            if dtype is bfloat16:
                array = mlx.array(data.view(np.uint16)).view(mlx.bfloat16)
            elif dtype is float64:
                array = mlx.array(data.view(np.uint64).reshape(data.shape)).view(mlx.float64)
            else:
                array = mlx.array(data)
            return repr(array).replace("-nan", "nan")

    return text


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if dtype.is_floating], ids=lambda dtype: dtype.name)
def test_reals_against_mlx(mlx_text, dtype, precision):
    for value in REALS:
        data = values(value, dtype)
        assert format_array(data, dtype, precision) == mlx_text(data, dtype, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_complex_against_mlx(mlx_text, precision):
    for real in COMPLEX_PARTS:
        for imaginary in COMPLEX_PARTS:
            data = values(complex(real, imaginary), complex64)
            assert format_array(data, complex64, precision) == mlx_text(data, complex64, precision)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: dtype.name)
def test_shapes_against_mlx(mlx_text, dtype, shape):
    rng = np.random.default_rng(len(shape))
    random = rng.normal(size=shape) * 100
    data = values(np.abs(random) if not dtype.is_signed else random, dtype)
    if dtype.is_bool:
        data = np.asarray(random > 0)
    assert format_array(data, dtype) == mlx_text(data, dtype, -1)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda dtype: dtype.name)
def test_every_sixteen_bit_pattern_in_steps_against_mlx(mlx_text, dtype):
    patterns = np.arange(0, 2**16, 97, dtype=np.uint16)
    for six in np.array_split(patterns, len(patterns) // 6 + 1):
        data = six.view(dtype.numpy)
        assert format_array(data, dtype) == mlx_text(data, dtype, -1)
