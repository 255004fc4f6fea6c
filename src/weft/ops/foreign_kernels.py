"""Kernels in the languages of other frameworks' backends. Weft cannot run them; calling one raises an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from weft.ops.arguments import Array
from weft.runtime.devices import StreamOrDevice

__all__ = ["cuda_kernel", "metal_kernel", "precompiled_cuda_kernel"]


def _missing(name: str, language: str) -> NotImplementedError:
    return NotImplementedError(
        f"[{name}] Weft cannot run kernels written in {language}: it compiles for the CPU and for NVIDIA GPUs through "
        "LLVM itself. Write the operation with functions of weft.core and wrap it in mx.compile, which fuses them; "
        "a gradient of its own goes with mx.custom_function."
    )


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Any = None,
) -> Callable[..., NoReturn]:
    """Return a function in place of a kernel in Metal's shading language, which Weft cannot run.

    Libraries make such kernels when they are imported, and call them only where ``mx.metal.is_available()``. Calling
    the function raises NotImplementedError.

    Args:
        name: of the kernel.
        input_names: of its arrays.
        output_names: of its results.
        source: its body.
        header: the text above it.
        ensure_row_contiguous: whether its arrays must be contiguous in row-major order.
        atomic_outputs: whether its results are atomic variables.
        compile_options: for Metal's compiler.

    >>> twice = mx.fast.metal_kernel("twice", ["x"], ["y"], "y[0] = 2 * x[0];")
    >>> mx.metal.is_available()
    False
    """

    def kernel(*_args: Any, **_options: Any) -> NoReturn:
        raise _missing("metal_kernel", f"Metal's shading language ({name})")

    return kernel


def cuda_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    shared_memory: int = 0,
) -> NoReturn:
    """A kernel in CUDA C++; not available.

    Raises:
        NotImplementedError: always.
    """
    raise _missing("cuda_kernel", "CUDA C++")


def precompiled_cuda_kernel(
    *,
    name: str,
    compiled_source: bytes,
    inputs: Sequence[Array],
    output_shapes: Sequence[tuple[int, ...]],
    output_dtypes: Sequence[Any],
    scalars: Sequence[Any],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    shared_memory: int = 0,
    init_value: float | None = None,
    ensure_row_contiguous: bool = False,
    stream: StreamOrDevice = None,
) -> NoReturn:
    """A kernel in machine code for NVIDIA GPUs; not available.

    Raises:
        NotImplementedError: always.
    """
    raise _missing("precompiled_cuda_kernel", "machine code for NVIDIA's GPUs")
