"""Writes the elements of rows in groups; the elements of a group keep their order.

1. ``count`` counts the elements of the first and of the second group in each block of a row.
2. ``write`` writes the elements of each block, or their indices, to the positions that the counts of all blocks give.

If a row is parted at one of its elements, the groups are the smaller, equal and larger ones. The steps of sorting have
selected that element before: they wrote one element of each sorted row. In rows of booleans, the first group is what is
true, the last one what is false.
"""

from __future__ import annotations

from functools import cache

from weft import dtypes
from weft.compiler.codegen import keys, loading
from weft.compiler.codegen.emitter import module
from weft.compiler.codegen.keys import Form
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Code, EmittedFunction, read, write
from weft.compiler.cpu.sorting import rows
from weft.compiler.cpu.sorting.rows import lane_count
from weft.compiler.cpu.sorting.vectors import Vectors, is_fast, vector_bytes
from weft.primitives.sort_cuts import PARTED_BLOCK

# The positions of the numbers of a step: slot and offset of input, result, counts and, if any, selected elements, and
# those below.
SOURCE, TARGET, COUNTS, SELECTED = 0, 2, 4, 8
EXTENT, BLOCKS = 6, 7
# The positions of the counts in the record of a block.
FIRST, SECOND, RECORD = 0, 1, 2


@cache
def parted(form: Form) -> list[int]:
    """The steps ``count`` and ``write`` for rows that are parted at selected elements."""
    return _addresses(_PartedBlock, form, f"parted_{form.name}")


@cache
def marked() -> list[int]:
    """The steps ``count`` and ``write`` for rows of booleans."""
    return _addresses(_MarkedBlock, Form(dtypes.bool_, indices=True), "marked")


def _addresses(kind: type[_RowBlock], form: Form, name: str) -> list[int]:
    names = f"count_{name}", f"write_{name}"

    def generate() -> str:
        functions = [_count(kind, form, names[0]), _write(kind, form, names[1])]
        return module([emitter for emitter, _ in functions], [text for _, text in functions])

    return list(loading.load(name, generate, names, title=names[-1]).values())


class _RowBlock:
    """A block of elements of a row."""

    def __init__(self, form: Form, code: Code, unit: str) -> None:
        self.form, self.code = form, code
        extent, self.blocks = code.number(EXTENT), code.number(BLOCKS)
        row, self.number = code.divide(unit, self.blocks), code.remainder(unit, self.blocks)
        self.first = code.multiply(self.number, PARTED_BLOCK)
        self.count = code.smaller(code.subtract(extent, self.first), PARTED_BLOCK)
        before = code.multiply(row, extent)
        self.source = code.moved(code.memory(SOURCE), code.multiply(code.add(before, self.first), form.key.size))
        self.target = code.moved(code.memory(TARGET), code.multiply(before, form.result.size))
        self.row = row
        self.counts = code.moved(code.memory(COUNTS), code.multiply(code.multiply(row, self.blocks), RECORD), "i64")

    def count_of(self, block: str, position: int) -> str:
        """The address of a count of a block of the row."""
        code = self.code
        return code.moved(self.counts, code.add(code.multiply(block, RECORD), position), "i64")

    selected: Value
    """The element that separates the groups."""
    repeats = False
    """Whether all elements of the second group are the selected one."""

    def groups(self, L: Lanes, raw: Value) -> tuple[Value, Value]:
        """Which elements are in the first group, and which in the second one."""
        raise NotImplementedError


class _PartedBlock(_RowBlock):
    def __init__(self, form: Form, code: Code, unit: str) -> None:
        super().__init__(form, code, unit)
        self.selected = read(code.scalar, form.key, code.memory(SELECTED), self.row)
        self.repeats = not (form.indices or form.dtype.is_floating or form.dtype.is_complex)

    def groups(self, L: Lanes, raw: Value) -> tuple[Value, Value]:
        key = keys.equal(L, raw, self.form.dtype)
        selected = L.splat(keys.equal(self.code.scalar, self.selected, self.form.dtype))
        return key < selected, L.equal(key, selected)


class _MarkedBlock(_RowBlock):
    def groups(self, L: Lanes, raw: Value) -> tuple[Value, Value]:
        return L.not_equal(raw, 0), L.constant(0, dtypes.bool_)


