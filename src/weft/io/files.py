"""Files given by name or as open files, and the elements that are written to them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from weft.array import array
from weft.checks import wrong_type
from weft.errors import MissingFileError

File = str | os.PathLike[str] | IO[bytes]


def is_open(file: Any) -> bool:
    """Whether ``file`` is an open file rather than a name."""
    return hasattr(file, "read") or hasattr(file, "write")


def called(file: Any) -> str:
    """The name of a file in messages."""
    if is_open(file):
        return repr(getattr(file, "name", "the open file"))
    return repr(os.fspath(file))


@contextmanager
def opening() -> Iterator[None]:
    """If the block opens a file that does not exist, the error raised is Weft's."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(error.errno, error.strerror, error.filename) from None


def path_of(name: str, file: Any, extension: str) -> str:
    """A file name that ends in ``extension``."""
    if not isinstance(file, (str, os.PathLike)):
        raise wrong_type(name, "file", "a name or a file opened for writing bytes", file)
    path = os.fspath(file)
    if not isinstance(path, str):
        raise wrong_type(name, "file", "a name or a file opened for writing bytes", file)
    return path if path.endswith(extension) else path + extension


def check_encodable(name: str, texts: Iterable[str]) -> None:
    """Raise unless all texts can be written as UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"[{name}] {text!r} cannot be written as UTF-8: {error.reason}.") from error


def values_of(name: str, value: Any, argument: str) -> np.ndarray[Any, Any]:
    """The elements of an array to be saved, in row-major order."""
    if not isinstance(value, array):
        raise wrong_type(name, argument, "an array", value)
    return np.require(np.asarray(value), requirements="C")


def bytes_of(values: np.ndarray[Any, Any]) -> memoryview:
    """The memory of a row-major array."""
    return values.reshape(-1).view(np.uint8).data
