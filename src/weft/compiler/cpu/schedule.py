"""How the CPU goes over the loops of a kernel, and how threads share the work."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from weft.compiler.codegen import host
from weft.compiler.codegen.columns import ColumnAccesses
from weft.compiler.cpu import kinds, transposed_tiles
from weft.compiler.cpu.apart import near_stride, reads_along_rows, swept_loads
from weft.compiler.cpu.columns import columns_of
from weft.compiler.cpu.interiors import has_interior
from weft.compiler.cpu.kinds import (
    folds_lanes_apart,
    folds_rows_of_memory,
    passes_caches,
    reads_far_rows,
    reads_from_memory,
    scatters_rows,
    writes_far,
)
from weft.compiler.cpu.offsets import alike_accesses
from weft.compiler.cpu.pieces import BodyCut, cut_of, length_of
from weft.compiler.cpu.side_by_side import vectors_in_turn
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride, Launch, Level
from weft.compiler.open_numbers import as_a_whole
from weft.compiler.passes import SHORT_ROW, Pass, folds_apart, is_expensive, nothing, passes_of
from weft.compiler.target import Schedule
from weft.runtime.executor import thread_count

TILE_ROWS = 16
FEWEST_TILE_ROWS = 5
"""With fewer rows it takes longer to transpose squares than to read each lane of each row."""
SHORTEST_FOLDED_APART = 128
"""Rows of at least this many elements may have passes that only fold."""
LANE_BLOCK = 1 << 14
PIECES_BLOCK = 1 << 12
SWEEP_OUTER_BLOCK = 1024
"""How many lanes a block of a sweep-outer kernel has; the states of all of them are in memory."""

# The lanes of rows that are folded, scanned or scattered are cut into at least this many units, or one for each thread,
# unless blocks would be too short to be read fast, or have too little work. Blocks of scans are longer, because threads
# that write to the same cache line in every row slow each other down. Those of folds may be shorter where each thread
# has a single one: what other threads have just written is read slowly, however long blocks are.
MANY_UNITS = 16
SHORTEST_BLOCK = 256
SHORTEST_SCATTERED = 128
SHORTEST_FOLDED = 64

SWEEP_OUTER_ROWS = 8
"""How many rows a sweep-outer kernel does together."""
PAGE = 4096
"""Processors read ahead within this many bytes. Rows whose total is longer are not read ahead as a single stream."""

# The work of a grain in cheap operations on an element: some microseconds, so that sharing a step saves more time than
# it takes. Blocks of expensive lanes are shorter than `LANE_BLOCK`, but not than `SHORTEST_LANE_BLOCK`.
COST_PER_GRAIN = 1 << 16
SHORTEST_LANE_BLOCK = 1 << 11
# Operands of at least this many bytes are in no near cache, or in those of several processors. There, a byte that is
# loaded or stored counts as an operation, and an element that is not beside the one before as APART_COST.
DISTANT_BYTES = 1 << 19
APART_COST = 16

# Short rows at computed locations are prefetched, as many rows ahead as have LANES_AHEAD lanes together. Longer rows
# are read ahead by the processor itself.
LONGEST_AWAITED = 256
LANES_AHEAD = 512
# Stores at computed locations are prefetched this many turns of the sweep ahead, if few instructions compute them.
TURNS_AHEAD = 32


class Walk(enum.Enum):
    """The order in which a kernel goes over its elements.

    ``TILED``: in blocks of rows, all rows for each strip of lanes, because some operand is contiguous along the
    last row axis. ``SHORT_ROWS``: row by row; values are saved on the stack from one pass over a row to the next.
    ``SWEEP_OUTER``: with the loop over lanes inside the sweeps, so that memory is read in order, and the states of many
    lanes in memory. Units that are neighbours in a row are done together. So are some rows: each vector of lanes goes
    through all of them, so that its states stay in registers. ``ROW_BY_ROW``: the same, but one row after the other.
    ``PIECES``: the body is cut (see `pieces`), and a strip of lanes, or of short rows, goes through one piece after the
    other.
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
    """``transposed`` are the loads of a tiled kernel that read along rows, ``streamed`` the stores that go past the
    caches, by number of the instruction. ``awaited`` are the loads of rows at computed locations, which are prefetched
    ``ahead`` rows before they are used; in a kernel with sweeps they are stores, which are prefetched ``ahead`` turns
    of the last sweep before. A unit is a row, or ``rows`` rows that are done together, or a block of ``block`` lanes of
    them; ``block`` is 0 if lanes are not cut. If ``in_chunks``, rows are folded chunk by chunk; if ``in_parts``, sweeps
    part by part. If ``folds_apart``, expensive values of a short row are folded in a pass of its own. If ``in_cells``,
    tiles are read as `transposed_tiles` says. ``near`` are the accesses whose lanes are near in memory, with their
    strides, ``columns`` those that are done together. ``swept`` are loads along the last sweep of which squares are
    transposed. If ``single``, all lanes of a row are a part of one vector. ``has_interior``: whether rows have a loop
    over their `Interior`. ``vectors`` are how many vectors a turn of a loop over lanes does while so many are left.
    ``alike`` are accesses of short rows that move as earlier ones do, which they name. ``from_memory`` are loads that
    are prefetched further ahead than processors read."""

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
    folds_apart: bool = False
    in_cells: bool = False
    near: tuple[tuple[int, int], ...] = ()
    swept: tuple[int, ...] = ()
    columns: tuple[ColumnAccesses, ...] = ()
    single: bool = False
    has_interior: bool = False
    vectors: int = 1
    alike: tuple[tuple[int, int], ...] = ()
    from_memory: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        parts = [self.walk.value, "in chunks" if self.in_chunks else "", "in parts" if self.in_parts else ""]
        parts += ["folds apart" if self.folds_apart else "", "single" if self.single else ""]
        parts.append("interior apart" if self.has_interior else "")
        parts += [f"%{number} moves as %{other}" for number, other in self.alike]
        if self.vectors > 1 or (self.cut is not None and max(self.cut.at_once) > 1):
            parts.append("several vectors at once")
        for name, numbers in (
            ("transposed", self.transposed),
            ("streamed", self.streamed),
            ("awaited", self.awaited),
            ("swept", self.swept),
            ("from memory", self.from_memory),
        ):
            if numbers:
                parts.append(f"{name} {' '.join([f'%{number}' for number in numbers])}")
        parts.extend([f"%{number} by {stride}" for number, stride in self.near])
        parts.extend([together.text for together in self.columns])
        return ", ".join([part for part in parts if part])

    @property
    def numbers(self) -> dict[str, int]:
        numbers = {"block": self.block, "blocks": self.blocks}
        if self.cut is not None:
            numbers["rows"] = self.rows
        return {**numbers, "ahead": self.ahead} if self.awaited else numbers

    def passes(self, kernel: Kernel) -> list[Pass]:
        """The passes over a row, or over a strip of its lanes."""
        if self.cut is not None:
            return list(self.cut.pieces)
        worth_saving = is_expensive if self.walk is Walk.SHORT_ROWS else nothing
        return passes_of(
            kernel, worth_saving=worth_saving, lanes_in_sweeps=self.walk.sweeps_outside, apart=self.folds_apart
        )

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        if load >= store:
            return False
        passes = list(enumerate(self.passes(kernel)))

        def pass_of(instruction: int) -> int:
            """The first pass that has an instruction as a root, or, for one between passes, the first pass of its
            stage."""
            stage = kernel.instructions[instruction].stage
            within = [number for number, current in passes if current.ends_with(instruction)]
            return min(within or [number for number, current in passes if current.stage == stage])

        readers = [number for number, current in passes if current.needs(load)]
        return (readers[-1] if readers else pass_of(load)) <= pass_of(store)

    def divided(self, launch: Launch, turns: int) -> CpuSchedule | None:
        if not launch.row_extents:
            return self._divided_by_lanes(launch, turns)
        rows, rest = divmod(launch.row_count, turns)
        if rest or self.awaited:
            return None
        last = launch.row_extents[-1]
        if self.rows > 1 and rows % last and (last % rows or rows % self.rows):
            return None
        return replace(self, streamed=())

    def _divided_by_lanes(self, launch: Launch, turns: int) -> CpuSchedule | None:
        """Of the only row, each turn does as many lanes, which are whole strips if it is cut."""
        block, rest = divmod(launch.lane_extent, turns)
        if rest or self.single or launch.kernel.lane != "parallel" or self.walk not in (Walk.PLAIN, Walk.PIECES):
            return None
        if self.cut is not None and block < self.cut.lanes:
            return None
        return replace(self, streamed=(), block=block, blocks=turns, units=turns)

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
    """The schedule of a launch: a walk, and units of about equal work."""
    kernel = launch.kernel
    instructions = list(enumerate(kernel.instructions))
    cut = cut_of(launch)
    transposed: list[int] = []
    is_tiled = kernel.lane == "parallel" and not kernel.sweeps and bool(kernel.rows) and cut is None
    if is_tiled and launch.row_extents[-1] >= FEWEST_TILE_ROWS:
        transposed = [number for number, instruction in instructions if reads_along_rows(instruction)]
    streamed = [number for number, instruction in instructions if passes_caches(instruction, kernel)]
    walk = Walk.PIECES if cut is not None else Walk.TILED if transposed else _walk(launch)
    cost = _cost_of_element(kernel)
    block = _block(launch, walk, cost, cut)
    blocks = -(-launch.lane_extent // block) if block else 1
    rows = _rows_together(launch, transposed, cut)
    units = _row_units(launch, rows) * blocks
    work = launch.work * (cost + _cost_of_distant_accesses(kernel, transposed))
    grain = max(1, COST_PER_GRAIN * units // max(1, work))
    awaited: list[int] = []
    if walk is Walk.PLAIN and kernel.lane == "parallel" and launch.lane_extent <= LONGEST_AWAITED:
        awaited = [number for number, instruction in instructions if reads_far_rows(instruction, kernel)]
    ahead = LANES_AHEAD // max(launch.lane_extent, 1) if awaited else 0
    if walk is Walk.PLAIN and kernel.sweeps and launch.sweep_extents[-1] > TURNS_AHEAD:
        awaited = [number for number, _ in instructions if writes_far(number, kernel)]
        ahead = TURNS_AHEAD if awaited else 0
    swept = swept_loads(launch) if walk is Walk.PLAIN else ()
    inside = walk is Walk.PLAIN and has_interior(launch)
    bodies = [range(len(instructions))] if cut is None else [piece.computed for piece in cut.pieces]
    columns = columns_of(kernel, bodies, [*transposed, *swept])
    by_row = walk is Walk.ROW_BY_ROW
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
        walk is Walk.SHORT_ROWS and _folds_apart(launch),
        _in_cells(kernel, transposed),
        tuple([(number, stride) for number, instruction in instructions if (stride := near_stride(instruction))]),
        swept,
        columns,
        _is_single(launch, walk),
        inside,
        vectors_in_turn(launch, columns) if walk is Walk.PLAIN and not inside else 1,
        alike_accesses(launch) if walk is Walk.PLAIN else (),
        tuple([number for number, instruction in instructions if reads_from_memory(instruction, kernel, by_row)]),
    )


def row_schedule_of(launch: Launch) -> CpuSchedule | None:
    """A schedule whose units are whole rows, for a kernel that a call runs on rectangles of its result: without
    streamed stores, because caches hold the results, and without offsets that accesses share, because the call changes
    strides. None if rows have to be done together."""
    found = schedule_of(launch)
    if found.walk is Walk.TILED or found.walk.sweeps_outside:
        return None
    block = max(VIRTUAL_LANES, _whole_vectors(launch.lane_extent)) if found.block else 0
    return replace(found, streamed=(), block=block, blocks=1, rows=1, units=_row_units(launch, 1), grain=1, alike=())


def _is_single(launch: Launch, walk: Walk) -> bool:
    """Whether all lanes of a row are a part of one vector, in rows that are done one by one. Scans take as long with a
    loop over vectors, or half as long."""
    by_rows = walk is Walk.SHORT_ROWS or (walk is Walk.PLAIN and launch.kernel.lane != "none")
    scans = any(instruction.operation == "scan" for instruction in launch.kernel.instructions)
    return by_rows and not scans and not launch.kernel.backwards and launch.lane_extent < VIRTUAL_LANES


def _cost_of_element(kernel: Kernel) -> int:
    """The work for an element of the innermost loops, in cheap operations."""
    inner = [i for i in kernel.instructions if i.varying or i.level is Level.SWEEP]
    return max(1, sum(map(length_of, inner)))


def _cost_of_distant_accesses(kernel: Kernel, transposed: Sequence[int]) -> int:
    """The work of loads and stores in large operands for an element of the innermost loops, in cheap operations. Loads
    that are ``transposed`` read along rows."""
    found = 0
    for number, instruction in enumerate(kernel.instructions):
        access = instruction.access
        innermost = instruction.varying and (instruction.level is Level.SWEEP or not kernel.sweeps)
        if instruction.operation in ("load", "store") and access is not None and innermost:
            apart = access.lane_stride is not LaneStride.ONE and number not in transposed
            found += _cost_of_access(access.operand.size, access.dtype.size, apart)
    return found


@as_a_whole
def _cost_of_access(elements: int, size: int, apart: bool) -> int:
    if elements * size < DISTANT_BYTES:
        return 0
    return APART_COST if apart else size


def _block(launch: Launch, walk: Walk, cost: int, cut: BodyCut | None) -> int:
    """How many lanes a unit has; 0 if lanes are not cut."""
    if launch.kernel.lane != "parallel":
        return launch.lane_extent if walk is Walk.PIECES else 0
    plain = LANE_BLOCK
    while plain > SHORTEST_LANE_BLOCK and plain * cost > COST_PER_GRAIN:
        plain //= 2
    most = SWEEP_OUTER_BLOCK if walk.sweeps_outside else PIECES_BLOCK if walk is Walk.PIECES else plain
    return min(most, _longest_block(launch, walk, cost, cut), max(VIRTUAL_LANES, _whole_vectors(launch.lane_extent)))


def _longest_block(launch: Launch, walk: Walk, cost: int, cut: BodyCut | None) -> int:
    """The most lanes that a unit may have, so that there are units for many threads."""
    lanes = launch.lane_extent * launch.row_count
    shortest = LANE_BLOCK
    if any(instruction.operation == "scan" for instruction in launch.kernel.instructions):
        shortest = SHORTEST_BLOCK
    elif cut is not None:
        shortest = max(cut.lanes, _whole_vectors(COST_PER_GRAIN // cost))
    elif scatters_rows(launch.kernel):
        shortest = SHORTEST_SCATTERED
    elif walk.sweeps_outside or (walk is Walk.PLAIN and folds_lanes_apart(launch.kernel)):
        of_grain = _whole_vectors(COST_PER_GRAIN // max(1, cost * prod(launch.sweep_extents)))
        of_thread = _whole_vectors(max(1, lanes // thread_count()))
        shortest = max(min(SHORTEST_FOLDED, of_thread), of_grain)
    return max(shortest, _whole_vectors(lanes // max(MANY_UNITS, thread_count())))


def _whole_vectors(lanes: int) -> int:
    """``lanes`` rounded up to whole vectors."""
    return -(-lanes // VIRTUAL_LANES) * VIRTUAL_LANES


def _walk(launch: Launch) -> Walk:
    kernel = launch.kernel
    if kernel.lane == "reduced" and not kernel.sweeps and launch.lane_extent <= SHORT_ROW and not kernel.backwards:
        apart = _folds_apart(launch)
        saves = any(current.recalled for current in passes_of(kernel, worth_saving=is_expensive, apart=apart))
        return Walk.SHORT_ROWS if saves else Walk.PLAIN
    large = launch.lane_extent > VIRTUAL_LANES and prod(launch.sweep_extents) >= SWEEP_OUTER_ROWS
    by_rows = folds_rows_of_memory(kernel) or scatters_rows(kernel)
    if kernel.lane == "parallel" and kernel.sweeps and large and by_rows:
        return Walk.ROW_BY_ROW if _goes_row_by_row(launch) else Walk.SWEEP_OUTER
    return Walk.PLAIN


def _folds_apart(launch: Launch) -> bool:
    """Whether a short row is long enough for passes that only fold."""
    return launch.lane_extent >= SHORTEST_FOLDED_APART and any(
        folds_apart(launch.kernel, number) for number in range(len(launch.kernel.instructions))
    )


def _goes_row_by_row(launch: Launch) -> bool:
    """Whether swept rows are done one at a time.

    Values that all lanes of a row share would be computed again for each block of lanes. Where an index is found, as by
    argmin, each row compares with the result of the row before, and with several rows in registers that takes longer
    than reading them one by one. Rows that are far apart in memory outside of the caches are read faster one after the
    other than side by side. For scans, which also write them, the same holds in the caches.
    """
    kernel, far = launch.kernel, False
    for i in kernel.instructions:
        if i.operation == "apply" and i.level is Level.SWEEP and not i.varying:
            return True
        if i.operation == "reduce" and i.primitive.reducer.needs_index:
            return True
        far = far or (i.operation == "load" and i.level is Level.SWEEP and _reads_far_apart(i, launch))
    return far and not scatters_rows(kernel)


def _reads_far_apart(load: Instruction, launch: Launch) -> bool:
    """Whether the rows that would be read together are too long for the processor to read ahead."""
    scans = any(instruction.operation == "scan" for instruction in launch.kernel.instructions)
    large = launch.work * load.dtype.size >= kinds.STREAM_BYTES
    return (scans or large) and SWEEP_OUTER_ROWS * launch.lane_extent * load.dtype.size >= PAGE


def _rows_together(launch: Launch, transposed: Sequence[int], cut: BodyCut | None) -> int:
    """How many rows are done together: those of a tile, or as many as fill a strip."""
    if transposed:
        sizes = [launch.kernel.instructions[number].dtype.size for number in transposed]
        return transposed_tiles.side_of(sizes) if _in_cells(launch.kernel, transposed) else TILE_ROWS
    if cut is not None and launch.kernel.rows:
        return max(1, cut.lanes // max(1, _whole_vectors(launch.lane_extent)))
    return 1


def _row_units(launch: Launch, rows: int) -> int:
    """How many units the rows make if they are independent, ``rows`` neighbours along the last axis in each; 0 if
    nothing is stored."""
    if not launch.has_results:
        return 0
    if rows == 1:
        return launch.row_count
    last = launch.row_extents[-1]
    return launch.row_count // max(last, 1) * -(-last // rows)


def _in_cells(kernel: Kernel, transposed: Sequence[int]) -> bool:
    """Whether tiles are read in cells. Elements of four bytes alone are faster in squares, which fit registers, and so
    are those of two bytes if the processor has masks for them."""
    in_squares = (2, 4) if "+avx512bw" in host.current().features else (4,)
    return any(kernel.instructions[number].dtype.size not in in_squares for number in transposed)
