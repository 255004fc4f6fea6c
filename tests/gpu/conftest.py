"""Drivers without a card, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.devices import there
from tests.gpu.fake_driver import FakeDriver, FakeTarget
from weft.compiler.kernel import Kernel
from weft.compiler.running import evaluate
from weft.runtime.cuda.engine import CudaEngine


def scans(kernel: Kernel) -> bool:
    return any(instruction.operation == "scan" for instruction in kernel.instructions)


@contextmanager
def driver_of(cards: int) -> Iterator[FakeDriver]:
    """A driver with ``cards`` cards, which exist inside the with block. The target has no kernels for scans, and no
    routines but those that a test adds."""
    driver = FakeDriver(cards=cards)
    engines = [CudaEngine(cast(Any, driver), card) for card in range(cards)]
    for engine in engines:
        engine.target = FakeTarget(scans)
    try:
        with there(*engines):
            yield driver
    finally:
        evaluate.forget_plans()


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """A driver with one card."""
    with driver_of(1) as driver:
        yield driver
