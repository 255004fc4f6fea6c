"""Which outputs may be written where an input is that nobody needs afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.compiler.kernel import Instruction, Launch
from weft.compiler.target import Schedule
from weft.graph.node import Node
from weft.runtime.memory import size_class

Accesses = tuple[set[Node], set[Node], Launch | None, Schedule | None]
"""What a step reads and writes, and how, if it is a kernel."""


def donations(
    steps: Sequence[Accesses], inputs: Mapping[Node, int], shown: set[int], buffers: Mapping[Node, int]
) -> list[tuple[int, int]]:
    """Pairs of an input and a new buffer of as many bytes.

    The buffer may be written only when the input has been read; or by the same kernel, if that reads each element
    before it writes the one in its place. ``steps`` are what each reads and writes, ``shown`` the inputs that outputs
    show.
    """
    reads: dict[Node, list[int]] = {}
    writes: dict[Node, list[int]] = {}
    for number, (read, written, *_) in enumerate(steps):
        for node in read:
            reads.setdefault(node, []).append(number)
        for node in written:
            writes.setdefault(node, []).append(number)
    free = [node for node, number in inputs.items() if number not in shown]
    found: list[tuple[int, int]] = []
    for target, buffer in buffers.items():
        if not target.size or target not in writes:
            continue
        for node in free:
            if _block(node) != _block(target):
                continue
            first, last = min(writes[target]), max(reads.get(node, [-1]))
            if last < first or (last == first and may_share(*steps[first][2:], node, target)):
                found.append((inputs[node], buffer))
                free.remove(node)
                break
    return found


def _block(node: Node) -> int:
    return size_class(node.size * node.dtype.size)


def may_share(launch: Launch | None, schedule: Schedule | None, source: Node, target: Node) -> bool:
    """Whether a kernel reads ``source`` only where it then writes ``target``."""
    if launch is None or schedule is None or source.dtype.size != target.dtype.size:
        return False
    instructions = launch.kernel.instructions
    stores = [number for number, i in enumerate(instructions) if _touches(i, "store", target)]
    loads = [number for number, i in enumerate(instructions) if _touches(i, "load", source)]
    if len(stores) != 1:
        return False
    (store,) = stores
    return all(
        _same_location(instructions[load], instructions[store]) and schedule.reads_first(launch.kernel, load, store)
        for load in loads
    )


def _touches(instruction: Instruction, operation: str, node: Node) -> bool:
    access = instruction.access
    return instruction.operation == operation and access is not None and access.operand is node


def _same_location(load: Instruction, store: Instruction) -> bool:
    left, right = load.access, store.access
    assert left is not None
    assert right is not None
    if left.computed or right.computed or store.combine is not None:
        return False
    return (left.rows, left.sweeps, left.lane, left.offset) == (right.rows, right.sweeps, right.lane, right.offset)
