"""Scans of few long rows, which read each element once.

A block scans a chunk and adds it up, each in the order that every target has. It tells the others the total, and finds
out what comes before the chunk: totals are scanned in vectors of sixteen, one after the other, so it goes on from the
nearest vector of which somebody has told what there is up to it (decoupled look-back, in a fixed order). Only who
computes what depends on which block comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any, NamedTuple

import weft.primitives as p
from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location, dtype_alignment, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.clearing import cleared
from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import Written
from weft.compiler.cuda.threads import Team
from weft.compiler.kernel import VIRTUAL_LANES
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.replacing import replaces
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.primitives.scans import Scan, WholeScan
from weft.primitives.sort_cuts import aligned

THREADS, BLOCKS = 512, 2
"""Of a block, and how many blocks a multiprocessor is to have room for."""
JOINED_TOGETHER = 16
"""Numbers that a thread reads from shared memory before it joins them."""
PART = 8
"""Bytes that a part of an accumulator has in memory."""

# The numbers of a step: slots and offsets of memory, and then what follows.
SOURCE, TARGET, COUNTER, TOLD, JOINED_TOLD, TOTALS, JOINED = range(0, 14, 2)
UNITS, EXTENT, CHUNKS = range(14, 17)


class _Cut(NamedTuple):
    """``rows`` in chunks of ``chunk`` elements, of which sixteen are a group; ``parts`` numbers are joined."""

    rows: int
    extent: int
    chunk: int
    parts: int

    @property
    def chunks(self) -> int:
        return -(-self.extent // self.chunk)

    @property
    def groups(self) -> int:
        return -(-self.chunks // VIRTUAL_LANES)

    def sizes(self) -> list[int]:
        """Bytes of scratch memory: a counter, what chunks and groups tell, and their totals."""
        words = [8, 4 * self.rows * self.chunks, 4 * self.rows * self.groups]
        totals = [PART * self.parts * self.rows * count for count in (self.chunks, self.groups)]
        return [aligned(size) for size in (*words, *totals)]


def _cut_of(reducer: Any, shape: Sequence[int], dtype: Dtype, chunk: int) -> _Cut:
    return _Cut(prod(shape[:-1]), shape[-1], chunk, len(reducer.identity(dtype)))


def _steps(scan: WholeScan, call: RoutineCall) -> list[RoutineStep]:
    (x,), (out,), (slot, offset) = call.operands, call.results, call.scratch
    chunk = call.params["chunk"]
    cut = _cut_of(scan.reducer, x.shape, x.dtype, chunk)
    places, sizes = [offset], cut.sizes()
    for size in sizes:
        places.append(places[-1] + size)
    memory = [(x.slot, x.offset), (out.slot, out.offset), *[(slot, place) for place in places[:-1]]]
    units = cut.rows * cut.chunks
    numbers = [*[number for place in memory for number in place], units, cut.extent, cut.chunks]
    code = _code(scan, x.dtype, call.params["reverse"], call.params["inclusive"], chunk)
    return [cleared((slot, offset), sum(sizes[:3]) // 4), RoutineStep(code, numbers, units, 1, prod(x.shape))]


def _scratch(scan: WholeScan, node: Node) -> int:
    return sum(_cut_of(scan.reducer, node.shape, node.dtype, node.params[2]).sizes())


@cache
def _code(scan: WholeScan, dtype: Dtype, reverse: bool, inclusive: bool, chunk: int) -> Written:
    source = f"{scan.name} of {dtype.name} in chunks of {chunk}, reverse {reverse}, inclusive {inclusive}"
    writer = partial(_Writer, scan.reducer, dtype, reverse, inclusive, chunk)
    return Written(source, lambda name: writer().text(name), THREADS, scan.name)


Parts = tuple[Value, ...]
"""An accumulator in registers."""


class _Writer:
    """Writes the kernel. Elements of a chunk are counted in the direction of the scan."""

    def __init__(self, reducer: Any, dtype: Dtype, reverse: bool, inclusive: bool, chunk: int) -> None:
        self.code = BlockCode(THREADS, BLOCKS)
        self.e = self.code.e
        self.L = MathLanes(self.e, 1)
        self.team = Team(self.L, self.L, self.code.wide(self.code.thread))
        self.reducer, self.dtype, self.reverse, self.inclusive, self.chunk = reducer, dtype, reverse, inclusive, chunk
        self.identity = reducer.identity(dtype)
        self.teams = THREADS // VIRTUAL_LANES
        self.turns = chunk // THREADS
        self.vectors = chunk // VIRTUAL_LANES
        self.together = min(JOINED_TOGETHER, self.vectors)
        self.elements = self.code.shared(chunk * dtype.size)
        self.before = [self.code.shared(PART * self.vectors) for _ in self.identity]
        """For each vector of the chunk, what it makes together; later, what comes before it in the chunk."""
        self.start = [self.code.shared(PART) for _ in self.identity]
        """What comes before the chunk."""
        self.of_halves = [self.code.shared(2 * PART) for _ in self.identity]
        """What the two groups make together that the halves of a warp scan."""

    def text(self, name: str) -> str:
        code, e = self.code, self.e
        with code.tickets(code.global_memory(COUNTER), code.number(UNITS)) as unit:
            self._go_to(unit)
            alone = self._scan_vectors()
            code.synchronize()
            for warp, task in enumerate((self._join_vectors, self._tell_total, self._look_back)):
                with e.when(code.word("icmp eq", code.warp, warp)):
                    task()
            code.synchronize()
            self._write(alone)
            code.synchronize()
        return code.finished(name)

    def _go_to(self, unit: str) -> None:
        """The chunk that is a unit of work."""
        code = self.code
        extent, self.chunks = code.number(EXTENT), code.number(CHUNKS)
        row = code.divide(unit, self.chunks)
        self.number = code.remainder(unit, self.chunks)
        place = self.number
        if self.reverse:
            place = code.subtract(code.subtract(self.chunks, 1), self.number)
        first = code.multiply(place, self.chunk)
        self.there = code.narrow(code.smaller(code.subtract(extent, first), self.chunk))
        self.begin = code.add(code.multiply(row, extent), first)
        self.first_chunk = code.multiply(row, self.chunks)
        groups = code.divide(code.add(self.chunks, VIRTUAL_LANES - 1), VIRTUAL_LANES)
        self.first_group = code.multiply(row, groups)

    # Joining

    def _merged(self, first: Parts, then: Parts) -> Parts:
        merged: Parts = self.reducer.merge(self.L, first, then)
        return merged

    def _chosen(self, condition: str, yes: Parts, no: Parts) -> Parts:
        return tuple(
            [
                Value(self.L, self.code.chosen(condition, a.name, b.name, REGISTER_TYPES[a.dtype]), a.dtype)
                for a, b in zip(yes, no, strict=True)
            ]
        )

    def _nothing(self) -> Parts:
        return tuple([self.L.constant(value, dtype) for dtype, value in self.identity])

    def _scanned(self, values: Parts) -> Parts:
        """The values of a team of threads, each joined with those before it."""
        distance, count = 1, self.team.count
        while distance < count:
            moved = self._moved(values, distance)
            joins = self.team.chosen([lane >= distance for lane in range(count)]).removeprefix("i1 ")
            values = self._chosen(joins, self._merged(moved, values), values)
            distance *= 2
        return values

    def _moved(self, values: Parts, distance: int) -> Parts:
        count = self.team.count
        return tuple([self.team.shuffled(v, v, lambda lane: (lane - distance) % count) for v in values])

    def _slots(self, values: Parts) -> list[str]:
        slots = [self.e.slot(REGISTER_TYPES[value.dtype]) for value in values]
        self._keep(slots, values)
        return slots

    def _keep(self, slots: Sequence[str], values: Parts) -> None:
        for slot, value in zip(slots, values, strict=True):
            self.e.store(REGISTER_TYPES[value.dtype], value.name, slot)

    def _kept(self, slots: Sequence[str]) -> Parts:
        pairs = zip(slots, self.identity, strict=True)
        return tuple([Value(self.L, self.e.load(REGISTER_TYPES[dtype], slot), dtype) for slot, (dtype, _) in pairs])

    def _put(self, memory: Sequence[str], place: str | int, values: Parts) -> None:
        for pointer, value in zip(memory, values, strict=True):
            self.e.store(REGISTER_TYPES[value.dtype], value.name, self.code.at(pointer, place, "i64"))

    def _taken(self, memory: Sequence[str], place: str | int) -> Parts:
        return self._kept([self.code.at(pointer, place, "i64") for pointer in memory])

    # A chunk by itself

    def _places(self) -> list[str]:
        """The numbers of the elements of this thread."""
        return [self.code.word("add", self.code.thread, THREADS * turn) for turn in range(self.turns)]

    def _in_memory(self, place: str) -> str:
        """Where in the memory of a chunk an element is."""
        if not self.reverse:
            return place
        return self.code.word("sub", self.code.word("sub", self.there, 1), place)

    def _scan_vectors(self) -> list[Parts]:
        """Scan the vectors of this team, each by itself."""
        code, e = self.code, self.e
        source = code.moved(code.global_memory(SOURCE), code.multiply(self.begin, self.dtype.size))
        images = []
        for place in self._places():
            exists = code.word("icmp ult", place, self.there)
            near = code.wide(self._in_memory(code.chosen(exists, place, 0)))
            images.append((place, exists, near, self._loaded(source, near)))
        for _, exists, near, value in images:
            with e.when(exists):
                store(self.L, value, self.dtype, Location(self.elements, near, False), None)
        found = []
        is_last = code.word("icmp eq", code.word("and", code.thread, VIRTUAL_LANES - 1), VIRTUAL_LANES - 1)
        for place, _, _, value in images:
            found.append(self._scanned(self.reducer.lift(self.L, value, None)))
            with e.when(is_last):
                self._put(self.before, code.word("lshr", place, 4), found[-1])
        return found

    def _loaded(self, memory: str, place: str) -> Any:
        return load(self.L, self.dtype, Location(memory, place, False, dtype_alignment(self.dtype)), None)

    def _join_vectors(self) -> None:
        """Replace what each vector makes together by what comes before it."""
        code, e = self.code, self.e
        with e.when(code.word("icmp eq", code.thread, 0)):
            state = self._slots(self._nothing())
            with e.loop("0", str(self.vectors), self.together) as number:
                first = code.narrow(number)
                places = [code.word("add", first, turn) for turn in range(self.together)]
                totals = [self._taken(self.before, place) for place in places]
                for turn, (place, total) in enumerate(zip(places, totals, strict=True)):
                    before = self._kept(state)
                    self._put(self.before, place, before)
                    joined = self._merged(before, total)
                    if not turn:
                        joined = self._chosen(code.word("icmp eq", first, 0), total, joined)
                    self._keep(state, joined)

    def _tell_total(self) -> None:
        """Fold the chunk, each of sixteen lanes its own elements, and tell the total."""
        code, e = self.code, self.e
        lane = code.word("and", code.lane, VIRTUAL_LANES - 1)
        state = self._slots(self._nothing())
        with e.loop("0", str(self.vectors), self.together) as number:
            first = code.word("add", code.word("mul", code.narrow(number), VIRTUAL_LANES), lane)
            places = [code.word("add", first, VIRTUAL_LANES * turn) for turn in range(self.together)]
            exists = [code.word("icmp ult", place, self.there) for place in places]
            near = [code.wide(code.chosen(one, place, 0)) for one, place in zip(exists, places, strict=True)]
            values = [self._loaded(self.elements, place) for place in near]
            for one, value in zip(exists, values, strict=True):
                before = self._kept(state)
                after = self._merged(before, self.reducer.lift(self.L, value, None))
                self._keep(state, self._chosen(one, after, before))
        total = self.team.folded(self._kept(state), self.reducer.merge)
        with e.when(code.word("icmp eq", code.lane, 0)):
            self._tell(TOLD, TOTALS, code.add(self.first_chunk, self.number), total)

    # Other chunks

    def _tell(self, told: int, totals: int, number: str, values: Parts) -> None:
        """Write values, and then that they are there."""
        code = self.code
        memory = code.moved(code.global_memory(totals), code.multiply(number, PART * len(values)))
        self._put([code.moved(memory, PART * part) for part in range(len(values))], 0, values)
        pointer = code.moved(code.global_memory(told), number, "i32")
        self.e.emit(f'store atomic i32 1, ptr {pointer} syncscope("device") release, align 4')

    def _is_told(self, told: int, number: str) -> str:
        pointer = self.code.moved(self.code.global_memory(told), number, "i32")
        word = self.e.assign(f'load atomic i32, ptr {pointer} syncscope("device") acquire, align 4')
        return self.code.word("icmp ne", word, 0)

    def _heard(self, totals: int, number: str) -> Parts:
        """Values that were told."""
        code = self.code
        memory = code.moved(code.global_memory(totals), code.multiply(number, PART * len(self.identity)))
        return self._taken([code.moved(memory, PART * part) for part in range(len(self.identity))], 0)

    def _awaited(self, number: str, wanted: str) -> Parts:
        """The total of the chunk that each thread names, if it is ``wanted``; else the identity."""
        code, e = self.code, self.e
        waiting, found = e.slot("i1"), self._slots(self._nothing())
        e.store("i1", wanted, waiting)
        with e.repeat_while(waiting):
            e.store("i1", code.negated(self._is_told(TOLD, code.add(self.first_chunk, number))), waiting)
        code.synchronize_warp()
        with e.when(wanted):
            self._keep(found, self._heard(TOTALS, code.add(self.first_chunk, number)))
        code.synchronize_warp()
        return self._kept(found)

    def _look_back(self) -> None:
        """Find out what comes before the chunk. A warp does it: each half scans the totals of a group."""
        code, e = self.code, self.e
        group = code.divide(self.number, VIRTUAL_LANES)
        is_first = code.compare("eq", group, 0)
        begun = self._slots(self._nothing())
        with e.when(code.negated(is_first)):
            self._join_groups(group, begun)
        code.synchronize_warp()
        lane = code.wide(code.word("and", code.lane, VIRTUAL_LANES - 1))
        inside = code.remainder(self.number, VIRTUAL_LANES)
        first = code.multiply(group, VIRTUAL_LANES)
        alone = self._scanned(self._awaited(code.add(first, lane), code.compare("slt", lane, inside)))
        before = self._kept(begun)
        joined = self._chosen(is_first, alone, self._merged(before, alone))
        with e.when(code.word("icmp eq", code.lane, 0)):
            self._put(self.start, 0, before)
        code.synchronize_warp()
        with e.when(code.compare("eq", code.add(code.wide(code.lane), 1), inside)):
            self._put(self.start, 0, joined)

    def _join_groups(self, group: str, begun: Sequence[str]) -> None:
        """What all groups before a group make together, which is not the first one."""
        code, e = self.code, self.e
        last, known = code.subtract(group, 1), e.slot("i64")
        nearest = self._nearest(last)
        e.store("i64", nearest, known)
        with e.when(code.compare("sge", nearest, 0)):
            self._keep(begun, self._heard(JOINED, code.add(self.first_group, nearest)))
        waiting = e.slot("i1")
        e.store("i1", code.compare("slt", nearest, last), waiting)
        half, lane = code.word("lshr", code.lane, 4), code.word("and", code.lane, VIRTUAL_LANES - 1)
        with e.repeat_while(waiting):
            now = e.load("i64", known)
            mine = code.add(code.add(now, 1), code.wide(half))
            number = code.add(code.multiply(mine, VIRTUAL_LANES), code.wide(lane))
            alone = self._scanned(self._awaited(number, code.compare("sle", mine, last)))
            with e.when(code.word("icmp eq", lane, VIRTUAL_LANES - 1)):
                self._put(self.of_halves, half, alone)
            code.synchronize_warp()
            totals = [self._taken(self.of_halves, which) for which in (0, 1)]
            code.synchronize_warp()
            for which, total in enumerate(totals):
                before = self._kept(begun)
                joined = self._merged(before, total)
                if not which:
                    joined = self._chosen(code.compare("slt", now, 0), total, joined)
                exists = code.compare("sle", code.add(now, 1 + which), last)
                self._keep(begun, self._chosen(exists, joined, before))
            following = code.add(now, 2)
            e.store("i64", following, known)
            e.store("i1", code.compare("slt", following, last), waiting)
        is_new = code.compare("slt", nearest, last)
        is_first = code.compare("eq", code.remainder(self.number, VIRTUAL_LANES), 0)
        tells = e.assign(f"and i1 {is_new}, {is_first}")
        with e.when(e.assign(f"and i1 {tells}, {code.word('icmp eq', code.lane, 0)}")):
            self._tell(JOINED_TOLD, JOINED, code.add(self.first_group, last), self._kept(begun))

    def _nearest(self, last: str) -> str:
        """The last group up to ``last`` of which it was told what there is up to it; -1 if all groups are near."""
        code, e = self.code, self.e
        mine = code.subtract(last, code.wide(code.lane))
        found, waiting = e.slot("i32"), e.slot("i1")
        e.store("i32", "0", found)
        e.store("i1", "true", waiting)
        with e.repeat_while(waiting):
            near = code.larger(mine, "0")
            is_told = self._is_told(JOINED_TOLD, code.add(self.first_group, near))
            votes = code.voted(e.assign(f"or i1 {is_told}, {code.compare('slt', mine, 0)}"))
            e.store("i32", votes, found)
            e.store("i1", code.word("icmp eq", votes, 0), waiting)
        nearest = code.subtract(last, code.wide(code.lowest(e.load("i32", found))))
        return code.larger(nearest, "-1")

    # The result

    def _write(self, alone: Sequence[Parts]) -> None:
        """Join each vector with what comes before it, and write it."""
        code, e = self.code, self.e
        target = code.moved(code.global_memory(TARGET), code.multiply(self.begin, self.dtype.size))
        start = self._taken(self.start, 0)
        for place, here in zip(self._places(), alone, strict=True):
            vector = code.word("lshr", place, 4)
            before = self._taken(self.before, vector)
            joined = self._chosen(code.word("icmp eq", vector, 0), here, self._merged(before, here))
            if not self.inclusive:
                is_first = code.word("icmp eq", code.word("and", place, VIRTUAL_LANES - 1), 0)
                joined = self._chosen(is_first, before, self._moved(joined, 1))
            value = self.reducer.finish(self.L, self._merged(start, joined), self.dtype)
            with e.when(code.word("icmp ult", place, self.there)):
                store(self.L, value, self.dtype, Location(target, code.wide(self._in_memory(place)), False), None)


def _register(scan: Scan) -> None:
    whole = scan.whole
    whole.routine.on("cuda", scratch=partial(_scratch, whole))(partial(_steps, whole))
    replaces("cuda", scan)(partial(_replaced, whole))


def _replaced(whole: WholeScan, node: Node, machine: Any) -> Sequence[Node] | None:
    """The scan as a whole, if what is scanned is in memory: else the kernels that it is cut into compute that, too. Of
    complex numbers, too few blocks would have room for their registers."""
    if node.inputs[0].primitive is not None or len(whole.reducer.identity(node.dtype)) > 1:
        return None
    found = whole.of(node)
    return None if found is None else [found]


def _is_done_here(scan: Scan) -> bool:
    """Whether it does not matter in which direction a chunk is folded, and joining does not take long."""
    return scan.cheap and scan.operands == 1 and not scan.reducer.ordered and not scan.reducer.sequential


for _scan in [one for one in vars(p).values() if isinstance(one, Scan)]:
    if _is_done_here(_scan):
        _register(_scan)
