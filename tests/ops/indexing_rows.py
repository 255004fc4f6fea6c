"""Rows of functions that read memory with other strides, look up elements and update them, and of functions made of
these."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import scipy.linalg

from tests.ops.row import ANY, APART, FLOATS, NONZERO, Domain, Row, whole
from tests.ops.shape_rows import INDEX, moved


def _strided(x: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> np.ndarray:
    """`as_strided`, computed element by element."""
    index = np.full(shape, offset)
    for axis, step in enumerate(strides):
        index += step * np.arange(shape[axis]).reshape([-1 if n == axis else 1 for n in range(len(shape))])
    return x.ravel()[index]


AS_STRIDED_ROWS = [
    moved(
        "as_strided",
        lambda mx, x, shape=shape, strides=strides, offset=offset: mx.as_strided(x, shape, strides, offset),
        lambda x, shape=shape, strides=strides, offset=offset: _strided(x, shape, strides, offset),
        variant=variant,
    )
    for variant, shape, strides, offset in (
        ("windows", (5, 3), (2, 1), 3),
        ("backwards", (3, 2, 2), (-4, 0, -1), 13),
        ("one element", (), (), 7),
    )
] + [
    moved("as_strided", lambda mx, x: mx.as_strided(x), lambda x: x, variant="as it is"),
    Row(
        "as_strided",
        lambda mx, x: mx.as_strided(mx.exp(x), (4, 4), (1, 1)) * 2,
        lambda x: 2 * _strided(np.exp(x), (4, 4), (1, 1), 0),
        variant="of a computed array",
        dtypes=("float32", "float64"),
    ),
]

_VIEWS = (
    ("float32", "int32"), ("float32", "uint8"), ("int8", "bfloat16"), ("int16", "complex64"), ("complex64", "float64"),
    ("bool_", "uint16"), ("float16", "uint16"), ("float64", "float16"),
)  # fmt: skip
_NO_DERIVATIVE = dict.fromkeys(("jvp", "vjp", "second order"), "bits read as another dtype have no derivative")


def _view_row(source: str, target: str) -> Row:
    kind = ml_dtypes.bfloat16 if target == "bfloat16" else target.removesuffix("_")
    return moved(
        "view",
        lambda mx, x: mx.view(x, getattr(mx, target)),
        lambda x: np.ascontiguousarray(x).astype(source.removesuffix("_")).view(kind),
        Domain(0, 9),
        dtypes=(source,),
        shape=(2, 3, 8),
        variant=f"{source} as {target}",
        without={**_NO_DERIVATIVE, "special": "NaN has several images"},
        grows=((1, 1, 8),),
    )


VIEW_ROWS = [_view_row(*pair) for pair in _VIEWS]


def _hadamard(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    return x @ scipy.linalg.hadamard(n) / np.sqrt(n)


MADE_ROWS = [
    Row(
        "hadamard_transform",
        lambda mx, x: mx.hadamard_transform(x),
        _hadamard,
        dtypes=(*FLOATS, "complex64"),
        ulp=4,
        grows=((1, 1, 4),),
        without={"mlx": "MLX has neither float64 nor complex64, and drops imaginary parts"},
    ),
    Row(
        "hadamard_transform",
        lambda mx, x: mx.hadamard_transform(x, 0.5),
        lambda x: x @ scipy.linalg.hadamard(16) * 0.5,
        dtypes=("float32", "float16", "int32"),
        shape=(3, 16),
        variant="scale",
        ulp=16,
        grows=((1, 16),),
    ),
    Row(
        "to_fp8",
        lambda mx, x: mx.to_fp8(x),
        lambda x: x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8),
        dtypes=FLOATS,
    ),
    moved(
        "from_fp8",
        lambda mx, x: mx.from_fp8(x, mx.float32),
        lambda x: x.view(ml_dtypes.float8_e4m3fn).astype(np.float32),
        whole(255, dtype="uint8"),
        dtypes=("uint8",),
    ),
    moved("depends", lambda mx, x, y: mx.depends(x, mx.exp(y)), lambda x, y: x, ANY, ANY, dtypes=("float32", "int32")),
    *[
        Row(
            "convolve",
            lambda mx, x, y, mode=mode: mx.convolve(x, y, mode),
            lambda x, y, mode=mode: np.convolve(x, y, mode),
            (Domain(shape=(7,)), Domain(shape=(4,))),
            FLOATS,
            variant=mode,
            ulp=4,
        )
        for mode in ("full", "same", "valid")
    ],
    Row(
        "convolve",
        lambda mx, x, y: mx.convolve(x, y, "same"),
        lambda x, y: np.convolve(x, y, "same"),
        (Domain(shape=(4,)), Domain(shape=(6,))),
        ("float32", "int32", "complex64"),
        variant="the longer one last",
        ulp=4,
        without={"mlx": "MLX convolves real floating numbers only"},
    ),
]


def _put(x: np.ndarray, i: np.ndarray, v: np.ndarray) -> np.ndarray:
    result = x.copy()
    np.put_along_axis(result, i, v, axis=None)
    return result


def _combined(ufunc: Any, x: np.ndarray, index: Any, v: np.ndarray) -> np.ndarray:
    result = x.copy()
    ufunc.at(result, index, v)
    return result


def at_row(method: str, ufunc: Any, variant: str, index: Any, *domains: Domain, **more: Any) -> Row:
    """A row of a method of ``x.at[index(i)]``; ``domains`` are those of ``x``, the indices and the values."""
    return Row(
        "array.at",
        lambda mx, x, i, v: getattr(x.at[index(i)], method)(v),
        lambda x, i, v: _combined(ufunc, x, index(i), v),
        domains,
        variant=f"{method} {variant}",
        ulp=8,
        **more,
    )


def _in_the_middle(i: Any) -> Any:
    return (slice(None), i, slice(None, None, -1))


def _apart(i: Any) -> Any:
    return (i, slice(None), i)


AT_ROWS = [
    at_row(method, ufunc, variant, index, domain, INDEX if variant == "in the middle" else whole(1, (3,)), values)
    for method, ufunc, domain in (
        ("add", np.add, ANY),
        ("subtract", np.subtract, ANY),
        ("multiply", np.multiply, NONZERO),
        ("divide", np.divide, NONZERO),
        ("maximum", np.maximum, APART),
        ("minimum", np.minimum, APART),
    )
    for variant, index, values in (
        ("in the middle", _in_the_middle, replace(domain, shape=(5, 2, 4))),
        ("apart", _apart, replace(domain, shape=(3, 1))),
    )
]

LOOKUP_ROWS = [
    moved(
        "put_along_axis",
        lambda mx, x, i, v: mx.put_along_axis(x, i, v),
        _put,
        ANY,
        whole(23, (7,), low=-24),
        Domain(shape=(7,)),
        variant="flat",
        without={"mlx": "of several updates of one element, MLX's result is not fixed"},
    ),
    moved(
        "take_along_axis",
        lambda mx, x, i: mx.take_along_axis(x, i, axis=None),
        lambda x, i: x.ravel()[i],
        ANY,
        whole(23, (7,), low=-24),
        variant="flat",
    ),
]

ROWS = AS_STRIDED_ROWS + VIEW_ROWS + MADE_ROWS + AT_ROWS + LOOKUP_ROWS
