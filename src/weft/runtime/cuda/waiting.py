"""Waiting for a card, so that Python's signal handlers run meanwhile: an interrupt ends the waiting, not the work."""

from __future__ import annotations

import time
from collections.abc import Callable

_AWAKE = 2e-3
"""Seconds for which the card is asked again and again: to wake up takes some 0.1 milliseconds."""
_SHARE = 50
_LONGEST_PAUSE = 1e-3
"""Then a pause is this share of the time that has passed, and no longer than so many seconds."""


def wait_until(is_ready: Callable[[int], bool], handle: int, stopped: Callable[[], bool] | None = None) -> None:
    """Return when ``is_ready(handle)``, or soon after somebody has ``stopped`` it."""
    if is_ready(handle):
        return
    began = time.perf_counter()
    while not (is_ready(handle) or (stopped is not None and stopped())):
        passed = time.perf_counter() - began
        if passed > _AWAKE:
            time.sleep(min(passed / _SHARE, _LONGEST_PAUSE))
