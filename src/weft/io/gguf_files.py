"""Reading ``.gguf`` files: metadata, and tensors that may be quantised.

Counts, lengths and offsets are checked against the size of the file before they are used.
"""

from __future__ import annotations

import math
import struct
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from weft import dtypes
from weft.array import array
from weft.errors import FileFormatError
from weft.io import gguf_format as gguf
from weft.io.gguf_blocks import Unpack, other_kind, parts_of
from weft.io.reading import FileLayout, array_at, array_in, shape_of, without_overlap
from weft.io.sources import MemorySource, Source, source_of

__all__ = ["load_gguf"]

_WINDOW = 1 << 18
"""How many bytes of a header are read at once."""
_PIECE = 1 << 12
"""How many blocks are unpacked at once."""
_MOST_TENSOR_DIMENSIONS = 8


def load_gguf(file: Any) -> tuple[dict[str, array], dict[str, Any]]:
    """The arrays in a ``.gguf`` file by name, and its metadata by name: arrays, strings and lists of strings."""
    source = source_of(file)
    header = _Header(source)
    if header.take(4) != gguf.MAGIC:
        raise header.unsound("it does not begin like one")
    version = header.number("<I")
    if version not in (2, gguf.VERSION):
        raise header.unsound(f"its version is {version}; 2 and 3 can be read")
    tensors, values = header.number("<Q"), header.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(header.plausible(values, 13, "values")):
        key = header.text()
        if key in metadata:
            raise header.unsound(f"it has two values for {key!r}")
        metadata[key] = header.value(key)
    found = [header.tensor() for _ in range(header.plausible(tensors, 24, "tensors"))]
    return _arrays(source, header, found, _alignment(header, metadata)), metadata


