"""Engines of tests as devices beside the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import weft.core as mx
from weft.runtime.available import forget_engine, register_engine
from weft.runtime.engine import Engine
from weft.runtime.streams import drain_all

needs_no_gpu = pytest.mark.skipif(mx.is_available(mx.gpu), reason="this machine has a GPU")


@contextmanager
def there(*engines: Engine) -> Iterator[None]:
    """Make the devices of engines available (as ``mx.gpu`` if there is one) while the block runs."""
    for engine in engines:
        register_engine(engine)
    try:
        yield
    finally:
        mx.set_default_device(mx.cpu)
        drain_all()
        for engine in engines:
            forget_engine(engine)
