"""The machine code of kernels, made once per structure and process."""

from __future__ import annotations

from weft.compiler.codegen import cpu, jit
from weft.compiler.kernel import Kernel
from weft.runtime.forking import fork_safe_lock

_addresses: dict[str, int] = {}
_lock = fork_safe_lock()
generated = 0


def address(kernel: Kernel) -> int:
    """The address of a kernel's machine code, generated if it is new."""
    key = str(kernel)
    found = _addresses.get(key)
    if found is None:
        with _lock:
            found = _addresses.get(key)
            if found is None:
                found = _addresses[key] = _generate(kernel)
    return found


def _generate(kernel: Kernel) -> int:
    global generated
    generated += 1
    name = f"kernel{generated}"
    return jit.load(cpu.generate(kernel, name), name)[name]
