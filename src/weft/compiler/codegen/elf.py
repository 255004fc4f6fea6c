"""From LLVM's object code to an image that needs no linker.

It handles what position-independent code for x86-64 and ARM64 consists of: sections that are never written, addresses
relative to the place where they are used, calls of functions elsewhere. For every other object the result is None, and
LLVM links it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from weft.runtime.machine_code import Image

_FILE = struct.Struct("<6s10xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_MAGIC = b"\x7fELF\x02\x01"
_RELOCATABLE = 1
_PROGRAM, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_WRITABLE, _IN_MEMORY, _THREAD_LOCAL = 1, 2, 1024
_UNDEFINED, _RESERVED = 0, 0xFF00
_PAGE = 4096
_STUB = 16


class _Unsupported(Exception):
    """The object has something that only a real linker handles."""


@dataclass(frozen=True)
class _Machine:
    """How relocations are applied on a processor.

    ``here`` are kinds of relocations that may refer to the image. For functions elsewhere, ``calls`` are kinds that
    refer to a stub, and ``loads`` kinds that refer to the slot that holds the address. ``jump`` is the code of a stub,
    which jumps to the address in the slot after it. ``write`` writes the target of a relocation into the code.
    """

    jump: bytes
    here: Container[int]
    calls: Container[int]
    loads: Container[int]
    write: Callable[[bytearray, int, int, int], None]


def _write_distance(code: bytearray, position: int, kind: int, target: int) -> None:
    struct.pack_into("<i", code, position, target - position)


# The psABI of x86-64 calls these R_X86_64_...
_PC32, _PLT32, _GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX = 2, 4, 9, 41, 42
_X86_64 = _Machine(
    jump=b"\xff\x25\x00\x00\x00\x00",  # jmp *(%rip)
    here=(_PC32, _PLT32),
    calls=(_PLT32,),
    loads=(_GOTPCREL, _GOTPCRELX, _REX_GOTPCRELX),
    write=_write_distance,
)

# The ELF ABI of ARM64 calls these R_AARCH64_...
_ADR_PREL_PG_HI21, _ADD_ABS_LO12_NC, _JUMP26, _CALL26, _ADR_GOT_PAGE, _LD64_GOT_LO12_NC = 275, 277, 282, 283, 311, 312
_LOW_BITS: Mapping[int, int] = {_ADD_ABS_LO12_NC: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, _LD64_GOT_LO12_NC: 3}
"""By how many bits the last 12 bits of an address are shifted: for an addition, and for accesses of 1 to 16 bytes."""


def _write_instruction(code: bytearray, position: int, kind: int, target: int) -> None:
    """Fill a field of an instruction. Images begin at a page, so their offsets have the last 12 bits of the
    addresses."""
    (word,) = struct.unpack_from("<I", code, position)
    if kind in _LOW_BITS:
        word |= (target % _PAGE >> _LOW_BITS[kind]) << 10
    elif kind in (_JUMP26, _CALL26):
        word |= (target - position) >> 2 & 0x3FFFFFF
    else:
        pages = target // _PAGE - position // _PAGE
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    struct.pack_into("<I", code, position, word)


_ARM64 = _Machine(
    jump=b"\x50\x00\x00\x58\x00\x02\x1f\xd6",  # ldr x16, .+8; br x16
    here={_ADR_PREL_PG_HI21, _JUMP26, _CALL26, *_LOW_BITS} - {_LD64_GOT_LO12_NC},
    calls=(_JUMP26, _CALL26),
    loads=(_ADR_GOT_PAGE, _LD64_GOT_LO12_NC),
    write=_write_instruction,
)
_MACHINES = {62: _X86_64, 183: _ARM64}


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
        if (magic, kind) != (_MAGIC, _RELOCATABLE) or machine not in _MACHINES:
            raise _Unsupported
        self.machine = _MACHINES[machine]
        self.sections = _sections(content)
        self.symbols = self._symbols()
        self.code = bytearray()
        self.starts: dict[int, int] = {}
        self.slots: dict[str, int] = {}

    def image(self, functions: tuple[str, ...]) -> Image:
        for number, section in enumerate(self.sections):
            if section.flags & _IN_MEMORY and section.name != ".eh_frame":
                self._append(number, section)
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info in self.starts:
                self._relocate(section)
        found = {symbol.name: symbol for symbol in self.symbols if symbol.section in self.starts}
        offsets = {name: self.starts[found[name].section] + found[name].value for name in functions}
        return Image(bytes(self.code), offsets, self.slots)

    def _symbols(self) -> list[_Symbol]:
        tables = [section for section in self.sections if section.kind == _SYMBOLS]
        if len(tables) != 1:
            raise _Unsupported
        names = self.sections[tables[0].link].content
        fields = _SYMBOL.iter_unpack(tables[0].content)
        return [_Symbol(_name(names, at), section, value) for at, _, _, section, value, _ in fields]

    def _append(self, number: int, section: _Section) -> None:
        if section.kind != _PROGRAM or section.flags & (_WRITABLE | _THREAD_LOCAL) or section.alignment > _PAGE:
            raise _Unsupported
        self.code += bytes(-len(self.code) % max(section.alignment, 1))
        self.starts[number] = len(self.code)
        self.code += section.content

    def _relocate(self, relocations: _Section) -> None:
        base = self.starts[relocations.info]
        for offset, kind, number, addend in _RELOCATION.iter_unpack(relocations.content):
            target = self._target(self.symbols[number], kind)
            self.machine.write(self.code, base + offset, kind, target + addend)

    def _target(self, symbol: _Symbol, kind: int) -> int:
        """The offset in the image that a relocation refers to."""
        if symbol.section in self.starts and kind in self.machine.here:
            return self.starts[symbol.section] + symbol.value
        if symbol.section == _UNDEFINED and symbol.name and kind in self.machine.calls:
            return self._slot(symbol.name) - len(self.machine.jump)
        if symbol.section == _UNDEFINED and symbol.name and kind in self.machine.loads:
            return self._slot(symbol.name)
        raise _Unsupported

    def _slot(self, name: str) -> int:
        """The offset of the slot for the address of a function elsewhere; a stub that jumps there stands before it."""
        if name not in self.slots:
            self.code += bytes(-len(self.code) % _STUB)
            self.slots[name] = len(self.code) + len(self.machine.jump)
            self.code += self.machine.jump.ljust(_STUB, b"\x00")
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
