"""Element types: names, limits, families, promotion; the rules compared with real MLX where it is installed."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from weft import dtypes
from weft.dtypes import (
    ALL_DTYPES,
    Dtype,
    DtypeCategory,
    Kind,
    as_dtype,
    bfloat16,
    bool_,
    can_cast,
    complex64,
    finfo,
    float16,
    float32,
    float64,
    from_numpy,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    issubdtype,
    promote,
    result_type,
    same_as_numpy,
    scalar_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)

SCALARS = [True, 3, -3, 3.5, float("inf"), 1j, np.float64(2)]


def in_mlx(mlx, dtype: Dtype):
    return getattr(mlx, "bool_" if dtype is bool_ else dtype.name)


def name_of(mlx_dtype) -> str:
    return str(mlx_dtype).removeprefix("mlx.core.")


def test_attributes():
    assert [dtype.size for dtype in ALL_DTYPES] == [1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8]
    assert [dtype for dtype in ALL_DTYPES if dtype.is_bool] == [bool_]
    assert [dtype for dtype in ALL_DTYPES if dtype.is_complex] == [complex64]
    assert [dtype for dtype in ALL_DTYPES if dtype.is_floating] == [float16, bfloat16, float32, float64]
    assert [dtype for dtype in ALL_DTYPES if dtype.is_inexact] == [float16, bfloat16, float32, float64, complex64]
    assert [dtype for dtype in ALL_DTYPES if dtype.is_integer] == list(ALL_DTYPES[1:9])
    assert [dtype for dtype in ALL_DTYPES if not dtype.is_signed] == list(ALL_DTYPES[:5])
    assert [dtype.rank for dtype in (bool_, uint8, int8, bfloat16, complex64)] == list(Kind)


def test_representation():
    assert repr(float32) == "weft.core.float32"
    assert repr(bool_) == "weft.core.bool"
    assert repr(dtypes.floating) == str(dtypes.floating) == "DtypeCategory.floating"


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_copies_are_the_same_object(dtype):
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy([dtype])[0] is dtype


def test_compared_by_identity():
    others: list[object] = ["float32", np.float32, np.dtype("float32"), None, *ALL_DTYPES]
    assert [other for other in others if float32 == other] == [float32]
    assert len({*ALL_DTYPES, *ALL_DTYPES}) == len(ALL_DTYPES)


def test_import_needs_neither_numpy_nor_ml_dtypes():
    program = "import sys, weft.dtypes; print({'numpy', 'ml_dtypes'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_numpy_dtype_has_the_same_bits(dtype):
    numpy_dtype = dtype.numpy
    assert isinstance(numpy_dtype, np.dtype)
    assert numpy_dtype.itemsize == dtype.size
    assert numpy_dtype == (ml_dtypes.bfloat16 if dtype is bfloat16 else dtype.name)
    assert from_numpy(numpy_dtype) is (float32 if dtype is float64 else dtype)
    assert same_as_numpy(numpy_dtype) is dtype


def test_numpy_data_is_narrowed_like_in_mlx():
    assert from_numpy(np.dtype("float64")) is float32
    assert from_numpy(np.dtype("complex128")) is complex64
    assert from_numpy(np.dtype("longlong")) is int64
    assert same_as_numpy(np.dtype("float64")) is float64
    assert same_as_numpy(np.dtype("complex128")) is None
    assert same_as_numpy(np.dtype("float32").newbyteorder()) is None


@pytest.mark.parametrize("code", ["O", "U3", "S3", "M8[s]", "m8[s]", np.dtype("f4").newbyteorder().str])
def test_numpy_dtypes_without_equivalent(mlx, code):
    numpy_dtype = np.dtype(code)
    with pytest.raises(TypeError, match="has no equivalent dtype here"):
        from_numpy(numpy_dtype)
    with pytest.raises(RuntimeError):
        mlx.array(np.zeros(2, numpy_dtype))


def test_numpy_conversion_against_mlx(mlx):
    for code in "?bhilqBHILQefdFD":
        numpy_dtype = np.dtype(code)
        assert from_numpy(numpy_dtype).name == name_of(mlx.array(np.zeros(2, numpy_dtype)).dtype)


def test_swapped_bytes_are_named():
    with pytest.raises(TypeError, match="newbyteorder"):
        from_numpy(np.dtype("float32").newbyteorder())


def test_as_dtype():
    assert as_dtype(float16) is float16
    assert as_dtype(bool) is bool_


@pytest.mark.parametrize("value", ["float32", np.float32, np.dtype("float32")])
def test_as_dtype_suggests(value):
    with pytest.raises(TypeError, match=r"one of mx\.bool_, mx\.uint8, .*Did you mean mx\.float32\?"):
        as_dtype(value)


@pytest.mark.parametrize("value", [float, None, 32, dtypes.floating, np.dtype("complex128"), "f32", []])
def test_as_dtype_refuses(value):
    with pytest.raises(TypeError, match=r"dtype must be one of mx\.bool_.*mx\.complex64; got") as caught:
        as_dtype(value)
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (bool_, bool_, bool_),
        (bool_, int8, int8),
        (uint8, int8, int16),
        (uint16, int8, int32),
        (uint32, int16, int64),
        (uint32, int64, int64),
        (uint64, int8, float32),
        (int64, float16, float16),
        (float16, bfloat16, float32),
        (float32, bfloat16, float32),
        (float64, float16, float64),
        (float64, complex64, complex64),
    ],
)
def test_promotion(a, b, expected):
    assert promote(a, b) is expected
    assert promote(b, a) is expected


def test_promotion_against_mlx(mlx):
    for triple in itertools.product(ALL_DTYPES, repeat=3):
        theirs = mlx.result_type(*(in_mlx(mlx, dtype) for dtype in triple))
        assert result_type(*triple).name == name_of(theirs), triple


def test_operators_of_mlx_promote_like_result_type(mlx):
    for a, b in itertools.product(ALL_DTYPES, repeat=2):
        theirs = mlx.array([1], dtype=in_mlx(mlx, a)) + mlx.array([1], dtype=in_mlx(mlx, b))
        assert promote(a, b).name == name_of(theirs.dtype), (a, b)


def test_result_type_of_nothing():
    with pytest.raises(ValueError, match="At least one"):
        result_type()


def test_result_type_names_what_it_refuses():
    with pytest.raises(TypeError, match=r"got 2\.0 of type float"):
        result_type(float32, 2.0)  # type: ignore[arg-type]  # on purpose


def test_can_cast_against_mlx(mlx):
    for a, b in itertools.product(ALL_DTYPES, repeat=2):
        assert can_cast(a, b) is mlx.can_cast(in_mlx(mlx, a), in_mlx(mlx, b)), (a, b)


def test_can_cast():
    assert can_cast(int32, float16)
    assert not can_cast(float32, int32)
    assert not can_cast(float16, bfloat16)


@pytest.mark.parametrize(
    ("value", "other", "expected"),
    [
        (True, None, bool_),
        (3, None, int32),
        (2**31, None, int64),
        (-(2**31), None, int32),
        (0.5, None, float32),
        (1j, None, complex64),
        (True, uint8, uint8),
        (3, bool_, int32),
        (3, uint8, uint8),
        (3, bfloat16, bfloat16),
        (2**40, float16, float16),
        (0.5, bool_, float32),
        (0.5, int64, float32),
        (0.5, float16, float16),
        (0.5, complex64, complex64),
        (1j, float64, complex64),
        (np.complex128(1j), float32, complex64),
        (np.float64(0.5), float16, float16),
    ],
)
def test_scalars_are_weak(value, other, expected):
    assert scalar_dtype(value, other) is expected


def test_scalars_against_mlx(mlx):
    for value in SCALARS:
        assert scalar_dtype(value).name == name_of(mlx.array(value).dtype), value
        for dtype in ALL_DTYPES:
            if value == -3 and dtype.rank is Kind.UNSIGNED:
                continue
            theirs = mlx.array([1], dtype=in_mlx(mlx, dtype)) + value
            assert promote(dtype, scalar_dtype(value, dtype)).name == name_of(theirs.dtype), (value, dtype)


@pytest.mark.parametrize("dtype", ALL_DTYPES[1:9])
def test_scalars_that_do_not_fit(dtype):
    assert scalar_dtype(dtype.lowest, dtype) is dtype
    assert scalar_dtype(dtype.highest, dtype) is dtype
    for value in (dtype.lowest - 1, dtype.highest + 1):
        with pytest.raises(ValueError, match=rf"the integer {value} does not fit {dtype.name}, which holds"):
            scalar_dtype(value, dtype)


def test_scalars_that_do_not_fit_against_mlx(mlx):
    # In MLX -1 wraps around in uint64; in Weft no integer changes its value.
    for dtype in (uint8, uint16, uint32, int8, int16, int32):
        with pytest.raises(ValueError, match="overflow"):
            mlx.array([1], dtype=in_mlx(mlx, dtype)) + (dtype.highest + 1)


def test_integer_beside_bool_keeps_its_value():
    assert scalar_dtype(2**31, bool_) is int64
    with pytest.raises(ValueError, match="does not fit int64"):
        scalar_dtype(2**63, bool_)
    with pytest.raises(ValueError, match="does not fit int64"):
        scalar_dtype(2**63)


def test_what_is_no_scalar():
    with pytest.raises(TypeError, match="expected a bool, int, float or complex, got str"):
        scalar_dtype("3")  # type: ignore[arg-type]  # on purpose


def test_families_against_mlx(mlx):
    ours = [*ALL_DTYPES, *DtypeCategory]
    theirs = [*(in_mlx(mlx, d) for d in ALL_DTYPES), *(getattr(mlx, c.name) for c in DtypeCategory)]
    for (a, their_a), (b, their_b) in itertools.product(zip(ours, theirs, strict=True), repeat=2):
        assert issubdtype(a, b) is mlx.issubdtype(their_a, their_b), (a, b)


def test_families():
    assert issubdtype(int8, dtypes.signedinteger)
    assert issubdtype(uint8, dtypes.integer)
    assert issubdtype(complex64, dtypes.inexact)
    assert not issubdtype(complex64, dtypes.floating)
    assert not issubdtype(bool_, dtypes.number)
    assert issubdtype(dtypes.floating, dtypes.number)
    assert not issubdtype(dtypes.generic, float32)


def test_issubdtype_names_what_it_refuses():
    with pytest.raises(TypeError, match="first argument must be a dtype or a category"):
        issubdtype(np.float32, dtypes.floating)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match="second argument must be a dtype or a category"):
        issubdtype(float32, "floating")  # type: ignore[arg-type]  # on purpose


KINDS: list[str | tuple[str, ...]] = [
    "bool",
    "signed integer",
    "unsigned integer",
    "integral",
    "real floating",
    "complex floating",
    "numeric",
    (),
    ("bool", "complex floating"),
]


def test_isdtype_against_mlx(mlx):
    for dtype, kind in itertools.product(ALL_DTYPES, KINDS):
        assert isdtype(dtype, kind) is mlx.isdtype(in_mlx(mlx, dtype), kind), (dtype, kind)


def test_isdtype():
    assert isdtype(int8, (float32, int8))
    assert isdtype(uint8, "integral")
    assert not isdtype(bool_, "numeric")
    assert isdtype(bool, "bool")  # type: ignore[arg-type]  # a dtype all the same
    with pytest.raises(ValueError, match="unknown kind 'float'; known kinds are 'bool'"):
        isdtype(int8, "float")
    with pytest.raises(TypeError, match=r"^\[isdtype\] kind .* of type list"):
        isdtype(int8, ["bool"])  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("dtype", [float16, float32, float64, complex64])
def test_finfo_against_numpy(dtype):
    ours, theirs = finfo(dtype), np.finfo(dtype.numpy)
    for attribute in ("bits", "eps", "max", "min", "smallest_normal"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)


def test_finfo_against_mlx(mlx):
    for dtype in (float16, bfloat16, float32, float64, complex64):
        ours, theirs = finfo(dtype), mlx.finfo(in_mlx(mlx, dtype))
        assert repr(ours) == repr(theirs)
        assert ours.dtype.name == name_of(theirs.dtype)
        for attribute in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(ours, attribute) == getattr(theirs, attribute), (dtype, attribute)


def test_bits():
    assert (iinfo(dtypes.uint8).bits, iinfo(int32).bits, dtypes.finfo(float16).bits) == (8, 32, 16)


def test_iinfo_against_mlx(mlx):
    for dtype in ALL_DTYPES[1:9]:
        ours, theirs = iinfo(dtype), mlx.iinfo(in_mlx(mlx, dtype))
        assert (ours.min, ours.max, repr(ours)) == (theirs.min, theirs.max, repr(theirs))


def test_limits_of_the_wrong_family():
    with pytest.raises(ValueError, match="int32 is neither"):
        finfo(int32)
    with pytest.raises(ValueError, match="float32 is not one"):
        iinfo(float32)
    with pytest.raises(ValueError, match="bool is not one"):
        iinfo(bool_)
    with pytest.raises(TypeError, match="dtype must be one of"):
        finfo("float32")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ValueError, match="bool is neither"):
        finfo(bool)  # type: ignore[arg-type]  # a dtype all the same
    with pytest.raises(ValueError, match="bool is not one"):
        iinfo(bool)  # type: ignore[arg-type]
    assert finfo(bfloat16).max == float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
