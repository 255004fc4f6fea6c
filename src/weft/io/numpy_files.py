"""NumPy's files: one array in ``.npy``, several in ``.npz``."""

from __future__ import annotations

import zipfile
import zlib
from typing import IO, Any

import numpy as np

from weft.array import array
from weft.io.files import File, array_of, called, to_write, values_of

__all__ = ["load_npy", "load_npz", "save", "savez", "savez_compressed"]


def save(file: File, arr: array) -> None:
    """Save an array to a ``.npy`` file.

    Args:
        file: a name, to which ``.npy`` is added if it does not end so, or a file opened for writing bytes.
        arr: the array; NumPy reads ``bfloat16`` as raw two-byte elements.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.save(file, mx.array([1, 2, 3]))
    """
    values = values_of("save", arr, "arr")
    target = to_write("save", file, ".npy")
    if isinstance(target, str):
        with open(target, "wb") as opened:
            _write(opened, values)
    else:
        _write(target, values)


def savez(file: File, *args: array, **kwargs: array) -> None:
    """Save several arrays to an ``.npz`` file, an archive of ``.npy`` files.

    Args:
        file: a name, to which ``.npz`` is added if it does not end so, or a file opened for writing bytes.
        args: arrays that are called ``arr_0``, ``arr_1``, ...
        kwargs: arrays with their names.

    Raises:
        ValueError: a name is used twice.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.savez(file, weight=mx.ones((2, 2)), bias=mx.zeros(2))
    """
    _write_archive("savez", file, args, kwargs, zipfile.ZIP_STORED)


def savez_compressed(file: File, *args: array, **kwargs: array) -> None:
    """Save several arrays to a compressed ``.npz`` file; see `savez`.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.savez_compressed(file, mx.zeros((100, 100)))
    """
    _write_archive("savez_compressed", file, args, kwargs, zipfile.ZIP_DEFLATED)


def _write(file: IO[bytes], values: np.ndarray[Any, Any]) -> None:
    if values.dtype.name == "bfloat16":
        values = values.view("V2")
    np.lib.format.write_array(file, values, allow_pickle=False)


def _write_archive(name: str, file: Any, args: tuple[array, ...], kwargs: dict[str, array], compression: int) -> None:
    found = {f"arr_{position}": value for position, value in enumerate(args)}
    twice = found.keys() & kwargs.keys()
    if twice:
        raise ValueError(f"[{name}] {', '.join(sorted(twice))} is the name of an array without a name as well.")
    found |= kwargs
    values = {key: values_of(name, value, key) for key, value in found.items()}
    with zipfile.ZipFile(to_write(name, file, ".npz"), "w", compression) as archive:
        for key, one in values.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                _write(entry, one)


def load_npy(file: IO[bytes]) -> array:
    """The array in an open ``.npy`` file."""
    return array_of(_read(file, called(file)), called(file))


def _read(file: IO[bytes], what: str) -> np.ndarray[Any, Any]:
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"[load] {what} is no sound .npy file: {error}") from error


def load_npz(file: IO[bytes]) -> dict[str, array]:
    """The arrays in an open ``.npz`` file by name."""
    what = called(file)
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise ValueError(f"[load] {what} is no sound .npz file: {error}") from error
    found = {}
    with archive:
        for entry in archive.namelist():
            name = entry.removesuffix(".npy")
            inside = f"{name!r} in {what}"
            found[name] = array_of(_entry(archive, entry, inside), inside)
    return found


def _entry(archive: zipfile.ZipFile, entry: str, what: str) -> np.ndarray[Any, Any]:
    try:
        opened = archive.open(entry)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise ValueError(f"[load] {what} cannot be read: {error}") from error
    with opened:
        return _read(opened, what)
