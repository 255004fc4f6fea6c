"""Cuts the body of a large kernel into pieces.

The time that LLVM takes grows faster than the length of a body, and the values of a long body do not fit the registers.
So a strip of lanes goes through one piece of the body after the other. Values that later pieces need are saved on the
stack, and strips are short, so that these values fit the first cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import weft.primitives as p
from weft.compiler.cpu.side_by_side import LONG_ROW, vectors_at_once
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, Launch
from weft.compiler.passes import Pass

LONGEST_BODY = 96
"""The longest body, in cheap operations, that is not cut."""

PIECE_WEIGHT = 64
"""The longest piece, in cheap operations. A piece of a single operation may be longer."""

SLOW_WEIGHT = 12
"""How many cheap operations are about as long as one that is not cheap."""

LONGEST_STRIP = 32
"""The most vectors of lanes in a strip. It has half or a quarter of them if more than `FIRST_CACHE` bytes would be
saved, and still fewer only if more than `STACK` bytes would be: each call of a piece takes some time."""

SHORT_STRIP = 8
FIRST_CACHE, STACK = 3 << 13, 1 << 18


@dataclass(frozen=True, slots=True)
class BodyCut:
    """The pieces of a body, in order, and where they save values of a strip of ``vectors`` vectors of lanes.

    ``offsets`` gives the first byte of the saved value of an instruction, within ``size`` bytes. ``at_once`` says how
    many vectors each piece does at once.
    """

    pieces: tuple[Pass, ...]
    vectors: int
    offsets: dict[int, int]
    size: int
    at_once: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """How many lanes a strip has, over all its rows."""
        return self.vectors * VIRTUAL_LANES


def cut_of(launch: Launch) -> BodyCut | None:
    """How the body of a kernel is cut; None if it is short, or if its lanes are folded, scanned or added in memory."""
    kernel = launch.kernel
    folds = any(instruction.operation in ("reduce", "scan") for instruction in kernel.instructions)
    folds = folds or (kernel.lane == "reduced" and any(i.combine is not None for i in kernel.instructions))
    if folds or kernel.sweeps or sum(map(length_of, kernel.instructions)) <= LONGEST_BODY:
        return None
    pieces = _pieces(kernel)
    units, size = _arranged(kernel, pieces)
    vectors = _vectors(size * VIRTUAL_LANES)
    lanes = vectors * VIRTUAL_LANES
    offsets = {position: unit * lanes for position, unit in units.items()}
    several = kernel.lane == "parallel" and launch.lane_extent >= LONG_ROW
    at_once = [min(vectors, vectors_at_once(kernel, piece)) if several else 1 for piece in pieces]
    return BodyCut(tuple(pieces), vectors, offsets, size * lanes, tuple(at_once))


def _vectors(size: int) -> int:
    """How many vectors a strip has, if ``size`` bytes are saved for each vector."""
    vectors = LONGEST_STRIP
    while vectors > 1 and vectors * size > (FIRST_CACHE if vectors > SHORT_STRIP else STACK):
        vectors //= 2
    return vectors


def _is_free(instruction: Instruction) -> bool:
    """Whether every piece can have the value without computing it: a constant, or an index of the loops."""
    return instruction.operation == "scalar" or (instruction.operation == "index" and not instruction.sources)


def length_of(instruction: Instruction) -> int:
    """The length of the code of an instruction, in cheap operations."""
    if _is_free(instruction):
        return 0
    primitive = instruction.primitive
    return SLOW_WEIGHT if isinstance(primitive, p.Elementwise) and not primitive.cheap else 1


def _pieces(kernel: Kernel) -> list[Pass]:
    """What each piece computes, saves and recalls. Each instruction belongs to a single piece. So a load is never
    repeated after a store has overwritten what it read."""
    instructions = kernel.instructions
    piece_of: dict[int, int] = {}
    pieces: list[Pass] = []
    for number, (start, stop) in enumerate(_bounds(kernel)):
        piece = Pass([position for position in range(start, stop) if instructions[position].operation == "store"], 0)
        needed: set[int] = set()
        for position in range(start, stop):
            if _is_free(instructions[position]):
                continue
            piece_of[position] = number
            needed.add(position)
            for source in instructions[position].sources:
                needed.add(source)
                if piece_of.get(source, number) != number:
                    piece.recalled.add(source)
                    pieces[piece_of[source]].saved.add(source)
        piece.needed = sorted(needed)
        pieces.append(piece)
    return pieces


def _bounds(kernel: Kernel) -> list[tuple[int, int]]:
    """The range of instructions of each piece. Bodies are cut where the fewest values cross."""
    crossing = _crossing(kernel)
    bounds: list[tuple[int, int]] = []
    start, weight = 0, 0
    best, best_weight = 0, 0
    for position, instruction in enumerate(kernel.instructions):
        added = length_of(instruction)
        if weight + added > PIECE_WEIGHT and best > start:
            bounds.append((start, best))
            start, weight = best, weight - best_weight
            best = start
        weight += added
        late = 2 * weight >= PIECE_WEIGHT
        if late and (best == start or crossing[position + 1] <= crossing[best]):
            best, best_weight = position + 1, weight
    return [*bounds, (start, len(kernel.instructions))]


def _crossing(kernel: Kernel) -> list[int]:
    """For each position between two instructions, how many values are computed before it and used after it. Loaded
    values do not count: they would cross wherever the body is cut."""
    instructions = kernel.instructions
    last = {source: position for position, i in enumerate(instructions) for source in i.sources}
    change = [0] * (len(instructions) + 2)
    for position, used in last.items():
        if instructions[position].operation != "load" and not _is_free(instructions[position]):
            change[position + 1] += 1
            change[used + 1] -= 1
    total, counts = 0, []
    for step in change:
        total += step
        counts.append(total)
    return counts


def _arranged(kernel: Kernel, pieces: list[Pass]) -> tuple[dict[int, int], int]:
    """The offset of each saved value, in bytes for each lane, and the size of all. The memory of values that no later
    piece recalls is used again."""
    last: dict[int, int] = {}
    for number, piece in enumerate(pieces):
        last.update(dict.fromkeys(piece.recalled, number))
    units: dict[int, int] = {}
    free: dict[int, list[int]] = {}
    ending: dict[int, list[int]] = {}
    size = 0
    for number, piece in enumerate(pieces):
        for position in sorted(piece.saved):
            bytes_ = _saved_bytes(kernel.instructions[position])
            available = free.setdefault(bytes_, [])
            if available:
                units[position] = heappop(available)
            else:
                units[position], size = size, size + bytes_
            ending.setdefault(last[position], []).append(position)
        for position in ending.get(number, ()):
            heappush(free[_saved_bytes(kernel.instructions[position])], units[position])
    return units, size


def _saved_bytes(instruction: Instruction) -> int:
    """The bytes of a saved value for each lane, as in registers, where half precision is a float32. Smaller values take
    four bytes too, so that vectors are aligned."""
    return max(instruction.dtype.size, 4)
