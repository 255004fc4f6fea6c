"""The processor that code is generated for, known without loading LLVM once a process since boot has asked it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import astuple, dataclass
from functools import cache
from types import ModuleType

import llvmlite

from weft.runtime.atomic import without_interrupts
from weft.runtime.disk_cache import process_cache


@dataclass(frozen=True)
class Host:
    """LLVM's words for a processor, and which LLVM said them."""

    triple: str
    name: str
    features: str
    llvm: str

    def to_bytes(self) -> bytes:
        return "\n".join(astuple(self)).encode()

    @staticmethod
    def from_bytes(content: bytes) -> Host:
        return Host(*content.decode().split("\n"))


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
    """Drop the description from the disk cache: LLVM has said something else."""
    disk, key = process_cache(), _machine()
    if disk is not None and key is not None:
        disk.drop(key)


def _machine() -> bytes | None:
    """The digest of all that LLVM's description of this machine follows from; None where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as boot, open("/proc/cpuinfo", "rb") as processors:
            facts = [b"host", boot.read(), *_lasting(processors.read(1 << 14))]
    except OSError:
        return None
    system = os.uname()
    facts += [text.encode() for text in (system.release, system.machine, llvmlite.__version__)]
    return hashlib.sha256(b"\n".join(facts)).digest()


def _lasting(text: bytes) -> list[bytes]:
    """The lines on the first processor, apart from its present clock."""
    first, _, _ = text.partition(b"\n\n")
    return [line for line in first.split(b"\n") if b"MHz" not in line and b"bogomips" not in line.lower()]
