"""The format ``.safetensors``: the length of a header, the header in JSON, and the elements of named arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np

from weft import dtypes
from weft.array import array
from weft.dtypes import Dtype
from weft.errors import FileFormatError
from weft.io.files import File, bytes_of, check_encodable, values_of
from weft.io.reading import FileLayout, array_at, array_in, shape_of
from weft.io.sources import Source, source_of
from weft.io.writing import write

__all__ = ["load_safetensors", "save_safetensors"]

_LONGEST_HEADER = 100_000_000
_METADATA = "__metadata__"
_DTYPES = {
    "BOOL": dtypes.bool_,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
    "C64": dtypes.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LOADED = {**_DTYPES, "F8_E4M3": dtypes.uint8, "F8_E8M0": dtypes.uint8}
"""Eight-bit floating-point numbers are returned as their bits, for `from_fp8`."""
_UPPER_HALF = "F8_E5M2"
"""Its bits are the upper half of the bits of the same number in float16."""


def save_safetensors(file: File, arrays: dict[str, array], metadata: dict[str, str] | None = None) -> None:
    """Save named arrays to a ``.safetensors`` file.

    Args:
        file: a name, to which ``.safetensors`` is added if it has another ending, or a file opened for writing bytes.
        arrays: the arrays by name.
        metadata: text by name, which `load` returns with ``return_metadata=True``.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.save_safetensors(file, {"weight": mx.ones((2, 2))}, {"epoch": "3"})
    """
    _check_text("arrays", arrays)
    if metadata is not None:
        _check_text("metadata", metadata)
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("[save_safetensors] metadata is a dict of strings by name.")
        check_encodable("save_safetensors", metadata.values())
    if _METADATA in arrays:
        raise ValueError(f"[save_safetensors] No array can be called {_METADATA!r}, where the format keeps metadata.")
    values = {name: values_of("save_safetensors", value, f"arrays[{name!r}]") for name, value in arrays.items()}
    pieces = _pieces(values, {name: arrays[name].dtype for name in values}, metadata)
    write("save_safetensors", file, ".safetensors", pieces)


def _pieces(values: dict[str, np.ndarray[Any, Any]], of: dict[str, Dtype], metadata: Any) -> Iterator[Any]:
    """The contents of the file. Arrays with large elements come first, so that all are aligned."""
    header: dict[str, Any] = {} if metadata is None else {_METADATA: metadata}
    order = sorted(values, key=lambda name: (-of[name].size, name))
    end = 0
    for name in order:
        begin, end = end, end + values[name].nbytes
        header[name] = {"dtype": _NAMES[of[name]], "shape": values[name].shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in order:
        yield bytes_of(values[name])


def _check_text(argument: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"[save_safetensors] {argument} is a dict with names (strings) as keys.")
    check_encodable("save_safetensors", value)


def load_safetensors(file: Any) -> tuple[dict[str, array], dict[str, str]]:
    """The arrays in a ``.safetensors`` file by name, and its metadata."""
    source = source_of(file)
    length = int.from_bytes(source.bytes_at(0, 8), "little")
    if not 2 <= length <= min(_LONGEST_HEADER, source.size - 8):
        raise _unsound(source, f"its header is said to have {length} bytes")
    header = _header(source, length)
    metadata = header.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _unsound(source, "its metadata is no dict of strings")
    start = 8 + length
    ends = sorted(_offsets(source, name, entry) for name, entry in header.items())
    expected = 0
    for begin, end in ends:  # in order and without holes, as the format requires
        if begin != expected:
            raise _unsound(source, f"its arrays overlap or leave a hole at byte {expected}")
        expected = end
    if start + expected != source.size:
        raise _unsound(source, f"it has {source.size - start} bytes of elements, and its header tells of {expected}")
    return {name: _array(source, name, entry, start) for name, entry in header.items()}, metadata


def _header(source: Source, length: int) -> dict[str, Any]:
    try:
        header = json.loads(source.bytes_at(8, length).decode(), object_pairs_hook=_unique, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise _unsound(source, f"its header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _unsound(source, "its header is no dict")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _offsets(source: Source, name: str, entry: Any) -> tuple[int, int]:
    """Where the elements begin and end, counted from the end of the header."""
    found = entry.get("data_offsets") if isinstance(entry, dict) else None
    if isinstance(found, list) and len(found) == 2 and all(type(one) is int for one in found):
        begin, end = found
        if 0 <= begin <= end:
            return begin, end
    raise _unsound(source, f"the offsets of {name!r} are no range")


def _array(source: Source, name: str, entry: dict[str, Any], start: int) -> array:
    what = f"{name!r} in {source.name}"
    kind = entry.get("dtype")
    halves = kind == _UPPER_HALF
    dtype = dtypes.float16 if halves else _LOADED.get(kind) if isinstance(kind, str) else None
    if dtype is None:
        raise FileFormatError(f"[load] {what} holds elements of type {kind!r}, for which there is no dtype.")
    shape = shape_of(entry.get("shape"), dtype.size, what)
    begin, end = entry["data_offsets"]
    size = math.prod(shape) * (1 if halves else dtype.size)
    if size != end - begin:
        raise FileFormatError(f"[load] {what} has a shape of {size} bytes, but offsets that are {end - begin} apart.")
    layout = FileLayout(shape, dtype)
    if not halves:
        return array_at(source, layout, start + begin)

    def read(memory: memoryview) -> None:
        source.read_into(start + begin, memory[size:])
        numbers = np.frombuffer(memory, "<u2")
        numbers[:] = np.frombuffer(memory[size:], np.uint8).astype("<u2") << 8

    return array_in(source, layout, read)


def _unsound(source: Source, reason: str) -> FileFormatError:
    return FileFormatError(f"[load] {source.name} is no sound .safetensors file: {reason}.")
