"""Routines: operations that are computed as a whole, by a library or by code written for them, and not fused with
others.

A routine belongs to its primitive and is independent of targets: it says which operands it can read, how much scratch
memory it needs, and what inspection prints. A target provides the steps that its machine runs: the module that
implements them registers a function with `Routine.on`, and the target names that module with `implemented_in`.
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
"""For each axis, the axes in memory that it runs over, outermost first: extents and strides."""


class Operand(NamedTuple):
    """An operand or a result in memory: strides are in elements; its first element is ``offset`` bytes after the
    address in ``slot`` of the run's table. An operand that has ``factors`` has no strides."""

    shape: Shape
    dtype: Dtype
    strides: Shape
    slot: int
    offset: int
    factors: Factors | None = None


class Attached(NamedTuple):
    """A kernel that a step calls for each rectangle of its result as soon as that rectangle is computed.

    ``code`` and ``numbers`` are those of a step. Its units are the rows of the result (of all matrices, one after the
    other), and its lanes are the columns; if there is one column, the lanes are rows. In ``numbers``, ``lane`` is the
    position of the number of lanes. ``shifts`` are positions and what to add there per lane that precedes the first
    one. ``reads`` are, for each access to the result, the positions of its offset (which follows that of the slot) and
    of its strides between rows. ``whole``: a unit needs all its lanes at once. If ``in_memory``, the result is written
    to its place in the call and read there; else it may be anywhere.
    """

    code: Any
    numbers: tuple[int, ...]
    lane: int
    shifts: tuple[tuple[int, int], ...]
    reads: tuple[tuple[int, tuple[int, ...]], ...]
    whole: bool
    in_memory: bool


class RoutineCall(NamedTuple):
    """The data from which a step is made: parameters of the operation, operands, results (in row-major order), slot and
    offset in bytes of the scratch memory, an attached kernel, and a kernel that makes the operand at a position,
    rectangle by rectangle: it writes to that operand as an attached kernel reads the result. The first ``inputs`` slots
    are inputs of the run: no step of the plan changes an input while an operand is read from it."""

    params: dict[str, Any]
    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    scratch: Place
    attached: Attached | None = None
    feeder: tuple[int, Attached] | None = None
    inputs: int = 0


