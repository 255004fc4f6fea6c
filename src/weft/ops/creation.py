"""Arrays made from a shape, a range or a number."""

from __future__ import annotations

import math
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.checks import one_of
from weft.dtypes import Dtype, as_dtype
from weft.graph.extents import AnyExtent, agree, decide_equal, fixed, identical, largest
from weft.graph.node import Shape
from weft.ops.arguments import (
    Array,
    array_argument,
    array_of,
    broadcast,
    broadcast_anew,
    broadcasted_shape,
    checked_extents,
    count_of,
    dtype_behind,
    integer_of,
    real_number,
    shape_of,
    shape_text,
    to_dtype,
)
from weft.ops.convert import fits, python_scalar
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "arange",
    "bartlett",
    "blackman",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "hamming",
    "hanning",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


def _filled(name: str, shape: Any, value: complex, dtype: Dtype | None) -> Array:
    extents = checked_extents(name, shape_of(name, shape))
    return p.full(extents, value, dtypes.float32 if dtype is None else dtype_behind(name, shape, dtype))


@replayed
def zeros(
    shape: Any,
    dtype: Dtype | None = dtypes.float32,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """An array of zeros.

    Args:
        shape: an int or a sequence of ints.
        dtype: the dtype of the elements.

    >>> mx.zeros((2, 3))
    array([[0, 0, 0],
           [0, 0, 0]], dtype=float32)
    """
    return _filled("zeros", shape, 0, dtype)


@replayed
def ones(
    shape: Any,
    dtype: Dtype | None = dtypes.float32,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """An array of ones.

    Args:
        shape: an int or a sequence of ints.
        dtype: the dtype of the elements.

    >>> mx.ones(3, mx.int32)
    array([1, 1, 1], dtype=int32)
    """
    return _filled("ones", shape, 1, dtype)


@replayed
def empty(
    shape: Any,
    dtype: Dtype | None = dtypes.float32,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """An array with arbitrary values; here they are zeros.

    Args:
        shape: an int or a sequence of ints.
        dtype: the dtype of the elements.

    >>> mx.empty((2, 3)).shape
    (2, 3)
    """
    return _filled("empty", shape, 0, dtype)


@replayed
def full(
    shape: Any,
    vals: Any = None,
    dtype: Dtype | None = None,
    *,
    fill_value: Any = None,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """An array of one value, or of an array that is broadcast to ``shape``.

    Args:
        shape: an int or a sequence of ints.
        vals: a number or an array; ``fill_value`` is its name in the array API standard.
        dtype: that of ``vals`` by default.

    Raises:
        ValueError: ``vals`` does not broadcast to ``shape``.

    >>> mx.full((2, 2), 0.5)
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    value = fill_value if vals is None else vals
    behind: Any = dtype
    if isinstance(vals, int) and isinstance(behind, int):
        dtype_behind("full", shape, vals)  # raises if the shape is an int as well
    return _full("full", checked_extents("full", shape_of("full", shape)), value, dtype)


def _full(name: str, shape: Shape, vals: Any, dtype: Dtype | None) -> Array:
    scalar = python_scalar(vals)
    target = None if dtype is None else as_dtype(dtype)
    if scalar is not None and not (isinstance(scalar, (float, complex)) and target and not target.is_inexact):
        x = array_of(name, "vals", scalar, target)
    else:
        x = array_argument(name, vals, "vals")
        x = x if target is None else to_dtype(x, target)
    if not x.node.shape:
        return p.fill(x, shape)
    if not agree(broadcasted_shape(name, (x.node.shape, shape)), shape):
        raise ValueError(
            f"[{name}] Values of shape {shape_text(x.node.shape)} do not broadcast to {shape_text(shape)}."
        )
    return broadcast_anew(x, shape)


def _like(name: str, a: Any, value: complex, dtype: Dtype | None) -> Array:
    x = array_argument(name, a)
    return p.full(x.node.shape, value, x.node.dtype if dtype is None else as_dtype(dtype))


@replayed
def zeros_like(
    a: Array,
    /,
    dtype: Dtype | None = None,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Zeros in the shape of ``a``, and in its dtype unless another one is given.

    Args:
        dtype: of the elements; by default that of ``a``.

    >>> mx.zeros_like(mx.array([1, 2]))
    array([0, 0], dtype=int32)
    """
    return _like("zeros_like", a, 0, dtype)


@replayed
def ones_like(
    a: Array,
    /,
    dtype: Dtype | None = None,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Ones in the shape of ``a``, and in its dtype unless another one is given.

    Args:
        dtype: of the elements; by default that of ``a``.

    >>> mx.ones_like(mx.array([1, 2]), mx.float16)
    array([1, 1], dtype=float16)
    """
    return _like("ones_like", a, 1, dtype)


@replayed
def empty_like(
    a: Array,
    /,
    dtype: Dtype | None = None,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """An array in the shape of ``a`` with arbitrary values; here they are zeros.

    Args:
        dtype: of the elements; by default that of ``a``.

    >>> mx.empty_like(mx.array([1, 2])).dtype
    weft.core.int32
    """
    return _like("empty_like", a, 0, dtype)


@replayed
def full_like(
    a: Array,
    vals: Any = None,
    dtype: Dtype | None = None,
    *,
    fill_value: Any = None,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """An array of one value in the shape of ``a``, and in its dtype unless another one is given.

    Args:
        vals: the value, or an array that broadcasts to the shape.
        dtype: of the elements; by default that of ``a``.
        fill_value: another name of ``vals``.

    >>> mx.full_like(mx.array([1, 2]), 7)
    array([7, 7], dtype=int32)
    """
    x = array_argument("full_like", a)
    value = fill_value if vals is None else vals
    return _full("full_like", x.node.shape, value, x.node.dtype if dtype is None else dtype)


@replayed
def arange(
    start: float | None = None,
    stop: float | None = None,
    step: float | None = None,
    dtype: Dtype | None = None,
    *,
    device: StreamOrDevice = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Numbers from ``start`` in steps of ``step``, up to but without ``stop``; a single argument is ``stop``.

    Args:
        dtype: by default int32 (int64 for larger limits) if all numbers are ints, else float32. If it is an integer
            dtype and the numbers are floats, the first two elements are rounded towards zero, and the difference
            between them is the step.

    Raises:
        ValueError: the step is zero, or the number of elements is not finite.

    >>> mx.arange(5)
    array([0, 1, 2, 3, 4], dtype=int32)
    >>> mx.arange(1.0, 2.0, 0.25)
    array([1, 1.25, 1.5, 1.75], dtype=float32)
    """
    begin, end = (0, start) if stop is None else (0 if start is None else start, stop)
    by = 1 if step is None else step
    begin, end, by = [real_number("arange", word, one) for word, one in (("start", begin), ("stop", end), ("step", by))]
    if decide_equal(by, 0):
        raise ValueError("[arange] The step must not be zero.")
    if dtype is None:
        dtype = _dtype_of_range(begin, end, by)
    elif as_dtype(dtype).is_bool:
        raise ValueError("[arange] A range of booleans has no meaning: use another dtype.")
    return _progression(_count(begin, end, by), begin, by, dtype)


def _dtype_of_range(begin: Any, end: Any, by: Any) -> Dtype:
    if any(isinstance(one, float) for one in (begin, end, by)):
        return dtypes.float32
    for limits in (dtypes.int32, dtypes.int64):
        if all(fits(one, limits) for one in (begin, end, by)):
            return limits
    raise ValueError("[arange] Whole numbers of more than 64 bits make no range: use floats.")


def _count(begin: Any, end: Any, by: Any) -> AnyExtent:
    if not any(isinstance(one, float) for one in (begin, end, by)):
        return largest(0, -((begin - end) // by))
    span = _ratio(_distance(begin, end), fixed(by))
    if not math.isfinite(span):
        raise ValueError(f"[arange] From {begin} to {end} in steps of {by} there is no finite number of elements.")
    return max(0, math.ceil(span))


def _distance(begin: Any, end: Any) -> float:
    """The distance from ``begin`` to ``end`` as a number that can be divided; symbolic extents in it become fixed."""
    if isinstance(begin, float) or isinstance(end, float):
        begin, end = fixed(begin), fixed(end)
    return fixed(end - begin)


def _ratio(distance: float, step: float) -> float:
    try:
        return distance / step
    except OverflowError:  # dividing large ints raises, where floats would give infinity
        return math.inf


def _progression(count: AnyExtent, begin: Any, by: Any, dtype: Dtype) -> Array:
    """``begin + by * i``. Floating-point numbers are computed in float64 and rounded once; integers continue with the
    difference of the first two."""
    whole = dtype.is_integer
    if whole and any(isinstance(one, float) for one in (begin, by)):
        second = int(fixed(begin) + fixed(by))
        begin = int(fixed(begin))
        by = second - begin
    x = p.iota(shape=(count,), axis=0, dtype=dtype if whole else dtypes.float64)
    if not identical(by, 1):
        x = p.multiply(x, by)
    if not identical(begin, 0):
        x = p.add(x, begin)
    return to_dtype(x, dtype)


@replayed
def linspace(
    start: complex,
    stop: complex,
    num: int = 50,
    endpoint: bool = True,
    dtype: Dtype | None = dtypes.float32,
    stream: StreamOrDevice = None,
    *,
    device: StreamOrDevice = None,
) -> Array:
    """``num`` numbers at equal distances from ``start`` to ``stop``.

    Args:
        start, stop: numbers. If one is complex, the result is complex64.
        num: how many numbers.
        endpoint: whether ``stop`` is the last number; otherwise it would be the next one.
        dtype: the dtype of the elements.

    Raises:
        ValueError: ``num`` is negative, or ``start`` or ``stop`` is complex and ``dtype`` neither the default nor
            complex64.

    >>> mx.linspace(0, 1, 5)
    array([0, 0.25, 0.5, 0.75, 1], dtype=float32)
    """
    num = count_of("linspace", "num", num)
    target = dtypes.float32 if dtype is None else as_dtype(dtype)
    bounds = [python_scalar(value) for value in (start, stop)]
    if not any(isinstance(bound, complex) for bound in bounds):
        begin, end = real_number("linspace", "start", start), real_number("linspace", "stop", stop)
        return to_dtype(_equidistant(begin, end, num, endpoint), target)
    if target not in (dtypes.float32, dtypes.complex64):
        raise ValueError(
            f"[linspace] There are no complex numbers in {target.name}; leave dtype out, or say complex64."
        )
    begin, end = [complex(bound) for bound in bounds]
    parts = [_equidistant(*ends, num, endpoint) for ends in ((begin.real, end.real), (begin.imag, end.imag))]
    real, imag = [to_dtype(part, dtypes.complex64) for part in parts]
    return p.add(real, p.multiply(imag, 1j))


def _equidistant(begin: Any, end: Any, num: int, endpoint: bool) -> Array:
    """`linspace` of real numbers, in float64."""
    steps = max(num - 1 if endpoint else num, 1)
    index = p.iota(shape=(num,), axis=0, dtype=dtypes.float64)
    x = p.add(p.multiply(index, _ratio(_distance(begin, end), steps)), begin)
    return p.select(p.equal(index, num - 1), end, x) if endpoint and num > 1 else x


@replayed
def meshgrid(
    *arrays: Array, sparse: bool | None = False, indexing: str | None = "xy", stream: StreamOrDevice = None
) -> tuple[Array, ...]:
    """Coordinates of the grid of several vectors: one array per vector, with one axis per vector.

    Args:
        arrays: vectors; others are flattened.
        sparse: leave the other axes at extent 1.
        indexing: ``"ij"``; or ``"xy"``, with the first two axes exchanged.

    >>> x, y = mx.meshgrid(mx.array([1, 2]), mx.array([3, 4, 5]))
    >>> x
    array([[1, 2],
           [1, 2],
           [1, 2]], dtype=int32)
    """
    one_of("meshgrid", "indexing", indexing, ("xy", "ij"))
    vectors = [array_argument("meshgrid", one, f"argument {n}") for n, one in enumerate(arrays, 1)]
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = [1, 0]
    grids = []
    for x, own_axis in zip(vectors, order, strict=True):
        shape = tuple([x.node.size if axis == own_axis else 1 for axis in range(len(vectors))])
        grids.append(p.reshape(x, shape=shape))
    if sparse:
        return tuple(grids)
    shape = broadcasted_shape("meshgrid", [x.node.shape for x in grids])
    return tuple([broadcast(x, shape) for x in grids])


def _window(name: str, M: int, weights: tuple[float, ...]) -> Array:
    """The sum of ``weights[k] * cos(2 pi k i / (M - 1))`` for i from 0 to M - 1."""
    M = integer_of(name, "M", M)
    if M <= 1:
        return p.ones((max(M, 0),), dtypes.float32)
    index = p.iota(shape=(M,), axis=0, dtype=dtypes.float64)
    total = p.full((M,), weights[0], dtypes.float64)
    for k, weight in enumerate(weights[1:], 1):
        wave = p.cos(p.multiply(index, 2 * math.pi * k / (M - 1)))
        total = p.add(total, p.multiply(wave, weight))
    return p.cast(total, dtype=dtypes.float32)


@replayed
def hanning(M: int, *, stream: StreamOrDevice = None) -> Array:
    """The Hann window of M points, 0.5 - 0.5 cos(2 pi i / (M - 1)).

    >>> mx.hanning(5)
    array([0, 0.5, 1, 0.5, 0], dtype=float32)
    """
    return _window("hanning", M, (0.5, -0.5))


@replayed
def hamming(M: int, *, stream: StreamOrDevice = None) -> Array:
    """The Hamming window of M points, 0.54 - 0.46 cos(2 pi i / (M - 1)).

    >>> mx.hamming(3)
    array([0.08, 1, 0.08], dtype=float32)
    """
    return _window("hamming", M, (0.54, -0.46))


@replayed
def blackman(M: int, *, stream: StreamOrDevice = None) -> Array:
    """The Blackman window of M points, 0.42 - 0.5 cos(2 pi i / (M - 1)) + 0.08 cos(4 pi i / (M - 1)).

    >>> mx.blackman(5).tolist()[2]
    1.0
    """
    return _window("blackman", M, (0.42, -0.5, 0.08))


@replayed
def bartlett(M: int, *, stream: StreamOrDevice = None) -> Array:
    """The Bartlett (triangular) window of M points, 1 - abs(2 i / (M - 1) - 1).

    >>> mx.bartlett(5)
    array([0, 0.5, 1, 0.5, 0], dtype=float32)
    """
    M = integer_of("bartlett", "M", M)
    if M <= 1:
        return p.ones((max(M, 0),), dtypes.float32)
    index = p.iota(shape=(M,), axis=0, dtype=dtypes.float64)
    centred = p.subtract(p.multiply(index, 2 / (M - 1)), 1)
    return p.cast(p.subtract(1, p.absolute(centred)), dtype=dtypes.float32)
