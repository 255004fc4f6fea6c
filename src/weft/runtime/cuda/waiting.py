"""Waiting for a card while Python's signal handlers can run: an interrupt ends the waiting, not the work."""

from __future__ import annotations

import time
from collections.abc import Callable

_AWAKE = 2e-3
"""Seconds of asking without a pause, because waking up takes some 0.1 milliseconds."""
_SHARE = 50
_LONGEST_PAUSE = 1e-3
"""After that, a pause is this share of the time waited so far, and at most this many seconds."""


def wait_until(is_ready: Callable[[int], bool], handle: int, stopped: Callable[[], bool] | None = None) -> None:
    """Return when ``is_ready(handle)``, or soon after ``stopped()`` is true."""
    if is_ready(handle):
        return
    began = time.perf_counter()
    while not (is_ready(handle) or (stopped is not None and stopped())):
        passed = time.perf_counter() - began
        if passed > _AWAKE:
            time.sleep(min(passed / _SHARE, _LONGEST_PAUSE))
