"""The machine code of kernels, from the disk cache or from LLVM."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType

from weft.compiler.codegen import loading
from weft.compiler.cpu.schedule import CpuSchedule
from weft.compiler.kernel import Kernel
from weft.primitives import Primitive
from weft.runtime import counters
from weft.runtime.atomic import without_interrupts

_NAME = "kernel"


def load(kernel: Kernel, schedule: CpuSchedule, text: str) -> int:
    """The address of a kernel's machine code, loaded from disk or generated. ``text`` describes both."""

    def generate() -> str:
        counters.generated += 1
        module: str = _writer().generate(kernel, schedule, _NAME)
        return module

    lasting = own_primitives().issuperset(kernel.primitives)
    title = ", ".join([i.primitive.name for i in kernel.instructions if i.primitive is not None])
    return loading.load(text, generate, (_NAME,), lasting=lasting, title=title)[_NAME]


@cache
def _writer() -> ModuleType:
    """The module `loops`. Importing it takes 12 ms, and only what is not in the disk cache needs it."""

    def imported() -> ModuleType:
        from weft.compiler.cpu import loops

        return loops

    return without_interrupts(imported)


def own_primitives() -> frozenset[Primitive]:
    """Weft's own primitives, no two of which have one name.

    Their code is kept on disk under their names. That of others may change while their names, and Weft, stay the same.
    """
    return _own


def _found_primitives() -> frozenset[Primitive]:
    modules = [module for name, module in sys.modules.items() if name.startswith("weft.primitives.")]
    own = [value for module in modules for value in vars(module).values() if isinstance(value, Primitive)]
    own += [part for primitive in own for part in vars(primitive).values() if isinstance(part, Primitive)]
    return frozenset(own)


# Taken early: later somebody may have put primitives of other code into these modules.
_own = _found_primitives()
