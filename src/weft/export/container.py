"""The file of an exported function: a header in JSON, and the elements of its arrays (docs/exported-functions.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from weft.array import array
from weft.dtypes import ALL_DTYPES
from weft.errors import FileFormatError
from weft.graph.node import Node, wrap
from weft.io.files import bytes_of
from weft.io.reading import FileLayout, array_at, shape_of, without_overlap
from weft.io.sources import Source, source_of
from weft.io.writing import write as write_pieces

MAGIC = b"WEFTFUNC"
VERSION = 1
_ALIGNMENT = 64
_PREFIX = len(MAGIC) + 4 + 8
_DTYPES = {dtype.name: dtype for dtype in ALL_DTYPES}


def write(file: Any, header: dict[str, Any], arrays: list[Node]) -> None:
    """Write a file; the traces in its header refer to ``arrays`` by number."""
    values = [np.require(np.asarray(wrap(node)), requirements="C") for node in arrays]
    offset, entries = 0, []
    for node, one in zip(arrays, values, strict=True):
        entries.append([node.dtype.name, list(one.shape), offset])
        offset += -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT
    text = json.dumps({**header, "arrays": entries}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-(_PREFIX + len(text)) % _ALIGNMENT)
    beginning = MAGIC + VERSION.to_bytes(4, "little") + len(text).to_bytes(8, "little") + text
    write_pieces("export_function", file, "", _pieces(beginning, values))


def _pieces(beginning: bytes, values: list[np.ndarray[Any, Any]]) -> Iterator[Any]:
    yield beginning
    for one in values:
        yield bytes_of(one)
        yield bytes(-one.nbytes % _ALIGNMENT)


def read(file: Any) -> tuple[str, dict[str, Any], list[Node]]:
    """The name of a file in messages, its header, and its arrays, whose elements are read when they are needed."""
    source = source_of(file)
    prefix = source.bytes_at(0, _PREFIX) if source.size >= _PREFIX else b""
    if prefix[: len(MAGIC)] != MAGIC:
        raise _unsound(source, "it does not begin like one")
    version = int.from_bytes(prefix[len(MAGIC) : len(MAGIC) + 4], "little")
    if version != VERSION:
        raise _unsound(source, f"its version is {version}, and this Weft reads version {VERSION}")
    length = int.from_bytes(prefix[-8:], "little")
    if length > source.size - _PREFIX:
        raise _unsound(source, f"its header is said to have {length} bytes")
    header = _header(source, length)
    arrays = header.pop("arrays", None)
    if not isinstance(arrays, list):
        raise _unsound(source, "its header does not list its arrays")
    layouts = [_layout(source, number, entry, _PREFIX + length) for number, entry in enumerate(arrays)]
    without_overlap(
        source.name, [(start, start + layout.size, f"array {n}") for n, (layout, start) in enumerate(layouts)]
    )
    found: list[array] = [array_at(source, layout, start) for layout, start in layouts]
    return source.name, header, [one.node for one in found]


def _header(source: Source, length: int) -> dict[str, Any]:
    try:
        header = json.loads(source.bytes_at(_PREFIX, length).decode(), parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise _unsound(source, f"its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _unsound(source, "its header is no dict")
    return header


def _layout(source: Source, number: int, entry: Any, begin: int) -> tuple[FileLayout, int]:
    what = f"array {number} in {source.name}"
    if not isinstance(entry, list) or len(entry) != 3:
        raise _unsound(source, f"array {number} is not described")
    name, extents, offset = entry
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise _unsound(source, f"array {number} is of no dtype")
    layout = FileLayout(shape_of(extents, dtype.size, what), dtype)
    if type(offset) is not int or offset < 0 or begin + offset + layout.size > source.size:
        raise _unsound(source, f"array {number} is not inside of it")
    return layout, begin + offset


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _unsound(source: Source, reason: str) -> FileFormatError:
    return FileFormatError(f"[import_function] {source.name} is no sound file of a function: {reason}.")
