"""Scans of long rows, which read and write each element once.

A block takes a chunk of a row: it folds the chunk, publishes the total in memory, finds the total of all chunks before
it from what other blocks published, and scans the chunk (decoupled look-back: Merrill and Garland 2016). Values are
joined in the order of `weft.primitives.scans`: a chunk is scanned in vectors of sixteen elements, one vector after the
other, and so are the totals of chunks. So bits do not depend on which block comes first.

Chunks, vectors and elements are numbered in the direction of the scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.codegen.lanes import REGISTER_TYPES
from weft.compiler.codegen.math import MathLanes
from weft.compiler.codegen.memory import Location, load, store
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.clearing import cleared
from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.kernels import RoutineCode
from weft.compiler.cuda.look_back import WORD, LookBack, RunningTotal, Told
from weft.compiler.cuda.row_values import register_bytes
from weft.compiler.cuda.threads import Team
from weft.compiler.kernel import CHUNK as FOLDED
from weft.compiler.kernel import VIRTUAL_LANES
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.long_scans import LongScan
from weft.primitives.replacing import replaces
from weft.primitives.routine import RoutineCall, RoutineStep
from weft.primitives.scans import ROW_CHUNK

THREADS = 128

READ_TOGETHER = 16
"""How many elements a thread reads before it stores them to shared memory."""

RESIDENT = 6
"""How many blocks a multiprocessor has room for. Most of the time they wait for totals that are joined one by one."""

LARGEST = 4
"""The most bytes of an element."""

PARTS = ROW_CHUNK // FOLDED
"""How many parts of a chunk are folded separately."""

FOLDED_TOGETHER, JOINED_TOGETHER = 16, 8
"""How many elements, or totals of vectors, a thread reads before it joins them."""

# The positions of the numbers of a step: slot and offset of each memory, and those below.
SOURCE, TARGET, TOTALS, VECTORS, SUMS, COUNTER = range(0, 12, 2)
UNITS, EXTENT, CHUNKS = range(12, 15)


def _is_told(dtype: Dtype, scan: LongScan) -> bool:
    """Whether the total before a chunk is a single float64, and a chunk fits the shared memory of every card."""
    totals = [part for part, _ in scan.scan.reducer.identity(dtype)]
    return dtype.is_floating and dtype.size <= LARGEST and totals == [dtypes.float64]


def _shape(node: Any) -> tuple[int, int, int]:
    """How many rows, chunks of a row, and vectors of chunks there are."""
    rows, extent = prod(node.shape[:-1]), node.shape[-1]
    chunks = -(-extent // ROW_CHUNK)
    return rows, chunks, -(-chunks // VIRTUAL_LANES)


def _scratch(node: Node) -> int:
    rows, chunks, vectors = _shape(node)
    return WORD * (1 + rows * (chunks + 2 * vectors))


def _instead(scan: LongScan, node: Node) -> list[Node] | None:
    found = scan.instead_of(node) if _is_told(node.dtype, scan) else None
    return None if found is None else [found]


@replaces("cuda", p.cumsum)
def _instead_of_cumsum(node: Node, machine: Any) -> Sequence[Node] | None:
    return _instead(p.long_cumsum, node)


@replaces("cuda", p.cumprod)
def _instead_of_cumprod(node: Node, machine: Any) -> Sequence[Node] | None:
    return _instead(p.long_cumprod, node)


@p.long_cumsum.routine.on("cuda", scratch=_scratch)
def _cumsum(call: RoutineCall) -> list[RoutineStep]:
    return _steps(p.long_cumsum, call)


@p.long_cumprod.routine.on("cuda", scratch=_scratch)
def _cumprod(call: RoutineCall) -> list[RoutineStep]:
    return _steps(p.long_cumprod, call)


def _steps(scan: LongScan, call: RoutineCall) -> list[RoutineStep]:
    (x,), (out,) = call.operands, call.results
    rows, chunks, vectors = _shape(x)
    slot, offset = call.scratch
    counts = (1, rows * chunks, rows * vectors, rows * vectors)
    indices = [(slot, offset + WORD * sum(counts[:number])) for number in range(len(counts))]
    counter, totals, of_vectors, sums = indices
    memory = [(x.slot, x.offset), (out.slot, out.offset), totals, of_vectors, sums, counter]
    units = rows * chunks
    numbers = [number for index in memory for number in index] + [units, x.shape[-1], chunks]
    code = scan_code(scan, x.dtype, call.params["reverse"], call.params["inclusive"])
    return [
        cleared((slot, offset), WORD // 4 * sum(counts)),
        RoutineStep(code, numbers, units, 1, prod(x.shape)),
    ]


@cache
def scan_code(scan: LongScan, dtype: Dtype, reverse: bool, inclusive: bool) -> RoutineCode:
    way = f"{'reverse ' * reverse}{'inclusive' if inclusive else 'exclusive'}"
    source = f"{scan.name} of {dtype.name}, {way}, {THREADS} threads for {ROW_CHUNK} elements"
    tile = _ChunkTile(dtype)
    return RoutineCode(
        source,
        lambda name: LongScansWriter(scan, dtype, reverse, inclusive).text(name),
        THREADS,
        scan.scan.name,
        tile.size + WORD * (ROW_CHUNK // VIRTUAL_LANES),
    )


class _ChunkTile:
    """The layout of a chunk in shared memory. A *piece* is as many elements of a vector as a thread reads at once. The
    pieces of a vector are permuted, so that neighbouring threads access different banks."""

    def __init__(self, dtype: Dtype) -> None:
        self.bytes = register_bytes(dtype)
        self.piece = 16 // self.bytes
        self.pieces = VIRTUAL_LANES // self.piece
        self.shift = (8 // self.pieces).bit_length() - 1
        """How many low bits of a vector's number do not affect the permutation: a row of all banks has eight pieces."""
        self.size = ROW_CHUNK * self.bytes


