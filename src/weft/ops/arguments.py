"""What public functions do with their arguments before a primitive gets them: promotion, broadcasting, axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import weft.primitives as p
from weft import checks, dtypes
from weft.checks import wrong_type
from weft.dtypes import Dtype, as_dtype
from weft.errors import ArgumentTypeError, AxisError, TraceError
from weft.graph.extents import AnyExtent, identical, joint_extent, values_of
from weft.graph.location import user_location
from weft.graph.node import Handle, Shape, new_node, wrap
from weft.graph.symbolic import AmbiguousExtentError, SymbolicExtent
from weft.graph.tracing import trace_of
from weft.ops.convert import as_array, python_scalar, scalar_dtype
from weft.ops.entrance import call_on
from weft.ops.replays import replayed
from weft.primitives.base import Array, Elementwise
from weft.primitives.conversions import to_dtype
from weft.runtime.devices import StreamOrDevice, current_stream

Widen = Callable[[Dtype], Dtype]

__all__ = [
    "Array",
    "array_argument",
    "array_of",
    "as_sequence",
    "axes_of",
    "axis_of",
    "binary",
    "broadcast",
    "broadcast_all",
    "broadcast_anew",
    "broadcasted_shape",
    "checked_extents",
    "count_of",
    "dimensions_text",
    "distinct_axes",
    "dtype_behind",
    "entries_of",
    "extent_constant",
    "fresh",
    "inexact",
    "integer_of",
    "promoted",
    "real_number",
    "refuse_traced",
    "sequence_of",
    "shape_of",
    "shape_text",
    "to_dtype",
    "unary",
]

_new_constant = p.constant.make
_USUAL = 1 << 62  # plain ints below it are known to fit 64 bits


def inexact(dtype: Dtype) -> Dtype:
    """``dtype`` if it is floating or complex, else float32: the dtype that functions such as sin compute in."""
    return dtype if dtype.is_inexact else dtypes.float32


def _no_array(name: str, argument: str, value: Any, error: Exception | None = None) -> TypeError:
    if isinstance(value, np.ndarray) and error is not None:
        return ArgumentTypeError(f"[{name}] {argument}: {error}")
    remedy = " Make an array of it with mx.array." if isinstance(value, (list, tuple)) else ""
    return ArgumentTypeError(f"{wrong_type(name, argument, 'an array, a number or NumPy data', value)}{remedy}")


def array_argument(name: str, value: Any, argument: str = "a") -> Array:
    """The array that a user passed, or an array of the number or NumPy data."""
    if isinstance(value, Handle):
        return value
    return array_of(name, argument, value)


def array_of(name: str, argument: str, value: Any, dtype: Dtype | None = None) -> Array:
    """An array of a number or of NumPy data; see `as_array`."""
    if value is None or isinstance(value, (list, tuple)):
        raise _no_array(name, argument, value)
    try:
        return as_array(value, dtype)
    except TypeError as error:
        raise _no_array(name, argument, value, error) from error
    except ValueError as error:
        if python_scalar(value) is not None:
            raise _unfit(name, argument, value, error) from None
        raise


def _word(words: Sequence[str], position: int) -> str:
    return words[position] if position < len(words) else f"argument {position + 1}"


def _unfit(name: str, argument: str, value: Any, error: Exception) -> Exception:
    """The error for a scalar that is no number, or that does not fit the dtype it would get."""
    if isinstance(error, TypeError):
        return _no_array(name, argument, value)
    return ValueError(f"[{name}] {argument}: {error}.")


def fresh(x: Array) -> Array:
    """A new handle of the same node, because a function must not return the handle that its caller passed."""
    return wrap(x.node)


def unary(primitive: Elementwise, a: Any, stream: StreamOrDevice, widen: Widen | None = None) -> Array:
    """An elementwise primitive of one array, in the dtype that ``widen`` returns for the array's dtype."""
    x = a if isinstance(a, Handle) else array_of(primitive.name, "a", a)
    if stream is not None:
        return call_on(stream, unary, primitive, x, None, widen)
    node = x.node
    dtype = node.dtype
    if dtype.is_floating and primitive.result is None:
        return wrap(new_node(primitive, (node,), (), node.shape, dtype, current_stream()))
    if widen is not None:
        wide = widen(dtype)
        if wide is not dtype:
            x = p.cast(x, dtype=wide)
    return primitive(x)