def _count(kind: type[_RowBlock], form: Form, name: str) -> EmittedFunction:
    code = Code()
    e = code.e
    slots = [e.slot("i64") for _ in (FIRST, SECOND)]
    with e.loop("%begin", "%end") as unit:
        block = kind(form, code, unit)
        for slot in slots:
            code.keep("0", slot)

        def count(L: Lanes, start: str, mask: str | None, block: _RowBlock = block) -> None:
            found = block.groups(L, read(L, form.key, block.source, start, mask))
            for slot, lanes in zip(slots, found, strict=True):
                inside = lanes if mask is None else lanes & Value(L, mask, dtypes.bool_)
                code.keep(code.add(code.integer(slot), lane_count(code, L, inside)), slot)

        if is_fast(form.key.size):
            v = Vectors(code, form.key.size)

            def count_vector(start: str, inside: Value | None, v: Vectors = v) -> None:
                count(v.L, start, None if inside is None else str(inside.name))

            v.each(block.count, count_vector)
        else:
            rows.vectors(code, block.count, count)
        for index, slot in enumerate(slots):
            code.keep(code.integer(slot), block.count_of(block.number, index))
    return code.finished(name, STEP, "")


def _write(kind: type[_RowBlock], form: Form, name: str) -> EmittedFunction:
    code = Code()
    e = code.e
    ends = [e.slot("i64") for _ in range(3)]
    write_block = _write_lanes if vector_bytes(form.result.size) else _write_each
    with e.loop("%begin", "%end") as unit:
        block = kind(form, code, unit)
        _find_starts(block, ends)
        write_block(block, ends)
    return code.finished(name, STEP, "")


def _find_starts(block: _RowBlock, ends: list[str]) -> None:
    """Set ``ends`` to the positions in the row at which the groups of a block begin."""
    code, e = block.code, block.code.e
    before = [e.slot("i64") for _ in (FIRST, SECOND)]
    total = [e.slot("i64") for _ in (FIRST, SECOND)]
    for slot in (*before, *total):
        code.keep("0", slot)
    for slots, stop in ((before, block.number), (total, block.blocks)):
        with e.loop("0", stop) as other:
            for index, slot in enumerate(slots):
                code.keep(code.add(code.integer(slot), code.integer(block.count_of(other, index))), slot)
    (first_before, second_before), (first, second) = (
        [code.integer(slot) for slot in slots] for slots in (before, total)
    )
    last_before = code.subtract(code.subtract(block.first, first_before), second_before)
    code.keep(first_before, ends[0])
    code.keep(code.add(first, second_before), ends[1])
    code.keep(code.add(code.add(first, second), last_before), ends[2])


def _result(block: _RowBlock, L: Lanes, raw: Value, start: str) -> Value:
    """The results for elements: the elements or their indices."""
    if not block.form.indices:
        return raw
    index = block.code.counting(L, block.code.add(block.first, start))
    return L.convert(Value(L, index.name, dtypes.uint64), dtypes.uint32)


def _write_lanes(block: _RowBlock, ends: list[str]) -> None:
    code, e, form = block.code, block.code.e, block.form
    v = Vectors(code, form.result.size)
    counts = [code.integer(block.count_of(block.number, group)) for group in (FIRST, SECOND)]
    counts.append(code.subtract(code.subtract(block.count, counts[0]), counts[1]))
    stops = [code.add(code.integer(end), count) for end, count in zip(ends, counts, strict=True)]

    def put(result: Value, lanes: Value, group: int) -> None:
        """Store the lanes of a group. A whole vector takes less time to store than some of its lanes, so it is stored
        where it fits: elements after the group's end so far are overwritten later."""
        index, found = code.integer(ends[group]), lane_count(code, v.L, lanes)
        moved = v.together(result, lanes)
        fits = code.compare("sle", code.add(index, v.width), stops[group])
        with e.when(fits):
            v.store(moved, block.target, index)
        with e.when(code.negated(fits)):
            v.store(moved, block.target, index, str(v.below(found).name))
        code.keep(code.add(index, found), ends[group])

    def write_vector(start: str, inside: Value | None) -> None:
        raw = read(v.L, form.key, block.source, start, None if inside is None else str(inside.name))
        result = _result(block, v.L, raw, start)
        first, second = block.groups(v.L, raw)
        groups = [group if inside is None else group & inside for group in (first, second, ~(first | second))]
        put(result, groups[0], 0)
        put(result, groups[2], 2)
        if not block.repeats:
            with e.when(v.L.any_lane(groups[1])):  # in most vectors there are none
                put(result, groups[1], 1)

    v.each(block.count, write_vector)
    if block.repeats:
        with e.loop(code.integer(ends[1]), stops[1], v.width) as index:
            value = v.L.splat(block.selected)
            v.store(value, block.target, index, str(v.below(code.subtract(stops[1], index)).name))


def _write_each(block: _RowBlock, ends: list[str]) -> None:
    code, e, L = block.code, block.code.e, block.code.scalar
    with e.loop("0", block.count) as start:
        raw = read(L, block.form.key, block.source, start)
        first, second = block.groups(L, raw)
        chosen = ends[2]
        for group, end in ((second, ends[1]), (first, ends[0])):
            chosen = e.assign(f"select i1 {group.name}, ptr {end}, ptr {chosen}")
        index = code.integer(chosen)
        write(L, _result(block, L, raw, start), block.target, index)
        code.keep(code.add(index, 1), chosen)
