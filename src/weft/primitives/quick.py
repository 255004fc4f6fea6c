"""Operations of planned graphs that round more than the exact ones, and take less time. They stand only where the user
allows roundings of the processor's own."""

from __future__ import annotations

import math

from weft import dtypes
from weft.primitives.base import Elementwise
from weft.primitives.reducers import Reducer
from weft.primitives.reductions import Reduction

__all__ = ["quick_bfloat16", "quick_max", "quick_sum"]

quick_bfloat16 = Elementwise(
    "quick_bfloat16",
    lambda L, x: L.round_quickly(x),
    (1,),
    accepts=lambda dtype: dtype is dtypes.float32,
    result=dtypes.bfloat16,
    exact=True,
)
"""Numbers rounded to bfloat16; subnormal ones may become zero."""

quick_sum = Reduction(
    "quick_sum",
    Reducer(
        identity=lambda dtype: [(dtypes.float32, 0)],
        lift=lambda L, x, index: (L.convert(x, dtypes.float32),),
        merge=lambda L, a, b: (a[0] + b[0],),
        finish=lambda L, a, dtype: a[0],
    ),
    None,
)
"""Sums whose terms are added in float32."""

quick_max = Reduction(
    "quick_max",
    Reducer(
        identity=lambda dtype: [(dtypes.float32, -math.inf)],
        lift=lambda L, x, index: (L.convert(x, dtypes.float32),),
        merge=lambda L, a, b: (L.select(a[0] > b[0], a[0], b[0]),),
        finish=lambda L, a, dtype: a[0],
        regroups=lambda dtype: True,
    ),
    None,
)
"""The largest elements of rows without NaN; any number for other rows."""
quick_max.is_bound = True