def binary(primitive: Elementwise, a: Any, b: Any, stream: StreamOrDevice, widen: Widen | None = None) -> Array:
    """An elementwise primitive of two arrays or numbers, promoted and broadcast.

    Two arrays of one dtype and one shape, or an array and a number that does not change its dtype, take a short path.
    """
    if stream is not None:
        return call_on(stream, binary, primitive, a, b, None, widen)
    try:
        if isinstance(a, Handle):
            x = a.node
            dtype, shape = x.dtype, x.shape
            if isinstance(b, Handle):
                y = b.node
                short = y.dtype is dtype and y.shape == shape
            else:
                kind = type(b)
                short = (kind is float or kind is int) and (dtype.is_floating or _is_integer_of(dtype, b))
                if short:
                    y = _new_constant(b, dtype)
        elif isinstance(b, Handle):
            y = b.node
            dtype, shape = y.dtype, y.shape
            kind = type(a)
            short = (kind is float or kind is int) and (dtype.is_floating or _is_integer_of(dtype, a))
            if short:
                x = _new_constant(a, dtype)
        else:
            short = False
    except (OverflowError, AmbiguousExtentError):
        short = False  # a number outside the dtype, or symbolic extents: the general path decides
    if not short or dtype not in primitive.accepted or not (widen is None or widen(dtype) is dtype):
        return _general_binary(primitive, a, b, widen)
    result = primitive.result
    if result is not None:
        dtype = result if type(result) is Dtype else primitive.value_dtype(dtype)
    return wrap(new_node(primitive, (x, y), (), shape, dtype, current_stream()))


def _is_integer_of(dtype: Dtype, number: float) -> bool:
    return type(number) is int and dtype.is_integer and dtype.lowest <= number <= dtype.highest


@replayed
def _general_binary(primitive: Elementwise, a: Any, b: Any, widen: Widen | None) -> Array:
    """`binary` without the short path."""
    if isinstance(a, Handle) and isinstance(b, Handle) and a.node.dtype is b.node.dtype and widen is None:
        x, y = a, b
    else:
        x, y = promoted(primitive.name, (a, b), widen)
    left, right = x.node.shape, y.node.shape
    if not identical(left, right):
        shape = _joint_shape(primitive.name, (left, right), left, right)
        if not p.is_constant(x.node):
            x = broadcast(x, shape)
        if not p.is_constant(y.node):
            y = broadcast(y, shape)
    return primitive(x, y)


def promoted(
    name: str,
    values: Sequence[Any],
    widen: Widen | None = None,
    words: Sequence[str] = ("a", "b"),
) -> list[Array]:
    """Arrays converted to one dtype: the common dtype of the arrays, to which Python numbers and NumPy's arrays only
    add a higher kind. If there are no arrays, NumPy's values have their own dtype, and so have Python numbers beside
    them.

    ``widen`` maps the promoted dtype to the one to compute in; ``words`` are the names of the arguments in messages.
    """
    found = [value if isinstance(value, Handle) else python_scalar(value) for value in values]
    common = _common_dtype(found)
    if common is None and any(isinstance(value, (np.ndarray, np.generic)) for value in values):
        found = [array_of(name, _word(words, position), value) for position, value in enumerate(values)]
        common = _common_dtype(found)
    if any(one is None for one in found):
        found = [
            array_of(name, _word(words, position), value, _dtype_beside(value, common)) if one is None else one
            for position, (one, value) in enumerate(zip(found, values, strict=True))
        ]
        common = _common_dtype(found)
    dtype = common
    for position, one in enumerate(found):
        if not isinstance(one, Handle):
            try:
                weak = scalar_dtype(one, common)
            except (TypeError, ValueError) as error:
                raise _unfit(name, _word(words, position), values[position], error) from None
            dtype = weak if dtype is None else dtypes.promote(dtype, weak)
    assert dtype is not None
    if widen is not None:
        dtype = widen(dtype)
    return [to_dtype(one, dtype) if isinstance(one, Handle) else wrap(_new_constant(one, dtype)) for one in found]


def _common_dtype(values: Sequence[Any]) -> Dtype | None:
    """The common dtype of all arrays among the values; None if there are no arrays."""
    common: Dtype | None = None
    for value in values:
        if isinstance(value, Handle):
            common = value.node.dtype if common is None else dtypes.promote(common, value.node.dtype)
    return common


