"""Reading arrays from files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from weft.checks import one_of, wrong_type
from weft.io.files import File, called, is_open
from weft.io.gguf_files import load_gguf
from weft.io.npy_files import load_npy
from weft.io.npz_files import load_npz
from weft.io.safetensors_files import load_safetensors
from weft.ops.entrance import call_on
from weft.runtime.devices import StreamOrDevice

__all__ = ["load"]

_PLAIN: dict[str, Callable[[Any], Any]] = {"npy": load_npy, "npz": load_npz}
_WITH_METADATA: dict[str, Callable[[Any], tuple[Any, Any]]] = {"safetensors": load_safetensors, "gguf": load_gguf}
_FORMATS = (*_PLAIN, *_WITH_METADATA)


def load(
    file: File,
    /,
    format: str | None = None,
    return_metadata: bool = False,
    *,
    stream: StreamOrDevice = None,
) -> Any:
    """Load arrays from a ``.npy``, ``.npz``, ``.safetensors`` or ``.gguf`` file.

    The description of the arrays in the file is checked at once. Large arrays are read when their elements are needed,
    from the file as it was when it was loaded; of an open file everything is read at once. Eight-bit floating-point
    numbers with four bits of exponent, and shared exponents, are returned as ``uint8`` with the same bits, for
    ``mx.from_fp8``; those with five bits of exponent as ``float16``. Tensors of a ``.gguf`` file that are quantised as
    Q4_0, Q4_1 or Q8_0 are returned as weights, ``scales`` and ``biases``; other quantised kinds as ``float16``, for
    which the package ``gguf`` is needed (``pip install weft[gguf]``).

    Files from untrusted sources are safe to load: nothing in them is executed, and pickled objects are refused.

    Args:
        file: a name, or a file opened for reading bytes.
        format: ``"npy"``, ``"npz"``, ``"safetensors"`` or ``"gguf"``; None for the ending of the name.
        return_metadata: whether to return the metadata of a ``.safetensors`` or ``.gguf`` file as well.
        stream: the stream on whose worker arrays are read if no thread waits for them.

    Returns:
        The array of a ``.npy`` file, else a dict of arrays by name; with the metadata, a pair of dicts.

    Raises:
        FileNotFoundError: there is no such file; the error is a RuntimeError, too.
        ValueError: the file is damaged, has another format, or contains something that is no array of numbers; the
            error is a RuntimeError, too. If an array is read later, damage to its elements is found then.
        RuntimeError: raised when an array is evaluated: the file was changed before the array was read from it.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.savez(file, a=mx.array([1, 2]), b=mx.array([True]))
    >>> _ = file.seek(0)
    >>> mx.load(file, format="npz")
    {'a': array([1, 2], dtype=int32), 'b': array([True], dtype=bool)}
    """
    if not is_open(file) and not isinstance(file, (str, os.PathLike)):
        raise wrong_type("load", "file", "a name or a file opened for reading bytes", file)
    if format is not None:
        one_of("load", "format", format, _FORMATS)
    kind = _format(file) if format is None else format
    if return_metadata and kind in _PLAIN:
        raise ValueError(
            f"[load] Files of the format {kind!r} have no metadata; only 'safetensors' and 'gguf' files do."
        )
    if kind in _PLAIN:
        return call_on(stream, _PLAIN[kind], file)
    arrays, metadata = call_on(stream, _WITH_METADATA[kind], file)
    return (arrays, metadata) if return_metadata else arrays


def _format(file: Any) -> str:
    name = getattr(file, "name", "") if is_open(file) else os.fspath(file)
    extension = os.path.splitext(name)[1] if isinstance(name, str) else ""
    if extension[1:] in _FORMATS:
        return extension[1:]
    raise ValueError(
        f"[load] The format of {called(file)} does not show in its name, which should end in one of "
        f"{', '.join('.' + one for one in _FORMATS)}: give format='npy', 'npz', 'safetensors' or 'gguf'."
    )
