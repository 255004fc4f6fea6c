"""Where the body of a large kernel is cut into pieces.

LLVM takes more than twice the time for twice as long a body, and the values of a long one do not fit the registers. So
a strip of lanes goes through one piece of the body after the other; what one piece leaves to later ones is on the stack
meanwhile, and a strip is so short that this fits the first cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import weft.primitives as p
from weft.compiler.cpu.side_by_side import vectors_at_once
from weft.compiler.kernel import VIRTUAL_LANES, Instruction, Kernel, Launch
from weft.compiler.passes import Pass

LONGEST_BODY = 96
"""What is longer, in cheap operations, is cut."""

PIECE_WEIGHT = 64
"""A piece is as long as that many cheap operations at most, or one operation."""

SLOW_WEIGHT = 12
"""How many cheap operations are about as long as one that is not cheap."""

LONGEST_STRIP = 32
"""Vectors of lanes. A strip has fewer, half of them or a quarter, if more than `FIRST_CACHE` is saved of it; and still
fewer only if more than `STACK` is: each call of a piece takes some time."""

LONG_ROW = 2 * LONGEST_STRIP * VIRTUAL_LANES
"""Pieces may take several vectors at a time of rows with so many lanes: little is left over at their ends."""

SHORT_STRIP = 8
FIRST_CACHE, STACK = 3 << 13, 1 << 18


@dataclass(frozen=True, slots=True)
class BodyCut:
    """The pieces of a body, in order, and where they save what of a strip of ``vectors`` vectors of lanes.

    ``offsets`` gives the first byte of what is saved of an instruction, in ``size`` bytes. ``at_once`` are the vectors
    that each piece takes at a time.
    """

    pieces: tuple[Pass, ...]
    vectors: int
    offsets: dict[int, int]
    size: int
    at_once: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """Lanes of all rows of a strip together."""
        return self.vectors * VIRTUAL_LANES


def cut_of(launch: Launch) -> BodyCut | None:
    """How the body of a kernel is cut; None if it is short, or if it folds or scans something."""
    kernel = launch.kernel
    folds = any(instruction.operation in ("reduce", "scan") for instruction in kernel.instructions)
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
    """How many vectors a strip has, of each of which ``size`` bytes are saved."""
    vectors = LONGEST_STRIP
    while vectors > 1 and vectors * size > (FIRST_CACHE if vectors > SHORT_STRIP else STACK):
        vectors //= 2
    return vectors


def _is_free(instruction: Instruction) -> bool:
    """Whether each piece can have a value without computing anything: a constant, or an index of the loops."""
    return instruction.operation == "scalar" or (instruction.operation == "index" and not instruction.sources)


def length_of(instruction: Instruction) -> int:
    """How much code an instruction is, in cheap operations."""
    if _is_free(instruction):
        return 0
    primitive = instruction.primitive
    return SLOW_WEIGHT if isinstance(primitive, p.Elementwise) and not primitive.cheap else 1


def _pieces(kernel: Kernel) -> list[Pass]:
    """What each piece computes, saves and recalls. Each instruction is computed in one piece, so that what was read
    before a store overwrites it still is."""
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
    """First instruction of each piece, and the one behind its last: cut where the fewest values cross."""
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
    """For each place between two instructions, how many values are computed before it and used behind it. What is read
    from memory does not count: it would cross wherever the kernel is cut."""
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
    """For each saved value the bytes before it, counted per lane, and how many all of them take: those that nobody
    recalls any more give their place to others."""
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
    """Bytes for each lane of a value: those of a register, in which half precision is a float32. What is smaller gets
    as many, so that vectors are aligned."""
    return max(instruction.dtype.size, 4)
