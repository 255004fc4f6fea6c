"""Weft: the tasks of `mlx_style`, and tasks on its internals that have budgets."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import weft
import weft.core as mx
from weft.compiler.planning.plan import parts_of
from weft.compiler.program import Program
from weft.runtime.host import host

from . import Work, floats
from .mlx_style import MlxStylePeer


class WeftPeer(MlxStylePeer):
    package = "weft"

    def converted_matmul(self, shape: tuple[int, ...], dtype: str) -> Work:
        """One row as float32, to compare. MLX does not do this task: it takes 14 seconds for 1536 of
        bfloat16."""
        a, b = (mx.array(floats(*shape, seed=seed)).astype(getattr(mx, dtype)) for seed in (0, 1))
        mx.eval(a, b)

        def work() -> Any:
            result = a @ b
            self._run(result)
            return mx.real(result[0]).astype(mx.float32)

        return work

    def fast_matmul(self, size: int) -> Work:
        work = self.converted_matmul((size, size), "bfloat16")

        def fast() -> Any:
            with weft.matmul_precision("fast"):
                return work()

        return fast

    def generate_kernel(self, shape: tuple[int, ...]) -> Work:
        """Generates machine code for the kernel of gelu; planning and LLVM's initialisation are not measured."""
        x = mx.array(floats(*shape))
        kernel, schedule = only_kernel(x * (1 + mx.erf(x / math.sqrt(2))) / 2)
        mx.eval(x + x)
        return lambda: host.target.code(kernel, schedule)


def only_kernel(result: mx.array) -> tuple[Any, Any]:
    """The kernel that computes an array, and its schedule; it is planned but not generated."""
    program = Program()
    program.add([result.node])
    planned: list[tuple[Any, Any]] = []

    def note(kernel: Any, schedule: Any) -> int:
        planned.append((kernel, schedule))
        return 0

    with mock.patch.object(host.target, "code", note):
        parts_of(program.entries, [program.position(result.node)], host.target, host)
    (found,) = planned
    return found
