"""Native code that Python calls as one of its built-in functions: in a fifth of the time of a call through `ctypes`.

The interpreter's lock is held meanwhile, so this is for work of a few microseconds.
"""

from __future__ import annotations

import ctypes
from typing import Any

NO_ARGUMENTS = 0x0004
"""The native code gets the object that the function is bound to, and nothing."""
LISTED_ARGUMENTS = 0x0080
"""The native code gets the object that the function is bound to, the address of the arguments, and their number."""


class Definition(ctypes.Structure):
    """``PyMethodDef`` of Python's stable interface: how native code is called as a function."""

    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def definition(name: str, code: int, arguments: int) -> Definition:
    """The definition of functions with the native code at an address. It is never freed, because functions may outlive
    whatever refers to it."""
    found = Definition(name.encode(), code, arguments, None)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))
    return found


def builtin_function(known: Definition, bound: object) -> Any:
    """A function that is bound to an object."""
    return _new_function(ctypes.addressof(known), bound, None)
