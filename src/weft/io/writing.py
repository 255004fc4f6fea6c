"""Writing files. Named files are opened and closed here; open files are left open."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from weft.errors import ArgumentTypeError
from weft.io.files import called, is_open, opening, path_of
from weft.io.sources import read_before_writing


@contextmanager
def writable(name: str, file: Any, extension: str) -> Iterator[Any]:
    """A file opened for writing bytes. ``extension`` is added to a name that lacks it. Arrays that must still be read
    from the file are read first."""
    if is_open(file):
        if isinstance(file, io.TextIOBase):
            raise ArgumentTypeError(
                f"[{name}] {called(file)} must be opened for bytes, mode 'wb'; it was opened for text."
            )
        for descriptor in _descriptors(file):
            read_before_writing(descriptor)
        with _whole(file) as target:
            yield target
        return
    path = path_of(name, file, extension)
    read_before_writing(path)
    with opening():
        opened = open(path, "wb")  # noqa: SIM115  # closed below
    with opened:
        yield opened


def _descriptors(file: Any) -> list[int]:
    """The descriptor of an open file, if the operating system has one for it."""
    with suppress(AttributeError, OSError):
        return [file.fileno()]
    return []


@contextmanager
def _whole(file: Any) -> Iterator[Any]:
    """An open file whose ``write`` writes all bytes, which that of an unbuffered file may not do."""
    if not isinstance(file, io.RawIOBase):
        yield file
        return
    buffered = io.BufferedWriter(file)
    try:
        yield buffered
    finally:
        buffered.detach()


def write(name: str, file: Any, extension: str, pieces: Iterable[Any]) -> None:
    """Write pieces of bytes."""
    with writable(name, file, extension) as target:
        for piece in pieces:
            target.write(piece)
