"""Rows of elementwise functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from tests.ops.row import (
    ANY,
    APART,
    BOOLEAN,
    COMPLEX,
    EVERY,
    FLOATS,
    INTEGERS,
    NONZERO,
    NUMBERS,
    POSITIVE,
    REAL,
    UNIT,
    Domain,
    Row,
)


def _attribute(name: str) -> Callable[..., Any]:
    return lambda mx, *arrays: getattr(mx, name)(*arrays)


def unary(name: str, oracle: Callable[..., Any], domain: Domain = ANY, dtypes: Any = FLOATS, **more: Any) -> Row:
    return Row(name, _attribute(name), oracle, (domain,), dtypes, elementwise=True, **more)


def binary(
    name: str, oracle: Callable[..., Any], left: Domain = ANY, right: Domain = ANY, dtypes: Any = FLOATS, **more: Any
) -> Row:
    """A row whose operands have different shapes, so that every check includes broadcasting and its derivative."""
    narrow = Domain(right.low, right.high, right.gap, right.apart, (3, 1), right.dtype)
    return Row(name, _attribute(name), oracle, (left, narrow), dtypes, elementwise=True, **more)


def _in_float(oracle: Callable[..., Any]) -> Callable[..., Any]:
    """The oracle of a function that computes integers in float32: NumPy would use float16 for small ones."""
    return lambda *arrays: oracle(*[x if x.dtype.kind in "fc" else x.astype(np.float64) for x in arrays])


def _logical(oracle: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: oracle(*[x.astype(bool) for x in arrays])


LOW = Domain(-0.8, 0.8)

UNARY_ROWS = [
    unary("abs", np.abs, NONZERO, EVERY),
    unary("negative", np.negative, ANY, NUMBERS),
    unary("positive", lambda x: x, ANY, EVERY),
    unary("sign", lambda x: np.sign(x) if x.dtype != bool else x, NONZERO, EVERY, zero_sign=False),
    unary("floor", lambda x: np.floor(x) if x.dtype.kind == "f" else x, APART, REAL),
    unary("ceil", lambda x: np.ceil(x) if x.dtype.kind == "f" else x, APART, REAL),
    unary("trunc", lambda x: np.trunc(x) if x.dtype.kind == "f" else x, APART, REAL),
    unary("round", lambda x: np.round(x) if x.dtype != bool else x, APART, EVERY),
    unary("square", lambda x: x * x, ANY, EVERY),
    unary("sqrt", _in_float(np.sqrt), POSITIVE, EVERY),
    unary("rsqrt", _in_float(lambda x: 1 / np.sqrt(x)), POSITIVE, FLOATS + COMPLEX),
    unary("reciprocal", _in_float(lambda x: 1 / x), NONZERO, FLOATS + COMPLEX),
    unary("exp", _in_float(np.exp), ANY, EVERY),
    unary("expm1", _in_float(np.expm1), ANY, REAL),
    unary(
        "expm1",
        _in_float(np.expm1),
        ANY,
        COMPLEX,
        variant="complex",
        without={"mlx": "MLX has no expm1 of complex numbers."},
    ),
    unary("log", _in_float(np.log), POSITIVE, FLOATS + COMPLEX),
    unary("log2", _in_float(np.log2), POSITIVE, FLOATS + COMPLEX),
    unary("log10", _in_float(np.log10), POSITIVE, FLOATS + COMPLEX),
    unary("log1p", _in_float(np.log1p), LOW, EVERY),
    unary("sin", _in_float(np.sin), ANY, EVERY),
    unary("cos", _in_float(np.cos), ANY, EVERY),
    unary("tan", _in_float(np.tan), Domain(-1.2, 1.2), EVERY),
    unary("arcsin", _in_float(np.arcsin), UNIT, EVERY),
    unary("arccos", _in_float(np.arccos), UNIT, EVERY),
    unary("arctan", _in_float(np.arctan), UNIT, EVERY),
    unary("sinh", _in_float(np.sinh), ANY, EVERY),
    unary("cosh", _in_float(np.cosh), ANY, EVERY),
    unary("tanh", _in_float(np.tanh), ANY, EVERY),
    unary("arcsinh", _in_float(np.arcsinh), UNIT, EVERY),
    unary("arccosh", _in_float(np.arccosh), Domain(1.1, 3.0), EVERY),
    unary("arctanh", _in_float(np.arctanh), LOW, FLOATS + COMPLEX),
    unary("sigmoid", _in_float(lambda x: 1 / (1 + np.exp(-x))), ANY, REAL),
    unary("erf", _in_float(scipy.special.erf), ANY, REAL),
    unary("erfinv", _in_float(scipy.special.erfinv), LOW, FLOATS, ulp=4, zero_sign=False),
    unary("degrees", _in_float(np.degrees), ANY, REAL, ulp_half=3),
    unary("radians", _in_float(np.radians), ANY, REAL, ulp_half=3),
    unary("real", np.real, ANY, EVERY),
    unary("imag", np.imag, ANY, EVERY),
    unary("conjugate", lambda x: np.conj(x) if x.dtype != bool else x, ANY, EVERY),
    unary("isnan", np.isnan, ANY, EVERY),
    unary("isinf", np.isinf, ANY, EVERY),
    unary("isfinite", np.isfinite, ANY, EVERY),
    unary("isposinf", lambda x: np.isinf(x) & (x.real > 0), ANY, REAL),
    unary("isneginf", lambda x: np.isinf(x) & (x.real < 0), ANY, REAL),
    unary("logical_not", np.logical_not, ANY, EVERY),
    unary("bitwise_invert", np.invert, Domain(-9, 9), INTEGERS + BOOLEAN),
    Row(
        "round",
        lambda mx, x: mx.round(x, 1),
        lambda x: np.round(x, 1),
        (Domain(-3, 3),),
        FLOATS + COMPLEX + INTEGERS,
        variant="decimals",
        elementwise=True,
        without={
            "jvp": "a step may lie within the central difference",
            "value": "the scaled number is rounded before it is cut: ties go another way than in higher precision",
            "special": "the scaled number overflows",
        },
    ),
    Row(
        "round",
        lambda mx, x: mx.round(x, -1),
        lambda x: np.round(x.astype(np.float64), -1),
        (Domain(-60, 60),),
        INTEGERS,
        variant="tens",
        elementwise=True,
    ),
    Row(
        "nan_to_num",
        lambda mx, x: mx.nan_to_num(x, 1.5, 2.5, -2.5),
        lambda x: np.nan_to_num(x, nan=1.5, posinf=2.5, neginf=-2.5),
        dtypes=REAL,
        elementwise=True,
    ),
]


def _floor_divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The floor of the rounded quotient, as in MLX; NumPy takes the floor of the exact quotient."""
    if x.dtype.kind != "f":
        return np.floor_divide(x, y)
    return np.floor(x / y)


