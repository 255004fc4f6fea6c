"""What a kernel does in each of its passes over a row.

A reduction needs a pass, and what uses its result waits for the next one. A pass computes again what it needs from
earlier ones, because registers and caches are cheaper than memory. In a kernel of short rows, expensive values are kept
on the stack instead and recalled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import weft.primitives as p
from weft.compiler.kernel import Instruction, Kernel, Level

SHORT_ROW = 4096
KEPT_LIMIT = 8


@dataclass(slots=True)
class Pass:
    """One pass: ``roots`` are its reductions and stores, ``needed`` all of its instructions in order. Of these it does
    not compute but recalls some, and it keeps some for a later pass."""

    roots: list[int]
    needed: list[int] = field(default_factory=list)
    recalled: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)


def passes_of(kernel: Kernel) -> list[Pass]:
    """The passes of a kernel, one per stage; one without roots does nothing."""
    passes: list[Pass] = []
    kept: set[int] = set()
    first: dict[int, Pass] = {}
    for stage in range(1 + max((i.stage for i in kernel.instructions), default=0)):
        current = Pass([number for number, i in enumerate(kernel.instructions) if i.stage == stage and _ends_pass(i)])
        available = {number for number in first if kernel.short and _worth_keeping(kernel.instructions[number])}
        for number in _collect(kernel, current, available):
            if len(kept) < KEPT_LIMIT or number in kept:
                kept.add(number)
                first[number].kept.add(number)
        for number in current.needed:
            first.setdefault(number, current)
        passes.append(current)
    return passes


def _collect(kernel: Kernel, current: Pass, available: set[int]) -> set[int]:
    """Find what a pass needs; returns what it recalls of what is available."""
    needed: set[int] = set()
    pending = list(current.roots)
    while pending:
        number = pending.pop()
        instruction = kernel.instructions[number]
        inside = instruction.level is Level.SWEEP or (kernel.woven and instruction.varying)
        if number in needed or not (number in current.roots or inside):
            continue
        needed.add(number)
        if number in available:
            current.recalled.add(number)
        else:
            pending.extend(instruction.sources)
    current.needed = sorted(needed)
    return current.recalled


def _ends_pass(instruction: Instruction) -> bool:
    if instruction.operation == "store":
        return instruction.level is Level.SWEEP
    return instruction.operation == "reduce"


def _worth_keeping(instruction: Instruction) -> bool:
    """Whether computing a value again costs more than memory that is near."""
    primitive = instruction.primitive
    if instruction.operation != "apply" or not instruction.varying or not isinstance(primitive, p.Elementwise):
        return False
    return not primitive.cheap and not instruction.dtype.is_bool and not instruction.dtype.is_complex