def _dtype_beside(value: Any, common: Dtype | None) -> Dtype | None:
    """The common dtype of the arrays, if a NumPy array can take it: its own dtype is of no higher kind, and its
    integers fit."""
    if common is None or not isinstance(value, np.ndarray) or value.dtype.kind not in "buifc":
        return None
    own = dtypes.from_numpy(value.dtype)
    if own.is_integer and common.is_integer:
        fits = not value.size or (common.lowest <= value.min() and value.max() <= common.highest)
        return common if fits else None
    return common if common.rank >= own.rank else None


def shape_text(shape: Iterable[int]) -> str:
    """A shape as text, such as ``(2, 3)``; symbolic extents as the numbers they have while tracing."""
    extents = [str(extent) for extent in shape]
    return f"({extents[0]},)" if len(extents) == 1 else f"({', '.join(extents)})"


def broadcasted_shape(name: str, shapes: Sequence[Shape]) -> Shape:
    """The shape that arrays of these shapes broadcast to."""
    result = shapes[0] if shapes else ()
    for shape in shapes[1:]:
        if not identical(shape, result):
            result = _joint_shape(name, shapes, result, shape)
    return result


def _joint_shape(name: str, shapes: Sequence[Shape], left: Shape, right: Shape) -> Shape:
    if len(left) < len(right):
        left, right = right, left
    offset = len(left) - len(right)
    try:
        joint = [joint_extent(m, n) for m, n in zip(left[offset:], right, strict=True)]
    except ValueError:
        *first, last = (shape_text(shape) for shape in shapes)
        raise ValueError(f"[{name}] Shapes {', '.join(first)} and {last} cannot be broadcast.") from None
    return (*left[:offset], *joint)


def broadcast(x: Array, shape: Shape) -> Array:
    """``x`` repeated to ``shape``, which it must broadcast to."""
    node = x.node
    missing = len(shape) - len(node.shape)
    if not missing and identical(node.shape, shape):
        return x
    stream = current_stream()
    if missing:
        new_axes = tuple(range(missing))
        node = new_node(p.expand, (node,), (new_axes,), (*[1] * missing, *node.shape), node.dtype, stream)
    if not missing or not identical(node.shape, shape):
        node = new_node(p.broadcast, (node,), (shape,), shape, node.dtype, stream)
    return wrap(node)


def broadcast_anew(x: Array, shape: Shape) -> Array:
    """`broadcast` that always makes a node, for results. The nodes that a function makes must not depend on extents:
    otherwise its gradient would be summed in another order for other extents."""
    node, stream = x.node, current_stream()
    missing = len(shape) - len(node.shape)
    if missing:
        expanded = (*[1] * missing, *node.shape)
        node = new_node(p.expand, (node,), (tuple(range(missing)),), expanded, node.dtype, stream)
    return wrap(new_node(p.broadcast, (node,), (shape,), shape, node.dtype, stream))


def broadcast_all(name: str, arrays: Sequence[Array]) -> list[Array]:
    """All arrays in their common shape. Constants stay 0-d, because elementwise primitives repeat them."""
    shape = broadcasted_shape(name, [x.node.shape for x in arrays])
    return [x if p.is_constant(x.node) else broadcast(x, shape) for x in arrays]


def axis_of(name: str, axis: Any, ndim: int) -> int:
    """``axis`` counted from the front.

    Raises:
        AxisError: there is no such axis.
    """
    number = integer_of(name, "An axis", axis)
    if not -ndim <= number < ndim:
        raise AxisError(f"[{name}] Axis {number} is out of range for an array with {dimensions_text(ndim)}.")
    return number + ndim if number < 0 else number


def dimensions_text(ndim: int) -> str:
    """``1 dimension``, ``2 dimensions``."""
    return f"{ndim} dimension{'s' * (ndim != 1)}"


