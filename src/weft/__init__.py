"""Lazy arrays, function transformations that compose, and machine code made at run time through LLVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.inspection.profile import profile as profile
    from weft.runtime.counters import counters as counters

__all__ = ["counters", "profile"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Names that need the rest of the package, which `import weft` alone does not load."""
    if name == "profile":
        from weft.inspection.profile import profile

        return profile
    if name == "counters":
        from weft.runtime.counters import counters

        return counters
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
