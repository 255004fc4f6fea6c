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

    What the file says of the arrays is checked at once; the elements of large ones are read when they are needed, from
    the file that was there then. (Of an open file everything is read at once.) Eight-bit floating-point numbers with
    four bits of exponent, and shared exponents, come as ``uint8`` with the same bits, for ``mx.from_fp8``; those with
    five bits of exponent as ``float16``. Tensors of a ``.gguf`` file that are quantised as Q4_0, Q4_1 or Q8_0 come as
    weights, ``scales`` and ``biases``; other kinds as ``float16``, for which the package ``gguf`` is needed (``pip
    install weft[gguf]``).

    A file from elsewhere can do no harm: nothing in it is executed, and objects that NumPy would unpickle are refused.

    Args:
        file: a name, or a file opened for reading bytes.
        format: ``"npy"``, ``"npz"``, ``"safetensors"`` or ``"gguf"``; what the name ends in if None.
        return_metadata: whether to return the metadata of a ``.safetensors`` or ``.gguf`` file as well.
        stream: where elements are read that nobody waits for.

    Returns:
        The array of a ``.npy`` file, else a dict of arrays by name; with the metadata, a pair of dicts.

    Raises:
        FileNotFoundError: there is no such file. It is a RuntimeError as well.
        ValueError: the file is damaged or of another format, or holds what is no array of numbers. It is a RuntimeError
            as well. A damaged element that is read later is found then.
        RuntimeError: the file was changed before an array was read from it. Evaluating that array raises this.

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
