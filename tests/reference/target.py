"""The reference target: kernels stay what they are, and a schedule has nothing to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.reference.kernels import KernelCode
from weft.compiler.kernel import Kernel, Launch
from weft.compiler.target import FusionLimits, Schedule, Target
from weft.primitives.routine import implemented_in


@dataclass(frozen=True, slots=True)
class ReferenceSchedule(Schedule):
    """One unit of work: each instruction is done for all elements before the next one; or, if it ``recomputes``, done
    again before each store."""

    recomputes: bool = False
    units: int = 1
    grain: int = 1

    @property
    def text(self) -> str:
        return "recomputes" if self.recomputes else ""

    @property
    def numbers(self) -> dict[str, int]:
        return {}

    def reads_first(self, kernel: Kernel, load: int, store: int) -> bool:
        later = [number for number, i in enumerate(kernel.instructions) if number > store and i.operation == "store"]
        read_again = self.recomputes and any(load in needed_by(kernel, other) for other in later)
        return load < store and not read_again

    def check(self, launch: Launch) -> None:
        if 0 in launch.row_extents:
            raise AssertionError(f"nothing to do for\n{launch.kernel}\nwith extents {launch.extents_text}")


class ReferenceTarget(Target):
    """Code is an object that can be run. ``limits`` are not those of the CPU: values must not depend on them."""

    kind = "reference"
    key = "reference"
    limits = FusionLimits(members=6, group_rows=2, group_size=64, repeated_operations=2, fewer=2)

    def __init__(self) -> None:
        self.made: dict[tuple[str, tuple[Any, ...]], KernelCode] = {}

    def schedule(self, launch: Launch) -> Schedule:
        return ReferenceSchedule()

    def code(self, kernel: Kernel, schedule: Schedule) -> KernelCode:
        assert isinstance(schedule, ReferenceSchedule)
        code = KernelCode(kernel, schedule.recomputes)
        return self.made.setdefault((kernel.described(schedule.text), kernel.primitives), code)


def needed_by(kernel: Kernel, number: int) -> set[int]:
    """The instructions that one needs, directly or through others."""
    found: set[int] = set()
    pending = [number]
    while pending:
        sources = set(kernel.instructions[pending.pop()].sources) - found
        found |= sources
        pending += sources
    return found


implemented_in(
    ReferenceTarget.kind,
    "tests.reference.products",
    "tests.reference.sorting",
    "tests.reference.linalg",
    "tests.reference.fourier",
)
