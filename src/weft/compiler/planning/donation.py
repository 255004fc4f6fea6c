"""Which results may be written to the memory of something that is not needed afterwards.

For temporaries the plan decides it (`Touches.overlays`). For inputs the plan says what a run may do if nothing else
refers to them (`Touches.donations`). An update that takes the memory of the array it updates writes only what is new.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from weft.compiler.compared_keys import ComparedKeys
from weft.compiler.kernel import Access, Instruction, Launch
from weft.compiler.open_numbers import as_a_whole
from weft.compiler.regions import are_apart, meeting
from weft.compiler.target import Schedule
from weft.graph.node import Node
from weft.runtime.memory import size_class

MOST_TRIED = 8
"""How many inputs of each kind are checked before a result gets new memory: inputs that its step reads last, others."""


MANY_PAIRS = 64
"""If so many pairs of a store and another access are to be compared, those that are at different places are found
first."""


class Accesses(NamedTuple):
    """What a step reads and writes. ``launch`` and ``schedule`` are those of its kernel, or of the kernel that is
    attached to its ``call``. A step that is neither a kernel nor a call does nothing.

    The result of a call with an attached kernel is in the memory to which the kernel then stores, or in memory of its
    own, or in scratch memory, which is not listed here.
    """

    read: set[Node]
    written: set[Node]
    launch: Launch | None
    schedule: Schedule | None
    is_call: bool
    call: Accesses | None = None


class _Touch(NamedTuple):
    """A load or a store of a node, by number of the instruction; for calls, only the step is known."""

    step: int
    node: Node
    accesses: Accesses
    number: int

    @property
    def instruction(self) -> Instruction:
        assert self.accesses.launch is not None
        return self.accesses.launch.kernel.instructions[self.number]

    @property
    def access(self) -> Access:
        access = self.instruction.access
        assert access is not None
        return access

    @property
    def place(self) -> tuple[Access, Launch]:
        """Which locations are accessed: the access, and the extents of its loops."""
        assert self.accesses.launch is not None
        return self.access, self.accesses.launch

    @property
    def copied(self) -> Node | None:
        """The node whose elements a store copies to the same locations; None if it does anything else."""
        assert self.accesses.launch is not None
        store = self.instruction
        value = self.accesses.launch.kernel.instructions[store.inputs[0]]
        plain = value.operation == "load" and value.dtype is store.dtype and store.combine is None
        if value.access is None or not plain or not _same_location(value.access, self.access):
            return None
        node: Node = value.access.operand
        return node


class Touches:
    """The loads and stores of a plan's steps, by node and in order."""

    def __init__(self, steps: Iterable[Accesses]) -> None:
        self._loads: dict[Node, list[_Touch]] = {}
        self._stores: dict[Node, list[_Touch]] = {}
        for step, accesses in enumerate(steps):
            call = accesses if accesses.is_call else accesses.call
            if call is not None:
                self._add_call(step, call)
            if accesses.launch is not None:
                self._add_kernel(step, accesses, accesses.launch)

    def _add_call(self, step: int, accesses: Accesses) -> None:
        for node in accesses.read:
            self._loads.setdefault(node, []).append(_Touch(step, node, accesses, -1))
        for node in accesses.written:
            self._stores.setdefault(node, []).append(_Touch(step, node, accesses, -1))

    def _add_kernel(self, step: int, accesses: Accesses, launch: Launch) -> None:
        for number, instruction in enumerate(launch.kernel.instructions):
            if instruction.access is not None and instruction.access.operand is not None:
                touch = _Touch(step, instruction.access.operand, accesses, number)
                table = self._stores if instruction.operation == "store" else self._loads
                table.setdefault(touch.node, []).append(touch)

    def donations(
        self, inputs: Mapping[Node, int], shown: set[int], buffers: Mapping[Node, int], homes: Mapping[Node, Node]
    ) -> list[tuple[int, int]]:
        """Pairs of an input and a new buffer of the same size class that may be written in the input's memory.

        ``shown`` are the inputs that outputs show, ``homes`` the result of `overlays`.
        """
        free = _Free()
        for node, number in inputs.items():
            if number not in shown:
                free.add(node, self._loads.get(node, []))
        sharing: dict[Node, list[Node]] = {}
        for node, home in homes.items():
            sharing.setdefault(home, []).append(node)
        stores = {target: self._stores_of([target, *sharing.get(target, ())]) for target in buffers}
        givers: dict[Node, Node] = {}
        for target in buffers:
            # The array that is updated gives its memory to the result of the update: then only what is new is written.
            copied = [touch.copied for touch in stores[target] if not touch.accesses.is_call]
            fitting = [node for node in copied if node is not None and free.fits(node, target)]
            self._give(fitting, target, stores[target], givers, free)
        left = [(min(map(_step, stores[target])), target) for target in buffers if stores[target]]
        for step, target in sorted(left, key=itemgetter(0)):
            if target not in givers:
                self._give(free.candidates(target, step), target, stores[target], givers, free)
        return [(inputs[givers[target]], buffer) for target, buffer in buffers.items() if target in givers]

    def _give(
        self,
        candidates: Iterable[Node],
        target: Node,
        stores: Sequence[_Touch],
        givers: dict[Node, Node],
        free: _Free,
    ) -> None:
        """Note the first candidate that may give its memory to ``target``; it is not ``free`` afterwards."""
        for node in candidates:
            if self.may_end(node, stores):
                givers[target] = node
                free.remove(node)
                return

    def stores_in(self, target: Node, homes: Mapping[Node, Node]) -> list[_Touch]:
        """All stores to the memory of a node."""
        return self._stores_of([target, *[node for node, home in homes.items() if home is target]])

    def _stores_of(self, nodes: Iterable[Node]) -> list[_Touch]:
        return [touch for node in nodes for touch in self._stores.get(node, ())]

    def may_end(self, node: Node, stores: Sequence[_Touch]) -> bool:
        """Whether the stores may go to the memory of an input."""
        return may_take({node}, self._loads.get(node, []), stores)

    def overlays(self, updates: Iterable[tuple[Node, Node]], temporaries: Iterable[Node]) -> dict[Node, Node]:
        """For each temporary that is updated in place, the node whose memory it has: the result of its last update.

        ``updates`` are pairs of an updated node and the result, in order.
        """
        free = set(temporaries)
        sharing: dict[Node, set[Node]] = {}
        touches: dict[Node, list[_Touch]] = {}
        for source, target in updates:
            fits = source.size == target.size and source.dtype.size == target.dtype.size
            if source not in free or not fits:
                continue
            sources, others = sharing.get(source) or {source}, touches.get(source) or self._of(source)
            if may_take(sources, others, self._stores.get(target, [])):
                free.discard(source)
                sharing.pop(source, None)
                sources.add(target)
                sharing[target] = sources
                touches[target] = others
                for touch in self._of(target):
                    insort(others, touch, key=_step)
        return {node: home for home, nodes in sharing.items() for node in nodes if node is not home}

    def _of(self, node: Node) -> list[_Touch]:
        """All loads and stores of a node, in order."""
        return sorted([*self._loads.get(node, ()), *self._stores.get(node, ())], key=_step)


