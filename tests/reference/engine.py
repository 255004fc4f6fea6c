"""The engine of the reference device: it runs steps one after the other on the thread that asks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import weft.core as mx
from tests.reference.memory import ReferenceMemory
from tests.reference.target import ReferenceTarget
from weft.runtime import recording
from weft.runtime.devices import Device, forget_engine, gpu, register_engine
from weft.runtime.engine import Engine, Step
from weft.runtime.memory import Buffer
from weft.runtime.steps import DONE, FIRST, Sealed, Table
from weft.runtime.streams import drain_all

_BYTE = np.dtype(np.uint8)


class ReferenceSteps:
    """Steps as they were given."""

    address = 0

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.count = len(steps)

    def rows(self) -> list[tuple[Any, list[int], int, int]]:
        return [(step.code, list(step.numbers), step.units, step.grain) for step in self.steps]


class ReferenceEngine(Engine):
    """Executes kernels in plain Python."""

    def __init__(self) -> None:
        self.space = ReferenceMemory()
        super().__init__(Device(gpu), self.space.allocator)
        self.target = ReferenceTarget()

    def info(self) -> dict[str, str | int]:
        return {"device_name": "reference", "architecture": "python", "memory_size": 0, "resource_limit": 0}

    def copy_in(self, source: memoryview, buffer: Buffer, offset: int) -> None:
        elements = np.frombuffer(source, np.uint8)
        self.space.write(buffer.address, offset + np.arange(elements.size), elements)

    def copy_out(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        where = offset + np.arange(target.nbytes)
        np.frombuffer(target, np.uint8)[:] = self.space.read(buffer.address, where, _BYTE)

    def seal(self, steps: Sequence[Step]) -> ReferenceSteps:
        return ReferenceSteps(steps)

    def run(self, steps: Sealed, table: Table) -> int:
        return self._run(steps, table, None)

    def run_timed(self, steps: Sealed, table: Table, times: array[int]) -> int:
        return self._run(steps, table, times)

    def _run(self, steps: Sealed, table: Table, times: array[int] | None) -> int:
        assert isinstance(steps, ReferenceSteps)
        for number in range(table.values[DONE], steps.count):
            if table.stopped:
                break
            begin = recording.now()
            step = steps.steps[number]
            step.code.run(self.space, step.numbers, table.values[FIRST:])
            if times is not None:
                times[4 * number : 4 * number + 4] = array("q", [*_parts(begin), *_parts(recording.now())])
            table.values[DONE] = number + 1
        return table.values[DONE]


def _parts(nanoseconds: int) -> tuple[int, int]:
    return divmod(nanoseconds, 1_000_000_000)


ENGINE = ReferenceEngine()


@contextmanager
def second_device() -> Iterator[ReferenceEngine]:
    """The reference device is there, as ``mx.gpu``, while the block runs."""
    register_engine(ENGINE)
    try:
        yield ENGINE
    finally:
        mx.set_default_device(mx.cpu)
        drain_all()
        forget_engine(ENGINE)
