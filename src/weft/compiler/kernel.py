"""A kernel: a target-neutral description of a loop nest, and the numbers of one use of it.

A kernel walks over rows; within a row over sweeps (reduced axes) and lanes (the one vectorised axis). Its text is
its identity: it holds dtypes, operations and the kinds of strides, never sizes, so that another shape runs the same
machine code with other `numbers`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from weft.dtypes import Dtype

VIRTUAL_LANES = 16
TILE_ROWS = 16
# So many lanes are accumulated side by side in memory.
WOVEN_LANES = 1024


class LaneStride(enum.Enum):
    """How an access moves from lane to lane."""

    NONE = "uniform"
    ONE = "contiguous"
    ANY = "strided"


class Level(enum.IntEnum):
    """Where in the loop nest a value is computed when it does not change from lane to lane."""

    KERNEL = 0
    ROW = 1
    SWEEP = 2


@dataclass(slots=True)
class Access:
    """A strided place in an operand. Strides are in elements, one per row axis, sweep axis, and the lane.

    A ``transposed`` load of a tiled kernel is contiguous along the last row axis. A ``streamed`` store goes past the
    caches.
    """

    dtype: Dtype
    rows: tuple[int, ...]
    sweeps: tuple[int, ...]
    lane: int
    offset: int
    computed: tuple[tuple[int, int], ...]
    operand: Any
    transposed: bool = False
    streamed: bool = False

    @property
    def lane_stride(self) -> LaneStride:
        if self.lane == 0:
            return LaneStride.NONE
        return LaneStride.ONE if self.lane == 1 else LaneStride.ANY

    def text(self) -> str:
        computed = "".join(f" +%{value}" for value, _ in self.computed)
        rows = "".join("*" if stride else "." for stride in self.rows)
        sweeps = "".join("*" if stride else "." for stride in self.sweeps)
        lane = "transposed" if self.transposed else "streamed" if self.streamed else self.lane_stride.value
        return f"{self.dtype.name}[{rows}|{sweeps}|{lane}{computed}]"


@dataclass(slots=True)
class Instruction:
    """One value of a kernel, or a store.

    ``operation`` is load, scalar, place, apply, reduce or store; ``inputs`` are value ids. ``sweep`` is the number of
    sweep axes that must be open for it (0: none), ``varying`` tells whether it differs from lane to lane, ``stage``
    after how many passes over the sweeps its inputs are known.
    """

    operation: str
    dtype: Dtype
    inputs: tuple[int, ...]
    primitive: Any = None
    params: dict[str, Any] = field(default_factory=dict)
    access: Access | None = None
    where: int | None = None
    combine: Any = None
    scalar: int = 0
    level: Level = Level.KERNEL
    sweep: int = 0
    varying: bool = False
    stage: int = 0

    @property
    def sources(self) -> list[int]:
        """All values that it needs: inputs, condition, computed places."""
        values = list(self.inputs)
        if self.where is not None:
            values.append(self.where)
        if self.access is not None:
            values.extend(value for value, _ in self.access.computed)
        return values

    def text(self) -> str:
        parts = [self.operation]
        if self.primitive is not None:
            parts.append(self.primitive.name)
            parts.extend(f"{name}={value}" for name, value in self.params.items())
        parts.extend(f"%{value}" for value in self.inputs)
        if self.access is not None:
            parts.append(self.access.text())
        if self.where is not None:
            parts.append(f"where %{self.where}")
        if self.combine is not None:
            parts.append(f"combine {self.combine.name}")
        parts.append(f": {self.dtype.name}")
        depth = self.sweep or ""
        parts.append(f"@{self.level.name.lower()}{depth}{' lanes' if self.varying else ''}")
        if self.stage:
            parts.append(f"stage {self.stage}")
        return " ".join(parts)


@dataclass(slots=True)
class Kernel:
    """The structure: ``rows`` and ``sweeps`` count loop axes; ``lane`` says where the vectorised axis is.

    ``lane`` is "kept" (each lane has its own result), "reduced" (lanes are folded together) or "none" (one lane). A
    ``tiled`` kernel walks over blocks of rows for each vector of lanes, because some operand is contiguous along the
    last row axis. A ``short`` one has rows of which some values are kept from pass to pass. A ``woven`` one walks over
    the sweeps outside and over lanes inside, so that it reads memory in order.
    """

    rows: int
    sweeps: int
    lane: str
    instructions: list[Instruction]
    tiled: bool = False
    short: bool = False
    woven: bool = False

    def __str__(self) -> str:
        kind = " tiled" if self.tiled else " short" if self.short else " woven" if self.woven else ""
        lines = [f"kernel rows={self.rows} sweeps={self.sweeps} lane={self.lane}{kind}"]
        lines.extend(f"  %{position} = {i.text()}" for position, i in enumerate(self.instructions))
        return "\n".join(lines)

    def check(self) -> None:
        """Raise if the description contradicts itself."""
        for position, instruction in enumerate(self.instructions):
            for value in instruction.sources:
                if not 0 <= value < position:
                    raise AssertionError(f"%{position} uses %{value} before it exists in\n{self}")
                source = self.instructions[value]
                late = source.stage + (source.operation == "reduce") > instruction.stage
                if source.operation == "store" or late:
                    raise AssertionError(f"%{position} uses %{value} too early in\n{self}")


@dataclass(slots=True)
class Launch:
    """One use of a kernel: loop extents and, through the accesses of its instructions, places in memory."""

    kernel: Kernel
    row_extents: tuple[int, ...]
    sweep_extents: tuple[int, ...]
    lane_extent: int

    @property
    def row_count(self) -> int:
        count = 1
        for extent in self.row_extents:
            count *= extent
        return count

    @property
    def row_units(self) -> int:
        """Rows that can be done independently: those of a tile are done together."""
        if not self.kernel.tiled:
            return self.row_count
        last = self.row_extents[-1]
        return self.row_count // max(last, 1) * -(-last // TILE_ROWS)

    @property
    def work(self) -> int:
        """How many times the innermost body runs, counted in elements."""
        total = self.row_count * self.lane_extent
        for extent in self.sweep_extents:
            total *= extent
        return total


Key = tuple[object, ...]


def number_layout(kernel: Kernel) -> dict[Key, int]:
    """Where each run-time number of a kernel stands in its argument block of 64-bit integers."""
    keys: list[Key] = [("row", axis) for axis in range(kernel.rows)]
    keys.extend(("sweep", axis) for axis in range(kernel.sweeps))
    keys.extend([("lane",), ("block",), ("blocks",)])
    for position, instruction in enumerate(kernel.instructions):
        keys.extend(_instruction_keys(position, instruction))
    return {key: position for position, key in enumerate(keys)}


def _instruction_keys(position: int, instruction: Instruction) -> list[Key]:
    access = instruction.access
    if instruction.operation == "scalar":
        return [(position, "slot")]
    if access is None:
        return []
    keys: list[Key] = [(position, "slot")] if access.operand is not None else []
    keys.append((position, "offset"))
    keys.extend((position, "row", axis) for axis, stride in enumerate(access.rows) if stride)
    keys.extend((position, "sweep", axis) for axis, stride in enumerate(access.sweeps) if stride)
    if access.lane_stride is LaneStride.ANY:
        keys.append((position, "lane"))
    keys.extend((position, "computed", place) for place in range(len(access.computed)))
    return keys


def numbers_of(
    launch: Launch, block: int, slot_of: dict[object, tuple[int, int]], scalars: dict[int, int]
) -> list[int]:
    """The argument block of one launch.

    ``slot_of`` gives the entry of the buffer table and the byte offset of each operand, ``scalars`` the entry of each
    scalar instruction; ``block`` is how many lanes one unit of work covers.
    """
    numbers = [*launch.row_extents, *launch.sweep_extents, launch.lane_extent, block]
    numbers.append(-(-launch.lane_extent // block) if block else 1)
    for position, instruction in enumerate(launch.kernel.instructions):
        access = instruction.access
        if instruction.operation == "scalar":
            numbers.append(scalars[position])
        elif access is not None:
            numbers.extend(_access_numbers(access, slot_of))
    return numbers


def _access_numbers(access: Access, slot_of: dict[object, tuple[int, int]]) -> list[int]:
    numbers = [access.offset]
    if access.operand is not None:
        slot, base = slot_of[access.operand]
        numbers = [slot, base + access.offset * access.dtype.size]
    numbers.extend(stride for stride in access.rows if stride)
    numbers.extend(stride for stride in access.sweeps if stride)
    if access.lane_stride is LaneStride.ANY:
        numbers.append(access.lane)
    numbers.extend(step for _, step in access.computed)
    return numbers