class LongScansWriter:
    """Writes the kernel. A unit is a chunk. Blocks take chunks in order, so some block is at work on all that one waits
    for."""

    def __init__(self, scan: LongScan, dtype: Dtype, reverse: bool, inclusive: bool) -> None:
        self.tile = _ChunkTile(dtype)
        self.code = BlockCode(THREADS, RESIDENT)
        self.e, self.L = self.code.e, MathLanes(self.code.e, 1)
        self.reducer, self.dtype = scan.scan.reducer, dtype
        self.reverse, self.inclusive = reverse, inclusive
        ((self.total, _),) = self.reducer.identity(dtype)
        self.team = Team(self.L, self.L, self.code.wide(self.code.thread))

    def text(self, name: str) -> str:
        code = self.code
        self.elements = code.shared_of_launch()
        self.befores = code.moved(self.elements, self.tile.size)
        """For each vector its total, which is then replaced by the total of all vectors before it."""
        self.parts, self.start = code.shared(WORD * PARTS), code.shared(WORD)
        self.chunks = code.number(CHUNKS)
        totals, vectors, sums = (code.global_memory(position) for position in (TOTALS, VECTORS, SUMS))
        told = Told(totals, vectors, sums, self.chunks)
        self.look_back = LookBack(code, self.L, self._merged, self._nothing, told)
        with code.tickets(code.global_memory(COUNTER), code.number(UNITS)) as unit:
            self._chunk(unit)
        return code.finished(name)

    def _chunk(self, unit: str) -> None:
        code, e = self.code, self.e
        row, number = code.divide(unit, self.chunks), code.remainder(unit, self.chunks)
        index = code.subtract(code.subtract(self.chunks, 1), number) if self.reverse else number
        first, extent = code.multiply(index, ROW_CHUNK), code.number(EXTENT)
        self.there = code.narrow(code.smaller(code.subtract(extent, first), ROW_CHUNK))
        begin = code.add(code.multiply(row, extent), first)
        self._read(begin)
        code.synchronize()
        self._fold_parts()
        self._fold_vectors()
        code.synchronize()
        with e.when(code.word("icmp eq", code.thread, 0)):
            self._join_vectors()
        with e.when(code.word("icmp eq", code.warp, 1)):
            start = self.look_back.before(row, number, self._total_of_parts())
            with e.when(code.word("icmp eq", code.lane, 0)):
                e.store(self._type, start.name, self.start)
        code.synchronize()
        self._scan()
        code.synchronize()
        self._write(begin)

    def _turned(self, index: str) -> str:
        """The position of an element in the direction of the scan, from its index in the chunk, and vice versa.
        Positions after the last element stay unchanged."""
        if not self.reverse:
            return index
        code = self.code
        turned = code.word("sub", code.word("sub", self.there, 1), index)
        return code.chosen(code.word("icmp slt", index, self.there), turned, index)

    def _pointer(self, index: str) -> str:
        vector = self.code.word("lshr", index, VIRTUAL_LANES.bit_length() - 1)
        moved = self.code.word("mul", self._exchanged(vector), self.tile.piece)
        return self.code.at(self.elements, self.code.word("xor", index, moved), REGISTER_TYPES[self.dtype])

    def _exchanged(self, vector: str) -> str:
        """The number that the numbers of a vector's pieces are permuted with, by exclusive or."""
        return self.code.word("and", self.code.word("lshr", vector, self.tile.shift), self.tile.pieces - 1)

    def _items(self) -> Iterator[list[str]]:
        """The indices of the elements that this thread reads and writes, several at a time."""
        code, several = self.code, min(READ_TOGETHER, ROW_CHUNK // THREADS)
        with self.e.loop("0", str(ROW_CHUNK), THREADS * several) as first:
            begin = code.word("add", code.narrow(first), code.thread)
            yield [code.word("add", begin, THREADS * turn) for turn in range(several)]

    def _read(self, begin: str) -> None:
        code, type_ = self.code, REGISTER_TYPES[self.dtype]
        source, last = code.global_memory(SOURCE), code.word("sub", self.there, 1)
        for items in self._items():
            values = []
            for index in items:
                near = code.chosen(code.word("icmp slt", index, self.there), index, last)
                location = Location(source, code.add(begin, code.wide(near)), scattered=False)
                values.append(load(self.L, self.dtype, location, None))
            for index, value in zip(items, values, strict=True):
                self.e.store(type_, value.name, self._pointer(self._turned(index)))

    def _write(self, begin: str) -> None:
        code, type_, target = self.code, REGISTER_TYPES[self.dtype], self.code.global_memory(TARGET)
        for items in self._items():
            values = [self.e.load(type_, self._pointer(self._turned(index))) for index in items]
            for index, name in zip(items, values, strict=True):
                location = Location(target, code.add(begin, code.wide(index)), scattered=False)
                with self.e.when(code.word("icmp slt", index, self.there)):
                    store(self.L, Value(self.L, name, self.dtype), self.dtype, location, None)

    def _vectors(self) -> Iterator[str]:
        """The vectors of this thread, one by one."""
        with self.e.loop(self.code.wide(self.code.thread), str(ROW_CHUNK // VIRTUAL_LANES), THREADS) as vector:
            yield self.code.narrow(vector)

    def _pieces_of(self, vector: str) -> list[str]:
        """Pointers to the pieces of a vector."""
        code, tile = self.code, self.tile
        first, exchanged = code.word("mul", vector, VIRTUAL_LANES), self._exchanged(vector)
        numbers = [code.word("xor", exchanged, number) for number in range(tile.pieces)]
        pointers = [code.word("add", first, code.word("mul", number, tile.piece)) for number in numbers]
        return [code.at(self.elements, pointer, REGISTER_TYPES[self.dtype]) for pointer in pointers]

    def _of_vector(self, pieces: Sequence[str]) -> list[Value]:
        """The elements of a vector, each lifted to a total."""
        type_, values = f"<{self.tile.piece} x {REGISTER_TYPES[self.dtype]}>", []
        for pointer in pieces:
            several = self.e.assign(f"load {type_}, ptr {pointer}, align 16")
            for lane in range(self.tile.piece):
                values.append(self.e.assign(f"extractelement {type_} {several}, i32 {lane}"))
        return [self._lifted(value) for value in values]

    def _put(self, pieces: Sequence[str], values: Sequence[Value]) -> None:
        """Replace the elements of a vector."""
        count, type_ = self.tile.piece, f"<{self.tile.piece} x {REGISTER_TYPES[self.dtype]}>"
        for number, pointer in enumerate(pieces):
            several = "poison"
            for lane, value in enumerate(values[number * count : (number + 1) * count]):
                element = f"{REGISTER_TYPES[self.dtype]} {value.name}, i32 {lane}"
                several = self.e.assign(f"insertelement {type_} {several}, {element}")
            self.e.emit(f"store {type_} {several}, ptr {pointer}, align 16")

    def _lifted(self, name: str) -> Value:
        (found,) = self.reducer.lift(self.L, Value(self.L, name, self.dtype), None)
        return found

    def _merged(self, first: Value, then: Value) -> Value:
        (found,) = self.reducer.merge(self.L, (first,), (then,))
        return found

    def _nothing(self) -> Value:
        ((dtype, value),) = self.reducer.identity(self.dtype)
        return self.L.constant(value, dtype)

    def _chosen(self, condition: str, yes: Value, no: Value) -> Value:
        return self.L.select(Value(self.L, condition, dtypes.bool_), yes, no)

    def _running(self) -> RunningTotal:
        """A running total, at first that of no elements."""
        return RunningTotal(self.e, self._nothing())

    @property
    def _type(self) -> str:
        return REGISTER_TYPES[self.total]

    def _fold_parts(self) -> None:
        """Fold each part of the chunk with a team, and store its total."""
        code, e = self.code, self.e
        with e.when(code.word("icmp ult", code.thread, VIRTUAL_LANES * PARTS)):
            part = code.word("lshr", code.thread, VIRTUAL_LANES.bit_length() - 1)
            begin = code.word("mul", part, FOLDED)
            end = code.word("add", begin, FOLDED)
            end = code.chosen(code.word("icmp slt", end, self.there), end, self.there)
            first = code.word("add", begin, self._lane())
            total = self._running()

            def fold(index: str, count: int) -> None:
                positions = [code.word("add", code.narrow(index), VIRTUAL_LANES * turn) for turn in range(count)]
                pointers = [self._pointer(self._turned(position)) for position in positions]
                for name in [e.load(REGISTER_TYPES[self.dtype], pointer) for pointer in pointers]:
                    total.write(self._merged(total.read(), self._lifted(name)))

            step = VIRTUAL_LANES * FOLDED_TOGETHER
            start, stop = (e.assign(f"sext i32 {number} to i64") for number in (first, end))
            whole = e.assign(f"sdiv i64 {code.subtract(stop, start)}, {step}")
            middle = code.add(start, code.multiply(code.larger(whole, 0), step))
            with e.loop(start, middle, step) as index:
                fold(index, FOLDED_TOGETHER)
            with e.loop(middle, stop, VIRTUAL_LANES) as index:
                fold(index, 1)
            (folded,) = self.team.folded((total.read(),), self.reducer.merge)
            with e.when(self.team.leads):
                e.store(self._type, folded.name, code.at(self.parts, part, self._type))

    def _lane(self) -> str:
        return self.code.word("and", self.code.lane, VIRTUAL_LANES - 1)

    def _total_of_parts(self) -> Value:
        """The total of the chunk: its parts are folded like the elements of a row."""
        code, lane = self.code, self._lane()
        exists = code.word("icmp ult", lane, PARTS)
        pointer = code.at(self.parts, code.chosen(exists, lane, 0), self._type)
        part = Value(self.L, self.e.load(self._type, pointer), self.total)
        own = self._chosen(exists, self._merged(self._nothing(), part), self._nothing())
        (total,) = self.team.folded((own,), self.reducer.merge)
        return total

    def _fold_vectors(self) -> None:
        """Store the total of each vector, joined in the order in which a scan makes its last element."""
        for vector in self._vectors():
            values = self._of_vector(self._pieces_of(vector))
            while len(values) > 1:
                values = [self._merged(*values[number : number + 2]) for number in range(0, len(values), 2)]
            self.e.store(self._type, values[0].name, self.code.at(self.befores, vector, self._type))

    def _join_vectors(self) -> None:
        """Replace the total of each vector by the total of all vectors before it in the chunk."""
        code, e = self.code, self.e
        running = self._running()
        vectors = code.word("lshr", code.word("add", self.there, VIRTUAL_LANES - 1), VIRTUAL_LANES.bit_length() - 1)
        count, following = code.wide(vectors), [e.slot(self._type) for _ in range(JOINED_TOGETHER)]

        def indices(first: str) -> list[str]:
            return [code.moved(self.befores, code.add(first, n), self._type) for n in range(JOINED_TOGETHER)]

        def ask(first: str) -> None:
            """Read totals early: shared memory takes longer to answer than the totals before them take to be joined."""
            for slot, index in zip(following, indices(first), strict=True):
                e.store(self._type, e.load(self._type, index), slot)

        ask("0")
        with e.loop("0", count, JOINED_TOGETHER) as first:
            totals = [Value(self.L, e.load(self._type, slot), self.total) for slot in following]
            ask(code.smaller(code.add(first, JOINED_TOGETHER), ROW_CHUNK // VIRTUAL_LANES - JOINED_TOGETHER))
            for number, (index, total) in enumerate(zip(indices(first), totals, strict=True)):
                before = running.read()
                e.store(self._type, before.name, index)
                joined = self._merged(before, total)
                running.write(joined if number else self._chosen(code.compare("eq", first, 0), total, joined))

    def _scan(self) -> None:
        """Scan each vector, and join it with the totals before it in the chunk and before the chunk."""
        code, e = self.code, self.e
        start = Value(self.L, e.load(self._type, self.start), self.total)
        for vector in self._vectors():
            pieces = self._pieces_of(vector)
            values = self._of_vector(pieces)
            before = Value(self.L, e.load(self._type, code.at(self.befores, vector, self._type)), self.total)
            values = self._within(values)
            is_first = code.word("icmp eq", vector, 0)
            joined = [self._chosen(is_first, value, self._merged(before, value)) for value in values]
            if not self.inclusive:
                joined = [before, *joined[:-1]]
            merged = [(self._merged(start, value),) for value in joined]
            self._put(pieces, [self.reducer.finish(self.L, one, self.dtype) for one in merged])

    def _within(self, values: list[Value]) -> list[Value]:
        """A vector, scanned without what comes before it."""
        distance = 1
        while distance < len(values):
            joined = [self._merged(*pair) for pair in zip(values[:-distance], values[distance:], strict=True)]
            values, distance = values[:distance] + joined, 2 * distance
        return values
