"""All tests of this folder have the device of `tests.cuda.device`."""

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
