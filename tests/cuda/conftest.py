"""The device of simulated blocks is there for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda.device import ENGINE, BlocksEngine
from tests.devices import there


@pytest.fixture(autouse=True)
def engine() -> Iterator[BlocksEngine]:
    """The engine of ``mx.gpu``."""
    with there(ENGINE):
        yield ENGINE
