"""NVIDIA GPUs of one architecture as a target."""

from __future__ import annotations

from typing import Any

from weft.compiler.cuda import joining, kernels
from weft.compiler.cuda.code_descriptions import CodeDescriptions
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.program_needs import ProgramNeeds
from weft.compiler.cuda.schedule import BlockLimits, CudaSchedule
from weft.compiler.cuda.scheduling import schedule_of
from weft.compiler.kernel import Kernel, Launch
from weft.compiler.target import FusionLimits, Schedule, Target
from weft.primitives.replacing import replaced_in
from weft.primitives.routine import implemented_in
from weft.runtime.cuda.code import CudaCode
from weft.runtime.cuda.cudnn import plans


class CudaTarget(Target):
    """Blocks of threads. The code of a kernel is PTX for an ``architecture``, such as ``sm_90``."""

    kind = "cuda"
    code_is_general = True
    limits = FusionLimits(
        members=96,
        uncut_members=48,
        group_rows=16,
        group_size=1 << 15,
        repeated_operations=8,
        fewer=4,
        uncached_size=1 << 20,
        in_parts=True,
        most_boxes=27,
        box_elements=1 << 14,
    )

    def __init__(self, architecture: str) -> None:
        super().__init__()
        self.architecture = architecture
        self.key = f"cuda {architecture}"
        self.blocks = BlockLimits.of(int(architecture.removeprefix("sm_")))
        self._descriptions = CodeDescriptions(self)
        self._needs = ProgramNeeds(self, self._descriptions)

    def card_will_be_used(self) -> None:
        """Prepare what the program needed last time, as far as that is possible before the card is used."""
        self._needs.card_will_be_used()

    def card_is_used(self) -> None:
        """Prepare the rest, after the first use of the card."""
        self._needs.card_is_used()

    def note_plan(self, key: bytes, parts: Any) -> None:
        self._needs.note_plan(key, parts)

    def ready_plan(self, key: bytes) -> Any:
        return self._needs.ready_plan(key)

    def schedule(self, launch: Launch) -> CudaSchedule:
        return schedule_of(launch, self.blocks)

    def joined(self, rows: Launch, schedule: Schedule, columns: Launch) -> tuple[Launch, Schedule] | None:
        return joining.joined(rows, schedule, columns)

    def is_waiting(self) -> bool:
        return plans.is_waiting(self.machine)

    @property
    def cache_key(self) -> str:
        return self._descriptions.key

    def code_description(self, code: Any) -> Any:
        return self._descriptions.data(code)

    def described_code(self, data: Any) -> Any:
        code = self._descriptions.code(data)
        return self._begun(code) if isinstance(code, CudaCode) else code

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> CudaCode:
        assert isinstance(schedule, CudaSchedule)
        return self._begun(kernels.load(kernel, schedule, text, self.architecture))

    def routine_code(self, code: Any) -> Any:
        if not isinstance(code, RoutineCode):
            return code
        key = code.source, ()
        if key not in self._codes:
            self._codes[key] = self._begun(kernels.load_routine(code, self.architecture))
        return self._codes[key]

    def _begun(self, code: CudaCode) -> CudaCode:
        """A code. If there is a machine, it begins to assemble it, before the rest of the plan is made."""
        found = self._descriptions.only(code)
        if self.machine is not None:
            self.machine.begin_loading(found)
        return found


implemented_in(
    CudaTarget.kind,
    "weft.compiler.cuda.matmul",
    "weft.compiler.cuda.scattering",
    "weft.compiler.cuda.long_scans",
    "weft.compiler.cuda.sorting.steps",
    "weft.compiler.cuda.sorting.searching",
    "weft.compiler.cuda.quantized.steps",
    "weft.compiler.cuda.fourier",
    "weft.compiler.cuda.solvers.factors",
    "weft.compiler.cuda.solvers.decompositions",
)
_REPLACED = {
    "weft.compiler.cuda.cudnn.attention": ("attention", "attention_gradients"),
    "weft.compiler.cuda.cudnn.convolution": ("convolution", "convolution_weights"),
    "weft.compiler.cuda.fourier": ("fft", "rfft", "irfft"),
    "weft.compiler.cuda.solvers.factors": (
        "cholesky",
        "lu_factor",
        "solve",
        "inverse",
        "solve_triangular",
        "triangular_inverse",
    ),
    "weft.compiler.cuda.solvers.decompositions": ("qr", "eigh", "svd"),
    "weft.compiler.cuda.scattering": ("scatter",),
    "weft.compiler.cuda.long_scans": ("cumsum", "cumprod"),
}
for _module, _primitives in _REPLACED.items():
    replaced_in(CudaTarget.kind, _module, *_primitives)
