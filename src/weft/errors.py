"""The errors that are Weft's own; everything else is Python's ValueError, TypeError, IndexError, ...

Exception
+-- ValueError
|   +-- TraceError         a value was asked for where there is none: inside a transformation, or a leaked array
|   +-- AxisError          an array does not have an axis; also an IndexError
|   +-- ArgumentTypeError  an argument or a dtype is of a type that cannot be used; also a TypeError
|   +-- FileFormatError    a file is damaged, or holds what it must not; also a RuntimeError
+-- RuntimeError
    +-- EvaluationError    machine code could not run; the arrays involved keep their definitions
    |   +-- CancelledError     an interrupt ended an evaluation early
    +-- MissingFileError   there is no such file or folder; also a FileNotFoundError
    +-- FileFormatError    see above

Errors that are of two kinds are those for which Python has one kind and MLX raises another: programs written for either
catch them.
"""

from __future__ import annotations


class TraceError(ValueError):
    """A value was asked for of an array that has none."""


class AxisError(ValueError, IndexError):
    """An axis is out of range. It is both kinds of error, as that of NumPy is."""


class ArgumentTypeError(TypeError, ValueError):
    """An argument, or the dtype of an array, is of a type that a function cannot use."""


class MissingFileError(FileNotFoundError, RuntimeError):
    """There is no such file, or no such folder to write it to."""


class EvaluationError(RuntimeError):
    """An evaluation failed; what it should have computed can be asked for again."""


class FileFormatError(ValueError, RuntimeError):
    """A file is damaged, of another format, or holds what it must not."""


class CancelledError(EvaluationError):
    """An interrupt ended an evaluation early."""

    def __init__(self) -> None:
        super().__init__("the evaluation was cancelled")
