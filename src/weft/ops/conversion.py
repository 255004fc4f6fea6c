"""Conversions between dtypes, questions about them, and functions whose result has the same values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype, as_dtype
from weft.graph.node import Handle, Node
from weft.ops.arguments import Array, array_argument, fresh
from weft.ops.convert import python_scalar, scalar_dtype
from weft.ops.entrance import on_stream
from weft.ops.replays import replayed
from weft.runtime.devices import StreamOrDevice
from weft.runtime.memory import contiguous_strides

__all__ = ["astype", "can_cast", "contiguous", "depends", "result_type", "stop_gradient"]


@replayed
def astype(
    a: Array, dtype: Dtype, stream: StreamOrDevice = None, *, copy: bool = True, device: StreamOrDevice = None
) -> Array:
    """The elements converted to ``dtype``.

    Floating-point numbers lose their fraction when converted to integers, and complex numbers their imaginary part when
    converted to real ones; everything but zero becomes True. An assignment to one array never changes another one, so
    ``copy`` makes no difference.

    Args:
        dtype: the new dtype.

    >>> mx.astype(mx.array([1.7, -1.7]), mx.int32)
    array([1, -1], dtype=int32)
    """
    x = array_argument("astype", a)
    target = as_dtype(dtype)
    return fresh(x) if x.node.dtype is target else p.cast(x, dtype=target)


@on_stream
def stop_gradient(a: Array, /, *, stream: StreamOrDevice = None) -> Array:
    """The same values, treated as constants by derivatives.

    >>> mx.grad(lambda x: x * mx.stop_gradient(x))(mx.array(3.0))
    array(3, dtype=float32)
    """
    return p.stop_gradient(array_argument("stop_gradient", a))


@on_stream
def contiguous(a: Array, /, allow_col_major: bool = False, *, stream: StreamOrDevice = None) -> Array:
    """The same values in memory of their own: a part of a larger array then does not keep the larger one in memory.

    Args:
        a: an array. It is copied if it is a view of another one.
        allow_col_major: makes no difference.

    >>> mx.contiguous(mx.array([[1, 2], [3, 4]]).T)
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    x = array_argument("contiguous", a)
    return p.copy(x) if _shows_another(x.node) else fresh(x)


def _shows_another(node: Node) -> bool:
    """Whether an array is, or will be, a view of another array's elements."""
    view = node.value
    if view is None:
        return p.is_view(node)
    return view.strides != contiguous_strides(node.shape) or view.buffer.size > node.nbytes


def depends(inputs: Array | Sequence[Array], dependencies: Array | Sequence[Array]) -> Array | list[Array]:
    """The same arrays; what is computed from them is evaluated after ``dependencies``, if these are evaluated at all.

    Args:
        inputs: an array, or a list or tuple of them.
        dependencies: an array, or a list or tuple of them.

    Returns:
        An array, or a list of them.

    >>> x = mx.array([1.0, 2.0])
    >>> mx.depends(x, mx.exp(x))
    array([1, 2], dtype=float32)
    """
    alone = not isinstance(inputs, (list, tuple))
    arrays = [array_argument("depends", one, "inputs") for one in ([inputs] if alone else inputs)]
    needed = dependencies if isinstance(dependencies, (list, tuple)) else [dependencies]
    before = [array_argument("depends", one, "dependencies") for one in needed]
    after = [p.barrier(x, *before, mark=p.new_mark()) for x in arrays]
    return after[0] if alone else after


def result_type(*arrays_and_dtypes: Array | Dtype | complex) -> Dtype:
    """The dtype of the result of an operation on these arrays, or on arrays of these dtypes.

    A Python number takes the dtype of the arrays, or a higher kind if needed.

    >>> mx.result_type(mx.array([1]), mx.float16)
    weft.core.float16
    """
    numbers = [number for number in map(python_scalar, arrays_and_dtypes) if number is not None]
    others: list[Any] = [one for one in arrays_and_dtypes if python_scalar(one) is None]
    found = [one.node.dtype if isinstance(one, Handle) else one for one in others]
    result = dtypes.result_type(*found) if others or not numbers else None
    for number in numbers:
        try:
            alone = scalar_dtype(number, result)
        except ValueError as error:
            raise ValueError(f"[result_type] {error}.") from None
        result = alone if result is None else dtypes.promote(result, alone)
    assert result is not None
    return result


def can_cast(from_: Array | Dtype, to: Dtype) -> bool:
    """Whether promotion of an array or dtype with ``to`` gives ``to``; values may be rounded.

    Args:
        from_: an array or a dtype.

    >>> mx.can_cast(mx.int32, mx.float16), mx.can_cast(mx.float32, mx.int32)
    (True, False)
    """
    source: Any = from_.node.dtype if isinstance(from_, Handle) else from_
    return dtypes.can_cast(source, to)
