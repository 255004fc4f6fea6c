"""The reference device is there for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reference.device import ReferenceEngine, second_device


@pytest.fixture(autouse=True)
def engine() -> Iterator[ReferenceEngine]:
    """The engine of ``mx.gpu``."""
    with second_device() as found:
        yield found
