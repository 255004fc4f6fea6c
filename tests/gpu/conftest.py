"""The one card of tests without a card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

import weft.core as mx
from tests.gpu.fake_driver import FakeDriver, FakeTarget
from weft.compiler import evaluate
from weft.compiler.kernel import Kernel
from weft.runtime.available import forget_engine, register_engine
from weft.runtime.cuda.engine import CudaEngine
from weft.runtime.streams import drain_all


def scans(kernel: Kernel) -> bool:
    return any(instruction.operation == "scan" for instruction in kernel.instructions)


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """That of a card which has no kernels for scans and no routines, but those that a test adds."""
    driver = FakeDriver()
    engine = CudaEngine(cast(Any, driver), 0)
    engine.target = FakeTarget(scans)
    register_engine(engine)
    try:
        yield driver
    finally:
        mx.set_default_device(mx.cpu)
        drain_all()
        forget_engine(engine)
        evaluate.forget_plans()
