"""From LLVM's object code to an image that needs no linker.

Only what code for x86-64 consists of when it is position-independent: sections that are never written, addresses
relative to the place where they are used, calls of functions elsewhere. For everything else the answer is None, and
LLVM links the object.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from weft.runtime.machine_code import Image

_FILE = struct.Struct("<6s10xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_MAGIC = b"\x7fELF\x02\x01"
_RELOCATABLE, _X86_64 = 1, 62
_PROGRAM, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_WRITABLE, _IN_MEMORY, _THREAD_LOCAL = 1, 2, 1024
_UNDEFINED, _RESERVED = 0, 0xFF00
_PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX = 2, 4, 9, 41, 42
_THROUGH_SLOT = (_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX)
# jmp *(%rip): to the address in the eight bytes that follow, the slot.
_JUMP = b"\xff\x25\x00\x00\x00\x00"
_STUB = 16


class _Unsupported(Exception):
    """Something that only a real linker knows."""


@dataclass(slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    content: bytes
    link: int
    info: int
    alignment: int


@dataclass(slots=True)
class _Symbol:
    name: str
    section: int
    value: int


def image_of(object_code: bytes, functions: tuple[str, ...]) -> Image | None:
    """The image of an object with the offsets of ``functions``; None if a linker has to see it."""
    try:
        return _Packer(object_code).image(functions)
    except _Unsupported:
        return None


class _Packer:
    def __init__(self, content: bytes) -> None:
        magic, kind, machine, *_ = _FILE.unpack_from(content) if len(content) >= _FILE.size else (b"", 0, 0)
        if (magic, kind, machine) != (_MAGIC, _RELOCATABLE, _X86_64):
            raise _Unsupported
        self.sections = _sections(content)
        self.symbols = self._symbols()
        self.code = bytearray()
        self.places: dict[int, int] = {}
        self.slots: dict[str, int] = {}

    def image(self, functions: tuple[str, ...]) -> Image:
        for number, section in enumerate(self.sections):
            if section.flags & _IN_MEMORY and section.name != ".eh_frame":
                self._place(number, section)
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info in self.places:
                self._relocate(section)
        found = {symbol.name: symbol for symbol in self.symbols if symbol.section in self.places}
        offsets = {name: self.places[found[name].section] + found[name].value for name in functions}
        return Image(bytes(self.code), offsets, self.slots)

    def _symbols(self) -> list[_Symbol]:
        tables = [section for section in self.sections if section.kind == _SYMBOLS]
        if len(tables) != 1:
            raise _Unsupported
        names = self.sections[tables[0].link].content
        fields = _SYMBOL.iter_unpack(tables[0].content)
        return [_Symbol(_name(names, at), section, value) for at, _, _, section, value, _ in fields]

    def _place(self, number: int, section: _Section) -> None:
        if section.kind != _PROGRAM or section.flags & (_WRITABLE | _THREAD_LOCAL) or section.alignment > 4096:
            raise _Unsupported
        self.code += bytes(-len(self.code) % max(section.alignment, 1))
        self.places[number] = len(self.code)
        self.code += section.content

    def _relocate(self, relocations: _Section) -> None:
        base = self.places[relocations.info]
        for offset, kind, number, addend in _RELOCATION.iter_unpack(relocations.content):
            target = self._target(self.symbols[number], kind)
            place = base + offset
            struct.pack_into("<i", self.code, place, target + addend - place)

    def _target(self, symbol: _Symbol, kind: int) -> int:
        """The offset that a relocation means."""
        if symbol.section in self.places and kind in (_PC32, _PLT32):
            return self.places[symbol.section] + symbol.value
        if symbol.section == _UNDEFINED and symbol.name and kind == _PLT32:
            return self._slot(symbol.name) - len(_JUMP)
        if symbol.section == _UNDEFINED and symbol.name and kind in _THROUGH_SLOT:
            return self._slot(symbol.name)
        raise _Unsupported

    def _slot(self, name: str) -> int:
        """Where the address of a function elsewhere will stand, behind a jump to it."""
        if name not in self.slots:
            self.code += bytes(-len(self.code) % _STUB)
            self.slots[name] = len(self.code) + len(_JUMP)
            self.code += _JUMP.ljust(_STUB, b"\x00")
        return self.slots[name]


def _sections(content: bytes) -> list[_Section]:
    _, _, _, _, _, _, start, _, _, _, _, size, count, names_at = _FILE.unpack_from(content)
    headers = [_SECTION.unpack_from(content, start + number * size) for number in range(count)]
    names_start, names_size = headers[names_at][4:6]
    names = content[names_start : names_start + names_size]
    sections = []
    for at, kind, flags, _, offset, length, link, info, alignment, _ in headers:
        sections.append(
            _Section(_name(names, at), kind, flags, content[offset : offset + length], link, info, alignment)
        )
    return sections


def _name(names: bytes, start: int) -> str:
    return names[start : names.index(b"\x00", start)].decode()