class _Tensor(NamedTuple):
    """A tensor as the header describes it."""

    name: str
    what: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Header:
    """The header of a file, read from front to back."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._window, self._start, self._next = b"", 0, 0

    @property
    def position(self) -> int:
        return self._start + self._next

    @property
    def left(self) -> int:
        """The number of bytes that are left in the file."""
        return self._source.size - self.position

    def unsound(self, reason: str) -> FileFormatError:
        return FileFormatError(f"[load] {self._source.name} is no sound .gguf file: {reason}.")

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        if count > self.left:
            raise self.unsound(f"something of {count} bytes begins {self.left} bytes before its end")
        end = self._next + count
        if end > len(self._window):
            self._start, self._next, end = self.position, 0, count
            self._window = self._source.bytes_at(self._start, min(max(count, _WINDOW), self.left))
        found = self._window[self._next : end]
        self._next = end
        return found

    def number(self, form: str) -> int:
        """The next number; ``form`` is a format of `struct`."""
        found: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def plausible(self, count: int, smallest: int, what: str) -> int:
        """``count``, if the rest of the file has room for ``count`` items of at least ``smallest`` bytes each."""
        if count * smallest > self.left:
            raise self.unsound(f"{count} {what} are announced {self.left} bytes before its end")
        return count

    def text(self) -> str:
        return self._decoded(self.take(self.number("<Q")))

    def _decoded(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.unsound(f"a text in it is not UTF-8 ({error})") from error

    def texts(self, count: int) -> list[str]:
        """The next strings; vocabularies have hundreds of thousands."""
        found: list[str] = []
        while len(found) < count:
            found += [self._decoded(data) for data in self._whole_texts(count - len(found))]
            if len(found) < count:
                found.append(self.text())
        return found

    def _whole_texts(self, most: int) -> list[bytes]:
        """At most ``most`` of the next strings: those that are completely in the window."""
        found: list[bytes] = []
        length_at = struct.Struct("<Q").unpack_from
        window, at, end = self._window, self._next, len(self._window)
        while at + 8 <= end and len(found) < most:
            stop = at + 8 + length_at(window, at)[0]
            if stop > end:
                break
            found.append(window[at + 8 : stop])
            at = stop
        self._next = at
        return found

    def value(self, key: str) -> Any:
        """A value of the metadata: an array of at most one dimension, a string, or a list of strings."""
        kind = self.number("<I")
        if kind == gguf.STRING:
            return self.text()
        if kind != gguf.ARRAY:
            return self._numbers(kind, (), key)
        kind, count = self.number("<I"), self.number("<Q")
        if kind == gguf.ARRAY:
            raise FileFormatError(f"[load] {key!r} in {self._source.name} holds arrays of arrays, which no array can.")
        if kind == gguf.STRING:
            return self.texts(self.plausible(count, 8, "texts"))
        return self._numbers(kind, (self.plausible(count, 1, "numbers"),), key)

    def _numbers(self, kind: int, shape: tuple[int, ...], key: str) -> array:
        dtype = gguf.VALUES.get(kind)
        if dtype is None:
            raise self.unsound(f"the value of {key!r} is of kind {kind}, which there is not")
        layout = FileLayout(shape, dtype)
        return array_at(MemorySource(self._source.name, self.take(layout.size)), layout, 0)

    def tensor(self) -> _Tensor:
        name = self.text()
        what = f"{name!r} in {self._source.name}"
        rank = self.number("<I")
        if rank > _MOST_TENSOR_DIMENSIONS:
            raise self.unsound(f"{name!r} has {rank} dimensions; {_MOST_TENSOR_DIMENSIONS} are possible")
        extents = [self.number("<Q") for _ in range(rank)]
        return _Tensor(name, what, shape_of(extents[::-1], 8, what), self.number("<I"), self.number("<Q"))


def _alignment(header: _Header, metadata: dict[str, Any]) -> int:
    given = metadata.get(gguf.ALIGNMENT_KEY)
    if given is None:
        return gguf.ALIGNMENT
    if not isinstance(given, array) or given.dtype is not dtypes.uint32 or given.shape:
        raise header.unsound("its alignment is no number of 32 bits")
    found = int(given.item())
    if found == 0 or found & (found - 1):
        raise header.unsound(f"its alignment is {found}, which is no power of two")
    return found


class _Stored(NamedTuple):
    """Where the bytes of a tensor are in a file, and how many bytes hold how many elements."""

    blocks: gguf.BlockFormat
    first: int
    end: int


def _arrays(source: Source, header: _Header, tensors: list[_Tensor], alignment: int) -> dict[str, array]:
    start = -(-header.position // alignment) * alignment
    found: dict[str, array] = {}
    ranges = []
    for one in tensors:
        arrays, stored = _unpacked(source, one, start)
        ranges.append((stored.first, stored.end, one.what))
        twice = found.keys() & arrays.keys()
        if twice:
            raise header.unsound(f"it has two tensors called {min(twice)!r}")
        found.update(arrays)
    without_overlap(source.name, ranges)
    return found


def _unpacked(source: Source, tensor: _Tensor, start: int) -> tuple[dict[str, array], _Stored]:
    """The arrays for a tensor, by name."""
    plain = gguf.PLAIN.get(tensor.kind)
    if plain is not None:
        stored = _stored(source, tensor, start, gguf.BlockFormat(1, plain.size))
        return {tensor.name: array_at(source, FileLayout(tensor.shape, plain), stored.first)}, stored
    blocks = gguf.BLOCKS.get(tensor.kind)
    if blocks is None:
        blocks, unpack = other_kind(tensor.kind, tensor.what)
        stored = _stored(source, tensor, start, blocks)
        layout = FileLayout(tensor.shape, dtypes.float16)
        return {tensor.name: array_in(source, layout, partial(_read, source, stored, unpack))}, stored
    stored = _stored(source, tensor, start, blocks)
    parts = parts_of(tensor.kind)
    *rows, columns = tensor.shape
    packed = FileLayout((*rows, columns * parts.bits // 32), dtypes.uint32)
    numbers = FileLayout((*rows, columns // blocks.elements), dtypes.float16)
    prefix = tensor.name.removesuffix(".weight")
    return {
        tensor.name: array_in(source, packed, partial(_read, source, stored, parts.weight)),
        f"{prefix}.scales": array_in(source, numbers, partial(_read, source, stored, parts.scales)),
        f"{prefix}.biases": array_in(source, numbers, partial(_read, source, stored, parts.biases)),
    }, stored


def _stored(source: Source, tensor: _Tensor, start: int, blocks: gguf.BlockFormat) -> _Stored:
    """Where the bytes of a tensor are; raises unless its rows are whole blocks and the file contains them."""
    if blocks.elements > 1 and (not tensor.shape or tensor.shape[-1] % blocks.elements):
        raise FileFormatError(
            f"[load] {tensor.what} has the shape {tensor.shape}; the last extent of a tensor that is quantised like it "
            f"is a multiple of {blocks.elements}."
        )
    first = start + tensor.offset
    end = first + math.prod(tensor.shape) // blocks.elements * blocks.size
    if end > source.size and end > first:
        raise FileFormatError(
            f"[load] {tensor.what} should end at byte {end}, and the file has {source.size}: it is damaged."
        )
    return _Stored(blocks, first, end)


def _read(source: Source, stored: _Stored, unpack: Unpack, memory: memoryview) -> None:
    """Fill ``memory`` with the converted blocks, a few blocks at a time."""
    size = stored.blocks.size
    position, filled = stored.first, 0
    while position < stored.end:
        count = min(_PIECE, (stored.end - position) // size)
        blocks = np.frombuffer(source.bytes_at(position, count * size), np.uint8).reshape(count, size)
        with np.errstate(over="ignore", invalid="ignore"):
            elements = unpack(blocks)
        memory[filled : filled + elements.nbytes] = elements.reshape(-1).view(np.uint8).data
        position, filled = position + count * size, filled + elements.nbytes
