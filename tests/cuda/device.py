"""A device that runs kernels of the CUDA target without a card: blocks and threads, in NumPy.

Routines whose kernels are generated are run in the same way; the reference device computes all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

import weft.primitives as p
from tests.cuda.machine import Grid, Machine, Order, together
from tests.cuda.module import Module
from tests.reference.device import ReferenceEngine, ReferenceTarget
from tests.reference.memory import ReferenceMemory
from weft.compiler.cuda import joining, loops, matmul
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.schedule import CudaSchedule
from weft.compiler.cuda.scheduling import schedule_of
from weft.compiler.cuda.target import CudaTarget
from weft.compiler.kernel import Kernel, Launch, number_layout
from weft.compiler.target import Schedule, Target
from weft.graph.node import Node
from weft.runtime.steps import OnHost, Step

BLOCKS = 3
"""Fewer blocks than some kernels have units, so that a block does several."""


GENERATED = (
    p.sort,
    p.argsort,
    p.partition,
    p.argpartition,
    p.marked_first,
    p.searchsorted,
    p.row_updates,
    p.long_cumsum,
    p.long_cumprod,
    p.dequantize,
    p.quantized_matmul,
)
"""Routines of which every step is a kernel."""


class Blocks:
    """A kernel that can be run with its numbers and the slots of its table."""

    def __init__(self, text: str, threads: int, target: BlocksTarget, shared: int = 0) -> None:
        self.target, self.threads = target, threads
        self.module = Module(text, shared)

    def grid(self, numbers: Sequence[int]) -> Grid:
        """The blocks of a launch."""
        return Grid(BLOCKS, self.threads)

    def run(self, memory: ReferenceMemory, numbers: Sequence[int], slots: Sequence[int]) -> None:
        with ExitStack() as stack:

            def allocate(size: int) -> int:
                return stack.enter_context(memory.block(size))

            addresses = []
            for integers in (np.array(numbers, np.int64), np.array(slots, np.uint64)):
                addresses.append(allocate(integers.nbytes))
                memory.write(addresses[-1], np.arange(integers.size) * 8, integers)
            Machine(self.module, memory, allocate, addresses, self.grid(numbers)).run(self.target.order)


class Clusters(Blocks):
    """A kernel whose units are each done by ``cluster`` blocks."""

    def __init__(self, kernel: Kernel, schedule: CudaSchedule, text: str, target: BlocksTarget, shared: int) -> None:
        super().__init__(text, schedule.threads, target, shared)
        self.cluster = schedule.cluster
        self.units = number_layout(kernel, schedule.numbers)["units",]

    def grid(self, numbers: Sequence[int]) -> Grid:
        return Grid(numbers[self.units] * self.cluster, self.threads, self.cluster)


class BlocksTarget(Target):
    """Makes code that is run in Python; ``order`` chooses the thread that goes on. Schedules are those of CUDA."""

    kind, key, limits = CudaTarget.kind, "blocks", CudaTarget.limits

    def __init__(self) -> None:
        super().__init__()
        self.stand_in = ReferenceTarget()
        self.order: Order = together

    def does(self, node: Node) -> bool:
        if node.primitive is p.matmul:
            return matmul.has_few_rows(node)
        return any(node.primitive is primitive for primitive in GENERATED)

    def schedule(self, launch: Launch) -> CudaSchedule:
        return schedule_of(launch)

    def joined(self, rows: Launch, schedule: Schedule, columns: Launch) -> tuple[Launch, Schedule] | None:
        return joining.joined(rows, schedule, columns)

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> Blocks:
        assert isinstance(schedule, CudaSchedule)
        shared, text = schedule.shared_bytes(kernel), loops.generate(kernel, schedule, "kernel")
        if schedule.cluster > 1:
            return Clusters(kernel, schedule, text, self, shared)
        return Blocks(text, schedule.threads, self, shared)

    def routine_code(self, code: Any) -> Blocks:
        assert isinstance(code, RoutineCode)
        key = code.source, ()
        if key not in self._codes:
            self._codes[key] = Blocks(code.text(), code.threads, self, code.shared)
        return self._codes[key]


class BlocksEngine(ReferenceEngine):
    """Runs steps one after the other, on the thread that evaluates."""

    def __init__(self) -> None:
        super().__init__()
        self.target: BlocksTarget = BlocksTarget()

    def execute(self, step: Step, slots: Sequence[int]) -> None:
        """Run a step. It may be a step of the reference device, which has the same memory."""
        if isinstance(step.code, OnHost):
            step = step._replace(code=step.code.code)
        super().execute(step, slots)

    @contextmanager
    def in_order(self, order: Order) -> Iterator[None]:
        """Let ``order`` choose the threads that go on, inside the with block."""
        self.target.order = order
        yield
        self.target.order = together


ENGINE = BlocksEngine()
