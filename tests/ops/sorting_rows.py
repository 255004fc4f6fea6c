"""Rows of sorting, selecting and searching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from tests.ops.row import ANY, APART, EVERY, REAL, Domain, Row

AXES: list[tuple[str, int | None]] = [("last", -1), ("middle", 1), ("flat", None)]


def _flat(x: np.ndarray, axis: int | None) -> tuple[np.ndarray, int]:
    return (x.reshape(-1), 0) if axis is None else (x, axis)


def _selected(x: np.ndarray, kth: int, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The elements up to the one at ``kth``, and those from it on, both sorted."""
    x, axis = _flat(x, axis)
    if kth >= x.shape[axis]:
        raise ValueError("there is no such element")
    ordered = np.sort(x, axis=axis)
    return np.split(ordered, [kth + 1], axis)[0], np.split(ordered, [kth], axis)[1]


def _parts(mx: Any, x: Any, kth: int, axis: int | None) -> tuple[Any, Any]:
    """The same parts as `_selected` of an array that was partitioned, whose order on both sides of ``kth`` is not
    defined."""
    axis = 0 if axis is None else axis
    low, high = mx.split(x, [kth + 1], axis)[0], mx.split(x, [kth], axis)[1]
    return mx.sort(low, axis=axis), mx.sort(high, axis=axis)


def _argpartitioned(mx: Any, x: Any, kth: int, axis: int | None) -> Any:
    return mx.take_along_axis(x, mx.argpartition(x, kth, axis=axis), axis)


def _largest(x: np.ndarray, k: int, axis: int | None) -> np.ndarray:
    x, axis = _flat(x, axis)
    if k > x.shape[axis]:
        raise ValueError("there are not so many elements")
    return np.split(np.sort(x, axis=axis), [x.shape[axis] - k], axis)[1]


def _median(x: np.ndarray, **keywords: Any) -> Any:
    result = np.median(x, **keywords)
    if not x.size:
        raise ValueError("there are no elements")
    return result if x.dtype.kind in "fc" else np.asarray(result, np.float32)


def _unique(x: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
    if not x.size:
        raise ValueError("there is nothing to fill up with")
    values, index, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    missing = max(size - values.size, 0)
    return (
        np.append(values, np.full(missing, values[0]))[:size],
        np.append(index, np.full(missing, index[0]))[:size].astype(np.uint32),
        np.minimum(inverse.reshape(x.shape), max(size - 1, 0)).astype(np.uint32),
        np.append(counts, np.zeros(missing, np.int32))[:size].astype(np.int32),
    )


def _searched(side: Literal["left", "right"], shape: tuple[int, ...]) -> Row:
    return Row(
        "searchsorted",
        lambda mx, rows, x: mx.searchsorted(mx.sort(rows), x, side),
        lambda rows, x: np.searchsorted(np.sort(rows), x, side).astype(np.uint32),
        (Domain(shape=(13,)), Domain(shape=shape)),
        EVERY,
        variant=side,
    )


def _along_axes(name: str, function: Callable[..., Any], oracle: Callable[..., Any], domain: Domain) -> list[Row]:
    """A row for each way to give an axis; both functions get it as their last argument."""
    return [
        Row(
            name,
            lambda mx, x, axis=axis: function(mx, x, axis),
            lambda x, axis=axis: oracle(x, axis),
            (domain,),
            EVERY,
            shape=(3, 5, 7),
            variant=variant,
            ulp=0,
        )
        for variant, axis in AXES
    ]


ROWS = [
    *_along_axes("sort", lambda mx, x, axis: mx.sort(x, axis=axis), lambda x, axis: np.sort(x, axis=axis), APART),
    *_along_axes(
        "argsort",
        lambda mx, x, axis: mx.argsort(x, axis=axis),
        lambda x, axis: np.argsort(x, axis=axis, kind="stable").astype(np.uint32),
        ANY,
    ),
    *_along_axes(
        "partition",
        lambda mx, x, axis: _parts(mx, mx.partition(x, 2, axis=axis), 2, axis),
        lambda x, axis: _selected(x, 2, axis),
        APART,
    ),
    *_along_axes(
        "argpartition",
        lambda mx, x, axis: _parts(mx, _argpartitioned(mx, x, 4, axis), 4, axis),
        lambda x, axis: _selected(x, 4, axis),
        APART,
    ),
    *_along_axes(
        "topk",
        lambda mx, x, axis: mx.sort(mx.topk(x, 3, axis=axis), axis=0 if axis is None else axis),
        lambda x, axis: _largest(x, 3, axis),
        APART,
    ),
    *[
        Row(
            "median",
            lambda mx, x, keywords=keywords: mx.median(x, **keywords),
            lambda x, keywords=keywords: _median(x, **keywords),
            (APART,),
            EVERY,
            variant=variant,
        )
        for variant, keywords in (
            ("all", {}),
            ("middle", {"axis": 1}),
            ("two, keepdims", {"axis": (0, 2), "keepdims": True}),
        )
    ],
    _searched("left", (3, 4)),
    _searched("right", (5,)),
    *[
        Row(
            "unique",
            lambda mx, x, size=size: mx.unique(x, size, True, True, True),
            lambda x, size=size: _unique(x, size),
            (APART,),
            REAL,
            variant=f"{size}",
            ulp=0,
        )
        for size in (3, 30)
    ],
]
