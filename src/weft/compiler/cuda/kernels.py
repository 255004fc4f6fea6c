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
    """The code of a routine's step for every target of CUDA. ``source`` is all that it depends on; ``write`` gives its
    LLVM IR with an entry of a given name, whose parameters are those of `CudaCode`. Blocks have ``shared`` bytes of
    shared memory besides those that the IR declares."""

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
    """The code of a routine's step, from the disk cache or generated."""
    ptx = loading.ptx(code.source, code.text, architecture, title=code.title)
    # Plans of other programs contain the code too, so it must have no open numbers.
    return CudaCode(ptx, _NAME, int(code.threads), int(code.shared), title=code.title)


def load(kernel: Kernel, schedule: CudaSchedule, text: str, architecture: str) -> CudaCode:
    """The code of a kernel, from the disk cache or generated. ``text`` describes kernel and schedule."""

    def generate() -> str:
        counters.generated += 1

        def written() -> str:
            from weft.compiler.cuda import loops

            return loops.generate(kernel, schedule, _NAME)

        return without_interrupts(written)

    lasting = OWN.issuperset(kernel.primitives)
    title = ", ".join([i.primitive.name for i in kernel.instructions if i.primitive is not None]) or "copy"
    ptx = loading.ptx(text, generate, architecture, lasting=lasting, title=title)
    # Plans of other programs contain the code too, so it must have no open numbers.
    threads, shared, cluster = int(schedule.threads), int(schedule.shared_bytes(kernel)), int(schedule.cluster)
    queue = not kernel.sweeps  # sweeps take long, so it makes no difference which blocks run at one time
    return CudaCode(ptx, _NAME, threads, shared, title, cluster, queue, copied_by(kernel, schedule))


def copied_by(kernel: Kernel, schedule: Schedule) -> CopyPlaces | None:
    """For a kernel that copies, the positions of the numbers that say whether it would copy elements to where they
    are."""
    copied = copied_numbers(kernel)
    if copied is None:
        return None
    place = number_layout(kernel, schedule.numbers)
    source, target = [(place[slot], place[offset]) for slot, offset in (copied.source, copied.target)]
    return CopyPlaces(source, target, tuple([(place[left], place[right]) for left, right in copied.strides]))
