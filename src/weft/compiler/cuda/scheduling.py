"""Chooses the schedule of a kernel on a GPU."""

from __future__ import annotations

from weft.compiler.cuda.row_passes import row_passes
from weft.compiler.cuda.row_values import (
    arranged,
    bytes_of_totals,
    is_ahead,
    message_bytes,
    saved_row,
)
from weft.compiler.cuda.schedule import (
    HOPPER,
    LONGEST_BODY,
    THREADS,
    TILE,
    TILE_BITS,
    WIDEST_ACCESS,
    BlockLimits,
    CudaSchedule,
    Walk,
    inputs_of_pairs,
    is_transposed,
    meets,
    pair_distance,
    tiles_down,
    weight_of,
)
from weft.compiler.kernel import CHUNK, VIRTUAL_LANES, Kernel, LaneStride, Launch, Level
from weft.compiler.passes import passes_of

ROW_THREADS = 64
"""How many threads a block has that does rows, with 16 threads for each row."""

ROW_UNITS, ENOUGH_ROW_BLOCKS = 4, 1 << 11
"""A block that writes no rows does several units (the first number) one after the other, if that leaves enough blocks
(the second number)."""

LANES, MOST_LANES = 4, 8
"""Bounds for the lanes that a thread does at a time. Within these, they are as many of the narrowest numbers as it
reads or writes at once."""

BYTES_AHEAD, MOST_BYTES_AHEAD = 64, 128
"""How many bytes of each operand, and at most of all operands, a thread loads before it computes, because memory takes
long to answer."""

MOST_AHEAD = 3
"""The most operands for which a thread loads several elements: registers cannot hold those of more operands."""

PAIR_UNITS = 4
"""How many units a block does if values are computed in pairs, which takes longer than to write them: what a block does
once takes as long as a unit."""

BLOCK_ELEMENTS = 1 << 11
"""The fewest elements of a block, if there are many elements: finding operands takes some time at its beginning."""

ENOUGH_THREADS = 1 << 17
"""Threads do several lanes only if there are still at least this many threads: about half of what the largest cards run
at a time."""

FEW_THREADS, LONG_SWEEP = 1 << 18, 64
"""With at most this many threads (the first number), memory is busy only if each has many loads in flight, which it can
have in a sweep of at least as many turns as the second number."""

FEW_RESULTS, SHARED_SWEEP = 1 << 11, 128
"""With at most this many results (the first number), which would leave most of a card idle, the threads of a block
share a fold if it has at least this many turns (the second)."""

FEW_ROWS, SHARED_ROW, HEAVY = 16, 512, 16
"""They also share the folds of few rows (at most the first number) if these have at least as many elements as the
second number, and each element takes at least as many cheap operations as the third."""

SHARED_LANES, SHARING_BLOCKS = (4, 32), 128
"""Bounds for the lanes of a block that shares folds. Within these, there are so few that there are at least as many
blocks as the second number."""

SHARED_TURNS, SHARED_TILE = 8, 20 << 10
"""How many elements a thread that shares a fold has at a time, if those of a block need no more bytes of shared memory
than the second number."""

SAVED_BYTES = 34 << 10
"""Bytes of a block's shared memory for values that are saved from one pass over its rows to the next: a multiprocessor
has room for six such blocks."""

LONG_ROW_THREADS = 32, 512
"""The fewest and most threads of a block that does a long row."""

TOTALS_BYTES = 32 << 10
"""Bytes of shared memory for the totals of a long row's chunks, in all passes."""

FEWEST_FOLDED, ENOUGH_FOLDS = 8, 1 << 15
"""Four threads fold a chunk if rows have at least this many chunks (the first number), and if that gives at least this
many threads (the second)."""

SCAN_THREADS = 256
"""How many threads a block has that scans a row."""

SCANNED_ROW = 512
"""Rows of at least this many elements may be scanned by a block each."""

ENOUGH_SCANS = 1 << 12
"""From this many rows on, each row is scanned by sixteen threads. With fewer rows a card would have too little work, so
a block does each row."""

REGISTER_BYTES, REGISTER_BYTES_OF_LONG = 512, 256
"""Bytes of registers of a thread for saved values of its elements of a row, or of a long row. Blocks with long rows
wait often, so another block must have room beside them."""

