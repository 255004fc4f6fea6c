"""Files that are written: named ones are opened here, for open ones the caller cares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from weft.io.files import is_open, path_of
from weft.io.sources import read_before_writing


@contextmanager
def writable(name: str, file: Any, extension: str) -> Iterator[Any]:
    """A file opened for writing bytes. A named one gets an ``extension`` if it lacks it; what arrays still have to read
    of it is read first."""
    if is_open(file):
        yield file
        return
    path = path_of(name, file, extension)
    read_before_writing(path)
    with open(path, "wb") as opened:
        yield opened


def write(name: str, file: Any, extension: str, pieces: Iterable[Any]) -> None:
    """Write pieces of bytes."""
    with writable(name, file, extension) as target:
        for piece in pieces:
            target.write(piece)
