"""Environment variables that switch something on or off."""

from __future__ import annotations

import os
from typing import Final

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")


def switch(variable: str, default: bool = False) -> bool:
    """What an environment variable says; the default if it is empty or absent."""
    text = os.environ.get(variable, "").strip()
    word = text.lower()
    if word and word not in _ON + _OFF:
        raise ValueError(f"{variable} is {text[:40]!r}; it must be one of {', '.join(_ON + _OFF)}.")
    return word in _ON if word else default
