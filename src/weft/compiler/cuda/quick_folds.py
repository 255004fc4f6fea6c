"""Folds several elements at once in a quick way, whose result is checked and nearly always right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes
from weft.compiler.codegen.accumulator import Accumulator
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.kernel import Instruction, Kernel
from weft.primitives.reducers import Quick


def quick_of(instruction: Instruction, kernel: Kernel) -> Quick | None:
    """The quick way to do a reduction of float32 numbers; None if there is none."""
    element = kernel.instructions[instruction.inputs[0]]
    if instruction.operation != "reduce" or {instruction.dtype, element.dtype} != {dtypes.float32}:
        return None
    quick: Quick | None = instruction.primitive.reducer.quick
    return quick


def fold_quickly(e: Emitter, fold: Accumulator, quick: Quick, lifted: Sequence[tuple[Any, ...]]) -> None:
    """Fold elements in the quick way. If the check fails, fold them again in order."""
    (joined,) = fold.read()
    numbers = [joined, *[one for (one,) in lifted]]
    while len(numbers) > 1:
        pairs = zip(numbers[::2], numbers[1::2], strict=False)
        numbers = [quick.merge(fold.L, *pair) for pair in pairs] + numbers[len(numbers) // 2 * 2 :]
    holds = quick.holds(fold.L, numbers[0]).name
    with e.when(holds):
        fold.write(numbers)
    with e.when(e.assign(f"xor i1 {holds}, true")):
        for one in lifted:
            fold.write(fold.reducer.merge(fold.L, fold.read(), one))