class _Block:
    """Inputs of one size class that may give their memory away: in order, and by the step that reads them last."""

    def __init__(self) -> None:
        self.nodes: dict[Node, int] = {}
        self._by_step: dict[int, dict[Node, None]] = {}
        self._ending: list[tuple[int, int, Node]] = []

    def add(self, node: Node, last: int) -> None:
        self.nodes[node] = last
        self._by_step.setdefault(last, {})[node] = None
        heappush(self._ending, (last, len(self.nodes), node))

    def remove(self, node: Node) -> None:
        del self._by_step[self.nodes.pop(node)][node]

    def candidates(self, target: Node, step: int) -> Iterator[Node]:
        """Inputs whose memory may be written from a step on, the best ones first: those of the shape and dtype of the
        target that this step reads last, so that a new state takes the memory of the old one; then those that are not
        read from this step on; then others that this step reads last; then some that are read later (perhaps at other
        locations)."""
        last = self._by_step.get(step, {})
        alike = [node for node in last if node.dtype is target.dtype and node.shape == target.shape]
        yield from alike[:MOST_TRIED]
        while self._ending and self._ending[0][0] < step:
            node = heappop(self._ending)[-1]
            if node in self.nodes:
                yield node
        yield from islice(last, MOST_TRIED)
        yield from islice((node for node, last in self.nodes.items() if last > step), MOST_TRIED)


class _Free:
    """Inputs that may give their memory away."""

    def __init__(self) -> None:
        self._blocks = ComparedKeys()
        self._block_of: dict[Node, _Block] = {}

    def add(self, node: Node, loads: Sequence[_Touch]) -> None:
        size = _block(node)
        block = self._blocks.get(size)
        if block is None:
            self._blocks[size] = block = _Block()
        self._block_of[node] = block
        block.add(node, loads[-1].step if loads else -1)

    def remove(self, node: Node) -> None:
        self._block_of.pop(node).remove(node)

    def fits(self, node: Node, target: Node) -> bool:
        """Whether a node is free, and its memory is of the size class of the target."""
        return node in self._block_of and self._block_of[node] is self._blocks.get(_block(target))

    def candidates(self, target: Node, step: int) -> Iterable[Node]:
        """The inputs to try for a target that is written from a step on."""
        block = self._blocks.get(_block(target))
        return () if block is None else block.candidates(target, step)


