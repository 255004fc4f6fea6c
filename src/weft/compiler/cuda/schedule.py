"""How blocks and threads of a GPU do the loops of a kernel."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

import weft.primitives as p
from weft.compiler.cuda.row_passes import row_passes
from weft.compiler.cuda.row_values import arranged, column_folds, common_loads, loaded_ahead, saved_row
from weft.compiler.kernel import CHUNK, VIRTUAL_LANES, Instruction, Kernel, LaneStride, Launch
from weft.compiler.passes import Pass, passes_of
from weft.compiler.target import Schedule
from weft.graph.extents import product

THREADS = 256
"""How many threads a block has, if threads have elements of their own."""

WIDEST_ACCESS = 16
"""The most bytes that a thread reads or writes at once."""

LONGEST_BODY = 320
"""The most cheap operations for all lanes that a thread does together: with more, the values would not fit its
registers."""

SLOW_WEIGHT = 12
"""How many cheap operations take as much code as an expensive one."""

FOLDS_TOGETHER = 8
"""How many turns of a fold a thread does together."""

SHARED_OF_ALL, REGISTERS_OF_ALL, MOST_RESIDENT = 208 << 10, 1 << 16, 24
"""What a multiprocessor has: bytes of shared memory, registers, and the most blocks at a time."""

FEWEST_REGISTERS = 48
"""The fewest registers of a thread: with fewer, values would be spilled to memory."""

WORKING_REGISTERS = 64
"""The fewest registers of a thread besides those in which it saves elements of a row."""

MOST_HELD = 32
"""The most registers for what a thread loads before it computes, if others are to have enough."""


class BlockLimits(NamedTuple):
    """Limits of an architecture: how many blocks a ``cluster`` may have, which can read each other's shared memory, and
    how many bytes of shared memory a block may have for ``saved`` values."""

    cluster: int
    saved: int

    @classmethod
    def of(cls, capability: int) -> BlockLimits:
        """The limits of a compute capability, such as 90."""
        return cls(8 if capability >= 90 else 1, 208 << 10 if 90 <= capability < 120 else 56 << 10)


HOPPER = BlockLimits.of(90)

TILE_BITS = 6

TILE = 1 << TILE_BITS
"""How many rows, and how many lanes, a tile has. Blocks do tiles if an operand is transposed."""


class Walk(enum.Enum):
    """What a thread does.

    ``ELEMENTS``: a few lanes of a row, with all sweeps. ``PAIRS``: a few lanes of the first half of a row, and the
    lanes of the second half that are paired with them. ``SHARED_FOLDS``: some turns of a lane's sweep, or some lanes of
    a row that is folded. ``TILES``: some rows of one lane of a tile. ``ROWS``: every 16th lane of a row, which 16
    threads do together; or a whole row, if it has one lane. ``LONG_ROWS``: every 16th lane of some chunks of a row,
    which is done by a block or a cluster of blocks. ``FOLDS``: four lanes of chunks of a row that is only folded.
    ``SCANS``: lanes of a row that a block scans. ``COLUMN_FOLDS``: as ``ROWS``, and some columns that are folded in
    parts of rows.
    """

    ELEMENTS = "elements"
    PAIRS = "pairs"
    SHARED_FOLDS = "shared folds"
    TILES = "tiles"
    ROWS = "rows"
    LONG_ROWS = "long rows"
    FOLDS = "folds"
    SCANS = "long scans"
    COLUMN_FOLDS = "column folds"


RESIDENT_THREADS = {Walk.ELEMENTS: 1024, Walk.PAIRS: 1024, Walk.TILES: 1024, Walk.FOLDS: 1024}

SCANNING_THREADS = 1536
"""How many threads of kernels that need few registers fit on a multiprocessor, at least."""

COLUMN_FOLD_THREADS, ROWS_AT_ONCE, TURNS_AT_ONCE = 128, 8, 16
"""Threads of a block that folds columns, too; how many rows these do at once, sixteen threads each; and of how many of
the elements of a thread columns are folded at once."""

COPIED_BYTES = 4
"""Bytes of the numbers that it copies to shared memory, and of those that it folds."""

ENOUGH_PARTS = 192
"""Parts of which columns are folded by the kernel that does the rows: a block does each, and a card has room for more
than two hundred."""

HELD_TOGETHER = {Walk.FOLDS: FOLDS_TOGETHER, Walk.TILES: 24}
"""How many elements of an operand a thread has loaded at a time."""


@dataclass(frozen=True, slots=True)
class CudaSchedule(Schedule):
    """A unit is what a block of ``threads`` threads does at a time: some of the ``rows`` rows, and one of ``blocks``
    parts of their lanes. Each thread does ``lanes`` lanes at a time, ``pieces`` times, and 2 to the power of ``bits``
    threads are neighbours in a row. If ``saved_lanes`` is not 0, values are saved in shared memory, for that many lanes
    of a row in a block. ``turns`` is not 0 if threads have all their elements of a row at once, of which
    ``in_registers`` arrays are in registers; or if threads share what is folded: then each has ``turns`` elements at a
    time. A long row is done by ``cluster`` blocks and has at most ``chunks`` chunks. If ``in_chunks``, rows are folded
    chunk by chunk; if ``in_parts``, sweeps part by part. If there are ``few_threads``, each does many turns of a sweep
    together, so that enough loads are in flight."""

    walk: Walk
    threads: int
    lanes: int
    bits: int
    units: int
    blocks: int
    rows: int
    saved_lanes: int = 0
    pieces: int = 1
    cluster: int = 1
    chunks: int = 0
    in_chunks: bool = False
    in_parts: bool = False
    grain: int = 1
    turns: int = 0
    in_registers: int = 0
    few_threads: bool = False

    @property
    def text(self) -> str:
        parts = [self.walk.value]
        if self.lanes > 1:
            parts.append(f"{self.lanes} lanes a thread")
        if self.pieces > 1:
            parts.append(f"{self.pieces} times")
        if self.walk in (Walk.LONG_ROWS, Walk.FOLDS):
            parts.append(f"{self.chunks} chunks, {self.cluster} blocks of {self.threads} threads")
        elif self.walk is Walk.SHARED_FOLDS:
            parts.append(f"{1 << self.bits} lanes a block, {self.turns} turns a thread")
        elif self.in_chunks:
            parts.append("in chunks")
        if self.in_parts:
            parts.append("in parts")
        if self.saved_lanes:
            parts.append(f"{self.saved_lanes} lanes saved")
        if self.in_registers:
            parts.append(f"{self.in_registers} arrays in {self.turns} registers")
        if self.few_threads:
            parts.append("many turns together")
        return ", ".join(parts)

    @property
    def lanes_in_shared(self) -> int:
        """How many elements an array has in shared memory."""
        if self.walk is Walk.LONG_ROWS:
            return self.saved_lanes // CHUNK * saved_row(CHUNK)
        return (self.threads >> self.bits) * saved_row(self.saved_lanes)

    def shared_bytes(self, kernel: Kernel) -> int:
        """Bytes of a block's shared memory for saved values."""
        if not self.saved_lanes:
            return 0
        passes = self.passes(kernel)
        if self.walk is Walk.COLUMN_FOLDS:
            copies = len(loaded_ahead(kernel, passes)) * saved_row(self.saved_lanes)
            folded = len(column_folds(kernel)) * saved_row(TURNS_AT_ONCE * VIRTUAL_LANES)
            return COPIED_BYTES * (ROWS_AT_ONCE * (copies + folded) + len(common_loads(kernel)) * self.saved_lanes)
        sizes = arranged(kernel, passes)[1][self.in_registers :]
        return self.lanes_in_shared * sum(sizes)

    @property
    def numbers(self) -> dict[str, int]:
        return {"units": self.units, "blocks": self.blocks, "bits": self.bits, "rows": self.rows}

    def resident_blocks(self, kernel: Kernel) -> int:
        """For how many blocks on a multiprocessor registers must suffice: as many as have room in shared memory."""
        shared = self.shared_bytes(kernel)
        held = sum(arranged(kernel, self.passes(kernel))[1][: self.in_registers]) // 4 * self.turns
        working = WORKING_REGISTERS if held else FEWEST_REGISTERS
        by_registers = max(1, REGISTERS_OF_ALL // (self.threads * (working + held)))
        if not shared:
            return min(MOST_RESIDENT, by_registers) if held else 1
        return min(MOST_RESIDENT, by_registers, SHARED_OF_ALL // shared)

    def light_blocks(self, kernel: Kernel) -> int:
        """For how many blocks registers must suffice if threads need few. Without that limit, the assembler gives
        threads so many registers that too few of them are resident to hide the latency of memory."""
        together = self.pieces * HELD_TOGETHER.get(self.walk, 1)
        varying = [instruction for instruction in kernel.instructions if instruction.varying]
        held = sum([i.dtype.size for i in varying if i.operation == "load"]) * self.lanes * together // 4
        if kernel.sweeps or held > MOST_HELD or sum(map(weight_of, varying)) * self.lanes > LONGEST_BODY:
            return 1
        threads = RESIDENT_THREADS.get(self.walk, 0)
        scans = [instruction for instruction in varying if instruction.operation == "scan"]
        if self.walk is Walk.ROWS and len(scans) == 1 and len(scans[0].primitive.reducer.identity(scans[0].dtype)) == 1:
            threads = SCANNING_THREADS
        return max(1, threads // self.threads)

    def passes(self, kernel: Kernel) -> list[Pass]:
        """The passes over a row."""
        return row_passes(kernel) if self.saved_lanes else passes_of(kernel)

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        if not kernel.instructions[store].varying and (kernel.lane == "parallel" or self.cluster > 1):
            return False  # other threads, or other blocks of a cluster, may not have read the element yet
        passes = list(enumerate(self.passes(kernel)))

        def pass_of(number: int) -> int:
            """The pass that has an instruction as a root, or, for one between passes, the first pass of its stage."""
            within = [index for index, current in passes if current.ends_with(number)]
            stage = kernel.instructions[number].stage
            return min(within or [index for index, current in passes if current.stage == stage])

        readers = [index for index, current in passes if current.needs(load) and load not in current.recalled]
        return load < store and (readers[-1] if readers else pass_of(load)) <= pass_of(store)

    def check(self, launch: Launch) -> None:
        kernel = launch.kernel
        elements = self.walk in (Walk.ELEMENTS, Walk.PAIRS, Walk.TILES)
        together = self.threads >> self.bits
        row_blocks, lanes = -(-launch.row_count // together), self.lanes * self.pieces * (self.blocks << self.bits)
        if self.walk is Walk.COLUMN_FOLDS:
            row_blocks = launch.row_extents[0]
        if self.walk is Walk.TILES:
            row_blocks, lanes = tiles_down(launch), self.blocks * TILE
        if self.walk is Walk.SHARED_FOLDS:
            row_blocks, lanes = launch.row_count, self.blocks << self.bits
            elements = kernel.lane == "parallel"
        good = elements == (kernel.lane == "parallel") and self.threads % 32 == 0
        good = (good and self.units == row_blocks * self.blocks) or not launch.has_results
        good = good and (not elements or lanes >= launch.lane_extent)
        good = good and (not self.saved_lanes or launch.lane_extent <= self.saved_lanes * self.cluster)
        good = good and (not self.chunks or launch.lane_extent <= self.chunks * CHUNK)
        if not good:
            raise AssertionError(f"{self} does not fit\n{kernel}\nwith extents {launch.extents_text}")


def meets(instruction: Instruction) -> bool:
    """Whether an instruction is a store that may write to the same location in different turns of the sweeps."""
    if instruction.operation != "store":
        return False
    access = instruction.access
    assert access is not None
    return bool(access.computed) or instruction.combine is not None or 0 in access.sweeps


def is_transposed(instruction: Instruction) -> bool:
    """Whether elements that a load reads from neighbouring locations are in neighbouring rows."""
    access = instruction.access
    if instruction.operation != "load" or access is None or access.computed or not access.rows:
        return False
    return access.lane_stride is LaneStride.ANY and access.rows[-1] == 1


def pair_distance(kernel: Kernel) -> int | None:
    """The number of the instruction for the distance between the lanes of a pair; None if there are no pairs, or not
    all in one row."""
    found = inputs_of_pairs(kernel)
    if kernel.rows or kernel.sweeps or kernel.ragged or len(set(found)) != 1:
        return None
    index, distance, _ = [kernel.instructions[number] for number in found[0]]
    if index.access is None or index.access.computed or index.access.lane_stride is not LaneStride.ONE:
        return None
    return None if distance.varying or distance.access is None or distance.access.computed else found[0][1]


def inputs_of_pairs(kernel: Kernel) -> list[tuple[int, ...]]:
    """For each value that is computed in pairs, its last three inputs: index, distance and count of lanes."""
    applied = [i for i in kernel.instructions if i.operation == "apply" and i.primitive.pair is not None]
    return [i.inputs[-3:] for i in applied]


def tiles_down(launch: Launch) -> int:
    """How many tiles there are from top to bottom, over all rows."""
    *outer, last = launch.row_extents
    return product(outer) * -(-last // TILE)


def weight_of(instruction: Instruction) -> int:
    """The length of the code of an instruction, in cheap operations."""
    primitive = instruction.primitive
    slow = isinstance(primitive, p.Elementwise) and not primitive.cheap
    return SLOW_WEIGHT if slow or instruction.operation == "scan" else 1
