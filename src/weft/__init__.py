"""Lazy arrays, function transformations that compose, and machine code generated at run time with LLVM."""

import sys as _sys
import typing as _typing

if _typing.TYPE_CHECKING:
    from weft.inspection.profile import profile as profile
    from weft.runtime.counters import counters as counters
    from weft.runtime.precision import get_matmul_precision as get_matmul_precision
    from weft.runtime.precision import matmul_precision as matmul_precision
    from weft.runtime.precision import set_matmul_precision as set_matmul_precision

__all__ = ["counters", "get_matmul_precision", "matmul_precision", "profile", "set_matmul_precision"]
__version__ = "0.1.0"


def _require_interpreter_lock() -> None:
    """Raise on a build of Python without the global interpreter lock, where reference counts do not say who holds an
    object."""
    is_enabled = getattr(_sys, "_is_gil_enabled", lambda: True)
    if "t" in getattr(_sys, "abiflags", "") or not is_enabled():
        release = f"{_sys.version_info.major}.{_sys.version_info.minor}"
        raise ImportError(
            f"Weft needs Python's global interpreter lock, and {_sys.executable} is a build of Python {release} "
            f"without it (free-threaded). Use the ordinary build of Python {release}: its name has no t at the end."
        )


_require_interpreter_lock()


def __getattr__(name: str) -> _typing.Any:
    """Import the rest of the package for names that need it; ``import weft`` alone does not load it."""
    if name == "profile":
        from weft.inspection.profile import profile

        return profile
    if name == "counters":
        from weft.runtime.counters import counters

        return counters
    if name in __all__:
        from weft.runtime import precision

        return getattr(precision, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
