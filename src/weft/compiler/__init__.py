"""From graphs to machine code and runs. The targets that Weft brings with it are registered here."""

from weft.compiler.cpu.target import CpuTarget
from weft.compiler.target import register_target
from weft.runtime.host import host

register_target(host, CpuTarget())
