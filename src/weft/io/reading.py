"""Arrays in files: their descriptions are checked when the file is loaded, their elements are read when needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weft.array import array
from weft.compiler.running.evaluate import caller_stream, evaluate
from weft.dtypes import Dtype
from weft.errors import FileFormatError
from weft.io.sources import FileSource, Source
from weft.ops.convert import unread
from weft.runtime.memory import contiguous_strides

MOST_DIMENSIONS = 64
"""The most dimensions, as in NumPy."""
_MOST_BYTES = (1 << 63) - 1
_AT_ONCE = 1 << 16
"""Arrays of at most this many bytes are read when the file is loaded."""


class FileLayout(NamedTuple):
    """How the elements of an array are stored in a file: whether bytes are in the other order than this machine's
    (``swapped``), and whether the first index varies fastest (``fortran``)."""

    shape: tuple[int, ...]
    dtype: Dtype
    swapped: bool = False
    fortran: bool = False

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * self.dtype.size


def shape_of(found: Any, itemsize: int, what: str) -> tuple[int, ...]:
    """The shape that a file states, if it is valid for an array; ``what`` is the name of the array in messages."""
    extents = tuple(found) if isinstance(found, (list, tuple)) else None
    if extents is None or not all(type(extent) is int and extent >= 0 for extent in extents):
        raise FileFormatError(f"[load] {what} has a shape that is no list of sizes.")
    if len(extents) > MOST_DIMENSIONS:
        raise FileFormatError(f"[load] {what} has {len(extents)} dimensions; {MOST_DIMENSIONS} are possible.")
    if math.prod([max(extent, 1) for extent in extents]) * itemsize > _MOST_BYTES:
        raise FileFormatError(f"[load] {what} has a shape of more than 2**63 bytes.")
    return extents


def array_in(source: Source, layout: FileLayout, read: Callable[[memoryview], None]) -> array:
    """An array whose elements ``read`` copies from a file, as they are stored, when they are needed."""
    swapped_size = layout.dtype.size // (2 if layout.dtype.is_complex else 1) if layout.swapped else 1

    def read_elements(memory: memoryview) -> None:
        read(memory)
        if swapped_size > 1:
            np.frombuffer(memory, f"u{swapped_size}").byteswap(inplace=True)
        if layout.dtype.is_bool:
            elements = np.frombuffer(memory, np.uint8)
            np.minimum(elements, 1, out=elements)

    strides = contiguous_strides(layout.shape)
    if layout.fortran:
        strides = contiguous_strides(layout.shape[::-1])[::-1]
    found: array = unread(layout.shape, strides, layout.dtype, read_elements, caller_stream())
    if source.is_here or layout.size <= _AT_ONCE:
        evaluate([found.node])
    elif isinstance(source, FileSource):
        source.add_unread(found.node.value.event)  # type: ignore[union-attr]  # it has a view
    return found


def array_at(source: Source, layout: FileLayout, position: int) -> array:
    """The array whose elements begin at ``position`` of a file; the caller has checked that the file contains them."""
    return array_in(source, layout, lambda memory: source.read_into(position, memory))


def without_overlap(name: str, ranges: list[tuple[int, int, str]]) -> None:
    """Raise if two of the ranges, given as first byte, end and name, overlap.

    Raises:
        FileFormatError: two ranges overlap.
    """
    end, before = 0, ""
    for first, last, what in sorted(ranges):
        if first < end and last > first:
            raise FileFormatError(f"[load] {name} is damaged: the bytes of {what} are those of {before} as well.")
        if last > end:
            end, before = last, what
