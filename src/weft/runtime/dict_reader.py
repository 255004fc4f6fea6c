"""The native function that reads the dicts of a tree."""

from __future__ import annotations

from functools import cache

from weft.runtime.builtin_functions import LISTED_ARGUMENTS, builtin_function, definition
from weft.runtime.host import host
from weft.tree import END, ReadDicts


@cache
def dict_reader() -> ReadDicts:
    """`read_dicts` of `weft.tree` as native code."""
    read: ReadDicts = builtin_function(
        definition("read_dicts", host.functions()["weft_read_dicts"], LISTED_ARGUMENTS), END
    )
    return read
