"""The format ``.safetensors``: named arrays and text about them."""

from __future__ import annotations

import json
from typing import IO, Any

import numpy as np
import safetensors
from safetensors.numpy import save as serialize

from weft import dtypes
from weft.array import array
from weft.io.files import File, array_of, called, to_write, values_of

__all__ = ["load_safetensors", "save_safetensors"]

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


def save_safetensors(file: File, arrays: dict[str, array], metadata: dict[str, str] | None = None) -> None:
    """Save named arrays to a ``.safetensors`` file.

    Args:
        file: a name, to which ``.safetensors`` is added if it does not end so, or a file opened for writing bytes.
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
    values = {name: values_of("save_safetensors", value, f"arrays[{name!r}]") for name, value in arrays.items()}
    data = serialize(values, metadata)
    target = to_write("save_safetensors", file, ".safetensors")
    if isinstance(target, str):
        with open(target, "wb") as opened:
            opened.write(data)
    else:
        target.write(data)


def _check_text(argument: str, value: Any) -> None:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"[save_safetensors] {argument} is a dict with names (strings) as keys.")


def load_safetensors(file: IO[bytes]) -> tuple[dict[str, array], dict[str, str]]:
    """The arrays in an open ``.safetensors`` file by name, and its metadata."""
    what = called(file)
    data = file.read()
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]  # a native function
    except safetensors.SafetensorError as error:
        raise ValueError(f"[load] {what} is no sound .safetensors file: {error}") from error
    arrays = {name: _array(entry, f"{name!r} in {what}") for name, entry in entries}
    return arrays, _metadata(data)


def _array(entry: dict[str, Any], what: str) -> array:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"[load] {what} holds elements of type {entry['dtype']}, for which there is no dtype.")
    return array_of(np.frombuffer(entry["data"], dtype.numpy).reshape(entry["shape"]), what)


def _metadata(data: bytes) -> dict[str, str]:
    """The text in the header, which is JSON behind its length in 8 bytes."""
    length = int.from_bytes(data[:8], "little")
    return dict(json.loads(data[8 : 8 + length]).get("__metadata__") or {})
