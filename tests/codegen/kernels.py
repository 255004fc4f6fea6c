"""Runs a function of `MathLanes` over NumPy arrays, and measures its error in units in the last place."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special

from weft import dtypes
from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.values import Complex, Value
from weft.dtypes import Dtype

Array = np.ndarray[Any, Any]
_names = (f"math_kernel{number}" for number in itertools.count())


def kernel(function: Callable[..., Any], dtype: Dtype, arguments: int = 1, width: int = 16) -> Callable[..., Array]:
    """Machine code for ``function(lanes, *values)``; complex arguments and results are pairs of float32 arrays."""
    emitter = Emitter()
    lanes = MathLanes(emitter, width)
    part = dtypes.float32 if dtype is dtypes.complex64 else dtype
    parts = 2 if dtype is dtypes.complex64 else 1
    type_, element = lanes.type_of(part), REGISTER_TYPES[part]
    inputs = [f"%x{k}" for k in range(arguments * parts)]
    outputs = ["%y0", "%y1"]
    with emitter.loop("0", "%n", width) as index:
        values: list[Any] = []
        for name in inputs:
            location = emitter.assign(f"getelementptr {element}, ptr {name}, i64 {index}")
            loaded = emitter.assign(f"load {type_}, ptr {location}, align {part.size}")
            values.append(Value(lanes, loaded, part))
        if dtype is dtypes.complex64:
            values = [Complex(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
        result = function(lanes, *values)
        halves = (result.real, result.imag) if isinstance(result, Complex) else (result, result)
        for name, value in zip(outputs, halves, strict=True):
            location = emitter.assign(f"getelementptr {element}, ptr {name}, i64 {index}")
            emitter.emit(f"store {type_} {value.name}, ptr {location}, align {part.size}")
    name = next(_names)
    parameters = ", ".join(f"ptr {pointer}" for pointer in [*inputs, *outputs])
    text = module([emitter], [emitter.function(name, f"{parameters}, i64 %n")])
    address = loading.load(text, lambda: text, (name,), lasting=False)[name]
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(inputs) + 2), ctypes.c_int64)(address)
    is_complex = isinstance(result, Complex)

    def run(*arrays: Array) -> Array:
        size = arrays[0].size
        padded = [np.concatenate([array, np.ones(-size % width, array.dtype)]) for array in arrays]
        if dtype is dtypes.complex64:
            padded = [np.ascontiguousarray(half) for array in padded for half in (array.real, array.imag)]
        results = [np.empty_like(padded[0]) for _ in outputs]
        call(*[array.ctypes.data for array in [*padded, *results]], padded[0].size)
        if not is_complex:
            return results[0][:size]
        joined = np.empty(size, np.complex64)
        joined.real, joined.imag = results[0][:size], results[1][:size]
        return joined

    return run


def method(name: str) -> Callable[..., Any]:
    """A function of lanes and values that calls the method ``name`` of the lanes."""
    return lambda lanes, *values: getattr(lanes, name)(*values)


def ulps(got: Array, exact: Array) -> Array:
    """The error in units in the last place of ``got``; infinite where a NaN, infinity or sign of zero is wrong."""
    target = exact.astype(got.dtype)
    finite = np.isfinite(target)
    unit = np.spacing(np.abs(np.where(finite, target, got.dtype.type(1)))).astype(exact.dtype)
    error = np.abs(got.astype(exact.dtype) - exact) / unit
    error = np.where(np.isnan(error), np.inf, error)
    error = np.where((got == target) & ~finite | np.isnan(got) & np.isnan(target), 0, error)
    # Exact values beyond the largest number may be rounded down to it.
    largest = np.finfo(got.dtype).max
    error = np.where(np.isinf(target) & (np.abs(got) == largest) & (np.sign(got) == np.sign(target)), 1, error)
    wrong_zero = (exact == 0) & (got == 0) & (np.signbit(exact) != np.signbit(got))
    return np.where(wrong_zero, np.inf, error)


def special_values(dtype: Any) -> Array:
    info = np.finfo(dtype)
    sizes = [0.0, info.smallest_subnormal, info.tiny, 0.5, 1, 2, np.pi, 100, 1e10, info.max, np.inf, np.nan]
    around = [np.nextafter(dtype(size), dtype(other)) for size in (0.5, 1, 2) for other in (0, 4)]
    return np.array([sign * size for size in [*sizes, *around] for sign in (1, -1)], dtype)


def samples(dtype: Any, rng: np.random.Generator, count: int) -> Array:
    """Numbers of every size, more of them where functions change quickly, and the special ones."""
    unsigned = np.uint32 if dtype is np.float32 else np.uint64
    patterns = rng.integers(0, np.iinfo(unsigned).max, count // 5, dtype=unsigned, endpoint=True).view(dtype)
    part = count // 5
    drawn = [
        rng.normal(0, 1, part),
        rng.normal(0, 30, part),
        rng.uniform(-1, 1, part),
        rng.choice([-1, 1], part // 2) * 2.0 ** rng.uniform(-30, 10, part // 2),
        1 + rng.normal(0, 0.01, part // 2),
    ]
    return np.concatenate([special_values(dtype), patterns, *(numbers.astype(dtype) for numbers in drawn)])


def _sigmoid(x: Array) -> Array:
    power = np.exp(-np.abs(x))
    return np.where(x < 0, power, 1) / (1 + power)


def _erfinv(x: Array) -> Array:
    size = np.abs(x)
    outside = size > 1  # SciPy takes a hundred times as long there
    return np.where(outside, np.nan, np.copysign(scipy.special.erfinv(np.where(outside, 0.0, size)), x))


REFERENCES: dict[str, Callable[[Array], Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "sigmoid": _sigmoid,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "erf": scipy.special.erf,
    "erfinv": _erfinv,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
"""Functions of one argument, each with one of NumPy or SciPy that is precise enough in float64 to judge float32."""

FLOAT32_BOUNDS = {
    **dict.fromkeys(REFERENCES, 2.0),
    **dict.fromkeys(("expm1", "log2", "tan", "arcsin", "arccos", "arctan", "cosh", "tanh"), 1.5),
    **dict.fromkeys(("exp", "exp2", "log", "log10", "erf"), 1.0),
}
"""The largest error in units in the last place over all float32 numbers."""


def worst(x: Any, got: Array, exact: Array) -> str:
    """A sentence with the largest error and where it is."""
    error = ulps(got, exact)
    worst = int(np.argmax(error))
    return f"{float(error[worst]):.3f} ulp at {x[worst]!r}: got {got[worst]!r}, exact {exact[worst]!r}"
