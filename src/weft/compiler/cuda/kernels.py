"""The PTX of kernels, from the disk cache or from LLVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weft.compiler.codegen import loading
from weft.compiler.cuda.schedule import CudaSchedule
from weft.compiler.kernel import Kernel, copied_numbers, number_layout
from weft.compiler.target import Schedule
from weft.primitives import OWN
from weft.runtime import counters
from weft.runtime.atomic import without_interrupts
from weft.runtime.cuda.code import CopyPlaces, CudaCode

_NAME = "kernel"


@dataclass(frozen=True, slots=True)
class RoutineCode:
    """The code of a routine's step on every target of CUDA: ``source`` says in full what it is made of, ``write`` gives
    its LLVM IR with an entry of that name, which takes what `CudaCode` says. A block has so many bytes of ``shared``
    memory besides what the IR declares."""

    source: str
    write: Callable[[str], str] = field(compare=False)
    threads: int
    title: str
    shared: int = 0

    def text(self) -> str:
        """The LLVM IR."""
        counters.generated += 1
        return without_interrupts(lambda: self.write(_NAME))


def load_routine(code: RoutineCode, architecture: str) -> CudaCode:
    """The code of a routine's step, found on disk or generated."""
    ptx = loading.ptx(code.source, code.text, architecture, title=code.title)
    # Other programs use the code, too, so it holds plain numbers.
    return CudaCode(ptx, _NAME, int(code.threads), int(code.shared), title=code.title)


def load(kernel: Kernel, schedule: CudaSchedule, text: str, architecture: str) -> CudaCode:
    """The code of a kernel, found on disk or generated. ``text`` describes kernel and schedule."""

    def generate() -> str:
        counters.generated += 1

        def written() -> str:
            from weft.compiler.cuda import loops

            return loops.generate(kernel, schedule, _NAME)

        return without_interrupts(written)

    lasting = OWN.issuperset(kernel.primitives)
    title = ", ".join([i.primitive.name for i in kernel.instructions if i.primitive is not None]) or "copy"
    ptx = loading.ptx(text, generate, architecture, lasting=lasting, title=title)
    # Other programs use the code, too, so it holds plain numbers.
    threads, shared, cluster = int(schedule.threads), int(schedule.shared_bytes(kernel)), int(schedule.cluster)
    queue = not kernel.sweeps  # what is swept takes long, whoever comes first
    return CudaCode(ptx, _NAME, threads, shared, title, cluster, queue, copied_by(kernel, schedule))


def copied_by(kernel: Kernel, schedule: Schedule) -> CopyPlaces | None:
    """Which of its numbers say whether a kernel has nothing to do, if it is a copy."""
    copied = copied_numbers(kernel)
    if copied is None:
        return None
    place = number_layout(kernel, schedule.numbers)
    source, target = [(place[slot], place[offset]) for slot, offset in (copied.source, copied.target)]
    return CopyPlaces(source, target, tuple([(place[left], place[right]) for left, right in copied.strides]))
