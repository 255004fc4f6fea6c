"""The machine code of kernels, made once per structure."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType

from weft.compiler import dumps
from weft.compiler.codegen import loading
from weft.compiler.kernel import Kernel
from weft.primitives import Primitive
from weft.runtime.forking import fork_safe_lock
from weft.runtime.undisturbed import undisturbed

_addresses: dict[str, int] = {}
_lock = fork_safe_lock()
generated = 0
_NAME = "kernel"


def address(kernel: Kernel) -> int:
    """The address of a kernel's machine code, loaded or generated if it is new to this process."""
    key = str(kernel)
    found = _addresses.get(key)
    if found is None:
        with _lock:
            found = _addresses.get(key)
            if found is None:
                found = _addresses[key] = _load(kernel, key)
    return found


def _load(kernel: Kernel, text: str) -> int:
    def generate() -> str:
        global generated
        generated += 1
        text: str = _writer().generate(kernel, _NAME)
        return text

    if "kernel" in dumps.stages:
        dumps.show("kernel", text)
    used = {id(p) for i in kernel.instructions for p in (i.primitive, i.combine) if p is not None}
    title = ", ".join([i.primitive.name for i in kernel.instructions if i.primitive is not None])
    return loading.load(text, generate, (_NAME,), lasting=used <= _own_primitives(), title=title)[_NAME]


@cache
def _writer() -> ModuleType:
    """The module `cpu`. Importing it takes 12 ms, and only what is not in the disk cache needs it."""

    def load() -> ModuleType:
        from weft.compiler.codegen import cpu

        return cpu

    return undisturbed(load)


@cache
def _own_primitives() -> frozenset[int]:
    """Weft's own primitives: the scalar code of others may change while their text, and Weft, stay the same."""
    modules = [module for name, module in sys.modules.items() if name.startswith("weft.primitives")]
    own = [value for module in modules for value in vars(module).values() if isinstance(value, Primitive)]
    own += [part for primitive in own for part in vars(primitive).values() if isinstance(part, Primitive)]
    return frozenset([id(primitive) for primitive in own])
