"""Files that a user names or has opened, and the arrays in them."""

from __future__ import annotations

import os
from typing import IO, Any

import numpy as np

from weft.array import array
from weft.checks import wrong_type
from weft.dtypes import bfloat16, same_as_numpy
from weft.ops.convert import from_numpy

File = str | os.PathLike[str] | IO[bytes]


def is_open(file: Any) -> bool:
    """Whether ``file`` is an open file rather than a name."""
    return hasattr(file, "read") or hasattr(file, "write")


def to_write(name: str, file: Any, extension: str) -> Any:
    """An open file as it is, or a file name that ends in ``extension``."""
    if is_open(file):
        return file
    if not isinstance(file, (str, os.PathLike)):
        raise wrong_type(name, "file", "a name or a file opened for writing bytes", file)
    path = os.fspath(file)
    return path if path.endswith(extension) else path + extension


def called(file: Any) -> str:
    """How messages call a file."""
    if is_open(file):
        return repr(getattr(file, "name", "the open file"))
    return repr(os.fspath(file))


def values_of(name: str, value: Any, argument: str) -> np.ndarray[Any, Any]:
    """The elements of an array that is to be saved, in row-major order."""
    if not isinstance(value, array):
        raise wrong_type(name, argument, "an array", value)
    return np.require(np.asarray(value), requirements="C")


def array_of(values: np.ndarray[Any, Any], what: str) -> array:
    """An array with the elements that ``what`` holds, in the same dtype."""
    if values.dtype.kind == "V" and values.dtype.itemsize == 2 and values.dtype.fields is None:
        values = values.view(bfloat16.numpy)  # NumPy's files have no name for it
    elif not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    dtype = same_as_numpy(values.dtype)
    if dtype is None:
        raise ValueError(f"[load] {what} holds elements of NumPy's type {values.dtype}, for which there is no dtype.")
    return from_numpy(values, dtype)
