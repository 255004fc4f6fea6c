"""Tile registers of x86-64 (AMX). A process must ask Linux for them once, because their state adds 8 KiB to each
thread."""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""The number of the system call, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA (Linux, Documentation/arch/x86/xstate.rst)."""


@cache
def are_granted() -> bool:
    """Ask for permission to use the registers, for all threads and for forked children; returns whether it was
    granted."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        call = ctypes.CDLL(None).syscall
    except (AttributeError, OSError):
        return False
    return int(call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)) == 0
