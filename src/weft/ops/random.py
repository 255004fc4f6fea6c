"""Random numbers: pure functions of a key.

A key is an array ``uint32[2]``. Without one, a function takes the next key of the global generator. The state of that
generator is an array in the list `state`: a compiled function that draws numbers names the list as its input and
output. For a given key the numbers have the bits of MLX 0.32 on Linux, for any device, fusion and number of threads.
There are two exceptions: `multivariate_normal` rounds as LAPACK does, and `laplace` has the bits that MLX has with
glibc before 2.41, because MLX takes ``log1p`` from the C library, and later versions round one number in 14 differently
in the last bit.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import shortened
from weft.dtypes import Dtype
from weft.errors import ArgumentTypeError
from weft.graph.extents import agree, decide_equal, product
from weft.graph.node import Handle, Shape
from weft.ops import arithmetic
from weft.ops.arguments import (
    Array,
    array_argument,
    axis_of,
    broadcast,
    broadcasted_shape,
    checked_extents,
    dtype_behind,
    integer_of,
    real_number,
    shape_of,
    shape_text,
    to_dtype,
)
from weft.ops.generator import (
    difference,
    drawing,
    key,
    random_words,
    seed,
    split,
    state,
    symmetric_interval,
    unit_interval,
)
from weft.ops.indexing import take
from weft.runtime.devices import StreamOrDevice

__all__ = [
    "bernoulli",
    "categorical",
    "gumbel",
    "key",
    "laplace",
    "normal",
    "permutation",
    "randint",
    "seed",
    "split",
    "state",
    "truncated_normal",
    "uniform",
]


def _floating(name: str, shape: Any, dtype: Dtype | None) -> Dtype:
    dtype = dtypes.float32 if dtype is None else dtype_behind(name, shape, dtype)
    if not dtype.is_floating:
        raise ValueError(f"[{name}] The dtype must be a real floating one such as mx.float32, not {dtype.name}.")
    return dtype


def _parameter(name: str, argument: str, value: Any, dtype: Dtype) -> Any:
    """A parameter of a distribution: a number unchanged, an array converted to ``dtype``."""
    if isinstance(value, complex) and dtype.is_complex:
        return value
    if isinstance(value, (builtins.bool, int, float, complex)):
        return real_number(name, argument, value)
    return to_dtype(array_argument(name, value, argument), dtype)


def _shape_with(name: str, shape: Shape, parameters: Sequence[Any]) -> Shape:
    """``shape``, to which the parameters must broadcast."""
    shapes = [x.node.shape for x in parameters if isinstance(x, Handle)]
    joint = broadcasted_shape(name, [*shapes, shape])
    if not agree(joint, shape):
        raise ValueError(
            f"[{name}] The parameters have the shape {shape_text(joint)} together, which does not fit "
            f"shape={shape_text(shape)}. Ask for shape={shape_text(joint)}."
        )
    return shape


def _spread(x: Any, shape: Shape) -> Any:
    return broadcast(x, shape) if isinstance(x, Handle) else x


@drawing
def uniform(
    low: Any = 0,
    high: Any = 1,
    shape: Sequence[int] = (),
    dtype: Dtype | None = dtypes.float32,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Numbers uniformly distributed from ``low`` to ``high``.

    Args:
        low, high: numbers, or arrays that broadcast to ``shape``; ``high`` is excluded, except by rounding.
        shape: the shape of the result.
        dtype: a real floating dtype.
        key: see `key`; None for the next one of the global generator.

    Raises:
        ValueError: the dtype is not floating, or ``low`` and ``high`` do not broadcast to ``shape``.

    >>> mx.random.uniform(shape=(3,), key=mx.random.key(42))
    array([0.574144, 0.100158, 0.0594612], dtype=float32)
    """
    dtype = _floating("uniform", shape, dtype)
    return _uniform("uniform", low, high, shape_of("uniform", shape), dtype, key)


def _uniform(name: str, low: Any, high: Any, shape: Shape, dtype: Dtype, key: Any) -> Array:
    low, high = _parameter(name, "low", low, dtype), _parameter(name, "high", high, dtype)
    unit = unit_interval(name, _shape_with(name, shape, (low, high)), dtype, key)
    if isinstance(low, Handle) or isinstance(high, Handle):
        width = _spread(arithmetic.subtract(high, low), shape)
        return p.add(p.multiply(unit, width), _spread(low, shape))
    if low == 0 and high == 1:
        return unit
    return p.add(p.multiply(unit, difference(high, low, dtype)), low)


