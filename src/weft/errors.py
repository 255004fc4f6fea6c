"""The errors that are Weft's own; everything else is Python's ValueError, TypeError, IndexError, ...

Exception
+-- ValueError
|   +-- TraceError       a value was asked for where there is none: inside a transformation, or a leaked array
+-- RuntimeError
    +-- EvaluationError  machine code could not run; the arrays involved keep their definitions
"""

from __future__ import annotations


class TraceError(ValueError):
    """A value was asked for of an array that has none."""


class EvaluationError(RuntimeError):
    """An evaluation failed; what it should have computed can be asked for again."""