def axes_of(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes that ``axis`` (None for all, an int, or several) names, sorted and counted from the front.

    Raises:
        AxisError: there is no such axis.
        ValueError: an axis is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    several = as_sequence(axis)
    if several is None:
        return (axis_of(name, axis, ndim),)
    return tuple(sorted(distinct_axes(name, several, ndim)))


def distinct_axes(name: str, axes: Sequence[Any], ndim: int) -> tuple[int, ...]:
    """``axes``, in their order, counted from the front.

    Raises:
        AxisError: there is no such axis.
        ValueError: an axis is named twice.
    """
    found = tuple([axis_of(name, axis, ndim) for axis in axes])
    if len(set(found)) != len(found):
        raise ValueError(f"[{name}] An axis is named twice in {tuple(axes)}; the array has {dimensions_text(ndim)}.")
    return found


def as_sequence(value: Any) -> Sequence[Any] | None:
    """``value`` as a sequence if it is one (also a vector of NumPy's or a range); else None. A vector of integers that
    is not traced is evaluated."""
    if isinstance(value, (list, tuple, range)):
        return value
    if isinstance(value, Handle) and (not value.node.dtype.is_integer or trace_of(value.node) is not None):
        return None
    if getattr(value, "ndim", 0) != 1 or not hasattr(value, "tolist"):
        return None
    several: list[Any] = value.tolist()
    return several


def entries_of(value: Any) -> Sequence[Any]:
    """The entries of a sequence; anything else as the only entry."""
    several = as_sequence(value)
    return (value,) if several is None else several


def shape_of(name: str, shape: Any) -> Shape:
    """A shape from an int or a sequence of ints."""
    extents = as_sequence(shape)
    if extents is None:
        if isinstance(shape, Handle) or not hasattr(shape, "__index__"):
            raise wrong_type(name, "A shape", "an int or a sequence of ints", shape)
        extents = (shape,)
    return tuple([integer_of(name, "Each extent of a shape", extent) for extent in extents])


def dtype_behind(name: str, shape: Any, dtype: Any) -> Dtype:
    """``dtype``, the argument that follows ``shape``.

    Raises:
        TypeError: it is none. If extents were given as separate arguments, the message tells what to write instead.
    """
    # Python refuses to print integers of thousands of digits, so the message is only for numbers that can be extents.
    if isinstance(dtype, int) and isinstance(shape, int) and max(abs(shape), abs(dtype)) < 2**63:
        raise TypeError(f"[{name}] shape is one argument: write ({shape}, {dtype}).")
    return as_dtype(dtype)


def count_of(name: str, word: str, value: Any) -> int:
    """``value`` as a count, which must be an int that is not negative."""
    number = integer_of(name, word, value)
    if number < 0:
        raise ValueError(f"[{name}] {word} cannot be negative; got {number}.")
    return number


def integer_of(name: str, word: str, value: Any) -> int:
    """``value`` as an int. A 0-d array of integers is evaluated.

    Raises:
        TypeError: it is something else, or an array that is traced.
        ValueError: it does not fit 64 bits.
    """
    if type(value) is int and -_USUAL < value < _USUAL:
        return value
    if isinstance(value, Handle) and trace_of(value.node) is not None:
        raise wrong_type(name, word, "an int", value)
    return checks.integer_of(name, word, value)


def refuse_traced(array: Array, name: str, remedy: str) -> None:
    """Raise if an array is traced, because a shape depends on its values."""
    if trace_of(array.node) is not None:
        raise TraceError(
            f"{user_location()}: [{name}] The shape of the result depends on the values of the array, and arrays have "
            f"none while a function is traced. {remedy}"
        )


def real_number(name: str, word: str, value: Any) -> Any:
    """``value`` as a Python number that is not complex, also from NumPy. An array of one element is evaluated.

    Raises:
        TypeError: it is something else, or an array that is traced.
        ValueError: it is an int larger than every floating-point number.
    """
    if type(value) is float or (type(value) is int and -_USUAL < value < _USUAL):
        return value
    if isinstance(value, Handle):
        readable = trace_of(value.node) is None and value.node.size == 1
        number = value.item() if readable else None  # type: ignore[attr-defined]  # what users have is an array
    else:
        number = python_scalar(value)
    if not isinstance(number, (bool, int, float, SymbolicExtent)):
        raise wrong_type(name, word, "an int or a float", value)
    try:
        scalar_dtype(number, dtypes.float32)
    except ValueError as error:
        raise _unfit(name, word, value, error) from None
    return number


def sequence_of(name: str, word: str, value: Any) -> Sequence[Any]:
    """``value``, if it is a sequence (a list, a tuple, a range or a vector of NumPy's)."""
    several = as_sequence(value)
    if several is None:
        raise wrong_type(name, word, "a sequence of ints", value)
    return several


def checked_extents(name: str, shape: Shape) -> Shape:
    """``shape``, if no extent is negative."""
    if min(values_of(shape), default=0) < 0:
        raise ValueError(f"[{name}] Extents cannot be negative; got {shape_text(shape)}.")
    return shape


def extent_constant(extent: AnyExtent, dtype: Dtype) -> Array:
    """An extent as a number in the graph."""
    return wrap(_new_constant(extent, dtype))
