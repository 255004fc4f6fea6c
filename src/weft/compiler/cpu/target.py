"""The CPU of this process as a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.codegen import loading
from weft.compiler.codegen.attached_calls import MOST_NUMBERS
from weft.compiler.codegen.loading import CachedCode
from weft.compiler.codegen.taken_rows import LONGEST
from weft.compiler.cpu import chains, kernels, step_loop
from weft.compiler.cpu.schedule import CpuSchedule, row_schedule_of, schedule_of
from weft.compiler.kernel import Kernel, Launch, number_layout
from weft.compiler.target import ChainEntry, FusionLimits, Schedule, Target
from weft.primitives.replacing import replaced_in
from weft.primitives.routine import implemented_in
from weft.runtime.executor import thread_count
from weft.runtime.host import host
from weft.runtime.steps import Step


class CpuTarget(Target):
    """The CPU: vectors and threads. The code of a step is the address of a native function."""

    kind = "cpu"
    key = "cpu"
    code_is_general = True
    limits = FusionLimits(
        members=8192,
        uncut_members=48,
        group_rows=16,
        group_size=1 << 15,
        repeated_operations=8,
        fewer=4,
        uncached_size=1 << 20,
        turn_size=3 << 8,
        turn_results=1 << 14,
        chained_size=1 << 16,
        short_row=64,
        narrow_row=4,
        taken_row=LONGEST,
        columns=12,
        scattered_lanes=64,
        grown_size=1 << 16,
        assigned_size=1 << 16,
        most_boxes=27,
        shared_size=1 << 18,
        shared_members=96,
    )

    def schedule(self, launch: Launch) -> CpuSchedule:
        return schedule_of(launch)

    def attached_schedule(self, launch: Launch) -> CpuSchedule | None:
        found = row_schedule_of(launch)
        if found is None or len(number_layout(launch.kernel, found.numbers)) > MOST_NUMBERS:
            return None
        return found

    def chain_units(self, turns: int) -> int:
        return chains.units_of(turns)

    def chained(self, turns: int, units: int, entries: Sequence[ChainEntry], steps: Sequence[Step]) -> Step:
        return chains.step(turns, units, entries, steps)

    @property
    def cache_key(self) -> str:
        return f"{self.key}, {thread_count()} threads"

    def code_description(self, code: Any) -> Any:
        found = code.function if isinstance(code, chains.ChainAddress) and code.is_alone else code
        if not isinstance(found, CachedCode):
            return None
        return [found.key.hex(), found.functions, found.name]

    def described_code(self, data: Any) -> Any:
        key, functions, name = data
        found = loading.found_by(bytes.fromhex(key), tuple(functions))
        return None if found is None else found[name]

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> int:
        assert isinstance(schedule, CpuSchedule)
        return kernels.load(kernel, schedule, text)


host.functions = step_loop.runtime_functions
implemented_in(
    CpuTarget.kind,
    "weft.compiler.cpu.products.matmul",
    "weft.compiler.cpu.products.shared_panels",
    "weft.compiler.cpu.products.matmul_in_panels",
    "weft.compiler.cpu.products.matmul_sums",
    "weft.compiler.cpu.quantized.steps",
    "weft.compiler.cpu.quantized.rows",
    "weft.compiler.cpu.sorting.steps",
    "weft.compiler.cpu.sorting.searching",
    "weft.compiler.cpu.lapack",
    "weft.compiler.cpu.fourier.steps",
    "weft.compiler.cpu.products.depthwise",
    "weft.compiler.cpu.products.convolutions",
)
replaced_in(CpuTarget.kind, "weft.compiler.cpu.products.attention", "attention")
replaced_in(CpuTarget.kind, "weft.compiler.cpu.products.convolutions", "convolution", "convolution_weights")
