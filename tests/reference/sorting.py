"""Sorting and searching on the reference device: NumPy's stable sort."""

from __future__ import annotations

from typing import Literal

import numpy as np

import weft.primitives as p
from tests.reference.routines import by
from weft.dtypes import bfloat16


def ordered(elements: np.ndarray) -> np.ndarray:
    """Numbers that NumPy orders as these elements."""
    return elements.astype(np.float32) if elements.dtype == bfloat16.numpy else elements


@by(p.argsort.routine)
def indices(x: np.ndarray, start: int, count: int) -> np.ndarray:
    """A part of the indices that sort the rows."""
    return np.argsort(ordered(x), axis=-1, kind="stable")[..., start : start + count]


@by(p.sort.routine)
def elements(x: np.ndarray, start: int, count: int) -> np.ndarray:
    """The same part of the sorted rows."""
    return np.take_along_axis(x, indices(x, start, count), -1)


@by(p.searchsorted.routine)
def places(rows: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    """Where values belong in sorted rows."""
    side: Literal["left", "right"] = "right" if right else "left"
    found = np.zeros(values.shape, np.uint32)
    for row in np.ndindex(rows.shape[:-1]):
        found[row] = np.searchsorted(ordered(rows[row]), ordered(values[row]), side)
    return found
