"""From graphs to machine code and runs."""

from weft.compiler import cards
from weft.compiler.cpu.target import CpuTarget
from weft.runtime.available import find_with
from weft.runtime.devices import gpu
from weft.runtime.host import host

host.target = CpuTarget()
find_with(gpu, cards)
