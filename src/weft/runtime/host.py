"""The engine of the CPU: memory of the process, and tables of native steps that a pool of threads shares."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from weft.runtime import executor as executors
from weft.runtime.available import CPU, register_engine
from weft.runtime.devices import Stream
from weft.runtime.engine import Engine
from weft.runtime.executor import Functions, executor
from weft.runtime.memory import ALIGNMENT, Allocator, Buffer
from weft.runtime.steps import POOL, Sealed, Step, StepTable, Table, TableLayout
from weft.runtime.thread_stack import own_stack

_libc = ctypes.CDLL(None)
_posix_memalign = _libc.posix_memalign
_posix_memalign.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
_posix_memalign.restype = ctypes.c_int
_free = _libc.free
_free.argtypes = (ctypes.c_void_p,)
_free.restype = None

_PAGE_CLASS = 1 << 21
_madvise = getattr(_libc, "madvise", None) if sys.platform == "linux" else None
if _madvise is not None:
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_HUGE_PAGES = 14


@cache
def _name() -> str:
    """The processor's name, where the system tells it."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _largest_block() -> int:
    """The bytes of memory and swap together, where the system tells. Linux may grant more than that, and kill the
    process when it uses it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            facts = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        return (facts["MemTotal"] + facts["SwapTotal"]) * 1024
    except (OSError, LookupError, ValueError):
        return 1 << 56


def _system_block(size: int) -> int:
    pointer = ctypes.c_void_p()
    if size >= _PAGE_CLASS and size > _largest_block():  # small blocks, as those made at import, need not ask
        return 0
    if _posix_memalign(ctypes.byref(pointer), ALIGNMENT, size) != 0 or pointer.value is None:
        return 0
    if size >= _PAGE_CLASS and _madvise is not None:
        start = (pointer.value + 4095) & -4096
        _madvise(start, (pointer.value + size - start) & -4096, _HUGE_PAGES)
    return pointer.value


class HostEngine(Engine):
    """Runs native steps on threads of this process.

    ``functions`` provides the native code of the pool and of the loop over steps, set by
    `weft.compiler.cpu.target`.
    """

    functions: Functions

    def info(self) -> dict[str, str | int]:
        return {
            **super().info(),
            "device_name": _name(),
            "architecture": platform.machine(),
            "memory_size": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        }

    def copy_in(self, source: memoryview, buffer: Buffer, offset: int) -> None:
        self.bytes_of(buffer)[offset : offset + source.nbytes] = source.cast("B")

    def copy_out(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        target.cast("B")[:] = self.bytes_of(buffer)[offset : offset + target.nbytes]

    def copy_across(self, source: Buffer, start: int, target: Buffer, size: int) -> None:
        source.engine.copy_out(source, start, self.bytes_of(target)[:size])

    def bytes_of(self, buffer: Buffer) -> memoryview:
        """The memory of a buffer, which must outlive what is returned."""
        return memoryview((ctypes.c_char * buffer.size).from_address(buffer.address)).cast("B")

    def seal(self, steps: Sequence[Step], layout: TableLayout | None = None) -> StepTable:
        return StepTable(steps)

    def run(self, steps: Sealed, table: Table, stream: Stream | None = None) -> int:
        native = executors.current or executor(self.functions)
        table.values[POOL] = native.pool
        return native.run_apart(table.address) if own_stack.is_small else native.run(table.address)

    def run_all(self, steps: Sealed, table: Table, stream: Stream | None) -> bool:
        native = executors.current
        if native is None or own_stack.is_small:
            return self.run(steps, table, stream) == steps.count
        table.values[POOL] = native.pool
        if table.is_little:
            run = table.run
            if run is None:
                run = table.run = native.runs(table.address)
            run()
            return True
        return native.run(table.address) == steps.count

    def run_timed(self, steps: Sealed, table: Table, times: array[int], stream: Stream | None) -> int:
        native = executor(self.functions)
        table.values[POOL] = native.pool
        run = native.run_apart if own_stack.is_small else native.run_timed
        return run(table.address, times.buffer_info()[0])


host = HostEngine(CPU, Allocator(_system_block, _free))
register_engine(host)