class RoutineStep(NamedTuple):
    """What an engine runs: ``code``, from which the target makes what the engine seals (it may be the address of a
    native function), and the numbers that the code reads.

    Threads share ``units`` of work in pieces of ``grain``; ``work`` is how often the innermost loop body runs in total.
    Inspection prints ``way``, if the way of computing is worth telling.
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
Shares = Callable[[Sequence[Node], Shape], Callable[[Node], Node | None] | None]


class CallSums(NamedTuple):
    """Calls whose results are added up one after the other, in this order, and have no other use: ``together(calls)``
    says how many of them, from the first one on, should become one node (1: none); ``node(total, calls)`` makes it,
    for calls that are added to a total, or up (None)."""

    together: Callable[[Sequence[Node]], int]
    node: Callable[[Node | None, Sequence[Node]], Node]


_modules: dict[str, list[str]] = {}


def implemented_in(kind: str, *modules: str) -> None:
    """Name modules that register steps for a kind of device. They are imported, in this order, until the requested step
    is registered."""
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
    """The number of elements of the largest input or result."""
    return max(source.size for source in (node, *node.inputs))


class Routine:
    """How a primitive is computed as a whole.

    ``accepts(node, position, strides)`` tells whether an input can be read with these strides; other inputs are copied.
    ``scratch(node)`` is how many bytes of memory the routine needs while it runs. A target may override both.
    Inspection prints ``arithmetic(node)`` (the number of scalar operations), ``loops(node)`` (the extents of parallel
    and of reduced axes) and ``names`` (singular and plural, for a call).
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
        self._shares: dict[str, Shares] = {}
        self._sums: dict[str, CallSums] = {}
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
        shares: Shares | None = None,
        sums: CallSums | None = None,
    ) -> Callable[[MakeSteps], MakeSteps]:
        """A decorator that registers the function which makes steps for a kind of device; ``scratch`` and ``accepts``
        replace those of the routine there. ``declines(node)`` says why there is no step for a call, which is then left
        to the device's stand-in; "" if there is one. ``adapts(node)`` gives what is planned instead of a call, or None.
        ``rounds(node, dtype)`` tells whether the step can store the result in another dtype, rounded once.

        The function may return a list of steps: each begins when the one before has done all its units, and they share
        the scratch memory. ``attaches(call, whole, in_memory)`` tells whether the step of a call can have an attached
        kernel, which may need whole rows, and whether it can also if the result is not in memory; slots and offsets in
        that call are meaningless. ``reads(node, position, factors)`` tells whether the step reads an input of which an
        axis runs over several axes in memory; without it, the step reads none. ``stacked``: there is one step, whose
        units are first those of the first matrix of the result, then as many of the second, and so on, and which reads
        for each matrix only the matrix of each operand at the same position. ``feeds(call, position)`` tells whether a
        kernel can make an operand for the step, which then needs each of its elements once. ``shares(calls, strides)``
        is given several calls of a program with the same last operand, and how that lies in memory. If work on the
        operand should be done once for these calls, it returns a function that gives what is planned instead of one of
        them (None: the call itself). ``sums`` are for results that are added up.
        """

        def register(make: MakeSteps) -> MakeSteps:
            self._makers[kind] = make
            self._scratch[kind] = scratch or self._scratch_elsewhere
            self._accepts[kind] = accepts or self._accepts_elsewhere
            further: list[tuple[dict[str, Any], Any]] = [
                (self._declines, declines),
                (self._adapts, adapts),
                (self._rounds, rounds),
                (self._attaches, attaches),
                (self._reads, reads),
                (self._feeds, feeds),
                (self._shares, shares),
                (self._sums, sums),
            ]
            for registered, given in further:
                if given is not None:
                    registered[kind] = given
            if stacked:
                self._stacked.add(kind)
            return make

        return register

    def does(self, node: Node, kind: str) -> bool:
        """Whether there is a step for a call on a kind of device."""
        return self.is_on(kind) and not self.declines(node, kind)

    def declines(self, node: Node, kind: str) -> str:
        """Why a kind of device that has steps for this routine has none for this call; "" if it has."""
        return self._declines[kind](node) if kind in self._declines else ""

    def adapts_on(self, kind: str) -> bool:
        """Whether `adapted` and `rounds` may have answers for a kind of device."""
        return self.is_on(kind) and (kind in self._adapts or kind in self._rounds)

    def adapted(self, node: Node, kind: str) -> Node | None:
        """What is planned instead of a call for a kind of device, or None."""
        return self._adapts[kind](node) if kind in self._adapts else None

    def rounds(self, node: Node, dtype: Dtype, kind: str) -> bool:
        """Whether the step of a call for a kind of device can store its result in another dtype, rounded once."""
        return kind in self._rounds and self._rounds[kind](node, dtype)

    def can_share(self, kind: str) -> bool:
        """Whether `shared` may have answers for a kind of device."""
        return self.is_on(kind) and kind in self._shares

    def shared(self, calls: Sequence[Node], strides: Shape, kind: str) -> Callable[[Node], Node | None] | None:
        """What is planned instead of calls with the same last operand for a kind of device; see ``shares`` of `on`."""
        return self._shares[kind](calls, strides)

    def sums(self, kind: str) -> CallSums | None:
        """How calls whose results are added up are computed together on a kind of device, if they can be."""
        return self._sums.get(kind) if self.is_on(kind) else None

    def accepts(self, node: Node, position: int, strides: Shape, kind: str) -> bool:
        """Whether the step for a kind of device reads an input with these strides."""
        accepts = self._accepts[kind] if self.is_on(kind) else self._accepts_elsewhere
        return accepts(node, position, strides)

    def reads(self, node: Node, position: int, factors: Factors, kind: str) -> bool:
        """Whether the step for a kind of device reads an input of which an axis runs over several axes in memory."""
        return self.is_on(kind) and kind in self._reads and self._reads[kind](node, position, factors)

    def feeds(self, call: RoutineCall, position: int, kind: str) -> bool:
        """Whether a kernel can make an operand for the step of a call on a kind of device."""
        return self.is_on(kind) and kind in self._feeds and self._feeds[kind](call, position)

    def can_feed(self, kind: str) -> bool:
        """Whether kernels can make operands for steps on a kind of device."""
        return self.is_on(kind) and kind in self._feeds

    def can_attach(self, kind: str) -> bool:
        """Whether steps for a kind of device can have attached kernels."""
        return self.is_on(kind) and kind in self._attaches

    def is_stacked(self, kind: str) -> bool:
        """Whether the step for a kind of device computes the matrices of a stack one after the other."""
        return self.is_on(kind) and kind in self._stacked

    def attaches(self, call: RoutineCall, whole: bool, in_memory: bool, kind: str) -> bool:
        """Whether the step of a call can have an attached kernel, which may need whole rows, with or without the result
        in memory."""
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
            NotImplementedError: there is none.
        """
        if kinds[0] not in self._makers and not any(map(self.is_on, kinds)):
            operands = ", ".join([describe(x.shape, x.dtype) for x in inputs])
            others = ", ".join(sorted(self._makers)) or "no device"
            raise NotImplementedError(
                f"[{name}] There is no routine for {operands} on {kinds[0]}; there is one on {others}. Choose the "
                "device with stream=."
            )

    def steps(self, call: RoutineCall, kind: str) -> list[RoutineStep]:
        """The steps of a call on a kind of device, which must have them."""
        made = self._makers[kind](call)
        return made if isinstance(made, list) else [made]
