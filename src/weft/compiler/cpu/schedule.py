"""How the CPU walks over the loops of a kernel, and how threads share them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from math import prod

from weft.compiler.cpu.pieces import BodyCut, cut_of, length_of
from weft.compiler.kernel import VIRTUAL_LANES, Access, Instruction, Kernel, LaneStride, Launch, Level
from weft.compiler.passes import SHORT_ROW, Pass, is_expensive, nothing, passes_of
from weft.compiler.target import Schedule

TILE_ROWS = 16
LANE_BLOCK = 1 << 14
PIECES_BLOCK = 1 << 12
SWEEP_OUTER_BLOCK = 1024
"""Lanes per block of accumulators in sweep-outer kernels."""

# The lanes of rows that are folded, scanned or scattered are cut into at least this many units, if that many blocks are
# not too short to read, nor done too soon. Those of a scan are longer: threads that write to one cache line in every
# row wait for each other.
MANY_UNITS = 16
SHORTEST_BLOCK = 256
SHORTEST_SCATTERED = 128
SHORTEST_FOLDED = 64

SWEEP_OUTER_ROWS = 8
"""Rows that a sweep-outer kernel does together."""
PAGE = 4096
"""Bytes that processors read ahead in: rows that are this far apart in all are not read as one stretch of memory."""

# A thread that gets work has at least so many cheap operations on an element: some microseconds, so that to share a
# step takes no longer than what it saves. Blocks of lanes are shorter than `LANE_BLOCK`, so that they take no longer,
# but not shorter than `SHORTEST_LANE_BLOCK`.
COST_PER_GRAIN = 1 << 16
SHORTEST_LANE_BLOCK = 1 << 11

# Outputs of fewer bytes than this may still be in the last cache when somebody reads them.
STREAM_BYTES = 1 << 24

# Places in operands from this size on are often in no near cache. Short rows at computed ones are asked for ahead, as
# many rows as have LANES_AHEAD lanes; how long ones go on, the processor expects.
FAR_BYTES = 1 << 21
LONGEST_AWAITED = 256
LANES_AHEAD = 512
# Stores at computed places are asked for so many turns of the sweep ahead, if these are computed in few instructions.
TURNS_AHEAD = 32
MOST_FOR_INDEX = 12


class Walk(enum.Enum):
    """In which order a kernel goes over its elements.

    ``TILED``: blocks of 16 rows for each vector of lanes, because some operand is contiguous along the last row axis.
    ``SHORT_ROWS``: row by row; values are saved on the stack from one pass over a row to the next. ``SWEEP_OUTER``: the
    sweeps outside and the lanes inside, so that memory is read in order, with accumulators for many lanes in memory;
    units that are neighbours in a row are done together. Some rows are done together, for each vector of lanes all of
    them, so that its accumulators stay in registers; or, ``ROW_BY_ROW``, one after the other. ``PIECES``: the body is
    cut (see `pieces`), and a strip of lanes, or of short rows, goes through one piece after the other.
    """

    PLAIN = ""
    TILED = "tiled"
    SHORT_ROWS = "short rows"
    SWEEP_OUTER = "sweep outer"
    ROW_BY_ROW = "sweep outer, row by row"
    PIECES = "pieces"

    @property
    def sweeps_outside(self) -> bool:
        return self in (Walk.SWEEP_OUTER, Walk.ROW_BY_ROW)


@dataclass(frozen=True, slots=True)
class CpuSchedule(Schedule):
    """``transposed`` are the loads of a tiled kernel that read along the rows, ``streamed`` the stores that go past the
    caches, by number of the instruction. ``awaited`` are the loads of rows at computed places, which are asked for
    ``ahead`` rows before; in a kernel with sweeps the stores, asked for so many turns of the last sweep before. A unit
    is a row (``rows`` of them, if several are done together), or a block of ``block`` lanes of one; ``block`` is 0 if
    lanes are not cut. The chunks of rows are folded by themselves if they are done ``in_chunks``, the
    parts of sweeps ``in_parts``."""

    walk: Walk
    transposed: tuple[int, ...]
    streamed: tuple[int, ...]
    units: int
    grain: int
    block: int
    blocks: int
    awaited: tuple[int, ...] = ()
    ahead: int = 0
    rows: int = 1
    cut: BodyCut | None = None
    in_chunks: bool = False
    in_parts: bool = False

    @property
    def text(self) -> str:
        parts = [self.walk.value, "in chunks" if self.in_chunks else "", "in parts" if self.in_parts else ""]
        if self.cut is not None and max(self.cut.at_once) > 1:
            parts.append("several vectors at once")
        for name, numbers in (
            ("transposed", self.transposed),
            ("streamed", self.streamed),
            ("awaited", self.awaited),
        ):
            if numbers:
                parts.append(f"{name} {' '.join([f'%{number}' for number in numbers])}")
        return ", ".join([part for part in parts if part])

    @property
    def numbers(self) -> dict[str, int]:
        numbers = {"block": self.block, "blocks": self.blocks}
        if self.cut is not None:
            numbers["rows"] = self.rows
        return {**numbers, "ahead": self.ahead} if self.awaited else numbers

    def passes(self, kernel: Kernel) -> list[Pass]:
        """What is done in each pass over a row, or over a strip of its lanes."""
        if self.cut is not None:
            return list(self.cut.pieces)
        worth_saving = is_expensive if self.walk is Walk.SHORT_ROWS else nothing
        return passes_of(kernel, worth_saving=worth_saving, lanes_in_sweeps=self.walk.sweeps_outside)

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        passes = list(enumerate(self.passes(kernel)))

        def pass_of(instruction: int) -> int:
            """The pass that comes right behind an instruction that stands between passes, or has it as a root."""
            stage = kernel.instructions[instruction].stage
            within = [number for number, current in passes if instruction in current.roots]
            return min(within or [number for number, current in passes if current.stage == stage])

        last = max([number for number, current in passes if load in current.needed], default=pass_of(load))
        return load < store and last <= pass_of(store)

    def divided(self, launch: Launch, turns: int) -> CpuSchedule | None:
        rows, rest = divmod(launch.row_count, turns)
        if rest or self.awaited or not launch.row_extents:
            return None
        last = launch.row_extents[-1]
        if self.rows > 1 and rows % last and (last % rows or rows % self.rows):
            return None
        return replace(self, streamed=())

    def check(self, launch: Launch) -> None:
        kernel = launch.kernel
        expected = {
            Walk.TILED: kernel.lane == "parallel" and not kernel.sweeps and bool(kernel.rows),
            Walk.SHORT_ROWS: kernel.lane == "reduced" and not kernel.sweeps and launch.lane_extent <= SHORT_ROW,
            Walk.SWEEP_OUTER: kernel.lane == "parallel" and bool(kernel.sweeps),
            Walk.ROW_BY_ROW: kernel.lane == "parallel" and bool(kernel.sweeps),
        }
        kinds = [kernel.instructions[number].operation for number in (*self.transposed, *self.streamed)]
        good = expected.get(self.walk, True) and bool(self.transposed) == (self.walk is Walk.TILED)
        good = good and (self.cut is not None) == (self.walk is Walk.PIECES)
        good = good and kinds == ["load"] * len(self.transposed) + ["store"] * len(self.streamed)
        good = good and (self.block * self.blocks >= launch.lane_extent if self.block else kernel.lane != "parallel")
        good = good and self.grain > 0 and self.units == _row_units(launch, self.rows) * self.blocks
        if not good:
            raise AssertionError(f"{self} does not fit\n{kernel}\nwith extents {launch.extents_text}")


def schedule_of(launch: Launch) -> CpuSchedule:
    """The schedule of a launch: its walk, and pieces of work of about equal size."""
    kernel = launch.kernel
    instructions = list(enumerate(kernel.instructions))
    cut = cut_of(launch)
    transposed: list[int] = []
    if kernel.lane == "parallel" and not kernel.sweeps and cut is None:
        transposed = [number for number, instruction in instructions if _reads_along_rows(instruction)]
    streamed = [number for number, instruction in instructions if _passes_caches(instruction, kernel)]
    walk = Walk.PIECES if cut is not None else Walk.TILED if transposed else _walk(launch)
    cost = _cost_of_element(kernel)
    block = _block(launch, walk, cost)
    blocks = -(-launch.lane_extent // block) if block else 1
    rows = _rows_together(launch, walk, cut)
    units = _row_units(launch, rows) * blocks
    grain = max(1, COST_PER_GRAIN * units // max(1, launch.work * cost))
    awaited: list[int] = []
    if walk is Walk.PLAIN and kernel.lane == "parallel" and launch.lane_extent <= LONGEST_AWAITED:
        awaited = [number for number, instruction in instructions if _reads_far_rows(instruction, kernel)]
    ahead = LANES_AHEAD // max(launch.lane_extent, 1) if awaited else 0
    if walk is Walk.PLAIN and kernel.sweeps and launch.sweep_extents[-1] > TURNS_AHEAD:
        awaited = [number for number, _ in instructions if _writes_far(number, kernel)]
        ahead = TURNS_AHEAD if awaited else 0
    return CpuSchedule(
        walk,
        tuple(transposed),
        tuple(streamed),
        units,
        grain,
        block,
        blocks,
        tuple(awaited),
        ahead,
        rows,
        cut,
        launch.in_chunks,
        launch.in_parts,
    )


def row_schedule_of(launch: Launch) -> CpuSchedule | None:
    """A schedule whose units are rows, and which stores what caches hold for good; None if rows have to be done
    together."""
    found = schedule_of(launch)
    if found.walk is Walk.TILED or found.walk.sweeps_outside:
        return None
    block = max(VIRTUAL_LANES, _whole_vectors(launch.lane_extent)) if found.block else 0
    return replace(found, streamed=(), block=block, blocks=1, rows=1, units=_row_units(launch, 1), grain=1)


def _cost_of_element(kernel: Kernel) -> int:
    """How many cheap operations the innermost loops have for an element."""
    inner = [i for i in kernel.instructions if i.varying or i.level is Level.SWEEP]
    return max(1, sum(map(length_of, inner)))


def _block(launch: Launch, walk: Walk, cost: int) -> int:
    """How many lanes a unit has; 0 if lanes are not cut."""
    if launch.kernel.lane != "parallel":
        return launch.lane_extent if walk is Walk.PIECES else 0
    plain = LANE_BLOCK
    while plain > SHORTEST_LANE_BLOCK and plain * cost > COST_PER_GRAIN:
        plain //= 2
    most = SWEEP_OUTER_BLOCK if walk.sweeps_outside else PIECES_BLOCK if walk is Walk.PIECES else plain
    return min(most, _longest_block(launch, walk, cost), max(VIRTUAL_LANES, _whole_vectors(launch.lane_extent)))


def _longest_block(launch: Launch, walk: Walk, cost: int) -> int:
    """How many lanes a unit may have, so that there are units for many threads."""
    shortest = LANE_BLOCK
    if any(instruction.operation == "scan" for instruction in launch.kernel.instructions):
        shortest = SHORTEST_BLOCK
    elif _scatters_rows(launch.kernel):
        shortest = SHORTEST_SCATTERED
    elif walk.sweeps_outside:
        work = cost * prod(launch.sweep_extents)
        shortest = max(SHORTEST_FOLDED, _whole_vectors(COST_PER_GRAIN // max(1, work)))
    return max(shortest, _whole_vectors(launch.lane_extent * launch.row_count // MANY_UNITS))


def _whole_vectors(lanes: int) -> int:
    """A number of lanes made a multiple of that of a vector."""
    return -(-lanes // VIRTUAL_LANES) * VIRTUAL_LANES


def _walk(launch: Launch) -> Walk:
    kernel = launch.kernel
    if kernel.lane == "reduced" and not kernel.sweeps and launch.lane_extent <= SHORT_ROW and not kernel.backwards:
        saves = any(current.recalled for current in passes_of(kernel, worth_saving=is_expensive))
        return Walk.SHORT_ROWS if saves else Walk.PLAIN
    large = launch.lane_extent > VIRTUAL_LANES and prod(launch.sweep_extents) >= SWEEP_OUTER_ROWS
    by_rows = _folds_rows_of_memory(kernel) or _scatters_rows(kernel)
    if kernel.lane == "parallel" and kernel.sweeps and large and by_rows:
        return Walk.ROW_BY_ROW if _goes_row_by_row(launch) else Walk.SWEEP_OUTER
    return Walk.PLAIN


def _goes_row_by_row(launch: Launch) -> bool:
    """Whether rows that are swept are taken one at a time.

    Values that all lanes of a row share would be computed again for each part of the row. Where an index is found, such
    as argmin's, each row compares with the result of the row before: rows that are loaded together wait longer for that
    than one at a time waits for memory. From memory behind the caches, rows that are far apart are read faster one
    after the other than side by side; scans write them, too, which is so in caches as well.
    """
    kernel, far = launch.kernel, False
    for i in kernel.instructions:
        if i.operation == "apply" and i.level is Level.SWEEP and not i.varying:
            return True
        if i.operation == "reduce" and i.primitive.reducer.needs_index:
            return True
        far = far or (i.operation == "load" and i.level is Level.SWEEP and _reads_far_apart(i, launch))
    return far and not _scatters_rows(kernel)


def _reads_far_apart(load: Instruction, launch: Launch) -> bool:
    """Whether the rows that would be read together are not one stretch of memory that the caches hold or expect."""
    scans = any(instruction.operation == "scan" for instruction in launch.kernel.instructions)
    large = launch.work * load.dtype.size >= STREAM_BYTES
    return (scans or large) and SWEEP_OUTER_ROWS * launch.lane_extent * load.dtype.size >= PAGE


def _rows_together(launch: Launch, walk: Walk, cut: BodyCut | None) -> int:
    """How many rows are done together: those of a tile, or as many as are a strip."""
    if walk is Walk.TILED:
        return TILE_ROWS
    if cut is not None and launch.kernel.rows:
        return max(1, cut.lanes // max(1, _whole_vectors(launch.lane_extent)))
    return 1


def _row_units(launch: Launch, rows: int) -> int:
    """Rows that can be done independently, if anything is stored; neighbours along the last axis are done ``rows`` at a
    time."""
    if not launch.has_results:
        return 0
    if rows == 1:
        return launch.row_count
    last = launch.row_extents[-1]
    return launch.row_count // max(last, 1) * -(-last // rows)


def _folds_rows_of_memory(kernel: Kernel) -> bool:
    """Whether a kernel is one pass that folds or scans contiguous rows elementwise."""
    operations = {instruction.operation for instruction in kernel.instructions}
    scans = "scan" in operations
    if sum(bool(found.roots) for found in passes_of(kernel)) > 1:
        return False
    for instruction in kernel.instructions:
        if instruction.stage > 1 or (instruction.operation == "reduce" and not instruction.varying):
            return False
        stored = instruction.operation == "store" and instruction.level is Level.SWEEP
        if stored and (instruction.stage or not scans):
            return False
    reads = [i.access for i in kernel.instructions if i.operation == "load" and i.level is Level.SWEEP]
    return any(access is not None and access.lane_stride is LaneStride.ONE for access in reads)


def _scatters_rows(kernel: Kernel) -> bool:
    """Whether a kernel only writes rows at computed places, one after the other."""
    for instruction in kernel.instructions:
        access = instruction.access
        if instruction.operation in ("reduce", "scan"):
            return False
        if instruction.operation == "store":
            assert access is not None
            by_lane = any(kernel.instructions[value].varying for value, _ in access.computed)
            if by_lane or access.lane_stride is not LaneStride.ONE:
                return False
    return bool(kernel.sweeps)


def _reads_far_rows(instruction: Instruction, kernel: Kernel) -> bool:
    """Whether contiguous lanes are read at a place that is computed for each row, in memory that near caches cannot
    hold."""
    access = instruction.access
    if instruction.operation != "load" or access is None or not access.computed or kernel.sweeps:
        return False
    by_row = not any(kernel.instructions[value].varying for value, _ in access.computed)
    large = access.operand.size * access.dtype.size >= FAR_BYTES
    return by_row and large and access.lane_stride is LaneStride.ONE and instruction.stage == 0


def _writes_far(number: int, kernel: Kernel) -> bool:
    """Whether a store is at a place that is computed for each turn of a sweep, in memory that near caches cannot hold.
    What an addition reads there is asked for in time by the processor, but not what is only written."""
    instruction = kernel.instructions[number]
    access = instruction.access
    if instruction.operation != "store" or access is None or not access.computed or kernel.lane == "reduced":
        return False
    needed = [kernel.instructions[value] for value in needed_for_index(kernel, number)]
    simple = all(one.operation in ("load", "apply", "index", "scalar") and not one.varying for one in needed)
    large = access.operand.size * access.dtype.size >= FAR_BYTES
    return simple and len(needed) <= MOST_FOR_INDEX and large and instruction.combine is None


def needed_for_index(kernel: Kernel, number: int) -> list[int]:
    """What the location of an access is computed of, in order."""
    access = kernel.instructions[number].access
    assert access is not None
    found: set[int] = set()
    pending = [value for value, _ in access.computed]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending.extend(kernel.instructions[value].sources)
    return sorted(found)


def _reads_along_rows(instruction: Instruction) -> bool:
    """Whether neighbours in memory are on neighbouring rows instead of lanes."""
    access = instruction.access
    if instruction.operation != "load" or access is None or access.computed or instruction.where is not None:
        return False
    return access.lane_stride is LaneStride.ANY and bool(access.rows) and access.rows[-1] == 1


def _passes_caches(instruction: Instruction, kernel: Kernel) -> bool:
    """Whether a store goes past the caches, as they could not hold all of it: memory then need not be read first.

    Vectors of lanes that begin at the end of a row are not aligned.
    """
    access = instruction.access
    if instruction.operation != "store" or access is None or access.computed:
        return False
    if instruction.where is not None or instruction.combine is not None or not instruction.varying:
        return False
    if not _is_large_and_aligned(access) or access.lane_stride is not LaneStride.ONE:
        return False
    return kernel.lane != "reduced" or not kernel.backwards


def _is_large_and_aligned(access: Access) -> bool:
    large = access.operand.size * access.dtype.size >= STREAM_BYTES
    return large and all(stride % VIRTUAL_LANES == 0 for stride in (access.offset, *access.rows, *access.sweeps))
