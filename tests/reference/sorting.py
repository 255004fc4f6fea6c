"""Sorting and searching on the reference device: NumPy's stable sort."""

from __future__ import annotations

from typing import Literal

import numpy as np

import weft.primitives as p
from tests.reference.routines import by
from weft.dtypes import bfloat16
from weft.primitives.sort_cuts import MIDDLE


def ordered(elements: np.ndarray) -> np.ndarray:
    """The elements in a dtype that NumPy sorts: float32 instead of bfloat16."""
    return elements.astype(np.float32) if elements.dtype == bfloat16.numpy else elements


@by(p.argsort.routine)
def indices(x: np.ndarray, start: int, count: int) -> np.ndarray:
    """``count`` of the indices that sort each row, from ``start`` on."""
    return np.argsort(ordered(x), axis=-1, kind="stable")[..., start : start + count]


@by(p.sort.routine)
def elements(x: np.ndarray, start: int, count: int) -> np.ndarray:
    """``count`` elements of each sorted row, from ``start`` on."""
    return np.take_along_axis(x, indices(x, start, count), -1)


@by(p.argpartition.routine)
def parted_indices(x: np.ndarray, kth: int) -> np.ndarray:
    """For each row, the indices of elements that are smaller than the one of rank ``kth``, equal to it, and larger.
    Smaller and larger ones keep their order, but short rows are sorted."""
    found, extent = indices(x, 0, x.shape[-1]), x.shape[-1]
    if extent > MIDDLE:
        for row, numbers in zip(found.reshape(-1, extent), ordered(x).reshape(-1, extent), strict=True):
            in_order = numbers[row]
            first, behind = (np.searchsorted(in_order, in_order[kth], side) for side in ("left", "right"))
            row[:first].sort()
            row[behind:].sort()
    return found


@by(p.partition.routine)
def parted(x: np.ndarray, kth: int) -> np.ndarray:
    return np.take_along_axis(x, parted_indices(x, kth), -1)


@by(p.marked_first.routine)
def marked_first(marks: np.ndarray) -> np.ndarray:
    return np.argsort(marks == 0, axis=-1, kind="stable")


@by(p.searchsorted.routine)
def places(rows: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    """The indices at which values would be inserted in sorted rows."""
    side: Literal["left", "right"] = "right" if right else "left"
    found = np.zeros(values.shape, np.uint32)
    for row in np.ndindex(rows.shape[:-1]):
        found[row] = np.searchsorted(ordered(rows[row]), ordered(values[row]), side)
    return found
