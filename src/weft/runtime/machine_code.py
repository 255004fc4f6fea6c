"""Machine code in memory: an image is copied to pages of its own, which then become executable and read-only."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_mprotect = _libc.mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class Image(NamedTuple):
    """Machine code that can run at any address.

    ``functions`` are the offsets of functions that can be called. ``slots`` are the offsets of 8 bytes each, to be
    filled with the address of a function that the code calls.
    """

    code: bytes
    functions: Mapping[str, int]
    slots: Mapping[str, int]

    def to_bytes(self) -> bytes:
        """The image in the form of a file."""
        names = [" ".join(f"{name} {offset}" for name, offset in part.items()) for part in (self.functions, self.slots)]
        return "\n".join([*names, ""]).encode() + self.code

    @staticmethod
    def from_bytes(content: bytes) -> Image:
        """The image of which `to_bytes` made ``content``."""
        functions, slots, code = content.split(b"\n", 2)
        return Image(code, _offsets(functions), _offsets(slots))


def _offsets(line: bytes) -> dict[str, int]:
    words = line.decode().split()
    return {name: int(offset) for name, offset in zip(words[::2], words[1::2], strict=True)}


def load(image: Image, provided: Mapping[str, int]) -> dict[str, int]:
    """Addresses of the functions of an image, for the rest of the process.

    The functions that it calls are taken from ``provided``, or else found in the process.
    """
    code = bytearray(image.code)
    for name, offset in image.slots.items():
        address = provided[name] if name in provided else address_in_process(name)
        code[offset : offset + 8] = address.to_bytes(8, sys.byteorder)
    size = -(-len(code) // mmap.PAGESIZE) * mmap.PAGESIZE
    start = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start is None or start == _FAILED:
        raise _os_error("the system gives no memory for machine code")
    ctypes.memmove(start, bytes(code), len(code))
    if _mprotect(start, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise _os_error("the system does not let memory become executable")
    clear_cache = _clear_cache()
    if clear_cache is not None:
        clear_cache(start, start + len(code))
    return {name: start + offset for name, offset in image.functions.items()}


@cache
def _clear_cache() -> Any:
    """The function of GCC's library that shows new instructions to a processor that caches them apart from data.

    None on other processors, and where that library is missing: Linux does the same for pages that become executable
    for the first time, but does not promise it.
    """
    if os.uname().machine != "aarch64":
        return None
    try:
        function = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    return function


def address_in_process(name: str) -> int:
    """The address of a function of the C library or of another library whose symbols are global in the process."""
    try:
        return int(ctypes.cast(getattr(_libc, name), ctypes.c_void_p).value or 0)
    except AttributeError:
        raise LookupError(f"machine code calls {name}, which this process does not have") from None


def _os_error(message: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{message} ({os.strerror(number)})")
