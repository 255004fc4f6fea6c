"""What the target of CUDA makes, and the engine of a card loads and launches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class CudaCode:
    """A kernel for NVIDIA GPUs. Two are the same if they are one object.

    ``title`` says what it computes, for errors. ``ptx`` is its text, or machine code (a cubin) once it was assembled.
    The entry ``name`` takes two addresses of the device: that of the numbers of the step (64-bit integers, as on the
    CPU), and that of the slots of the run: 64-bit addresses and constants. A block has ``threads`` threads, and
    ``shared`` bytes of shared memory besides what the code itself declares. So many blocks as a ``cluster`` has do a
    unit together.

    The units of a step are shared by blocks: block ``b`` of ``n`` does units ``b``, ``b + n``, and so on, so that every
    number of blocks is right. There are as many as the step has grains of units, or fewer, if the card cannot hold so
    many at once.
    """

    ptx: str | bytes
    name: str
    threads: int
    shared: int = 0
    title: str = ""
    cluster: int = 1

    def blocks(self, units: int, grain: int, most: int) -> int:
        """How many blocks a launch has, of at most ``most``."""
        if self.cluster > 1:
            return max(1, units) * self.cluster  # how many clusters a card holds depends on where blocks find room
        return max(1, min(-(-units // grain), most))
