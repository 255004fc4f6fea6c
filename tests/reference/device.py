"""The reference device: its target, whose code is the kernel itself, and its engine, which executes it in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.reference.kernels import KernelCode
from tests.reference.memory import ReferenceMemory
from weft.compiler.kernel import Kernel, Launch
from weft.compiler.target import FusionLimits, Schedule, Target
from weft.primitives.routine import implemented_in
from weft.runtime.devices import Device, gpu
from weft.runtime.engine import Engine
from weft.runtime.memory import Buffer
from weft.runtime.steps import Step


class ReferenceSchedule(Schedule):
    """One unit of work: each instruction is done for all elements before the next instruction."""

    units = grain = 1

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        return load < store


class ReferenceTarget(Target):
    """Its code is a `KernelCode`. ``limits`` are not those of the CPU: values must not depend on them."""

    kind = key = "reference"
    limits = FusionLimits(
        members=12, uncut_members=6, group_rows=2, group_size=64, repeated_operations=2, fewer=2, uncached_size=64
    )

    def schedule(self, launch: Launch) -> Schedule:
        return ReferenceSchedule()

    def attached_schedule(self, launch: Launch) -> Schedule:
        return ReferenceSchedule()

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> KernelCode:
        return KernelCode(kernel)


class ReferenceEngine(Engine):
    """Runs steps one after the other, on the thread that evaluates."""

    def __init__(self) -> None:
        self.space = ReferenceMemory()
        super().__init__(Device(gpu), self.space.allocator)
        self.target = ReferenceTarget()

    def copy_in(self, source: memoryview, buffer: Buffer, offset: int) -> None:
        elements = np.frombuffer(source, np.uint8)
        self.space.write(buffer.address, offset + np.arange(elements.size), elements)

    def copy_out(self, buffer: Buffer, offset: int, target: memoryview) -> None:
        where = offset + np.arange(target.nbytes)
        np.frombuffer(target, np.uint8)[:] = self.space.read(buffer.address, where, np.dtype(np.uint8))

    def execute(self, step: Step, slots: Sequence[int]) -> None:
        with np.errstate(all="ignore"):
            step.code.run(self.space, step.numbers, slots)


ENGINE = ReferenceEngine()


implemented_in(
    ReferenceTarget.kind,
    "tests.reference.products",
    "tests.reference.quantized",
    "tests.reference.sorting",
    "tests.reference.linalg",
    "tests.reference.fourier",
)
