"""Scalar code on indices and conditions, emitted through a kernel builder ``k``.

``k.apply(primitive, *values)`` emits an operation on values, ``k.index_value(term)`` gives the value of an index.
"""

from __future__ import annotations

from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.dtypes import Dtype
from weft.primitives.index import Term


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
    """As `as_it_is`, but the index is also moved into 0 to ``count - 1``. Returns it and whether it was inside."""
    index = converted(k, found, dtypes.int64)
    meant = k.apply(p.from_front, index, k.index_value(Term(extent)))
    moved = int(k.apply(p.clamp_index, meant, k.index_value(Term(count))))
    return moved, int(k.apply(p.equal, moved, meant))
