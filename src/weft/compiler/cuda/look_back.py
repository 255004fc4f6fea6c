"""Finds the total of all chunks before a chunk of a scanned row, from what other blocks published in memory.

The block of a chunk publishes its total. The block of the last chunk of a vector of sixteen also publishes the total of
that vector, and then the sum of all chunks up to there. The totals of vectors are added in order in any case, so the
result does not depend on the sum from which a block continues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from weft import dtypes
from weft.compiler.codegen.emitter import Emitter
from weft.compiler.codegen.lanes import REGISTER_TYPES, Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cuda.code import BlockCode
from weft.compiler.cuda.threads import WARP
from weft.compiler.kernel import VIRTUAL_LANES

WORD = 8
"""Bytes of a published word. It is 0 until it is published."""

NEVER = 0x7FFC0DEC0DE00001
"""A NaN that arithmetic never gives. Words are combined with it by exclusive or, so that none is 0."""
NAN = 0x7FF8000000000000


class RunningTotal:
    """A total to which elements are joined, in a stack slot that LLVM turns into registers."""

    def __init__(self, e: Emitter, first: Value) -> None:
        self._e, self._first, self._type = e, first, REGISTER_TYPES[first.dtype]
        self._slot = e.slot(self._type)
        self.write(first)

    def read(self) -> Value:
        return Value(self._first.lanes, self._e.load(self._type, self._slot), self._first.dtype)

    def write(self, value: Value) -> None:
        self._e.store(self._type, value.name, self._slot)


class Told(NamedTuple):
    """The memory for words of all rows: for each chunk, for each vector of chunks, and for all chunks up to the end of
    each vector. A row has ``chunks`` chunks."""

    totals: str
    vectors: str
    sums: str
    chunks: str


class LookBack:
    """Writes the look-back, which one warp does. Totals are float64, joined by ``merged``, and begin with
    ``nothing``."""

    def __init__(
        self,
        code: BlockCode,
        L: Lanes,
        merged: Callable[[Value, Value], Value],
        nothing: Callable[[], Value],
        told: Told,
    ) -> None:
        self.code, self.e, self.L, self._told = code, code.e, L, told
        self._merged, self._nothing = merged, nothing

    def before(self, row: str, number: str, total: Value) -> Value:
        """Publish the ``total`` of chunk ``number`` of a row; returns the total of all chunks before it."""
        code, e = self.code, self.e
        totals, alone, sums = self._of_row(row)
        own, vector = code.word("and", code.narrow(number), VIRTUAL_LANES - 1), code.divide(number, VIRTUAL_LANES)
        leads = code.word("icmp eq", code.lane, 0)
        is_last = e.assign(f"and i1 {leads}, {code.word('icmp eq', own, VIRTUAL_LANES - 1)}")
        with e.when(leads):
            self._tell(totals, number, total)
        joined = self._scanned(self._heard_of_vector(totals, vector, own, total))
        whole = self._of_lane(joined, str(VIRTUAL_LANES - 1))
        with e.when(is_last):
            self._tell(alone, vector, whole)
        found, is_first = RunningTotal(e, self._nothing()), code.compare("eq", vector, 0)
        with e.when(code.negated(is_first)):
            found.write(self._sum_before(vector, alone, sums))
        running = found.read()
        with e.when(is_last):
            self._tell(sums, vector, self._chosen(is_first, whole, self._merged(running, whole)))
        within = self._of_lane(joined, code.word("and", code.word("sub", own, 1), VIRTUAL_LANES - 1))
        behind = self._chosen(is_first, within, self._merged(running, within))
        return self._chosen(code.word("icmp eq", own, 0), running, behind)

    def _of_row(self, row: str) -> tuple[str, str, str]:
        """The addresses of the words of a row."""
        code, told = self.code, self._told
        vectors = code.divide(code.add(told.chunks, VIRTUAL_LANES - 1), VIRTUAL_LANES)
        counts = (told.chunks, vectors, vectors)
        first = [code.multiply(row, count) for count in counts]
        totals, alone, sums = (code.moved(memory, n, "i64") for memory, n in zip(told[:3], first, strict=True))
        return totals, alone, sums

    def _heard_of_vector(self, totals: str, vector: str, own: str, total: Value) -> Value:
        """The totals of the chunks of a vector, each in a thread, up to number ``own``, which is this block's. Those of
        later chunks are undefined."""
        code, e, lane = self.code, self.e, self._lane()
        first = code.multiply(vector, VIRTUAL_LANES)
        word, waiting = e.slot("i64"), e.slot("i1")
        e.store("i64", self._encoded(total), word)
        e.store("i1", code.word("icmp ult", lane, own), waiting)
        with e.repeat_while(waiting):
            found = self._word(totals, code.add(first, code.wide(lane)))
            e.store("i64", found, word)
            e.store("i1", code.compare("eq", found, 0), waiting)
        code.synchronize_warp()
        return self._decoded(e.load("i64", word))

    def _scanned(self, total: Value) -> Value:
        """The totals of a vector of chunks, scanned without what comes before the vector."""
        code, lane, distance = self.code, self._lane(), 1
        while distance < VIRTUAL_LANES:
            source = code.word("and", code.word("sub", code.lane, distance), WARP - 1)
            merged = self._merged(self._of_lane(total, source), total)
            total = self._chosen(code.word("icmp uge", lane, distance), merged, total)
            distance *= 2
        return total

    def _sum_before(self, vector: str, alone: str, sums: str) -> Value:
        """The sum of all vectors before ``vector``. Each thread reads the words of another one; their totals are joined
        one by one, beginning with the nearest sum that is published."""
        code, e = self.code, self.e
        here = code.subtract(code.subtract(vector, 1), code.wide(code.lane))
        exists, near = code.compare("sge", here, 0), code.larger(here, 0)
        slots, waiting = [e.slot("i64") for _ in range(2)], e.slot("i1")
        nearest = e.slot("i32")
        e.store("i1", "true", waiting)
        with e.repeat_while(waiting):
            voted = []
            for slot, memory in zip(slots, (sums, alone), strict=True):
                word = e.assign(f"select i1 {exists}, i64 {self._word(memory, near)}, i64 0")
                e.store("i64", word, slot)
                voted.append(code.voted(code.compare("ne", word, 0)))
            lowest = e.call("llvm.cttz.i32", "i32", [("i32", voted[0]), ("i1", "false")])
            e.store("i32", lowest, nearest)
            needed = code.narrow(code.subtract(e.assign(f"shl i64 1, {code.wide(lowest)}"), 1))
            missing = code.word("and", needed, code.word("xor", voted[1], -1))
            unknown = code.word("icmp eq", voted[0], 0)
            e.store("i1", e.assign(f"or i1 {unknown}, {code.word('icmp ne', missing, 0)}"), waiting)
        count = e.load("i32", nearest)
        known, single = (self._decoded(e.load("i64", slot)) for slot in slots)
        running = RunningTotal(e, self._of_lane(known, count))
        with e.loop("1", code.add(code.wide(count), 1)) as number:
            following = self._of_lane(single, code.word("sub", count, code.narrow(number)))
            running.write(self._merged(running.read(), following))
        return running.read()

    def _lane(self) -> str:
        return self.code.word("and", self.code.lane, VIRTUAL_LANES - 1)

    def _chosen(self, condition: str, yes: Value, no: Value) -> Value:
        return self.L.select(Value(self.L, condition, dtypes.bool_), yes, no)

    def _of_lane(self, value: Value, lane: str) -> Value:
        """The number that another thread of the warp has."""
        e, bits = self.e, self.e.assign(f"bitcast double {value.name} to i64")
        low, high = (self.code.narrow(part) for part in (bits, e.assign(f"lshr i64 {bits}, 32")))
        low, high = (self.code.wide(self.code.taken(part, lane)) for part in (low, high))
        whole = e.assign(f"or i64 {low}, {e.assign(f'shl i64 {high}, 32')}")
        return Value(self.L, e.assign(f"bitcast i64 {whole} to double"), value.dtype)

    def _encoded(self, value: Value) -> str:
        e = self.e
        bits = e.assign(f"bitcast double {value.name} to i64")
        is_nan = e.assign(f"fcmp une double {value.name}, {value.name}")
        return e.assign(f"xor i64 {e.assign(f'select i1 {is_nan}, i64 {NAN}, i64 {bits}')}, {NEVER}")

    def _decoded(self, word: str) -> Value:
        bits = self.e.assign(f"xor i64 {word}, {NEVER}")
        return Value(self.L, self.e.assign(f"bitcast i64 {bits} to double"), dtypes.float64)

    def _tell(self, memory: str, index: str, value: Value) -> None:
        position, scope = self.code.moved(memory, index, "i64"), f'syncscope("device") monotonic, align {WORD}'
        self.e.emit(f"store atomic i64 {self._encoded(value)}, ptr {position} {scope}")

    def _word(self, memory: str, index: str) -> str:
        position, scope = self.code.moved(memory, index, "i64"), f'syncscope("device") monotonic, align {WORD}'
        return self.e.assign(f"load atomic i64, ptr {position} {scope}")
