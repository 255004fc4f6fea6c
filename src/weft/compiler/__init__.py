"""From graphs to machine code and runs."""

from weft.compiler.cpu.target import CpuTarget
from weft.runtime.host import host

host.target = CpuTarget()
