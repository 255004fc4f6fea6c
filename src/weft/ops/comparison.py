"""Comparisons, logic, choices between arrays, and tests for special values.

Comparisons promote like arithmetic, with one exception: a Python integer that does not fit the dtype of the array is
compared by its value, as in mathematics and in NumPy. (MLX wraps such a number around, or refuses it.)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import finfo
from weft.errors import ArgumentTypeError
from weft.graph.extents import agree, decide, decide_equal
from weft.graph.node import Handle
from weft.graph.symbolic import SymbolicExtent
from weft.ops.arguments import (
    Array,
    array_argument,
    binary,
    broadcast,
    broadcast_all,
    broadcasted_shape,
    fresh,
    inexact,
    promoted,
    real_number,
    shape_text,
    to_dtype,
)
from weft.ops.convert import fits, python_scalar
from weft.ops.entrance import call_on
from weft.ops.replays import replayed
from weft.primitives.base import Elementwise
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "allclose",
    "array_equal",
    "equal",
    "greater",
    "greater_equal",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "nan_to_num",
    "not_equal",
    "where",
]


def _beside_the_dtype(
    relation: Callable[[int, int], bool], a: Any, b: Any, stream: StreamOrDevice, error: ValueError
) -> Array:
    """The result of comparing an array with an integer that does not fit its dtype.

    Such an integer is larger (or smaller) than every number of the dtype, so no elements are compared.
    """
    number, x = (python_scalar(a), b) if isinstance(b, Handle) else (python_scalar(b), a)
    if not isinstance(x, Handle) or not isinstance(number, (int, SymbolicExtent)):
        raise error
    dtype = dtypes.scalar_dtype(0, x.node.dtype)
    if not dtype.is_integer or fits(number, dtype):
        raise error
    outcome = decide(relation, 0, number) if x is a else decide(relation, number, 0)
    return call_on(stream, p.full, x.node.shape, outcome, dtypes.bool_)


def _compared(
    primitive: Elementwise, relation: Callable[[int, int], bool], a: Any, b: Any, stream: StreamOrDevice
) -> Array:
    """The result of a comparison; ``relation`` is the same comparison of Python's integers."""
    try:
        return binary(primitive, a, b, stream)
    except ValueError as error:
        return _beside_the_dtype(relation, a, b, stream, error)


