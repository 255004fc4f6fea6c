"""NumPy's format for one array: a header of Python literals, and the elements."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from weft import dtypes
from weft.array import array
from weft.dtypes import Dtype
from weft.errors import FileFormatError
from weft.io.files import File, bytes_of, called, is_open, values_of
from weft.io.reading import FileLayout, array_at, shape_of
from weft.io.sources import MemorySource, source_of, taken
from weft.io.writing import writable

__all__ = ["load_npy", "read_header", "save", "write_npy"]

LONGEST_HEADER = 10_000
_MAGIC = b"\x93NUMPY"
_DTYPES = {
    "b1": dtypes.bool_,
    "u1": dtypes.uint8,
    "u2": dtypes.uint16,
    "u4": dtypes.uint32,
    "u8": dtypes.uint64,
    "i1": dtypes.int8,
    "i2": dtypes.int16,
    "i4": dtypes.int32,
    "i8": dtypes.int64,
    "f2": dtypes.float16,
    "V2": dtypes.bfloat16,  # NumPy's format has no name for it
    "f4": dtypes.float32,
    "f8": dtypes.float64,
    "c8": dtypes.complex64,
}


def save(file: File, arr: array) -> None:
    """Save an array to a ``.npy`` file.

    Args:
        file: a name, to which ``.npy`` is added if it has another ending, or a file opened for writing bytes.
        arr: the array; NumPy reads ``bfloat16`` as raw two-byte elements.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.save(file, mx.array([1, 2, 3]))
    """
    values = values_of("save", arr, "arr")
    with writable("save", file, ".npy") as target:
        write_npy(target, values)


def write_npy(file: Any, values: np.ndarray[Any, Any]) -> None:
    """Write a ``.npy`` file into an open one."""
    if values.dtype.name == "bfloat16":
        values = values.view("V2")
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
    file.write(bytes_of(values))


def load_npy(file: Any) -> array:
    """The array in a ``.npy`` file; an open file is left at the end of the array."""
    if is_open(file):
        name = called(file)
        layout, _ = read_header(lambda count: bytes(taken(file, name, count)), name)
        return array_at(MemorySource(name, taken(file, name, layout.size)), layout, 0)
    source = source_of(file)
    position = 0

    def take(count: int) -> bytes:
        nonlocal position
        found = source.bytes_at(position, count)
        position += count
        return found

    layout, start = read_header(take, source.name)
    if start + layout.size > source.size:
        missing = start + layout.size - source.size
        raise FileFormatError(f"[load] {source.name} is no sound .npy file: it ends {missing} bytes too early.")
    return array_at(source, layout, start)


def read_header(take: Callable[[int], bytes], what: str) -> tuple[FileLayout, int]:
    """The contents and the length of a header; ``take`` reads the next bytes.

    Raises:
        FileFormatError: it is no valid header, or describes something that is no array of numbers.
    """
    beginning = take(8)
    length_bytes = {1: 2, 2: 4, 3: 4}.get(beginning[6])
    if beginning[:6] != _MAGIC or length_bytes is None:
        raise _unsound(what, "it does not begin like one")
    length = int.from_bytes(take(length_bytes), "little")
    if length > LONGEST_HEADER:
        raise _unsound(what, f"its header has {length} bytes; {LONGEST_HEADER} are possible")
    fields = _fields(take(length), what)
    dtype, swapped = _dtype(fields["descr"], what)
    fortran = fields["fortran_order"]
    if type(fortran) is not bool:
        raise _unsound(what, "its fortran_order is neither True nor False")
    shape = shape_of(fields["shape"], dtype.size, what)
    return FileLayout(shape, dtype, swapped, fortran), 8 + length_bytes + length


def _fields(header: bytes, what: str) -> dict[str, Any]:
    try:
        fields = ast.literal_eval(header.decode())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise _unsound(what, "its header is no dict of literals") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise _unsound(what, "its header does not have exactly descr, fortran_order and shape")
    return fields


def _dtype(descr: Any, what: str) -> tuple[Dtype, bool]:
    """The dtype, and whether the byte order differs from this machine's."""
    if not isinstance(descr, str):
        raise _no_dtype(what, "records")
    found = re.fullmatch(r"([<>|=]?)(\w+)", descr)
    dtype = _DTYPES.get(found[2]) if found else None
    if found is None or dtype is None:
        raise _no_dtype(what, f"NumPy's type {descr!r}")
    native = {"<": "little", ">": "big"}.get(found[1])
    return dtype, native is not None and np.dtype(f"{found[1]}u2").isnative is False


def _no_dtype(what: str, elements: str) -> FileFormatError:
    return FileFormatError(f"[load] {what} holds elements of {elements}, for which there is no dtype.")


def _unsound(what: str, reason: str) -> FileFormatError:
    return FileFormatError(f"[load] {what} is no sound .npy file: {reason}.")
