"""Scalar code on indices and conditions, emitted through a kernel builder ``k``.

``k.apply(primitive, *values)`` emits an operation on values, ``k.index_value(term)`` gives the value of an index.
"""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.primitives.index import Term

NARROW = (1 << 31) - 1
"""The largest number of 32 bits."""


def converted(k: Any, value: int, dtype: Dtype) -> int:
    """A value in another dtype."""
    return int(k.apply(p.cast, value, dtype=dtype))


def both(k: Any, left: int, right: int) -> int:
    """Whether two conditions hold."""
    return int(k.apply(p.logical_and, left, right))


def within(k: Any, index: int, low: int, high: int) -> int:
    """Whether an index is at least ``low`` and below ``high``."""
    above = k.apply(p.greater_equal, index, k.index_value(Term(low)))
    return both(k, above, k.apply(p.less, index, k.index_value(Term(high))))


def as_it_is(k: Any, found: int, count: int, extent: int) -> tuple[int, int]:
    """An index into an axis of ``extent``, in which negative indices are replaced by those from the start, and whether
    it is in 0 to ``count - 1``."""
    index = converted(k, found, dtypes.int64)
    meant = int(k.apply(p.from_front, index, k.index_value(Term(extent))))
    below = [converted(k, value, dtypes.uint64) for value in (meant, k.index_value(Term(count)))]
    return meant, int(k.apply(p.less, *below))  # as unsigned integers, negative ones are large


def nearest(k: Any, found: int, count: int, extent: int) -> tuple[int, int]:
    """As `as_it_is`, but the index is also moved into 0 to ``count - 1``. Returns it and whether it was inside. It has
    32 bits if it was read with as many or fewer, and the extent allows it."""
    found = _before_widening(k, found)
    dtype = _dtype_of_index(k.dtype_of(found), extent)
    index = found if k.dtype_of(found) is dtype else converted(k, found, dtype)
    end, stop = [k.index_value(Term(number)) for number in (extent, count)]
    if dtype is not dtypes.int64:
        end, stop = converted(k, end, dtype), converted(k, stop, dtype)
    meant = index if dtype is dtypes.uint32 else int(k.apply(p.from_front, index, end))
    moved = int(k.apply(p.clamp_index, meant, stop))
    inside = int(k.apply(p.equal, moved, meant))
    return converted(k, moved, dtypes.int32) if dtype is dtypes.uint32 else moved, inside


def _before_widening(k: Any, found: int) -> int:
    """The integer that was converted to a wider one, which has the same value; else the integer itself."""
    applied, inputs = k.applied(found)
    if applied is not p.cast:
        return found
    source, dtype = k.dtype_of(inputs[0]), k.dtype_of(found)
    if not source.is_integer or source.size >= dtype.size or (source.is_signed and not dtype.is_signed):
        return found
    return _before_widening(k, inputs[0])


def _dtype_of_index(found: Dtype, extent: int) -> Dtype:
    """The narrowest dtype in which an index along an axis of ``extent`` can be moved."""
    if found.size > dtypes.int32.size or extent > NARROW:
        return dtypes.int64
    return dtypes.uint32 if found is dtypes.uint32 else dtypes.int32