def equal(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """Whether a equals b, element by element; NaN equals nothing.

    A Python integer that does not fit the dtype of the array equals nothing, either.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.equal(mx.array([1, 2]), 2)
    array([False, True], dtype=bool)
    >>> mx.equal(mx.array([255, 2], mx.uint8), -1)
    array([False, False], dtype=bool)
    """
    return _compared(p.equal, operator.eq, a, b, stream)


def not_equal(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """Whether a differs from b; a Python integer that does not fit the dtype of the array differs from all elements.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.not_equal(mx.array([1, 2]), 2)
    array([True, False], dtype=bool)
    """
    return _compared(p.not_equal, operator.ne, a, b, stream)


def less(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """Whether a < b; a Python integer that does not fit the dtype of the array is compared by its value.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.less(mx.array([1, 2]), 2)
    array([True, False], dtype=bool)
    """
    return _compared(p.less, operator.lt, a, b, stream)


def less_equal(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """Whether a <= b; a Python integer that does not fit the dtype of the array is compared by its value.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.less_equal(mx.array([1, 2]), 1.5)
    array([True, False], dtype=bool)
    """
    return _compared(p.less_equal, operator.le, a, b, stream)


def greater(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """Whether a > b; a Python integer that does not fit the dtype of the array is compared by its value.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.greater(mx.array([1, 2]), 1)
    array([False, True], dtype=bool)
    >>> mx.greater(mx.array(5, mx.uint64), -1)
    array(True, dtype=bool)
    """
    return _compared(p.greater, operator.gt, a, b, stream)


def greater_equal(a: Any, b: Any, stream: StreamOrDevice = None) -> Array:
    """Whether a >= b; a Python integer that does not fit the dtype of the array is compared by its value.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.greater_equal(mx.array([1, 2]), 2)
    array([False, True], dtype=bool)
    """
    return _compared(p.greater_equal, operator.ge, a, b, stream)


def _logical(primitive: Elementwise, name: str, a: Any, b: Any) -> Array:
    operands = [to_dtype(array_argument(name, one, word), dtypes.bool_) for word, one in (("a", a), ("b", b))]
    return primitive(*broadcast_all(name, operands))


@replayed
def logical_and(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """Whether both are different from zero.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.logical_and(mx.array([0, 1, 2]), mx.array([True, True, False]))
    array([False, True, False], dtype=bool)
    """
    return _logical(p.logical_and, "logical_and", a, b)


@replayed
def logical_or(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """Whether one or both are different from zero.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.logical_or(mx.array([0, 1]), False)
    array([False, True], dtype=bool)
    """
    return _logical(p.logical_or, "logical_or", a, b)


@replayed
def logical_xor(a: Any, b: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """Whether exactly one is different from zero.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.

    >>> mx.logical_xor(mx.array([0, 1]), True)
    array([True, False], dtype=bool)
    """
    return _logical(p.not_equal, "logical_xor", a, b)


@replayed
def logical_not(a: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """Whether each element is zero.

    >>> mx.logical_not(mx.array([0.0, 0.5]))
    array([True, False], dtype=bool)
    """
    return p.logical_not(to_dtype(array_argument("logical_not", a), dtypes.bool_))


@replayed
def where(condition: Any, x: Any, y: Any, /, *, stream: StreamOrDevice = None) -> Array:
    """x where the condition is not zero, y elsewhere.

    The three are broadcast, x and y also promoted. The gradient of the one that was not chosen is zero.

    Args:
        condition: any dtype.
        x, y: arrays or numbers; all three shapes have to broadcast, else ``ValueError``.

    >>> mx.where(mx.array([True, False]), mx.array([1, 2]), 0.5)
    array([1, 0.5], dtype=float32)
    """
    chosen = to_dtype(array_argument("where", condition, "the condition"), dtypes.bool_)
    values = promoted("where", (x, y), words=("x", "y"))
    return p.select(*broadcast_all("where", (chosen, *values)))


def _parts(x: Array) -> list[Array]:
    """A list of the array itself if it is real, else of its real and imaginary parts."""
    if x.node.dtype.is_complex:
        return [p.real(x), p.imag(x)]
    return [x]


def _has_special(name: str, a: Any, find: Any) -> Array:
    """Whether ``find`` holds for a part of each element; False for integers."""
    x = array_argument(name, a)
    if not x.node.dtype.is_inexact:
        return p.full(x.node.shape, False, dtypes.bool_)
    found = [find(part) for part in _parts(x)]
    return found[0] if len(found) == 1 else p.logical_or(*found)


@replayed
def isnan(a: Any, stream: StreamOrDevice = None) -> Array:
    """Whether each element is NaN; for complex numbers, whether one part is.

    >>> mx.isnan(mx.array([1.0, mx.nan, mx.inf]))
    array([False, True, False], dtype=bool)
    """
    return _has_special("isnan", a, lambda x: p.not_equal(x, x))


@replayed
def isinf(a: Any, stream: StreamOrDevice = None) -> Array:
    """Whether each element is infinite; for complex numbers, whether one part is.

    >>> mx.isinf(mx.array([1.0, mx.nan, -mx.inf]))
    array([False, False, True], dtype=bool)
    """
    return _has_special("isinf", a, lambda x: p.equal(p.absolute(x), math.inf))


@replayed
def isposinf(a: Any, stream: StreamOrDevice = None) -> Array:
    """Whether each element is plus infinity; for complex numbers, whether one part is.

    >>> mx.isposinf(mx.array([1.0, mx.inf, -mx.inf]))
    array([False, True, False], dtype=bool)
    """
    return _has_special("isposinf", a, lambda x: p.equal(x, math.inf))


@replayed
def isneginf(a: Any, stream: StreamOrDevice = None) -> Array:
    """Whether each element is minus infinity; for complex numbers, whether one part is.

    >>> mx.isneginf(mx.array([1.0, mx.inf, -mx.inf]))
    array([False, False, True], dtype=bool)
    """
    return _has_special("isneginf", a, lambda x: p.equal(x, -math.inf))


@replayed
def isfinite(a: Any, stream: StreamOrDevice = None) -> Array:
    """Whether each element is neither infinite nor NaN.

    >>> mx.isfinite(mx.array([1.0, mx.nan, mx.inf]))
    array([True, False, False], dtype=bool)
    """
    x = array_argument("isfinite", a)
    if not x.node.dtype.is_inexact:
        return p.full(x.node.shape, True, dtypes.bool_)
    found = [p.less(p.absolute(part), math.inf) for part in _parts(x)]
    return found[0] if len(found) == 1 else p.logical_and(*found)


@replayed
def isclose(
    a: Any,
    b: Any,
    /,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    *,
    equal_nan: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """Whether abs(a - b) <= atol + rtol * abs(b); equal infinities are close, NaN only with ``equal_nan``.

    Args:
        a, b: arrays or numbers whose shapes broadcast, else ``ValueError``; dtypes are promoted.
        rtol: the allowed distance relative to the element of ``b``.
        atol: the absolute distance that is allowed in addition.
        equal_nan: whether NaN is close to NaN.

    >>> mx.isclose(mx.array([1.0, 2.0]), mx.array([1.000001, 2.1]))
    array([True, False], dtype=bool)
    """
    return _isclose("isclose", a, b, rtol, atol, equal_nan)


def _isclose(name: str, a: Any, b: Any, rtol: Any, atol: Any, equal_nan: bool) -> Array:
    x, y = promoted(name, (a, b), inexact)
    shape = broadcasted_shape(name, (x.node.shape, y.node.shape))
    x, y = broadcast(x, shape), broadcast(y, shape)
    distance = p.absolute(p.subtract(x, y))
    size = p.absolute(y)
    relative, absolute = [_real_number(name, *one, size) for one in (("rtol", rtol), ("atol", atol))]
    allowed = p.add(p.multiply(size, relative), absolute)
    near = p.less_equal(distance, allowed)
    # For infinities the distance is NaN, or the allowed distance is infinite: only equality can decide.
    near = p.logical_and(near, p.less(size, math.inf))
    close = p.logical_or(near, p.equal(x, y))
    if not equal_nan:
        return close
    return p.logical_or(close, p.logical_and(isnan(x), isnan(y)))


@replayed
def allclose(
    a: Any,
    b: Any,
    /,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    *,
    equal_nan: bool = False,
    stream: StreamOrDevice = None,
) -> Array:
    """Whether all elements are close in the sense of `isclose`.

    Args:
        a, b, rtol, atol, equal_nan: as for `isclose`.

    >>> mx.allclose(mx.array([1.0, 2.0]), mx.array([1.000001, 2.0]))
    array(True, dtype=bool)
    """
    close = _isclose("allclose", a, b, rtol, atol, equal_nan)
    return p.all_(close, axes=tuple(range(close.node.ndim)))


@replayed
def array_equal(a: Any, b: Any, equal_nan: bool = False, stream: StreamOrDevice = None) -> Array:
    """Whether two arrays have the same shape and equal elements; dtypes are promoted.

    Args:
        a, b: arrays or numbers.
        equal_nan: whether NaN equals NaN.

    >>> mx.array_equal(mx.array([1, 2]), mx.array([1.0, 2.0]))
    array(True, dtype=bool)
    """
    x, y = promoted("array_equal", (a, b))
    if not decide_equal(x.node.shape, y.node.shape):
        return p.full((), False, dtypes.bool_)
    same = p.equal(x, y)
    if equal_nan:
        same = p.logical_or(same, p.logical_and(isnan(x), isnan(y)))
    return p.all_(same, axes=tuple(range(same.node.ndim)))


@replayed
def nan_to_num(
    a: Any,
    nan: float = 0,
    posinf: float | None = None,
    neginf: float | None = None,
    *,
    stream: StreamOrDevice = None,
) -> Array:
    """NaN and infinities replaced by numbers: by default 0, the largest and the smallest number of the dtype.

    Args:
        a: any real dtype.
        nan: what replaces NaN.
        posinf: what replaces infinity.
        neginf: what replaces minus infinity.

    Raises:
        TypeError: ``a`` is complex.

    >>> mx.nan_to_num(mx.array([mx.nan, mx.inf, 2.0]), posinf=9.0)
    array([0, 9, 2], dtype=float32)
    """
    x = array_argument("nan_to_num", a)
    dtype = x.node.dtype
    if dtype.is_complex:
        raise ArgumentTypeError("[nan_to_num] does not support complex64: apply it to mx.real and mx.imag.")
    if not dtype.is_floating:
        return fresh(x)
    limit = finfo(dtype).max
    replacements = (
        (p.not_equal(x, x), nan),
        (p.equal(x, math.inf), limit if posinf is None else posinf),
        (p.equal(x, -math.inf), -limit if neginf is None else neginf),
    )
    for is_there, value in replacements:
        x = p.select(is_there, _real_number("nan_to_num", "A replacement", value, x), x)
    return x


def _real_number(name: str, argument: str, value: Any, like: Array) -> Any:
    """A number, or an array that is broadcast to the shape of ``like`` and converted to its dtype."""
    if isinstance(value, Handle):
        shape = like.node.shape
        if not agree(broadcasted_shape(name, [shape, value.node.shape]), shape):
            raise ValueError(
                f"[{name}] {argument} must be a number; its shape {shape_text(value.node.shape)} is larger than that "
                f"of the result, {shape_text(shape)}."
            )
        return broadcast(to_dtype(value, like.node.dtype), shape)
    return real_number(name, argument, value)
