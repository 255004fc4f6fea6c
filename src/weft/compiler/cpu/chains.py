"""The step of a chain: it calls the functions of other steps, all of them for one turn, then for the next.

The numbers of those steps follow its own. They read a table on the stack, which is filled for each turn, because
addresses in scratch memory differ from turn to turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from weft.compiler.codegen import loading
from weft.compiler.codegen.emitter import Emitter, module
from weft.compiler.codegen.loading import CachedCode
from weft.compiler.cpu.code import STEP, Integers
from weft.compiler.planning.chains import MOST_ENTRIES
from weft.compiler.target import ChainEntry
from weft.runtime.executor import thread_count
from weft.runtime.steps import Step

UNITS_PER_THREAD = 2
"""Threads end at different times: one that is done takes a unit of another one."""
ENOUGH_TURNS = 4
"""If threads have this many turns each, it matters little that some have one more."""
BUSY = 7, 8
"""With fewer turns, at least this part of the threads, as a ratio, must be busy until the last ones end."""

# The first numbers of a step. Then come the entries, for each step its code, its units per turn and the position of its
# numbers, and those numbers.
TURNS, UNITS, ENTRIES, STEPS, HEAD = range(5)
ENTRY_FIELDS, CHAINED_FIELDS = 4, 3


class ChainAddress(int):
    """The address of the ``function`` of a chain. It keeps the code of the steps alive, and memory that this refers
    to."""

    function: int
    codes: list[object]

    @property
    def is_alone(self) -> bool:
        """Whether the code of the steps refers to no memory that it would have to keep alive."""
        return all(type(code) is CachedCode for code in self.codes)


def units_of(turns: int) -> int:
    """How many units ``turns`` turns are divided into: at most `UNITS_PER_THREAD` for each thread; 0 if many threads
    would be idle."""
    threads = thread_count()
    part, whole = BUSY
    if turns < ENOUGH_TURNS * threads and whole * turns < part * threads * -(-turns // threads):
        return 0
    return 1 if threads == 1 else min(turns, UNITS_PER_THREAD * threads)


def step(turns: int, units: int, entries: Sequence[ChainEntry], steps: Sequence[Step]) -> Step:
    """The step of a chain."""
    numbers = [turns, units, len(entries), len(steps), *[field for entry in entries for field in entry]]
    position = len(numbers) + CHAINED_FIELDS * len(steps)
    for one in steps:
        numbers += [one.code, one.units // turns, position]
        position += len(one.numbers)
    numbers += [number for one in steps for number in one.numbers]
    grains = sum([-(-one.units // one.grain) for one in steps])
    code = ChainAddress(_address())
    code.function = _address()
    code.codes = [one.code for one in steps]
    return Step(code, numbers, units, max(1, -(-units // grains)))


@cache
def _address() -> int:
    return loading.load("chain of steps", lambda: _generate("chain"), ("chain",))["chain"]


def _generate(name: str) -> str:
    """The LLVM IR of the step of any chain."""
    w = Integers(Emitter())
    turns, units = w.number(TURNS), w.number(UNITS)
    table = w.e.slot(f"[{MOST_ENTRIES} x i64]")
    with w.e.loop("%begin", "%end") as unit:
        first = w.divide(w.multiply(unit, turns), units)
        last = w.divide(w.multiply(w.add(unit, 1), turns), units)
        with w.e.loop(first, last) as turn:
            _make_table(w, table, unit, turn)
            _run_steps(w, table, turn)
    return module([w.e], [w.e.function(name, STEP)])


def _make_table(w: Integers, table: str, unit: str, turn: str) -> None:
    with w.e.loop("0", w.number(ENTRIES)) as entry:
        position = w.add(w.multiply(entry, ENTRY_FIELDS), HEAD)
        slot, offset, by_unit, by_turn = [w.number(w.add(position, field)) for field in range(ENTRY_FIELDS)]
        before = w.add(w.multiply(unit, by_unit), w.multiply(turn, by_turn))
        value = w.add(w.e.load("i64", w.moved("%table", slot, "i64")), w.add(offset, before))
        w.e.store("i64", value, w.moved(table, entry, "i64"))


def _run_steps(w: Integers, table: str, turn: str) -> None:
    behind = w.add(w.multiply(w.number(ENTRIES), ENTRY_FIELDS), HEAD)
    with w.e.loop("0", w.number(STEPS)) as step:
        position = w.add(behind, w.multiply(step, CHAINED_FIELDS))
        code, units, start = [w.number(w.add(position, field)) for field in range(CHAINED_FIELDS)]
        begin = w.multiply(turn, units)
        numbers = w.moved("%numbers", start, "i64")
        address = w.e.assign(f"inttoptr i64 {code} to ptr")
        w.e.emit(f"call void {address}(ptr {numbers}, ptr {table}, i64 {begin}, i64 {w.add(begin, units)})")
