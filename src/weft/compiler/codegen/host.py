"""The processor that code is generated for, read from the disk cache where LLVM has described it since the last boot.

It is that of this machine, unless ``WEFT_CPU`` names a level of x86-64 below it. With ``WEFT_QUICK_CODE=1`` LLVM takes
less than half the time and makes slower code. Results are the same bits in all cases, and tests compare them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Container
from functools import cache
from types import ModuleType
from typing import NamedTuple

import llvmlite

from weft.runtime.atomic import without_interrupts
from weft.runtime.disk_cache import process_cache
from weft.runtime.switches import switch


class Host(NamedTuple):
    """LLVM's description of a processor, the version of LLVM, and the level at which it optimises the code it emits."""

    triple: str
    name: str
    features: str
    llvm: str
    optimisation: str

    def to_bytes(self) -> bytes:
        return "\n".join(self).encode()

    @staticmethod
    def from_bytes(content: bytes) -> Host:
        return Host(*content.decode().split("\n"))


_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
"""The features of each level. (x86-64 psABI, section 3.1.1: micro-architecture levels.)"""

_asked = os.environ.get("WEFT_CPU", "")
OPTIMISATION = "0" if switch("WEFT_QUICK_CODE") else "2"


def lesser(host: Host, features: Container[str]) -> Host:
    """The processor that ``WEFT_CPU`` names; if it names none, or one that ``host`` lacks features of, ``host``."""
    if _asked in ("", "native"):
        return host
    missing = [feature for feature in LEVELS.get(_asked, ()) if feature not in features]
    if _asked not in LEVELS or missing:
        reason = f"this processor lacks {', '.join(missing)}" if missing else "there is no such level"
        import logging  # takes 3 ms

        logging.getLogger("weft").warning(
            "WEFT_CPU is %s: %s. Code is generated for this processor, %s. The levels are %s.",
            ascii(_asked[:40]),
            reason,
            host.name,
            ", ".join(LEVELS),
        )
        return host
    return host._replace(name=_asked, features=",".join([f"+{feature}" for feature in LEVELS[_asked]]))


@cache
def generator() -> ModuleType:
    """The module `jit`. Importing it loads LLVM."""

    def load() -> ModuleType:
        from weft.compiler.codegen import jit

        return jit

    return without_interrupts(load)


@cache
def current() -> Host:
    """The processor of this process, from the disk cache or else from LLVM."""
    disk, key = process_cache(), _machine()
    stored = disk.get(key) if disk is not None and key is not None else None
    if stored is not None:
        return Host.from_bytes(stored)
    described: Host = generator().host()
    if disk is not None and key is not None:
        disk.put(key, described.to_bytes())
    return described


def forget() -> None:
    """Drop the description from the disk cache, because LLVM's differs."""
    disk, key = process_cache(), _machine()
    if disk is not None and key is not None:
        disk.drop(key)


def _machine() -> bytes | None:
    """A digest of all that LLVM's description depends on, as a key; None where the system does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as boot, open("/proc/cpuinfo", "rb") as processors:
            facts = [b"host", boot.read(), *_lasting(processors.read(1 << 14))]
    except OSError:
        return None
    system = os.uname()
    asked = (ascii(_asked), OPTIMISATION)
    facts += [text.encode() for text in (system.release, system.machine, llvmlite.__version__, *asked)]
    return hashlib.sha256(b"\n".join(facts)).digest()


def _lasting(text: bytes) -> list[bytes]:
    """The lines on the first processor, without those that change with its clock."""
    first, _, _ = text.partition(b"\n\n")
    return [line for line in first.split(b"\n") if b"MHz" not in line and b"bogomips" not in line.lower()]
