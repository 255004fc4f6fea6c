"""Arrays from nested lists and tuples, which may contain arrays.

They are not walked as trees: dicts are no containers here, the shape is found level by level, and lists of millions of
numbers are processed by NumPy and by C loops alone.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

import weft.primitives as p
from weft import dtypes
from weft.checks import shown
from weft.dtypes import Dtype
from weft.errors import ArgumentTypeError
from weft.graph.extents import agree
from weft.graph.node import Handle, Shape
from weft.graph.shown import Extent
from weft.ops.arguments import Array, array_of, shape_text, to_dtype
from weft.ops.convert import as_array, from_bytes, from_numpy, python_scalar

__all__ = ["from_nested"]

Nested = list[Any] | tuple[Any, ...]

_FEW = 64
_PYTHON_NUMBERS = frozenset((bool, int, float, complex))
_INT_AND_FLOAT = frozenset((int, float))


def from_nested(name: str, values: Nested, dtype: Dtype | None = None) -> Array:
    """An array of nested lists and tuples of numbers and arrays, for the function ``name``.

    Arrays and symbolic extents stay in the graph: they are stacked, in the dtype that all elements promote to.

    Raises:
        TypeError: an element is neither a number nor an array.
        ValueError: lists differ in length (the message says where), or a number does not fit the dtype.
    """
    if 0 < len(values) <= _FEW:
        few = _few_numbers(values, dtype)
        if few is not None:
            return few
    kinds: set[type] = set()
    _collect_kinds(values, kinds)
    if any(issubclass(kind, (Handle, Extent)) for kind in kinds):
        _shape_of(name, values, ())
        stacked = _stacked(name, values, dtype)
        return stacked if dtype is None else to_dtype(stacked, dtype)
    found = _numbers(name, values)
    if kinds <= {bool, int} and found.dtype.kind == "f" and found.size and (dtype is None or dtype.is_integer):
        # NumPy makes floating-point numbers of integers that neither int64 nor uint64 can hold together.
        for element in np.array(values, dtype=object).ravel():
            array_of(name, "an element", element, dtype or dtypes.int64)  # raises for the one that does not fit
    if dtype is None and kinds <= _PYTHON_NUMBERS and found.dtype.kind in "iu":
        dtype = dtypes.int32 if _fits(found, dtypes.int32) else dtypes.int64
        if dtype is dtypes.int32:
            return from_numpy(found, dtype)
    if dtype is not None and dtype.is_integer and found.dtype.kind in "iu" and not _fits(found, dtype):
        raise ValueError(f"[{name}] {_outermost(found)} does not fit {dtype.name}.")
    return from_numpy(found, dtype)


def _few_numbers(values: Nested, dtype: Dtype | None) -> Array | None:
    """An array of Python's ints, or of its floats, for which NumPy would take twice as long; None for other lists."""
    kinds = set(map(type, values))
    code, own = ("f", dtypes.float32) if float in kinds else ("i", dtypes.int32)
    if len(kinds) > 1 or not kinds <= _INT_AND_FLOAT or not (dtype is None or dtype is own):
        return None
    try:
        data = array(code, values).tobytes()
    except OverflowError:  # it needs another dtype, or there is none
        return None
    return from_bytes(data, (len(values),), own)


def _collect_kinds(values: Nested, kinds: set[type]) -> None:
    found = set(map(type, values))
    if list in found or tuple in found:
        for value in values:
            if isinstance(value, (list, tuple)):
                _collect_kinds(value, kinds)
        found -= {list, tuple}
    kinds |= found


def _numbers(name: str, values: Nested) -> np.ndarray[Any, Any]:
    try:
        found = np.array(values)
    except ValueError:
        _shape_of(name, values, ())
        raise
    if found.dtype.kind in "biufcV" and found.dtype.fields is None:
        return found
    for element in np.array(values, dtype=object).ravel():
        if isinstance(element, int):
            array_of(name, "an element", element, dtypes.int64)  # raises if it fits no dtype
        elif not isinstance(element, (float, complex, np.number)):
            raise ArgumentTypeError(f"[{name}] An array is made of numbers and arrays, not {shown(element)}.")
    raise ArgumentTypeError(f"[{name}] No dtype holds all these numbers (NumPy would take {found.dtype}).")


def _fits(found: np.ndarray[Any, Any], dtype: Dtype) -> bool:
    if not found.size:
        return True
    # A reduction by NumPy takes longer than this for a few numbers.
    numbers = found.ravel().tolist() if found.size <= _FEW else (int(found.min()), int(found.max()))
    return dtype.lowest <= min(numbers) and max(numbers) <= dtype.highest


def _outermost(found: np.ndarray[Any, Any]) -> int:
    """The integer with the largest absolute value."""
    return max(int(found.max()), int(found.min()), key=abs)


def _shape_of(name: str, value: Any, indices: tuple[int, ...]) -> Shape:
    """The shape of nested lists; raises if they have none."""
    if isinstance(value, Handle):
        return value.node.shape
    if not isinstance(value, (list, tuple)):
        return () if isinstance(value, Extent) else np.shape(value)
    first: Shape = ()
    for position, element in enumerate(value):
        shape = _shape_of(name, element, (*indices, position))
        if position == 0:
            first = shape
        elif len(shape) != len(first) or not agree(shape, first):
            raise ValueError(
                f"[{name}] Nested lists must be of one length on each level: {_element_name((*indices, 0))} has the "
                f"shape {shape_text(first)}, but {_element_name((*indices, position))} the shape {shape_text(shape)}."
            )
    return (len(value), *first)


def _element_name(indices: tuple[int, ...]) -> str:
    return "element " + "".join(f"[{position}]" for position in indices)


def _stacked(name: str, values: Nested, dtype: Dtype | None) -> Array:
    """The elements as arrays, stacked along a new first axis."""
    arrays = [_element(name, value, dtype) for value in values]
    dtype = dtypes.result_type(*[array.node.dtype for array in arrays])
    return p.concatenate(*[p.expand(to_dtype(array, dtype), axes=(0,)) for array in arrays], axis=0)


def _element(name: str, value: Any, dtype: Dtype | None) -> Array:
    if isinstance(value, (list, tuple)):
        return from_nested(name, value, dtype)
    return as_array(value, dtype) if python_scalar(value) is None else array_of(name, "an element", value, dtype)
