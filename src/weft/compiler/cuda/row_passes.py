"""The passes over a row on a GPU, and what each of them saves for later ones.

What is loaded, and what is expensive, is saved (`passes_of`). If later passes use saved values only to compute another
one that this pass has as well, that one is saved in their place, if it takes less memory. In the gradient of a norm,
for example, the third pass leaves the sum that the last pass stores, and not two arrays from which to compute it again.
Where it takes as much memory, later passes would compute less, but the assembler finds too few registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from weft.compiler.cuda.row_values import is_worth_saving, register_bytes
from weft.compiler.kernel import Instruction, Kernel, Level
from weft.compiler.passes import Pass, passes_of


def row_passes(kernel: Kernel) -> list[Pass]:
    """The passes of a kernel that saves values."""
    passes = passes_of(kernel, worth_saving=is_worth_saving)
    if kernel.sweeps or kernel.backwards or any(one.operation == "scan" for one in kernel.instructions):
        return passes
    kept: set[int] = set()
    for index, current in enumerate(passes[:-1]):
        needed = _needed(kernel, current.roots, kept)
        saved = kept | {number for number in needed if is_worth_saving(kernel.instructions[number])}
        chosen = _chosen(kernel, [one.roots for one in passes[index + 1 :]], saved, needed)
        # Loads that are saved unchanged at first stay marked as saved, so that they are copied early.
        unchanged = {number for number in current.saved if kernel.instructions[number].operation == "load"}
        current.saved = (chosen | unchanged) - kept
        current.needed, current.recalled = sorted(needed), needed & kept
        kept = chosen
    last = passes[-1]
    needed = _needed(kernel, last.roots, kept)
    last.needed, last.recalled = sorted(needed), needed & kept
    return passes


def _chosen(kernel: Kernel, later: list[list[int]], saved: set[int], needed: set[int]) -> set[int]:
    """What is saved for ``later`` passes, which are given by their roots: some of the ``saved`` values, or some that
    the current pass has ``needed`` if those take less memory."""
    roots = [root for roots in later for root in roots]
    first = saved & _needed(kernel, roots, saved)
    found = first
    for number in sorted(needed - first):
        if not _may_be_saved(kernel.instructions[number]):
            continue
        replaced = found - _needed(kernel, roots, found | {number})
        if _bytes(kernel, [number]) <= _bytes(kernel, replaced):
            found = (found - replaced) | {number}
    return found if _bytes(kernel, found) < _bytes(kernel, first) else first


def _needed(kernel: Kernel, roots: Iterable[int], known: Collection[int]) -> set[int]:
    """The instructions inside the loop over lanes that ``roots`` need, if some values are ``known``."""
    found: set[int] = set()
    pending = list(roots)
    while pending:
        number = pending.pop()
        instruction = kernel.instructions[number]
        if number in found or not (instruction.level is Level.SWEEP or number in roots):
            continue
        found.add(number)
        if number not in known:
            pending.extend(instruction.sources)
    return found


def _may_be_saved(instruction: Instruction) -> bool:
    if instruction.operation not in ("load", "apply") or not instruction.varying:
        return False
    return not instruction.dtype.is_bool and not instruction.dtype.is_complex


def _bytes(kernel: Kernel, numbers: Iterable[int]) -> int:
    return sum([register_bytes(kernel.instructions[number].dtype) for number in numbers])
