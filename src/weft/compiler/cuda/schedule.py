"""How blocks and threads of a GPU do the loops of a kernel."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import weft.primitives as p
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride, Launch
from weft.compiler.passes import Pass, is_expensive, nothing, passes_of
from weft.compiler.target import Schedule

THREADS = 256
"""Threads of a block whose threads have elements of their own."""

ROW_THREADS = 128
"""Threads of a block that does rows, 16 threads each."""

MOST_LANES = 4
"""Lanes that a thread takes at a time, so that it reads and writes 16 bytes of float32 at once."""

LONGEST_BODY = 80
"""A thread takes fewer lanes if these together are longer, in cheap operations: the values would not fit its
registers."""

SLOW_WEIGHT = 12
"""How many cheap operations are about as long as one that is not cheap."""

ENOUGH_THREADS = 1 << 17
"""Lanes are taken together only if so many threads have some: about half of what the largest cards run at a time."""

SAVED_BYTES = 48 << 10
"""Shared memory of a block for what is saved from one pass over its rows to the next."""

WASTED = 8
"""At most every so many-th thread of a block may have no lane of its row, if more than a warp are neighbours there."""

WARP_BITS = 5


class Walk(enum.Enum):
    """What a thread does.

    ``ELEMENTS``: a few lanes of a row, and all sweeps. ``ROWS``: every 16th lane of a row, which 16 threads do
    together; or a whole row, if it has one lane.
    """

    ELEMENTS = "elements"
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class CudaSchedule(Schedule):
    """A unit is what a block of ``threads`` threads does at a time: some of the ``rows`` rows, and one of ``blocks``
    parts of their lanes. Each thread takes ``lanes`` lanes, and 2 to the power of ``bits`` threads are neighbours in a
    row. Values of rows with up to ``saved_lanes`` lanes are saved in shared memory; 0 if none are."""

    walk: Walk
    threads: int
    lanes: int
    bits: int
    units: int
    blocks: int
    rows: int
    saved_lanes: int = 0
    grain: int = 1

    @property
    def text(self) -> str:
        parts = [self.walk.value]
        if self.lanes > 1:
            parts.append(f"{self.lanes} lanes a thread")
        if self.saved_lanes:
            parts.append(f"{self.saved_lanes} lanes saved")
        return ", ".join(parts)

    @property
    def numbers(self) -> dict[str, int]:
        return {"units": self.units, "blocks": self.blocks, "bits": self.bits, "rows": self.rows}

    def passes(self, kernel: Kernel) -> list[Pass]:
        """What is done in each pass over a row."""
        return passes_of(kernel, worth_saving=is_worth_saving if self.saved_lanes else nothing)

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        if not kernel.instructions[store].varying and kernel.lane == "parallel":
            return False  # other threads may not have read it yet
        passes = list(enumerate(self.passes(kernel)))

        def pass_of(number: int) -> int:
            """The pass that has an instruction as a root, or comes right behind it."""
            within = [index for index, current in passes if number in current.roots]
            stage = kernel.instructions[number].stage
            return min(within or [index for index, current in passes if current.stage == stage])

        last = max([index for index, current in passes if load in current.computed], default=pass_of(load))
        return load < store and last <= pass_of(store)

    def check(self, launch: Launch) -> None:
        kernel = launch.kernel
        elements = self.walk is Walk.ELEMENTS
        good = elements == (kernel.lane == "parallel") and self.threads % 32 == 0
        together = self.threads >> self.bits
        good = (good and self.units == -(-launch.row_count // together) * self.blocks) or not launch.has_results
        good = good and (not elements or self.lanes * (self.blocks << self.bits) >= launch.lane_extent)
        good = good and (not self.saved_lanes or launch.lane_extent <= self.saved_lanes)
        if not good:
            raise AssertionError(f"{self} does not fit\n{kernel}\nwith extents {launch.extents_text}")


def schedule_of(launch: Launch) -> CudaSchedule:
    """The schedule of a launch: enough threads for all elements or rows, and their accesses side by side."""
    if launch.kernel.lane == "parallel":
        return _elements(launch)
    return _rows(launch)


def _elements(launch: Launch) -> CudaSchedule:
    lanes = _lanes_of_thread(launch)
    threads = -(-launch.lane_extent // lanes)
    bits = _bits(threads)
    blocks = -(-threads // (1 << bits))
    together = THREADS >> bits
    units = -(-launch.row_count // together) * blocks if launch.has_results else 0
    return CudaSchedule(Walk.ELEMENTS, THREADS, lanes, bits, units, blocks, launch.row_count)


def _bits(threads: int) -> int:
    """The logarithm of how many threads of a block are neighbours in a row that needs so many."""
    most = min((THREADS - 1).bit_length(), (threads - 1).bit_length())
    for bits in range(most, WARP_BITS, -1):
        if -threads % (1 << bits) * WASTED <= threads:
            return bits
    return min(most, WARP_BITS)


def _lanes_of_thread(launch: Launch) -> int:
    """How many lanes a thread takes at a time."""
    kernel = launch.kernel
    touched = [i for i in kernel.instructions if i.access is not None and i.access.operand is not None and i.varying]
    if not any(i.access is not None and i.access.lane_stride is LaneStride.ONE for i in touched):
        return 1
    weight = max(1, sum(map(_weight, kernel.instructions)))
    lanes = MOST_LANES
    while lanes > 1 and (
        weight * lanes > LONGEST_BODY or launch.row_count * launch.lane_extent < ENOUGH_THREADS * lanes
    ):
        lanes //= 2
    return lanes


def _weight(instruction: Instruction) -> int:
    """How much code an instruction is, in cheap operations."""
    primitive = instruction.primitive
    return SLOW_WEIGHT if isinstance(primitive, p.Elementwise) and not primitive.cheap else 1


def _rows(launch: Launch) -> CudaSchedule:
    bits = 4 if launch.kernel.lane == "reduced" else 0
    together = ROW_THREADS >> bits
    units = -(-launch.row_count // together) if launch.has_results else 0
    return CudaSchedule(Walk.ROWS, ROW_THREADS, 1, bits, units, 1, launch.row_count, _saved_lanes(launch))


def _saved_lanes(launch: Launch) -> int:
    """The lanes of a row for which there is shared memory, a power of two; 0 if nothing is saved or rows are long."""
    kernel = launch.kernel
    if kernel.lane != "reduced" or kernel.sweeps or kernel.backwards:
        return 0
    size = sum(saved_bytes(kernel, passes_of(kernel, worth_saving=is_worth_saving)).values())
    lanes = max(VIRTUAL_LANES, 1 << (launch.lane_extent - 1).bit_length())
    return lanes if size and size * saved_row(lanes) * (ROW_THREADS // VIRTUAL_LANES) <= SAVED_BYTES else 0


def is_worth_saving(instruction: Instruction) -> bool:
    """Whether shared memory is nearer than what a value is made of: what is loaded, and what takes many operations."""
    if instruction.dtype.is_bool or instruction.dtype.is_complex or not instruction.varying:
        return False
    return instruction.operation == "load" or is_expensive(instruction)


def saved_bytes(kernel: Kernel, passes: list[Pass]) -> dict[int, int]:
    """Bytes of an element of each value that is saved."""
    return {number: max(kernel.instructions[number].dtype.size, 4) for current in passes for number in current.saved}


def saved_row(lanes: int) -> int:
    """Elements from one row to the next in shared memory: neighbours have other banks."""
    return lanes + VIRTUAL_LANES
