"""Routines: operations that are computed as a whole by a library or by code written for them, not fused with others.

A routine belongs to its primitive and knows no target: it says which operands it can read, how much scratch memory it
needs, and what inspection tells of it. A target adds the step that its machine runs: the module that implements it
registers a function with `Routine.on`, and the target names that module with `implemented_in`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.dtypes import Dtype
from weft.graph.node import Node, Shape, describe
from weft.runtime.atomic import without_interrupts
from weft.runtime.steps import Place

Factors = tuple[tuple[tuple[int, int], ...], ...]
"""For each axis, which axes in memory it goes over, outermost first: extents and strides."""


class Operand(NamedTuple):
    """An operand or a result in memory: strides are in elements; the address of its first element is ``offset`` bytes
    behind the one in ``slot`` of the run's table. An operand that has ``factors`` has no strides."""

    shape: Shape
    dtype: Dtype
    strides: Shape
    slot: int
    offset: int
    factors: Factors | None = None


class Attached(NamedTuple):
    """A kernel that a step calls for each rectangle of its result, as soon as that is made.

    ``code`` and ``numbers`` are those of a step. Its units are the rows of the result, those of all matrices one after
    the other, and its lanes the columns; or the lanes are rows, if there is one column. In ``numbers``, ``lane`` is the
    position of how many lanes there are. ``shifts`` are positions and what is added there for each lane that comes
    before the first one; of accesses to the result, ``reads`` are the positions of the offset (behind that of the slot)
    and of the distances from row to row. ``whole``: a unit needs all its lanes at once. If ``in_memory``, the result is
    made where the call says, and read there; else it may be anywhere.
    """

    code: Any
    numbers: tuple[int, ...]
    lane: int
    shifts: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, tuple[int, ...]], ...]
    whole: bool
    in_memory: bool