ROW_IN_REGISTERS = 128
"""Values of a row are saved in registers only if its length is a multiple of this, because each length has its own
code."""

SAVED_OF_LONG = 72 << 10
"""Bytes of a block's shared memory for saved values of a long row: a multiprocessor has room for three such blocks. A
row that needs more is divided among several blocks."""

ENOUGH_BLOCKS = 256
"""If there are fewer long rows, each is done by several blocks."""

FEWEST_CHUNKS = 4
"""The fewest chunks of a block, if several blocks do a row."""

WASTED = 8
"""One in this many threads of a block may have no lane of its row, if more than a warp are neighbours in a row."""

WARP_BITS = 5

TILED_FROM = 1 << 20
"""With at least this many elements there are enough tiles for all blocks."""

TILE_BYTES = 40 << 10
"""Bytes of a block's shared memory for tiles."""

SECTOR = 32
"""The smallest number of bytes that memory transfers."""


def schedule_of(launch: Launch, blocks: BlockLimits = HOPPER) -> CudaSchedule:
    """The schedule of a launch. There are enough threads for all elements or rows, and threads access neighbouring
    memory where possible."""
    if launch.kernel.lane == "parallel":
        return _tiles(launch) or _pairs(launch) or _shared_folds(launch) or _elements(launch)
    return _folds(launch) or _long_rows(launch, blocks) or _shared_folds(launch) or _rows(launch)


