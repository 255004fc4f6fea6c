"""Machine code of PTX, kept on disk: to assemble it takes the driver about as long as LLVM takes to write it."""

from __future__ import annotations

import hashlib

from weft.runtime import recording
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import Driver
from weft.runtime.disk_cache import process_cache


def machine_code(driver: Driver, code: CudaCode, architecture: str) -> bytes:
    """What a card of an architecture loads."""
    if isinstance(code.ptx, bytes):
        return code.ptx
    text = code.ptx.encode() + b"\0"
    disk = process_cache()
    if disk is None:
        return text  # the driver assembles it, and may have a cache of its own
    facts = f"machine code for {architecture}, driver {driver.version()}\n"
    key = hashlib.sha256(facts.encode() + text).digest()
    found = disk.get(key)
    if found is None:
        with recording.span("machine code", code.title):
            found = driver.assembled(text, code.name)
        disk.put(key, found)
    return found
