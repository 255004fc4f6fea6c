"""Reading arrays from files."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import IO, Any

from weft.checks import one_of, wrong_type
from weft.io.files import File, called, is_open
from weft.io.numpy_files import load_npy, load_npz
from weft.io.safetensors_files import load_safetensors
from weft.runtime.devices import StreamOrDevice, as_stream

__all__ = ["load"]

_FORMATS = ("npy", "npz", "safetensors")


def load(
    file: File,
    /,
    format: str | None = None,
    return_metadata: bool = False,
    *,
    stream: StreamOrDevice = None,
) -> Any:
    """Load arrays from a ``.npy``, ``.npz`` or ``.safetensors`` file.

    Objects that NumPy would unpickle are refused: a file from elsewhere can do no harm.

    Args:
        file: a name, or a file opened for reading bytes.
        format: ``"npy"``, ``"npz"`` or ``"safetensors"``; what the name ends in if None.
        return_metadata: whether to return the metadata of a ``.safetensors`` file as well.

    Returns:
        The array of a ``.npy`` file, else a dict of arrays by name; with the metadata, a pair of dicts.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or of another format, or holds what is no array of numbers.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.savez(file, a=mx.array([1, 2]), b=mx.array([True]))
    >>> _ = file.seek(0)
    >>> mx.load(file, format="npz")
    {'a': array([1, 2], dtype=int32), 'b': array([True], dtype=bool)}
    """
    as_stream(stream)  # raises if it is none
    if not is_open(file) and not isinstance(file, (str, os.PathLike)):
        raise wrong_type("load", "file", "a name or a file opened for reading bytes", file)
    kind = _format(file) if format is None else format
    one_of("load", "format", kind, _FORMATS)
    if return_metadata and kind != "safetensors":
        raise ValueError(f"[load] Files of the format {kind!r} have no metadata; only 'safetensors' files do.")
    source: Any = file
    if is_open(source):
        return _read(source, kind, return_metadata)
    with open(source, "rb") as opened:
        return _read(opened, kind, return_metadata)


def _format(file: Any) -> str:
    name = getattr(file, "name", "") if is_open(file) else os.fspath(file)
    extension = PurePath(name).suffix if isinstance(name, str) else ""
    if not extension:
        raise ValueError(
            f"[load] The format of {called(file)} does not show in a name: give format='npy', 'npz' or 'safetensors'."
        )
    return extension[1:]


def _read(file: IO[bytes], kind: str, return_metadata: bool) -> Any:
    if kind == "npy":
        return load_npy(file)
    if kind == "npz":
        return load_npz(file)
    arrays, metadata = load_safetensors(file)
    return (arrays, metadata) if return_metadata else arrays
