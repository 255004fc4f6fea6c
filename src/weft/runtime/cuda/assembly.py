"""Machine code of PTX, cached on disk, because the driver takes about as long to assemble PTX as LLVM takes to write
it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from weft.runtime import recording
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.driver import Driver
from weft.runtime.disk_cache import process_cache
from weft.runtime.processors import available_processors

_MOST_THREADS = 16


class Assembler:
    """Assembles for cards of an ``architecture`` on threads of its own, while LLVM writes what comes next. ``enter`` is
    called on each thread before it calls the driver."""

    def __init__(self, driver: Driver, architecture: str, enter: Callable[[], None]) -> None:
        self._driver, self._architecture, self._enter = driver, architecture, enter
        self._threads: ThreadPoolExecutor | None = None
        self._begun: dict[CudaCode, Future[bytes]] = {}
        self._found: dict[CudaCode, bytes] = {}
        """Code whose machine code was found on disk when `begin` was called, and which was not loaded yet."""

    def begin(self, code: CudaCode) -> None:
        """Start making machine code on a thread, unless it is on disk."""
        disk = process_cache()
        if disk is None or code in self._begun or code in self._found:
            return
        found = disk.get(self._key(code))
        if found is not None:
            self._found[code] = found
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(_MOST_THREADS, available_processors()), "weft assembler")
        self._begun[code] = self._threads.submit(self._made, code)

    def machine_code(self, code: CudaCode) -> bytes:
        """The machine code, or PTX, that a card loads."""
        found, begun = self._found.pop(code, None), self._begun.pop(code, None)
        if begun is not None:
            return begun.result()
        if found is not None:
            return found
        disk = process_cache()
        if disk is None:
            return _text(code)  # the driver assembles it when it is loaded, and may have a cache of its own
        return disk.get(self._key(code)) or self._made(code)

    def _made(self, code: CudaCode) -> bytes:
        self._enter()
        with recording.span("machine code", code.title):
            found = self._driver.assembled(_text(code), code.name)
        disk = process_cache()
        if disk is not None:
            disk.put(self._key(code), found)
        return found

    def _key(self, code: CudaCode) -> bytes:
        facts = f"machine code for {self._architecture}, driver {self._driver.version()}\n"
        return hashlib.sha256(facts.encode() + _text(code)).digest()


def _text(code: CudaCode) -> bytes:
    return code.ptx.encode() + b"\0"
