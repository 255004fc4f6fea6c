"""All tests of this folder have the reference device as ``mx.gpu``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.devices import there
from tests.reference.device import ENGINE, ReferenceEngine


@pytest.fixture(autouse=True)
def engine() -> Iterator[ReferenceEngine]:
    """The engine of ``mx.gpu``."""
    with there(ENGINE):
        yield ENGINE
