"""NVIDIA GPUs as a target."""

from __future__ import annotations

from typing import Any

from weft.compiler.kernel import Kernel, Launch
from weft.compiler.target import Schedule, Target
from weft.runtime.host import host


class CudaTarget(Target):
    """Blocks of threads. Code is a `CudaCode`. ``architecture`` is that of the card, as compilers name it."""

    kind = "cuda"

    def __init__(self, architecture: str) -> None:
        super().__init__()
        self.key = f"cuda {architecture}"
        self.limits = host.target.limits

    def schedule(self, launch: Launch) -> Schedule | None:
        return None

    def make_code(self, kernel: Kernel, schedule: Schedule, text: str) -> Any:
        raise NotImplementedError("there are no kernels for GPUs")
