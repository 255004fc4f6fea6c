"""Writing ``.gguf`` files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.array import array
from weft.checks import shown, wrong_type
from weft.io import gguf_format as gguf
from weft.io.files import File, bytes_of, check_encodable, values_of
from weft.io.writing import write

__all__ = ["save_gguf"]

_KINDS = {dtype: kind for kind, dtype in gguf.PLAIN.items()}
_VALUE_KINDS = {dtype: kind for kind, dtype in gguf.VALUES.items()}
_MOST_DIMENSIONS = 8


def save_gguf(file: File, arrays: dict[str, array], metadata: dict[str, array | str | list[str]] | None = None) -> None:
    """Save named arrays to a ``.gguf`` file.

    Args:
        file: a name, to which ``.gguf`` is added if it has another ending, or a file opened for writing bytes.
        arrays: the arrays by name, of at most 8 dimensions, of ``float16``, ``bfloat16``, ``float32``, ``float64``,
            ``int8``, ``int16``, ``int32`` or ``int64``.
        metadata: values by name: a string, a list of strings, or an array of at most one dimension, neither half
            precision nor complex. `load` returns them with ``return_metadata=True``.

    Raises:
        ValueError: the format cannot store an array or a value.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.save_gguf(file, {"weight": mx.ones((2, 2))}, {"epoch": mx.array(3), "authors": ["Ada", "Emmy"]})
    """
    values = {name: _checked(name, value) for name, value in _items("arrays", arrays)}
    kinds = {name: _KINDS[arrays[name].dtype] for name in values}
    noted = {} if metadata is None else dict(_items("metadata", metadata))
    texts = [struct.pack("<4sIQQ", gguf.MAGIC, gguf.VERSION, len(values), len(noted))]
    texts += [_text(key) + _value(key, value) for key, value in noted.items()]
    alignment = _alignment(noted)
    offset = 0
    for name, one in values.items():
        extents = one.shape[::-1]
        described = struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kinds[name], offset)
        texts.append(_text(name) + described)
        offset += -(-one.nbytes // alignment) * alignment
    header = b"".join(texts)
    pieces = _pieces(header + bytes(-len(header) % alignment), list(values.values()), alignment)
    write("save_gguf", file, ".gguf", pieces)


def _pieces(header: bytes, values: list[np.ndarray[Any, Any]], alignment: int) -> Iterator[Any]:
    yield header
    for one in values:
        yield bytes_of(one)
        yield bytes(-one.nbytes % alignment)


def _items(argument: str, value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"[save_gguf] {argument} is a dict with names (strings) as keys.")
    check_encodable("save_gguf", value)
    return value.items()


def _checked(name: str, value: Any) -> np.ndarray[Any, Any]:
    found = values_of("save_gguf", value, f"arrays[{name!r}]")
    if value.dtype not in _KINDS:
        raise ValueError(f"[save_gguf] arrays[{name!r}]: a .gguf file cannot hold {value.dtype.name}; convert it.")
    if found.ndim > _MOST_DIMENSIONS:
        raise ValueError(f"[save_gguf] arrays[{name!r}] has {found.ndim} dimensions; {_MOST_DIMENSIONS} are possible.")
    return found


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Any) -> bytes:
    if isinstance(value, str):
        check_encodable("save_gguf", [value])
        return struct.pack("<I", gguf.STRING) + _text(value)
    if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
        check_encodable("save_gguf", value)
        return struct.pack("<IIQ", gguf.ARRAY, gguf.STRING, len(value)) + b"".join(map(_text, value))
    if not isinstance(value, array):
        raise wrong_type("save_gguf", f"metadata[{key!r}]", "an array, a string or a list of strings", value)
    kind = _VALUE_KINDS.get(value.dtype)
    if kind is None or value.ndim > 1:
        raise ValueError(
            f"[save_gguf] metadata[{key!r}] is an array of at most one dimension, neither half precision nor complex; "
            f"got {value.dtype.name} of shape {value.shape}."
        )
    data = bytes(bytes_of(values_of("save_gguf", value, f"metadata[{key!r}]")))
    if value.ndim:
        return struct.pack("<IIQ", gguf.ARRAY, kind, value.size) + data
    return struct.pack("<I", kind) + data


def _alignment(metadata: dict[str, Any]) -> int:
    given = metadata.get(gguf.ALIGNMENT_KEY)
    if given is None:
        return gguf.ALIGNMENT
    number = given.item() if isinstance(given, array) and _VALUE_KINDS[given.dtype] == 4 and given.size == 1 else 0
    if number < 8 or number & (number - 1):
        raise ValueError(
            f"[save_gguf] metadata[{gguf.ALIGNMENT_KEY!r}] is a power of two from 8 on as a uint32 array; got "
            f"{shown(given)}."
        )
    return int(number)
