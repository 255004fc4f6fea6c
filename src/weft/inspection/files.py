"""Files given as a path or as an open file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from weft.errors import ArgumentTypeError


@contextmanager
def writable(function: str, file: Any) -> Iterator[TextIO]:
    """A file for text: if ``file`` is a path, it is opened here, and closed at the end."""
    target = opened(function, file)
    try:
        yield target
    finally:
        if target is not file:
            target.close()


def opened(function: str, file: Any) -> TextIO:
    """A file for text: opened if ``file`` is a path."""
    if isinstance(file, (str, os.PathLike)):
        return open(file, "w", encoding="utf-8", errors="backslashreplace")
    if not hasattr(file, "write"):
        raise ArgumentTypeError(
            f"[{function}] file is a path or a file opened for writing text, not {type(file).__name__}."
        )
    try:
        file.write("")
    except TypeError:
        raise TypeError(f"[{function}] file must be opened for text, mode 'w', not for bytes.") from None
    target: TextIO = file
    return target


def write_lines(target: TextIO, lines: Iterable[str]) -> None:
    for line in lines:
        target.write(line)
        target.write("\n")
