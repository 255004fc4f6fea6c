"""NumPy's format for several arrays: an archive of ``.npy`` files."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.array import array
from weft.checks import shown
from weft.errors import FileFormatError
from weft.io.files import File, check_encodable, values_of
from weft.io.npy_files import LONGEST_HEADER, read_header, write_npy
from weft.io.reading import array_in, without_overlap
from weft.io.sources import Source, source_of
from weft.io.writing import writable

if TYPE_CHECKING:
    import zipfile

__all__ = ["load_npz", "savez", "savez_compressed"]

_STORED, _DEFLATED = 0, 8
"""Methods of compression, by their numbers in an archive."""
_MOST_DEFLATED = 1032
"""A byte of deflated data expands to at most this many bytes."""
_PIECE = 1 << 18
_LOCAL_HEADER = 30
_LONGEST_NAME = (1 << 16) - 1 - len(".npy")


def savez(file: File, *args: array, **kwargs: array) -> None:
    """Save several arrays to an ``.npz`` file, an archive of ``.npy`` files.

    Args:
        file: a name, to which ``.npz`` is added if it has another ending, or a file opened for writing bytes.
        args: arrays that get the names ``arr_0``, ``arr_1``, ...
        kwargs: arrays with their names.

    Raises:
        ValueError: a name is used twice.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.savez(file, weight=mx.ones((2, 2)), bias=mx.zeros(2))
    """
    _write_archive("savez", file, args, kwargs, _STORED)


def savez_compressed(file: File, /, *args: array, **kwargs: array) -> None:
    """Save several arrays to a compressed ``.npz`` file; the arguments are those of `savez`.

    >>> import io
    >>> file = io.BytesIO()
    >>> mx.savez_compressed(file, mx.zeros((100, 100)))
    """
    _write_archive("savez_compressed", file, args, kwargs, _DEFLATED)


def _write_archive(name: str, file: Any, args: tuple[array, ...], kwargs: dict[str, array], compression: int) -> None:
    import zipfile  # takes 4 ms

    found = {f"arr_{position}": value for position, value in enumerate(args)}
    twice = found.keys() & kwargs.keys()
    if twice:
        raise ValueError(f"[{name}] {', '.join(sorted(twice))} is the name of an array without a name as well.")
    found |= kwargs
    check_encodable(name, found)
    for key in found:
        if "\0" in key or len(key.encode()) > _LONGEST_NAME:
            raise ValueError(f"[{name}] {shown(key)} cannot be the name of a file in an archive.")
    values = {key: values_of(name, value, key) for key, value in found.items()}
    with writable(name, file, ".npz") as target, zipfile.ZipFile(target, "w", compression) as archive:
        for key, one in values.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                write_npy(entry, one)


def load_npz(file: Any) -> dict[str, array]:
    """The arrays in an ``.npz`` file by name."""
    import zipfile

    source = source_of(file)
    try:
        with zipfile.ZipFile(_Reader(source)) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        raise FileFormatError(f"[load] {source.name} is no sound .npz file: {error}") from error
    members = [_member(source, info) for info in listed]
    without_overlap(source.name, [(one.first, one.end, one.what) for one in members])
    found: dict[str, array] = {}
    for one in members:
        if one.name in found:
            raise FileFormatError(f"[load] {source.name} has two arrays called {one.name!r}.")
        found[one.name] = _array(source, one)
    return found


class _Reader(io.RawIOBase):
    """A source with the interface of an open file."""

    def __init__(self, source: Source) -> None:
        self._source, self._position = source, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}[whence]
        if position < 0:
            raise io.UnsupportedOperation("it refers to what is before its beginning")
        self._position = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(self._source.size - self._position, 0)
        count = left if size is None or size < 0 else min(size, left)
        found = self._source.bytes_at(self._position, count) if count else b""
        self._position += count
        return found


class _Member(NamedTuple):
    """A file in an archive: the position of its bytes, compressed or not, its size without compression, and its
    checksum."""

    name: str
    what: str
    first: int
    end: int
    deflated: bool
    size: int
    checksum: int


def _member(source: Source, info: zipfile.ZipInfo) -> _Member:
    name = info.filename.removesuffix(".npy")
    what = f"{name!r} in {source.name}"
    if info.flag_bits & 0x1:
        raise FileFormatError(f"[load] {what} is encrypted.")
    if info.compress_type not in (_STORED, _DEFLATED):
        raise FileFormatError(f"[load] {what} is compressed by a method other than deflate, as nothing of NumPy's is.")
    header = source.bytes_at(info.header_offset, _LOCAL_HEADER)
    if header[:4] != b"PK\x03\x04":
        raise FileFormatError(f"[load] {what} is not where the archive says.")
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    first = info.header_offset + _LOCAL_HEADER + lengths
    end = first + info.compress_size
    deflated = info.compress_type == _DEFLATED
    most = info.compress_size * _MOST_DEFLATED if deflated else info.compress_size
    if end > source.size or info.file_size > most or (not deflated and info.file_size != most):
        raise FileFormatError(f"[load] {what} is said to have {info.file_size} bytes, for which there is no room.")
    return _Member(name, what, first, end, deflated, info.file_size, info.CRC)


def _array(source: Source, member: _Member) -> array:
    beginning = io.BytesIO(b"".join(_pieces(source, member, 1 << 14, min(LONGEST_HEADER + 12, member.size))))

    def take(count: int) -> bytes:
        found = beginning.read(count)
        if len(found) < count:
            raise FileFormatError(f"[load] {member.what} is no sound .npy file: it ends too early.")
        return found

    layout, start = read_header(take, member.what)
    if start + layout.size != member.size:
        raise FileFormatError(
            f"[load] {member.what} is no sound .npy file: its header tells of {layout.size} bytes, and "
            f"{member.size - start} follow."
        )
    return array_in(source, layout, partial(_read, source, member, start))


def _read(source: Source, member: _Member, start: int, memory: memoryview) -> None:
    """Fill ``memory`` with the bytes of a member from byte ``start`` on, and check the whole member."""
    checksum = position = 0
    if not member.deflated:
        checksum = zlib.crc32(source.bytes_at(member.first, start))
        source.read_into(member.first + start, memory)
        checksum = zlib.crc32(memory, checksum)
    else:
        for piece in _pieces(source, member, _PIECE, member.size):
            checksum = zlib.crc32(piece, checksum)
            kept = piece[max(start - position, 0) :]
            into = max(position - start, 0)
            memory[into : into + len(kept)] = kept
            position += len(piece)
    if checksum != member.checksum:
        raise FileFormatError(f"[load] {member.what} is damaged: its checksum is another one.")


def _pieces(source: Source, member: _Member, piece: int, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a member, uncompressed."""
    if not member.deflated:
        yield source.bytes_at(member.first, size)
        return
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    position, pending = member.first, b""
    while size:
        if not pending:
            count = min(piece, member.end - position)
            pending = source.bytes_at(position, count)
            position += count
        at_end = not pending
        try:
            found = inflater.decompress(pending, min(piece, size))
        except zlib.error as error:
            raise FileFormatError(f"[load] {member.what} is damaged: {error}.") from error
        pending = inflater.unconsumed_tail
        size -= len(found)
        if not found and (at_end or inflater.eof):
            raise FileFormatError(f"[load] {member.what} is damaged: it ends {size} bytes too early.")
        yield found