def _elements(launch: Launch) -> CudaSchedule:
    lanes = _lanes_of_thread(launch)
    threads = -(-launch.lane_extent // lanes)
    transposed = _bits_of_transposed(launch.kernel)
    pieces = 1 if transposed else _pieces(launch, lanes)
    bits = min([_bits(-(-threads // pieces)), *transposed])
    blocks = -(-threads // (pieces << bits))
    together = THREADS >> bits
    units = -(-launch.row_count // together) * blocks if launch.has_results else 0
    grain = _grain(launch.kernel, THREADS * lanes * pieces)
    turns = launch.sweep_extents[-1] if launch.sweep_extents else 0
    few = turns >= LONG_SWEEP and launch.row_count * launch.lane_extent <= FEW_THREADS
    return CudaSchedule(
        Walk.ELEMENTS,
        THREADS,
        lanes,
        bits,
        units,
        blocks,
        launch.row_count,
        pieces=pieces,
        grain=grain,
        few_threads=few,
        in_parts=launch.in_parts,
    )


def _shared_folds(launch: Launch) -> CudaSchedule | None:
    """A schedule whose threads share folds; None if there is little to fold, if there are many results, or if the order
    matters in which elements are stored or scanned."""
    kernel = launch.kernel
    folds = [i for i in kernel.instructions if i.operation == "reduce"]
    if not folds or kernel.backwards or launch.in_parts or any(i.primitive.reducer.ordered for i in folds):
        return None
    if any(i.operation == "scan" or (i.level is Level.SWEEP and meets(i)) for i in kernel.instructions):
        return None
    passes = passes_of(kernel)
    most_bytes = max([bytes_of_totals(kernel, current) for current in passes])
    turns = SHARED_TURNS
    while turns > 1 and THREADS * turns * most_bytes > SHARED_TILE:
        turns //= 2
    if THREADS * turns * most_bytes > SHARED_TILE:
        return None
    if kernel.lane == "reduced":
        varying = sum([weight_of(i) for i in kernel.instructions if i.varying])
        if kernel.sweeps or varying < HEAVY or launch.row_count > FEW_ROWS:
            return None
        if not SHARED_ROW <= launch.lane_extent <= CHUNK:
            return None
        lanes, blocks, turns = VIRTUAL_LANES, 1, min(turns, -(-launch.lane_extent // THREADS))
    else:
        results = launch.row_count * launch.lane_extent
        if kernel.sweeps != 1 or launch.sweep_extents[0] < SHARED_SWEEP or results > FEW_RESULTS:
            return None
        fewest, most = SHARED_LANES
        lanes = min(most, max(fewest, _next_power(results // SHARING_BLOCKS + 1) // 2))
        blocks = -(-launch.lane_extent // lanes)
    units = launch.row_count * blocks if launch.has_results else 0
    bits = lanes.bit_length() - 1
    return CudaSchedule(Walk.SHARED_FOLDS, THREADS, 1, bits, units, blocks, launch.row_count, turns=turns)


def _grain(kernel: Kernel, elements: int) -> int:
    """The fewest units of a block. A unit has ``elements`` elements, or that many in each turn of the sweeps."""
    return 1 if kernel.sweeps else max(1, BLOCK_ELEMENTS // max(1, elements))


def _pieces(launch: Launch, lanes: int) -> int:
    """How many groups of ``lanes`` lanes a thread does; their loads come first."""
    kernel = launch.kernel
    loaded = [i.dtype.size for i in kernel.instructions if is_ahead(i)]
    if lanes == 1 or kernel.sweeps or not loaded or len(loaded) > MOST_AHEAD:
        return 1
    pieces, elements = max(1, BYTES_AHEAD // (lanes * max(loaded))), launch.row_count * launch.lane_extent
    threads = -(-launch.lane_extent // lanes)
    while pieces > 1:
        neighbours = pieces << _bits(-(-threads // pieces))
        are_held = lanes * pieces * sum(loaded) <= MOST_BYTES_AHEAD
        if are_held and -threads % neighbours * WASTED <= threads and elements >= ENOUGH_THREADS * lanes * pieces:
            break
        pieces //= 2
    return pieces


def _bits(threads: int) -> int:
    """The logarithm of how many threads of a block are neighbours in a row that needs ``threads`` of them."""
    most = min((THREADS - 1).bit_length(), (threads - 1).bit_length())
    for bits in range(most, WARP_BITS, -1):
        if -threads % (1 << bits) * WASTED <= threads:
            return bits
    return min(most, WARP_BITS)


def _bits_of_transposed(kernel: Kernel) -> list[int]:
    """For each transposed load, the logarithm of how many threads of a warp may have the same row, so that the warp
    reads whole sectors of memory."""
    found = []
    for instruction in kernel.instructions:
        if is_transposed(instruction):
            rows = max(1, SECTOR // instruction.dtype.size)
            found.append(WARP_BITS - min(WARP_BITS, rows.bit_length() - 1))
    return found


def _pairs(launch: Launch) -> CudaSchedule | None:
    """A schedule for values that are computed in pairs; None if there are none, or too few."""
    distance = pair_distance(launch.kernel)
    if distance is None:
        return None
    index, _, total = inputs_of_pairs(launch.kernel)[0]
    accesses = [launch.kernel.instructions[number].access for number in (index, distance, total)]
    begin, half, count = [access.offset for access in accesses if access is not None]
    lanes = _lanes_of_thread(launch)
    if begin or count != launch.lane_extent or 2 * half < count or count < ENOUGH_THREADS * lanes:
        return None
    units = -(-half // (THREADS * lanes))
    return CudaSchedule(
        Walk.PAIRS, THREADS, lanes, _bits(THREADS), units, units, launch.row_count, pieces=2, grain=PAIR_UNITS
    )


def _tiles(launch: Launch) -> CudaSchedule | None:
    """A schedule whose blocks do tiles of rows and lanes; None if nothing is transposed, or if much of the tiles would
    be empty."""
    kernel = launch.kernel
    turned = [instruction for instruction in kernel.instructions if is_transposed(instruction)]
    if not turned or kernel.sweeps or kernel.ragged:
        return None
    if sum([instruction.dtype.size for instruction in turned]) * TILE * (TILE + 1) > TILE_BYTES:
        return None
    if any(instruction.where is not None for instruction in turned):
        return None
    weight = sum([weight_of(instruction) for instruction in kernel.instructions if instruction.varying])
    if weight * TILE * TILE > LONGEST_BODY * THREADS or launch.row_count * launch.lane_extent < TILED_FROM:
        return None
    if any(-extent % TILE * WASTED > extent for extent in (launch.row_extents[-1], launch.lane_extent)):
        return None
    blocks = -(-launch.lane_extent // TILE)
    units = tiles_down(launch) * blocks if launch.has_results else 0
    return CudaSchedule(Walk.TILES, THREADS, 1, TILE_BITS, units, blocks, launch.row_count)


def _lanes_of_thread(launch: Launch) -> int:
    """How many lanes a thread does at a time."""
    kernel = launch.kernel
    varying = [instruction for instruction in kernel.instructions if instruction.varying]
    accesses = [i.access for i in varying if i.access is not None and i.access.operand is not None]
    beside = [access.dtype.size for access in accesses if access.lane_stride is LaneStride.ONE]
    if not beside:
        return 1
    weight = max(1, sum(map(weight_of, varying)))
    lanes = min(max(LANES, WIDEST_ACCESS // min(beside)), MOST_LANES)
    while lanes > 1 and (
        weight * lanes > LONGEST_BODY or launch.row_count * launch.lane_extent < ENOUGH_THREADS * lanes
    ):
        lanes //= 2
    return lanes


def _rows(launch: Launch) -> CudaSchedule:
    bits = 4 if launch.kernel.lane == "reduced" else 0
    units = -(-launch.row_count // (ROW_THREADS >> bits)) if launch.has_results else 0
    in_registers, turns = _in_registers(launch, launch.lane_extent // VIRTUAL_LANES, REGISTER_BYTES)
    saved = launch.lane_extent if in_registers else _saved_lanes(launch, ROW_THREADS >> bits)
    if _is_long_scan(launch):
        units = launch.row_count if launch.has_results else 0
        return CudaSchedule(Walk.SCANS, SCAN_THREADS, 1, _bits(SCAN_THREADS), units, 1, launch.row_count)
    return CudaSchedule(
        Walk.ROWS,
        ROW_THREADS,
        1,
        bits,
        units,
        1,
        launch.row_count,
        saved,
        in_chunks=launch.in_chunks,
        grain=max(
            _grain(launch.kernel, (ROW_THREADS >> bits) * launch.lane_extent), _units_of_block(launch.kernel, units)
        ),
        turns=turns,
        in_registers=in_registers,
    )


def _units_of_block(kernel: Kernel, units: int) -> int:
    """How many units of rows a block does. Blocks that write rows do one: so those that run at a time write to
    neighbouring memory."""
    if any(i.operation == "store" and i.varying for i in kernel.instructions):
        return 1
    return min(ROW_UNITS, units // ENOUGH_ROW_BLOCKS)


def _is_long_scan(launch: Launch) -> bool:
    """Whether blocks scan rows: there are few long ones, and nothing is folded. A sequential scan is not meant: it is a
    single chain of operations anyway."""
    kernel = launch.kernel
    operations = [i for i in kernel.instructions if i.operation in ("scan", "reduce")]
    if kernel.lane != "reduced" or kernel.sweeps or launch.lane_extent < SCANNED_ROW:
        return False
    if launch.row_count >= ENOUGH_SCANS or not operations:
        return False
    return all(i.operation == "scan" and not i.primitive.reducer.sequential for i in operations)


def _folds(launch: Launch) -> CudaSchedule | None:
    """A schedule that reads four lanes at once; None if rows are not long or too few, or if the kernel does more than
    fold them in one pass."""
    kernel, chunks = launch.kernel, -(-launch.lane_extent // CHUNK)
    if kernel.lane != "reduced" or kernel.sweeps or any(i.operation == "scan" for i in kernel.instructions):
        return None
    varying = [i for i in kernel.instructions if i.varying]
    folds = [i for i in kernel.instructions if i.operation == "reduce"]
    if any(i.primitive.reducer.ordered or i.stage for i in folds) or any(i.operation == "store" for i in varying):
        return None
    if not any(map(is_ahead, varying)) or sum(map(weight_of, varying)) * LANES > LONGEST_BODY:
        return None
    (current,) = [one for one in passes_of(kernel) if one.roots]
    few = VIRTUAL_LANES // LANES
    if chunks < FEWEST_FOLDED or launch.row_count * chunks * few < ENOUGH_FOLDS:
        return None
    if _next_power(chunks) * bytes_of_totals(kernel, current) > TOTALS_BYTES:
        return None
    fewest, most = LONG_ROW_THREADS
    threads = min(most, max(fewest, _next_power(chunks * few)))
    units = launch.row_count if launch.has_results else 0
    bits = threads.bit_length() - 1
    return CudaSchedule(
        Walk.FOLDS,
        threads,
        LANES,
        bits,
        units,
        1,
        launch.row_count,
        chunks=_next_power(chunks),
        in_chunks=launch.in_chunks,
    )


def _long_rows(launch: Launch, blocks: BlockLimits) -> CudaSchedule | None:
    """A schedule in which each row is done by one or more blocks; None if rows are short, or scanned or folded in
    order, or if there is too little shared memory."""
    kernel, chunks = launch.kernel, -(-launch.lane_extent // CHUNK)
    ordered = [i.operation == "reduce" and i.primitive.reducer.ordered for i in kernel.instructions]
    if (
        kernel.lane != "reduced"
        or chunks == 1
        or any(ordered)
        or any(i.operation == "scan" for i in kernel.instructions)
    ):
        return None
    passes = row_passes(kernel)
    if _next_power(chunks) * sum([bytes_of_totals(kernel, current) for current in passes]) > TOTALS_BYTES:
        return None
    saved = 0 if kernel.sweeps else sum(arranged(kernel, passes)[1])
    messages = _next_power(chunks) * sum([bytes_of_totals(kernel, current, message_bytes) for current in passes])
    cluster, most_blocks = 1, blocks.cluster if messages <= TOTALS_BYTES else 1
    while cluster < most_blocks and (
        saved * saved_row(CHUNK) * _next_power(-(-chunks // cluster)) > SAVED_OF_LONG
        or (launch.row_count * cluster < ENOUGH_BLOCKS and chunks >= 2 * FEWEST_CHUNKS * cluster)
    ):
        cluster *= 2
    own = _next_power(-(-chunks // cluster))
    fewest, most = LONG_ROW_THREADS
    threads = min(most, max(fewest, own * VIRTUAL_LANES))
    in_registers = turns = 0
    if threads == own * VIRTUAL_LANES and launch.lane_extent == own * cluster * CHUNK:
        in_registers, turns = _in_registers(launch, CHUNK // VIRTUAL_LANES, REGISTER_BYTES_OF_LONG)
    return CudaSchedule(
        Walk.LONG_ROWS,
        threads,
        1,
        threads.bit_length() - 1,
        launch.row_count if launch.has_results else 0,
        1,
        launch.row_count,
        own * CHUNK if in_registers or 0 < saved * saved_row(CHUNK) * own <= blocks.saved else 0,
        cluster=cluster,
        chunks=_next_power(chunks),
        in_chunks=launch.in_chunks,
        turns=turns,
        in_registers=in_registers,
    )


def _in_registers(launch: Launch, turns: int, most: int) -> tuple[int, int]:
    """How many of the arrays of saved values a thread holds in registers, and how many elements of a row it has. Both
    are 0 if none is in registers."""
    kernel = launch.kernel
    if (
        kernel.lane != "reduced"
        or kernel.sweeps
        or kernel.backwards
        or kernel.ragged
        or launch.lane_extent % ROW_IN_REGISTERS
    ):
        return 0, 0
    if any(
        i.operation == "scan" or (i.operation == "reduce" and i.primitive.reducer.ordered) for i in kernel.instructions
    ):
        return 0, 0
    sizes = arranged(kernel, row_passes(kernel))[1]
    in_registers = 0
    while in_registers < len(sizes) and sum(sizes[: in_registers + 1]) * turns <= most:
        in_registers += 1
    return (in_registers, turns) if in_registers else (0, 0)


def _next_power(count: int) -> int:
    """The smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()


def _saved_lanes(launch: Launch, rows: int) -> int:
    """For how many lanes of a row values are saved in shared memory, a power of two; 0 if nothing is saved, or if
    ``rows`` rows need too much for a block."""
    kernel = launch.kernel
    if kernel.lane != "reduced" or kernel.sweeps or kernel.backwards:
        return 0
    _, sizes = arranged(kernel, row_passes(kernel))
    lanes = max(VIRTUAL_LANES, 1 << (launch.lane_extent - 1).bit_length())
    return lanes if sizes and sum(sizes) * saved_row(lanes) * rows <= SAVED_BYTES else 0