class RoutineCall(NamedTuple):
    """What a step is made for: parameters of the operation, operands, results (in row-major order), slot and offset
    in bytes of the scratch memory, a kernel that is attached, and one that makes the operand at a position, rectangle
    by rectangle: to that, the operand is what the result is to the attached one. The first slots are those of so many
    ``inputs`` of the run: as long as an operand is read there, no step of the plan changes it."""

    params: dict[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    scratch: Place
    attached: Attached | None = None
    feeder: tuple[int, Attached] | None = None
    inputs: int = 0


class RoutineStep(NamedTuple):
    """What an engine runs: ``code``, of which the target makes what the engine seals (it may be the address of a native
    function already), and the numbers that this reads.

    Threads share ``units`` of work in pieces of ``grain``; ``work`` is how often the innermost body runs in all.
    Inspection shows ``way``, if there is something to say of how it is computed.
    """

    code: Any
    numbers: Sequence[int] = ()
    units: int = 1
    grain: int = 1
    work: int = 1
    way: str = ""


MakeSteps = Callable[[RoutineCall], RoutineStep | list[RoutineStep]]
Attaches = Callable[[RoutineCall, bool, bool], bool]
Accepts = Callable[[Node, int, Shape], bool]
Feeds = Callable[[RoutineCall, int], bool]
Reads = Callable[[Node, int, Factors], bool]
Count = Callable[[Node], int]
Loops = Callable[[Node], tuple[Shape, Shape]]
Declines = Callable[[Node], str]
Adapts = Callable[[Node], Node | None]
Rounds = Callable[[Node, Dtype], bool]

_modules: dict[str, list[str]] = {}


def implemented_in(kind: str, *modules: str) -> None:
    """Name modules that register steps for a kind of device. They are imported, in this order, until one has registered
    the step that is asked for."""
    _modules.setdefault(kind, []).extend(modules)


def row_major(node: Node, position: int, strides: Shape) -> bool:
    """Whether an input's elements lie in row-major order without gaps."""
    step = 1
    for extent, stride in zip(reversed(node.inputs[position].shape), reversed(strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True


def _elements(node: Node) -> int:
    """The size of the largest of inputs and result."""
    return max(source.size for source in (node, *node.inputs))


class Routine:
    """How a primitive is computed as a whole.

    ``accepts(node, position, strides)`` tells whether an input can be read with these strides; others are copied.
    ``scratch(node)`` is how many bytes of memory the routine needs while it runs. A target may say otherwise of both.
    Inspection shows ``arithmetic(node)`` (how many scalar operations), ``loops(node)`` (the extents of parallel and of
    reduced axes) and ``names`` (singular and plural of what a call is).
    """

    def __init__(
        self,
        accepts: Accepts = row_major,
        scratch: Count = lambda node: 0,
        arithmetic: Count = _elements,
        loops: Loops = lambda node: (node.shape, ()),
        names: tuple[str, str] = ("routine", "routines"),
    ) -> None:
        self._accepts_elsewhere = accepts
        self._scratch_elsewhere = scratch
        self.arithmetic = arithmetic
        self.loops = loops
        self.names = names
        self._makers: dict[str, MakeSteps] = {}
        self._attaches: dict[str, Attaches] = {}
        self._feeds: dict[str, Feeds] = {}
        self._reads: dict[str, Reads] = {}
        self._accepts: dict[str, Accepts] = {}
        self._scratch: dict[str, Count] = {}
        self._declines: dict[str, Declines] = {}
        self._adapts: dict[str, Adapts] = {}
        self._rounds: dict[str, Rounds] = {}
        self._stacked: set[str] = set()

    def on(
        self,
        kind: str,
        scratch: Count | None = None,
        attaches: Attaches | None = None,
        reads: Reads | None = None,
        stacked: bool = False,
        feeds: Feeds | None = None,
        accepts: Accepts | None = None,
        declines: Declines | None = None,
        adapts: Adapts | None = None,
        rounds: Rounds | None = None,
    ) -> Callable[[MakeSteps], MakeSteps]:
        """Register what makes the step for a kind of device, as a decorator; ``scratch`` and ``accepts`` replace those
        of the routine there. ``declines(node)`` says why there is no step for a call, which is left to the device's
        stand-in then; "" if there is one. ``adapts(node)`` gives what is planned there instead of a call, or None.
        ``rounds(node, dtype)`` tells whether the step can store the result in another dtype, rounded once.

        It may be a list of steps: each begins when the one before has done all its units, and they share the scratch
        memory. ``attaches(call, whole, in_memory)`` tells whether the step of a call can have a kernel attached, which
        may need whole rows, and whether also if the result is not in memory; slots and offsets in that call mean
        nothing. ``reads(node, position, factors)`` tells whether the step reads an input of which an axis goes over
        several axes in memory; without it, none. ``stacked``: there is one step, whose units are those of the first
        matrix of the result, then as many of the second, and so on; and it reads of each operand only the matrix at the
        same place. ``feeds(call, position)`` tells whether the step of a call can have an operand made by a kernel, and
        needs each element of it once.
        """

        def register(make: MakeSteps) -> MakeSteps:
            self._makers[kind] = make
            self._scratch[kind] = scratch or self._scratch_elsewhere
            self._accepts[kind] = accepts or self._accepts_elsewhere
            if declines is not None:
                self._declines[kind] = declines
            if adapts is not None:
                self._adapts[kind] = adapts
            if rounds is not None:
                self._rounds[kind] = rounds
            if attaches is not None:
                self._attaches[kind] = attaches
            if reads is not None:
                self._reads[kind] = reads
            if feeds is not None:
                self._feeds[kind] = feeds
            if stacked:
                self._stacked.add(kind)
            return make

        return register

    def does(self, node: Node, kind: str) -> bool:
        """Whether there is a step for a call on a kind of device."""
        return self.is_on(kind) and not self.declines(node, kind)

    def declines(self, node: Node, kind: str) -> str:
        """Why a call is not done on a kind of device that has steps for others; "" if there is nothing to say."""
        return self._declines[kind](node) if kind in self._declines else ""

    def adapts_on(self, kind: str) -> bool:
        """Whether `adapted` and `rounds` have something to say for a kind of device."""
        return self.is_on(kind) and (kind in self._adapts or kind in self._rounds)

    def adapted(self, node: Node, kind: str) -> Node | None:
        """What is planned instead of a call for a kind of device, or None."""
        return self._adapts[kind](node) if kind in self._adapts else None

    def rounds(self, node: Node, dtype: Dtype, kind: str) -> bool:
        """Whether the step of a call for a kind of device can store its result in another dtype, rounded once."""
        return kind in self._rounds and self._rounds[kind](node, dtype)

    def accepts(self, node: Node, position: int, strides: Shape, kind: str) -> bool:
        """Whether the step for a kind of device reads an input with these strides."""
        accepts = self._accepts[kind] if self.is_on(kind) else self._accepts_elsewhere
        return accepts(node, position, strides)

    def reads(self, node: Node, position: int, factors: Factors, kind: str) -> bool:
        """Whether the step for a kind of device reads an input of which an axis goes over several axes in memory."""
        return self.is_on(kind) and kind in self._reads and self._reads[kind](node, position, factors)

    def feeds(self, call: RoutineCall, position: int, kind: str) -> bool:
        """Whether the step of a call for a kind of device can have an operand made by a kernel."""
        return self.is_on(kind) and kind in self._feeds and self._feeds[kind](call, position)

    def can_feed(self, kind: str) -> bool:
        """Whether steps for a kind of device can have operands made by kernels."""
        return self.is_on(kind) and kind in self._feeds

    def can_attach(self, kind: str) -> bool:
        """Whether steps for a kind of device can have kernels attached."""
        return self.is_on(kind) and kind in self._attaches

    def is_stacked(self, kind: str) -> bool:
        """Whether the step for a kind of device does one matrix of a stack after the other."""
        return self.is_on(kind) and kind in self._stacked

    def attaches(self, call: RoutineCall, whole: bool, in_memory: bool, kind: str) -> bool:
        """Whether the step of a call can have a kernel attached, which may need whole rows, with the result in memory
        or not."""
        return self._attaches[kind](call, whole, in_memory)

    def scratch_on(self, node: Node, kind: str) -> int:
        """How many bytes of memory a node needs while it runs on a kind of device."""
        count = self._scratch[kind] if self.is_on(kind) else self._scratch_elsewhere
        return count(node)

    def is_on(self, kind: str) -> bool:
        """Whether there is a step for a kind of device."""
        if kind not in self._makers:
            without_interrupts(lambda: self._find(kind))
        return kind in self._makers

    def _find(self, kind: str) -> None:
        for module in _modules.get(kind, ()):
            if module not in sys.modules:
                importlib.import_module(module)
                if kind in self._makers:
                    return

    def require(self, name: str, inputs: Sequence[Node], kinds: Sequence[str]) -> None:
        """Raise unless there is a step for one of these kinds of devices.

        Raises:
            NotImplementedError: it is missing.
        """
        if not any(map(self.is_on, kinds)):
            operands = ", ".join([describe(x.shape, x.dtype) for x in inputs])
            others = ", ".join(sorted(self._makers)) or "no device"
            raise NotImplementedError(
                f"[{name}] There is no routine for {operands} on {kinds[0]}; there is one on {others}. Choose the "
                "device with stream=."
            )

    def steps(self, call: RoutineCall, kind: str) -> list[RoutineStep]:
        """The steps of a call on a kind of device that has them."""
        made = self._makers[kind](call)
        return made if isinstance(made, list) else [made]