def _step(touch: _Touch) -> int:
    return touch.step


_size_class = as_a_whole(size_class)


def _block(node: Node) -> int:
    return _size_class(node.nbytes)


def may_take(sources: Collection[Node], touches: Sequence[_Touch], stores: Sequence[_Touch]) -> bool:
    """Whether the stores may go to the memory of ``sources``: what is needed there must have been read before, or stay
    as it is. ``touches`` are all loads and stores there, in order."""
    pairs = _compared(touches, stores)
    return all(_is_harmless(store, other, sources) for store, others in pairs for other in others)


def _compared(touches: Sequence[_Touch], stores: Sequence[_Touch]) -> Iterator[tuple[_Touch, Sequence[_Touch]]]:
    """Each store, and the touches that it may affect: those in its step or a later one. If there are many, those that
    are apart from it are left out."""
    touches = touches[bisect_left(touches, min(map(_step, stores), default=0), key=_step) :]
    pruned = len(stores) * len(touches) >= MANY_PAIRS and _are_alike(stores)
    if not pruned:
        for store in stores:
            yield store, touches[bisect_left(touches, store.step, key=_step) :]
        return
    node = stores[0].node
    comparable = [not other.accesses.is_call and other.node.dtype.size == node.dtype.size for other in touches]
    places = [other.place if also else None for other, also in zip(touches, comparable, strict=True)]
    near = meeting([store.place for store in stores], places, node.shape)
    for store, numbers in zip(stores, near, strict=True):
        yield store, [touches[number] for number in numbers if touches[number].step >= store.step]


def _are_alike(stores: Sequence[_Touch]) -> bool:
    """Whether all stores are those of kernels, to nodes of the same shape whose elements have the same size."""
    first = stores[0].node
    return all(
        not store.accesses.is_call and store.node.shape == first.shape and store.node.dtype.size == first.dtype.size
        for store in stores
    )


def _is_harmless(store: _Touch, other: _Touch, sources: Collection[Node]) -> bool:
    """Whether a store does not affect a load or another store of ``sources`` in the same step or a later one."""
    if store.accesses.is_call or other.accesses.is_call or store.node.dtype.size != other.node.dtype.size:
        return False
    launch, loads = store.accesses.launch, other.instruction.operation == "load"
    if loads and store.copied in sources:
        return True
    assert launch is not None
    if are_apart(*store.place, *other.place, store.node.shape):
        return True
    if other.step > store.step:
        return False
    if not loads:
        return _is_same_store(store, other)
    if store.instruction.combine is not None or not _same_location(store.access, other.access):
        return False
    assert store.accesses.schedule is not None
    return store.accesses.schedule.reads_first(launch.kernel, other.number, store.number)


def may_share(step: Accesses, source: Node, target: Node) -> bool:
    """Whether a kernel reads each element of ``source`` before it writes the element of ``target`` that replaces it."""
    touches = Touches([step._replace(is_call=False, call=None)])
    return touches.may_end(source, touches.stores_in(target, {}))


def needless_stores(accesses: Accesses, homes: Mapping[Node, Node]) -> set[int]:
    """The stores of a kernel, by position among its stores, that write what is already there: what was read from there,
    or what is also stored there for another node with the same memory (``homes``)."""
    if accesses.launch is None:
        return set()
    found: set[int] = set()
    done: list[_Touch] = []
    for number, instruction in enumerate(accesses.launch.kernel.instructions):
        if instruction.operation == "store" and instruction.access is not None:
            node = instruction.access.operand
            store, home = _Touch(0, node, accesses, number), homes.get(node, node)
            copied = store.copied
            again = [other for other in done if homes.get(other.node, other.node) is home]
            is_there = copied is not None and homes.get(copied, copied) is home
            if is_there or any(_is_same_store(store, other) for other in again):
                found.add(len(done))
            done.append(store)
    return found


def _is_same_store(store: _Touch, other: _Touch) -> bool:
    """Whether two stores of a kernel write the same values to the same locations."""
    one, two = store.instruction, other.instruction
    same = one.inputs == two.inputs and one.where == two.where and one.combine is two.combine is None
    return same and _same_location(store.access, other.access)


def _same_location(left: Access, right: Access) -> bool:
    if left.computed or right.computed:
        return False
    return (left.rows, left.sweeps, left.lane, left.offset) == (right.rows, right.sweeps, right.lane, right.offset)
