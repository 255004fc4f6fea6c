"""Values that are computed when a test allows it, so that waiting can be tested without measuring time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np

import weft.core as mx
from weft.runtime.streams import Event

PATIENCE = 60.0
"""Seconds after which a gate opens by itself, so that a test that waits for its own gate fails instead of hanging."""


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


class Gate:
    """While it is closed, arrays behind it are not computed. It opens at the end of its ``with`` block."""

    def __init__(self) -> None:
        self._event = Event()
        self._given_up = False
        self._timer = threading.Timer(PATIENCE, self._give_up)
        self._timer.daemon = True

    def __enter__(self) -> Gate:
        self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._timer.cancel()
        self.open()
        assert not self._given_up, "something waited for what it does not need"

    def _give_up(self) -> None:
        self._given_up = True
        self.open()

    def open(self, error: Exception | None = None) -> None:
        """Let the arrays be computed, or fail with ``error``."""
        if not self._event.done:
            self._event.finish(error)

    def behind(self, value: float = 0.0) -> mx.array:
        """A scalar that is computed when the gate opens."""
        held = mx.array(np.float32(value))
        assert held.node.value is not None
        held.node.value.event = self._event
        return held

    def block(self, stream: mx.Stream) -> mx.array:
        """Queue work on a stream that ends when the gate opens; work that is queued later waits for it."""
        last = mx.add(self.behind(), 1, stream=stream)
        mx.async_eval(last)
        return last


def is_there(x: mx.array) -> bool:
    """Whether an array has its value, without waiting for it."""
    view = x.node.value
    return view is not None and (view.event is None or view.event.done)
