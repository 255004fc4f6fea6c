"""The machine code of kernels, from the disk cache or from LLVM."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from weft.compiler.codegen import loading
from weft.compiler.cpu.schedule import CpuSchedule
from weft.compiler.kernel import Kernel
from weft.primitives import OWN
from weft.runtime import counters
from weft.runtime.atomic import without_interrupts

_NAME = "kernel"


def load(kernel: Kernel, schedule: CpuSchedule, text: str) -> int:
    """The address of a kernel's machine code, from the disk cache or generated. ``text`` describes kernel and
    schedule."""

    def generate() -> str:
        counters.generated += 1
        module: str = _writer().generate(kernel, schedule, _NAME)
        return module

    lasting = OWN.issuperset(kernel.primitives)
    title = ", ".join([i.primitive.name for i in kernel.instructions if i.primitive is not None])
    return loading.load(text, generate, (_NAME,), lasting=lasting, title=title)[_NAME]


@cache
def _writer() -> ModuleType:
    """The module `loops`. Importing it takes 12 ms, and code from the disk cache does not need it."""

    def imported() -> ModuleType:
        from weft.compiler.cpu import loops

        return loops

    return without_interrupts(imported)
