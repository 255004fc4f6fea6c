"""The passes of a kernel over a row.

A reduction needs a pass, and instructions that use its result belong to the next pass. Values of earlier passes are
computed again, because registers and caches are cheaper than memory. In short rows, expensive values are saved and
recalled instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import weft.primitives as p
from weft.compiler.kernel import Instruction, Kernel, Level

SHORT_ROW = 4096
"""Rows of at most this many elements may have saved values on the stack."""

SAVED_LIMIT = 8


@dataclass(eq=False, repr=False, slots=True)
class Pass:
    """A pass. ``roots`` are its reductions and stores; ``needed`` are the instructions that it uses; both are in order.
    Those in ``recalled`` were saved by an earlier pass and are not computed again; those in ``saved`` are saved for
    later passes. ``stage`` is that of its roots. ``backwards``: it begins at the end of the row.
    """

    roots: list[int]
    stage: int
    backwards: bool = False
    needed: list[int] = field(default_factory=list)
    recalled: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)

    @property
    def computed(self) -> list[int]:
        """The needed instructions that are not recalled, in order."""
        return [number for number in self.needed if number not in self.recalled]

    def needs(self, number: int) -> bool:
        """Whether the pass uses an instruction."""
        return _is_among(number, self.needed)

    def ends_with(self, number: int) -> bool:
        """Whether an instruction is one of the roots."""
        return _is_among(number, self.roots)


def _is_among(number: int, in_order: Sequence[int]) -> bool:
    position = bisect_left(in_order, number)
    return position < len(in_order) and in_order[position] == number


def folds_apart(kernel: Kernel, number: int) -> bool:
    """Whether a reduction takes less time in a pass of its own. A processor converts numbers that it loads from the
    stack in fewer operations than numbers in registers, of which it has to move the upper half first."""
    instruction = kernel.instructions[number]
    if instruction.operation != "reduce" or len(instruction.inputs) != 1:
        return False
    source = kernel.instructions[instruction.inputs[0]]
    widened = any(
        dtype.size > max(source.dtype.size, 4) for dtype, _ in instruction.primitive.reducer.identity(source.dtype)
    )
    return is_expensive(source) and source.dtype.is_floating and widened


def nothing(instruction: Instruction) -> bool:
    """The choice of values to save, if none are saved."""
    return False


def passes_of(
    kernel: Kernel,
    *,
    worth_saving: Callable[[Instruction], bool] = nothing,
    lanes_in_sweeps: bool = False,
    apart: bool = False,
) -> list[Pass]:
    """The passes of a kernel, in order; a pass without roots is empty.

    Values that are ``worth_saving`` are saved for later passes. If ``apart``, some reductions have passes of their own,
    as `folds_apart` says; the values that they fold are then roots of the pass before. With ``lanes_in_sweeps``, the
    loop over lanes is inside the loops over sweeps, so values that differ between lanes are computed there.
    """
    passes: list[Pass] = []
    saved: set[int] = set()
    first: dict[int, Pass] = {}
    for current in _with_folds_apart(kernel, _empty_passes(kernel)) if apart else _empty_passes(kernel):
        worth = [number for number in first if worth_saving(kernel.instructions[number])]
        _collect(kernel, current, worth, saved, lanes_in_sweeps)
        for number in current.recalled:
            first[number].saved.add(number)
        for number in current.needed:
            first.setdefault(number, current)
        passes.append(current)
    return passes


def _empty_passes(kernel: Kernel) -> list[Pass]:
    """Passes with their roots only. Roots of a stage that need a scan from the end of the row have a pass of their
    own."""
    backwards: set[int] = set()
    for number, instruction in enumerate(kernel.instructions):
        if instruction.from_the_end or not backwards.isdisjoint(instruction.sources):
            backwards.add(number)
    passes = []
    for stage in range(1 + max((i.stage for i in kernel.instructions), default=0)):
        roots = [number for number, i in enumerate(kernel.instructions) if i.stage == stage and _ends_pass(i)]
        forwards = [number for number in roots if number not in backwards]
        if forwards or not roots:
            passes.append(Pass(forwards, stage))
        if len(forwards) < len(roots):
            passes.append(Pass([number for number in roots if number in backwards], stage, backwards=True))
    return passes


def _with_folds_apart(kernel: Kernel, passes: list[Pass]) -> list[Pass]:
    """Passes with some reductions in passes of their own."""
    found = []
    for current in passes:
        folds = [] if current.backwards else [number for number in current.roots if folds_apart(kernel, number)]
        if not folds:
            found.append(current)
            continue
        others = {number for number in current.roots if number not in folds}
        others.update(kernel.instructions[number].inputs[0] for number in folds)
        found += [Pass(sorted(others), current.stage), Pass(folds, current.stage)]
    return found


def _collect(
    kernel: Kernel, current: Pass, worth_saving: Collection[int], saved: set[int], lanes_in_sweeps: bool
) -> None:
    """Find what a pass needs, and what it recalls: values that are ``saved`` by earlier passes, or that can be."""
    needed: set[int] = set()
    pending = list(current.roots)
    while pending:
        number = pending.pop()
        instruction = kernel.instructions[number]
        inside = instruction.level is Level.SWEEP or (lanes_in_sweeps and instruction.varying)
        if number in needed or not (number in current.roots or inside):
            continue
        needed.add(number)
        if number in worth_saving and (number in saved or len(saved) < SAVED_LIMIT):
            saved.add(number)
            current.recalled.add(number)
        else:
            pending.extend(instruction.sources)
    current.needed = sorted(needed)


def _ends_pass(instruction: Instruction) -> bool:
    if instruction.operation == "store":
        return instruction.level is Level.SWEEP
    return instruction.operation in ("reduce", "fold")


def is_expensive(instruction: Instruction) -> bool:
    """Whether computing a value again takes longer than loading it from the stack."""
    primitive = instruction.primitive
    if instruction.operation != "apply" or not instruction.varying or not isinstance(primitive, p.Elementwise):
        return False
    return not primitive.cheap and not instruction.dtype.is_bool and not instruction.dtype.is_complex
