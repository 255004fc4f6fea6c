"""Lazy arrays, function transformations that compose, and machine code made at run time through LLVM."""

from __future__ import annotations

__version__ = "0.1.0"
