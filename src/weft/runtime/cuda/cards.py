"""The NVIDIA cards of this machine."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.runtime.cuda.driver import Driver
    from weft.runtime.cuda.engine import CudaEngine

LIBRARY = "libcuda.so.1"
_NO_DRIVER = f"NVIDIA's driver ({LIBRARY}) is not installed, or too old"


@cache
def _found() -> tuple[list[CudaEngine], str]:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return [], _NO_DRIVER
    from weft.runtime.cuda.driver import CudaError, Driver  # takes 0.5 ms, which a machine without it need not spend

    try:
        driver = Driver()
        engines = _engines(driver, driver.count())
    except (OSError, AttributeError):
        return [], _NO_DRIVER
    except CudaError as error:
        return [], f"NVIDIA's driver says {error}"
    return engines, "" if engines else "NVIDIA's driver finds no card"


def _engines(driver: Driver, count: int) -> list[CudaEngine]:
    if not count:
        return []
    from weft.runtime.cuda.engine import CudaEngine  # takes some ms, which a machine without a card need not spend

    return [CudaEngine(driver, card) for card in range(count)]


def engines() -> list[CudaEngine]:
    """An engine for each card; the engines have no target yet."""
    return _found()[0]


def reason() -> str:
    """Why there is no card."""
    return _found()[1]
