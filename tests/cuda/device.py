"""A device that runs the kernels of the target of CUDA without a card: blocks and threads, in NumPy.

Routines are computed as on the reference device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

import numpy as np

from tests.cuda.machine import Grid, Machine, Order, together
from tests.cuda.module import Module
from tests.reference.device import ReferenceEngine, ReferenceTarget, there
from tests.reference.memory import ReferenceMemory
from weft.compiler.cuda import loops
from weft.compiler.cuda.schedule import CudaSchedule, schedule_of
from weft.compiler.cuda.target import CudaTarget
from weft.compiler.kernel import Kernel, Launch, number_layout
from weft.compiler.target import Schedule, Target

BLOCKS = 3
"""Fewer than some kernels have units, so that blocks do several."""


class Blocks:
    """A kernel that can be run with numbers and the slots of a table."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule, target: BlocksTarget) -> None:
        self.target = target
        self.module = Module(loops.generate(kernel, schedule, "kernel"))
        self.threads = schedule.threads
        self.units = number_layout(kernel, schedule.numbers)["units",]

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        with ExitStack() as stack:

            def allocate(size: int) -> int:
                return stack.enter_context(memory.block(size))

            addresses = []
            for integers in (np.array(numbers, np.int64), np.array(slots, np.uint64)):
                addresses.append(allocate(integers.nbytes))
                memory.write(addresses[-1], np.arange(integers.size) * 8, integers)
            grid = Grid(max(1, min(numbers[self.units], BLOCKS)), self.threads)
            Machine(self.module, memory, allocate, addresses, grid).run(self.target.order)


class BlocksTarget(Target):
    """Code can be run in Python, with threads in an ``order``. Schedules are those of CUDA."""

    kind, key, limits = ReferenceTarget.kind, "blocks", CudaTarget.limits

    def __init__(self) -> None:
        super().__init__()
        self.order: Order = together

    def schedule(self, launch: Launch) -> CudaSchedule:
        return schedule_of(launch)

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> Blocks:
        assert isinstance(schedule, CudaSchedule)
        return Blocks(kernel, schedule, self)


class BlocksEngine(ReferenceEngine):
    """Runs steps one after the other, on the thread that asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.target: BlocksTarget = BlocksTarget()

    @contextmanager
    def in_order(self, order: Order) -> Iterator[None]:
        """Threads go on in another order while the block runs."""
        self.target.order = order
        yield
        self.target.order = together


ENGINE = BlocksEngine()


def blocks_of_threads() -> AbstractContextManager[BlocksEngine]:
    """The device is there, as ``mx.gpu``, while the block runs."""
    return there(ENGINE)