@drawing
def normal(
    shape: Sequence[int] = (),
    dtype: Dtype | None = dtypes.float32,
    loc: Any = None,
    scale: Any = None,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Numbers of the normal distribution with mean ``loc`` and standard deviation ``scale``.

    They are ``loc + scale * sqrt(2) * erfinv(u)`` with ``u`` uniform between -1 and 1. Complex numbers have independent
    parts, and ``scale`` is the square root of the mean of ``|z - loc|**2``.

    Args:
        shape: the shape of the result, before ``loc`` and ``scale`` are broadcast with it.
        dtype: a floating dtype or ``mx.complex64``.
        loc, scale: numbers or arrays; None for 0 and 1.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.normal((3,), key=mx.random.key(42))
    array([0.186936, -1.28065, -1.55931], dtype=float32)
    """
    dtype = dtypes.float32 if dtype is None else dtype_behind("normal", shape, dtype)
    extents = shape_of("normal", shape)
    loc, scale = [
        None if value is None else _parameter("normal", argument, value, dtype)
        for argument, value in (("loc", loc), ("scale", scale))
    ]
    broadcasted_shape("normal", [extents, *[x.node.shape for x in (loc, scale) if isinstance(x, Handle)]])
    if dtype.is_complex:
        result, unit = _complex_standard(extents, key), 1.0
    elif dtype.is_floating:
        u = symmetric_interval("normal", extents, key)
        result, unit = to_dtype(p.random_erfinv(u), dtype), math.sqrt(2)
    else:
        raise ValueError(f"[normal] The dtype must be a floating one or mx.complex64, not {dtype.name}.")
    result = arithmetic.multiply(result, _scaled(unit, scale, dtype))
    return result if loc is None else arithmetic.add(result, loc)


def _scaled(unit: float, scale: Any, dtype: Dtype) -> Any:
    """``unit * scale``, rounded once to ``dtype``."""
    if scale is None:
        return unit
    if isinstance(scale, Handle):
        return arithmetic.multiply(scale, unit)
    rounded = dtype.numpy.type
    with np.errstate(all="ignore"):
        return (rounded(scale) * rounded(unit)).item()


def _complex_standard(shape: Shape, key: Any) -> Array:
    """Complex numbers whose parts have the variance 1/2."""
    parts = p.random_erfinv(symmetric_interval("normal", (*shape, 2), key))
    starts, steps, axis = (0,) * len(shape), (1,) * (len(shape) + 1), len(shape)
    real, imag = (
        p.cast(
            p.squeeze(p.slice_(parts, starts=(*starts, part), sizes=(*shape, 1), steps=steps), axes=(axis,)),
            dtype=dtypes.complex64,
        )
        for part in (0, 1)
    )
    return p.add(real, p.multiply(imag, 1j))


@drawing
def truncated_normal(
    lower: Any,
    upper: Any,
    shape: Sequence[int] | None = None,
    dtype: Dtype | None = dtypes.float32,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Numbers of the standard normal distribution truncated to the range from ``lower`` to ``upper``.

    Args:
        lower, upper: numbers or arrays.
        shape: the shape of the result; None for the common shape of ``lower`` and ``upper``.
        dtype: a real floating dtype.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.truncated_normal(-1, 2, (3,), key=mx.random.key(42))
    array([0.328272, -0.704232, -0.815721], dtype=float32)
    """
    dtype = _floating("truncated_normal", shape, dtype)
    low, high = (
        to_dtype(array_argument("truncated_normal", bound, argument), dtype)
        for bound, argument in ((lower, "lower"), (upper, "upper"))
    )
    joint = broadcasted_shape("truncated_normal", [low.node.shape, high.node.shape])
    extents = joint if shape is None else shape_of("truncated_normal", shape)
    root = math.sqrt(2)
    ends = [p.random_erf(p.divide(bound, root)) for bound in (low, high)]
    u = _uniform("truncated_normal", ends[0], ends[1], extents, dtype, key)
    result = p.multiply(p.random_erfinv(u), root)
    result = p.minimum(result, broadcast(high, extents))
    return p.maximum(result, broadcast(low, extents))


@drawing
def gumbel(
    shape: Sequence[int] = (),
    dtype: Dtype | None = dtypes.float32,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Numbers of the standard Gumbel distribution: ``-log(-log(u))`` with ``u`` uniform between 0 and 1.

    Args:
        shape: the shape of the result.
        dtype: a real floating dtype.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.gumbel((3,), key=mx.random.key(42))
    array([0.589014, -0.833346, -1.0376], dtype=float32)
    """
    return _gumbel("gumbel", shape_of("gumbel", shape), _floating("gumbel", shape, dtype), key)


def _gumbel(name: str, shape: Shape, dtype: Dtype, key: Any) -> Array:
    x = unit_interval(name, shape, dtype, key)
    for _ in range(2):
        x = p.negative(p.random_log(x))
    return x


@drawing
def laplace(
    shape: Sequence[int] = (),
    dtype: Dtype | None = dtypes.float32,
    loc: float = 0.0,
    scale: float = 1.0,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Numbers of the Laplace distribution, whose density is ``exp(-|x - loc| / scale) / (2 * scale)``.

    Args:
        shape: the shape of the result.
        dtype: a real floating dtype.
        loc, scale: the mean and the width of the distribution.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.laplace((3,), key=mx.random.key(42))
    array([-0.160508, 1.60786, 2.12928], dtype=float32)
    """
    dtype = _floating("laplace", shape, dtype)
    loc, scale = real_number("laplace", "loc", loc), real_number("laplace", "scale", scale)
    u = symmetric_interval("laplace", shape_of("laplace", shape), key)
    u = to_dtype(u, dtypes.promote(dtypes.float32, dtype))
    size = p.random_log1p(p.negative(p.absolute(u)))
    result = to_dtype(p.multiply(p.sign(u), size), dtype)
    if scale != 1:
        result = p.multiply(result, scale)
    return p.add(result, loc) if loc != 0 else result


@drawing
def bernoulli(
    p: Any = 0.5,
    shape: Sequence[int] | None = None,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Booleans that are True with probability ``p``.

    Args:
        p: a float or a floating array that broadcasts to ``shape``.
        shape: the shape of the result; None for that of ``p``.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.bernoulli(0.3, (5,), key=mx.random.key(42))
    array([False, False, True, True, True], dtype=bool)
    """
    probability = array_argument("bernoulli", p, "p")
    if not probability.node.dtype.is_floating:
        raise ValueError(f"[bernoulli] The probability p must be floating, not {probability.node.dtype.name}.")
    extents = probability.node.shape if shape is None else shape_of("bernoulli", shape)
    _shape_with("bernoulli", extents, (probability,))
    return _is_below(unit_interval("bernoulli", extents, dtypes.float32, key), probability)


def _is_below(unit: Array, probability: Array) -> Array:
    dtype = dtypes.promote(dtypes.float32, probability.node.dtype)
    bound = broadcast(to_dtype(probability, dtype), unit.node.shape)
    return p.less(to_dtype(unit, dtype), bound)


@drawing
def randint(
    low: Any,
    high: Any,
    shape: Sequence[int] = (),
    dtype: Dtype | None = dtypes.int32,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Integers uniformly distributed from ``low`` (included) to ``high`` (excluded).

    They are computed from float32 numbers, so in ranges wider than 2**24 not every integer occurs.

    Args:
        low, high: numbers, or arrays that broadcast to ``shape``. If no integer lies between them, the result is
            ``low``.
        shape: the shape of the result.
        dtype: an integer dtype, or ``mx.bool_``.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.randint(0, 10, (5,), key=mx.random.key(42))
    array([7, 8, 1, 2, 1], dtype=int32)
    """
    dtype = dtypes.int32 if dtype is None else dtype_behind("randint", shape, dtype)
    if not (dtype.is_integer or dtype.is_bool):
        raise ValueError(f"[randint] The dtype must be an integer one, not {dtype.name}.")
    extents = shape_of("randint", shape)
    _check_range(low, high, dtype)
    numbers = p.floor(_uniform("randint", low, high, extents, dtypes.float32, key))
    result = p.cast(numbers, dtype=dtype)
    first, last = _bound(low, 0, dtype), _bound(high, 1, dtype)
    result = p.minimum(result, _spread(last, extents))
    return p.maximum(result, _spread(first, extents))


def _check_range(low: Any, high: Any, dtype: Dtype) -> None:
    lowest, highest = (0, 1) if dtype.is_bool else (dtype.lowest, dtype.highest)
    for name, bound, most in (("low", low, highest), ("high", high, highest + 1)):
        if isinstance(bound, (int, float)) and not lowest <= bound <= most:
            raise ValueError(
                f"[randint] {name}={shortened(bound)} does not fit {dtype.name}, which holds {lowest} to {highest}."
            )


def _bound(value: Any, less: int, dtype: Dtype) -> Any:
    """A bound in ``dtype``; numbers that are not arrays are rounded towards zero."""
    if isinstance(value, (int, float)):
        return int(value) - less
    whole = to_dtype(array_argument("randint", value), dtypes.int64)
    return to_dtype(p.subtract(whole, less), dtype)


@drawing
def categorical(
    logits: Array,
    axis: int = -1,
    shape: Sequence[int] | None = None,
    num_samples: int | None = None,
    key: Array | None = None,
    stream: StreamOrDevice = None,
) -> Array:
    """Indices along ``axis``, drawn with probabilities proportional to ``exp(logits)``.

    The index is the argmax of the logits plus Gumbel noise. If there is a single row and the result is not 0-d, it is
    the index at which the running sum of ``exp(logits - max(logits))`` exceeds a uniform number times the total.

    Args:
        logits: unnormalised logarithms of probabilities.
        axis: the axis of the categories.
        shape: the shape of the result; the shape of ``logits`` without ``axis`` must broadcast to it.
        num_samples: how many indices are drawn for each row, as a new last axis; instead of ``shape``.
        key: see `key`; None for the next one of the global generator.

    Returns:
        ``uint32`` indices, by default in the shape of ``logits`` without ``axis``.

    >>> mx.random.categorical(mx.array([[0.1, 2.0, -1.0], [3.0, 1.0, 2.0]]), key=mx.random.key(42))
    array([1, 0], dtype=uint32)
    """
    if shape is not None and num_samples is not None:
        raise ValueError("[categorical] Give either shape or num_samples, not both.")
    x = array_argument("categorical", logits, "logits")
    if x.node.dtype.is_complex:
        raise ArgumentTypeError("[categorical] does not support complex64.")
    x_shape = x.node.shape
    along = axis_of("categorical", axis, len(x_shape))
    if agree(x_shape[along], 0):
        raise ValueError(f"[categorical] logits of shape {shape_text(x_shape)} have no categories along axis {along}.")
    rows = (*x_shape[:along], *x_shape[along + 1 :])
    result = _rows_drawn(rows, shape, num_samples)
    if result and decide_equal(product(rows), 1):
        return _of_one_row(x, result, key)
    if num_samples is not None:
        x = p.expand(x, axes=(len(x_shape),))
    front = along + len(result) - len(rows) if num_samples is None else along
    drawn = (*result[:front], x_shape[along], *result[front:])
    noise = _gumbel("categorical", drawn, dtypes.float32, key)
    return p.argmax(arithmetic.add(x, noise), axes=(front,))


def _rows_drawn(rows: Shape, shape: Sequence[int] | None, num_samples: int | None) -> Shape:
    """The shape of the result."""
    if num_samples is not None:
        return checked_extents("categorical", (*rows, integer_of("categorical", "num_samples", num_samples)))
    result = rows if shape is None else shape_of("categorical", shape)
    if not decide_equal(broadcasted_shape("categorical", [rows, result]), result):
        raise ValueError(f"[categorical] Rows of shape {shape_text(rows)} do not fit shape={shape_text(result)}.")
    return result


def _of_one_row(logits: Array, shape: Shape, key: Any) -> Array:
    """Indices drawn from one row: how many running sums of its probabilities are at most a uniform number."""
    count = logits.node.size
    row = to_dtype(p.reshape(logits, shape=(count,)), dtypes.float32)
    most = broadcast(p.max_(row, axes=(0,)), row.node.shape)
    weights = p.select(p.equal(row, most), 1.0, p.random_exp(p.subtract(row, most)))
    sums = p.sequential_cumsum(weights, axis=0, reverse=False, inclusive=True)
    total = p.squeeze(p.slice_(sums, starts=(count - 1,), sizes=(1,), steps=(1,)), axes=(0,))
    unit = unit_interval("categorical", shape, dtypes.float32, key)
    level = p.multiply(unit, broadcast(total, shape))
    grid = (*shape, count)
    levels = p.broadcast(p.expand(level, axes=(len(shape),)), shape=grid)
    is_reached = p.logical_not(p.greater(broadcast(sums, grid), levels))
    index = p.sum(p.cast(is_reached, dtype=dtypes.uint32), axes=(len(shape),))
    return p.minimum(index, count - 1)


@drawing
def permutation(x: Any, axis: int = 0, key: Array | None = None, stream: StreamOrDevice = None) -> Array:
    """The numbers 0 to ``x - 1``, or the entries of an array along ``axis``, in random order.

    Args:
        x: an int, or an array of at least one axis.
        axis: the axis along which an array is reordered.
        key: see `key`; None for the next one of the global generator.

    >>> mx.random.permutation(5, key=mx.random.key(42))
    array([4, 2, 3, 0, 1], dtype=uint32)
    """
    if not isinstance(x, Handle):
        count = integer_of("permutation", "x (if it is no array)", x)
        return _order(random_words("permutation", (count,), key))
    along = axis_of("permutation", axis, x.node.ndim)
    order = _order(random_words("permutation", (x.node.shape[along],), key))
    return take(x, order, axis=along)


def _order(words: Array) -> Array:
    """The indices that put ``words`` in ascending order; equal words keep their order."""
    return p.argsort(words, start=0, count=words.node.shape[0])
