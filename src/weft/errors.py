"""Weft's own errors; all other errors are Python's ValueError, TypeError, IndexError, ...

Exception
+-- ValueError
|   +-- TraceError         an array has no value: inside a transformation, or after it leaked out of one
|   +-- AxisError          an array does not have an axis; also an IndexError
|   +-- ArgumentTypeError  an argument or a dtype is of a type that cannot be used; also a TypeError
|   +-- FileFormatError    a file is damaged, or holds what it must not; also a RuntimeError
+-- RuntimeError
    +-- EvaluationError    machine code could not run; the arrays involved keep their definitions
    |   +-- CancelledError     an interrupt ended an evaluation early
    +-- MissingFileError   there is no such file or folder; also a FileNotFoundError
    +-- FileFormatError    see above

An error has two classes where Python's class for it differs from MLX's, so that programs written for either can catch
it.
"""

from __future__ import annotations


class TraceError(ValueError):
    """The value of an array is needed that has none."""


class AxisError(ValueError, IndexError):
    """An axis is out of range. The error is of both kinds, as NumPy's is."""


class ArgumentTypeError(TypeError, ValueError):
    """An argument, or the dtype of an array, is of a type that a function cannot use."""


class MissingFileError(FileNotFoundError, RuntimeError):
    """There is no such file, or no such folder to write it to."""


class EvaluationError(RuntimeError):
    """An evaluation failed; evaluating the same arrays again tries again."""


class FileFormatError(ValueError, RuntimeError):
    """A file is damaged, of another format, or holds what it must not."""


class CancelledError(EvaluationError):
    """An interrupt ended an evaluation early."""

    def __init__(self) -> None:
        super().__init__("the evaluation was cancelled")