ROUNDED_QUOTIENT = {"special": "quotients that leave the dtype have another floor than exact ones: see test_special.py"}

BINARY_ROWS = [
    binary("add", np.add, dtypes=EVERY),
    binary("subtract", np.subtract, dtypes=NUMBERS),
    binary("subtract", np.not_equal, dtypes=BOOLEAN, variant="bool"),
    binary("multiply", np.multiply, dtypes=EVERY),
    binary("divide", _in_float(np.divide), right=NONZERO, dtypes=FLOATS + COMPLEX),
    binary("divide", np.divide, right=Domain(1, 9), dtypes=("int32", "int8", "uint64"), variant="integers"),
    binary("floor_divide", _floor_divide, APART, Domain(2.1, 2.2), REAL[:-1], without=ROUNDED_QUOTIENT),
    binary("remainder", np.remainder, APART, Domain(2.1, 2.2), REAL[:-1]),
    binary("power", np.power, POSITIVE, ANY, FLOATS + COMPLEX),
    binary("power", np.power, Domain(-3, 3), Domain(0, 3), INTEGERS, variant="integers"),
    binary("power", lambda x, y: x | ~y, dtypes=BOOLEAN, variant="bool"),
    Row("power", lambda mx, x: mx.power(x, 2), np.square, dtypes=NUMBERS, variant="square", elementwise=True),
    binary("maximum", np.maximum, APART, Domain(-0.1, 0.1), EVERY, zero_sign=False),
    binary("minimum", np.minimum, APART, Domain(-0.1, 0.1), EVERY, zero_sign=False),
    binary("logaddexp", _in_float(np.logaddexp), Domain(0, 2), Domain(0, 2), REAL),
    binary("arctan2", _in_float(np.arctan2), NONZERO, NONZERO, (*FLOATS, "int32")),
    binary("equal", np.equal, dtypes=EVERY),
    binary("not_equal", np.not_equal, dtypes=EVERY),
    binary("less", np.less, dtypes=EVERY),
    binary("less_equal", np.less_equal, dtypes=EVERY),
    binary("greater", np.greater, dtypes=EVERY),
    binary("greater_equal", np.greater_equal, dtypes=EVERY),
    binary("logical_and", _logical(np.logical_and), dtypes=EVERY),
    binary("logical_or", _logical(np.logical_or), dtypes=EVERY),
    binary("logical_xor", _logical(np.logical_xor), dtypes=EVERY),
    binary("bitwise_and", np.bitwise_and, Domain(-9, 9), Domain(-9, 9), INTEGERS + BOOLEAN),
    binary("bitwise_or", np.bitwise_or, Domain(-9, 9), Domain(-9, 9), INTEGERS + BOOLEAN),
    binary("bitwise_xor", np.bitwise_xor, Domain(-9, 9), Domain(-9, 9), INTEGERS + BOOLEAN),
    binary("left_shift", np.left_shift, Domain(-9, 9), Domain(0, 3), INTEGERS),
    binary("right_shift", np.right_shift, Domain(-99, 99), Domain(0, 3), INTEGERS),
    binary("isclose", lambda x, y: np.isclose(x, y), dtypes=REAL[:-1]),
    binary(
        "divmod",
        lambda x, y: (_floor_divide(x, y), np.remainder(x, y)),
        APART,
        Domain(2.1, 2.2),
        REAL[:-1],
        without=ROUNDED_QUOTIENT,
    ),
    Row(
        "where",
        lambda mx, c, x, y: mx.where(c, x, y),
        lambda c, x, y: np.where(c, x, y),
        (Domain(dtype="bool_"), ANY, Domain(shape=(3, 1))),
        EVERY,
        elementwise=True,
    ),
    Row(
        "clip",
        lambda mx, x, low, high: mx.clip(x, low, high),
        lambda x, low, high: np.minimum(np.maximum(x, low), high),
        (APART, Domain(-1.1, -1.0, shape=(3, 1)), Domain(1.0, 1.1, shape=(4,))),
        (*FLOATS, "int32", "int8"),
        elementwise=True,
    ),
    Row(
        "clip",
        lambda mx, x: mx.clip(x, None, 1),
        lambda x: np.minimum(x, np.array(1, x.dtype)),
        (APART,),
        (*FLOATS, "int32", "uint8"),
        variant="open",
        elementwise=True,
    ),
]

ROWS = UNARY_ROWS + BINARY_ROWS
