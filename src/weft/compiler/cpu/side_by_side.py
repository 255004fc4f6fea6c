"""How many lanes a loop does at a time: vectors of a piece of a kernel, side by side, and vectors of bytes.

If each operation needs the result of the one before, the processor is idle most of the time, unless operations on other
vectors are beside them in the code: it does not look ahead far enough to find those of the next turn of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import weft.primitives as p
from weft.compiler.codegen import host
from weft.compiler.codegen.columns import ColumnAccesses
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, LaneStride, Launch
from weft.compiler.passes import Pass

MOST_VECTORS = 4
"""For four times as many instructions, LLVM takes four times as long."""

LONGEST_REGISTER = 64
"""Bytes of the longest register. On processors with shorter ones, a vector takes several, whose operations are
independent."""

IN_FLIGHT = 8
"""How many operations in flight keep a processor busy: two units that give results after four cycles."""

LONG_CHAIN = 12
"""Of shorter chains of operations, the processor finds those of the next turns of a loop by itself."""

LONG_ROW = 1024
"""In rows of at least this many lanes, several vectors may be done at once: the incomplete rest is small."""

LANES_OF_BYTES = 64
"""How many elements of one byte a turn of a loop does, so that counting turns takes less time than the work."""

MOST_IN_TURN = 12
"""A longer body takes LLVM long enough without a third copy of it for more lanes."""


def lanes_in_turn(kernel: Kernel) -> int:
    """How many lanes a turn of a loop over parallel lanes does, while so many are left. It is more than a vector has
    only if elements are bytes, contiguous, and computed by cheap operations."""
    varying = [instruction for instruction in kernel.instructions if instruction.varying]
    if kernel.lane != "parallel" or kernel.sweeps or not 0 < len(varying) <= MOST_IN_TURN:
        return VIRTUAL_LANES
    of_bytes = all(one.dtype.size == 1 and _is_brief(kernel, one) for one in varying)
    return LANES_OF_BYTES if of_bytes else VIRTUAL_LANES


def _is_brief(kernel: Kernel, instruction: Instruction) -> bool:
    """Whether an instruction takes a few operations, however many lanes there are."""
    access = instruction.access
    if instruction.operation == "apply":
        return _is_cheap(instruction)
    if access is None or instruction.where is not None or instruction.combine is not None:
        return False
    by_lane = any(kernel.instructions[value].varying for value, _ in access.computed)
    return instruction.operation != "index" and access.lane_stride is LaneStride.ONE and not by_lane


def vectors_at_once(kernel: Kernel, piece: Pass) -> int:
    """How many vectors a piece does at a time. It is more than one only if all operations are cheap, few of them are
    independent, and the values of the vectors fit the registers, with some of those that they share."""
    instructions = kernel.instructions
    computed = [number for number in piece.computed if instructions[number].varying]
    operations = [number for number in computed if instructions[number].operation == "apply"]
    if not operations or not all(_is_cheap(instructions[number]) for number in operations):
        return 1
    bytes_, registers = (64, 28) if "+avx512f" in host.current().features else (32, 12)
    most = _most_alive(kernel, piece, computed, bytes_)
    sources = {source for number in computed for source in instructions[number].sources}
    shared = [source for source in sources if not instructions[source].varying]
    held = min(len(shared), registers // 2)  # operations read what does not fit from memory, without one more of them
    independent = len(operations) / _longest_chain(kernel, computed) * LONGEST_REGISTER / bytes_
    vectors = 1
    while vectors < MOST_VECTORS and vectors * independent < IN_FLIGHT:
        if 2 * vectors * most + held > registers:
            break
        vectors *= 2
    return vectors


def vectors_in_turn(launch: Launch, columns: Sequence[ColumnAccesses]) -> int:
    """How many vectors a turn of the loop over the parallel lanes of a kernel does, if its body is not cut. It is more
    than one only in long rows: where vectors of small elements do not fill a register, and where operations wait for
    each other in a long chain. ``columns`` are accesses that are done together."""
    kernel = launch.kernel
    varying = [number for number, instruction in enumerate(kernel.instructions) if instruction.varying]
    if kernel.lane != "parallel" or kernel.sweeps or launch.lane_extent < LONG_ROW or not varying:
        return 1
    if any(i.operation in ("reduce", "scan") or i.combine is not None for i in kernel.instructions):
        return 1
    together = {number for accesses in columns for number, _ in accesses.members}
    if all(number in together or _is_brief(kernel, kernel.instructions[number]) for number in varying):
        widest = max([kernel.instructions[number].dtype.size for number in varying])
        filled = LONGEST_REGISTER // (VIRTUAL_LANES * widest)
        if filled > 1:
            return filled
    if _longest_chain(kernel, varying) < LONG_CHAIN:
        return 1
    return vectors_at_once(kernel, Pass([], 0, needed=list(range(len(kernel.instructions)))))


def _is_cheap(instruction: Instruction) -> bool:
    return isinstance(instruction.primitive, p.Elementwise) and instruction.primitive.cheap


def _longest_chain(kernel: Kernel, computed: Sequence[int]) -> int:
    """The length of the longest chain of operations that depend on each other."""
    depth: dict[int, int] = {}
    for number in computed:
        instruction = kernel.instructions[number]
        before = max([depth.get(source, 0) for source in instruction.sources], default=0)
        depth[number] = before + (instruction.operation == "apply")
    return max(depth.values())


def _most_alive(kernel: Kernel, piece: Pass, computed: Sequence[int], register_bytes: int) -> int:
    """The most registers of ``register_bytes`` that values of one vector need at the same time."""
    last: dict[int, int] = {}
    for number in computed:
        last.update(dict.fromkeys(kernel.instructions[number].sources, number))

    def registers(number: int) -> int:
        instruction = kernel.instructions[number]
        bytes_ = max(instruction.dtype.size, 4) * VIRTUAL_LANES
        return -(-bytes_ // register_bytes) if instruction.varying and not instruction.dtype.is_bool else 0

    alive = most = sum(map(registers, piece.recalled))
    for number in computed:
        alive += registers(number) if number in last else 0
        most = max(most, alive)
        ending = {source for source in kernel.instructions[number].sources if last[source] == number}
        alive -= sum(map(registers, ending))
    return most
