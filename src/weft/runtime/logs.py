"""Python's ``logging``, which few processes need: to import it takes 3 ms."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from weft.runtime.atomic import without_interrupts


@cache
def logging() -> Any:
    """The module. A fork waits while it is imported: in a child, locks of unfinished imports would stay closed."""
    return without_interrupts(lambda: importlib.import_module("logging"))
