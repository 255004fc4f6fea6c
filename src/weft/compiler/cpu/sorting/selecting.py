"""Writes the elements of rows in groups; the elements of a group keep their order.

1. ``count`` counts the elements of the first and of the second group in each block of a row.
2. ``write`` writes the elements of each block, or their indices, to the positions that the counts of all blocks give.

If a row is parted at one of its elements, the groups are the smaller, equal and larger ones. The steps of sorting have
selected that element before: they wrote one element of each sorted row. In rows of booleans, the first group is what is
true, the last one what is false.

In parted rows of a single block, nothing is counted. ``part`` writes the smaller elements to the beginning of the row
and the larger ones behind the index of the selected element. If several elements equal the selected one, it then moves
the larger ones further towards the end. At last it writes the equal ones between them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce

from weft import dtypes
from weft.compiler.codegen import keys, loading
from weft.compiler.codegen.keys import WordForm
from weft.compiler.codegen.lanes import Lanes
from weft.compiler.codegen.values import Value
from weft.compiler.cpu.code import STEP, Code, EmittedFunction, module_of, read, write
from weft.compiler.cpu.sorting import rows
from weft.compiler.cpu.sorting.rows import lane_count
from weft.compiler.cpu.sorting.vectors import Vectors, is_fast, vector_bytes
from weft.primitives.sort_cuts import PARTED_BLOCK

# The positions of the numbers of a step: slot and offset of input, result, counts and, if any, selected elements, and
# those below.
SOURCE, TARGET, COUNTS, SELECTED = 0, 2, 4, 8
EXTENT, BLOCKS, KTH = 6, 7, 10
# The positions of the counts in the record of a block.
FIRST, SECOND, RECORD = 0, 1, 2
AT_ONCE = 4
"""At least so many vectors are written without looking whether each fits; fewer take less time with looking."""

Groups = tuple[Value, Value, Value]
"""For each of the three groups, whether the element of a lane is in it."""


@cache
def parted(form: WordForm) -> list[int]:
    """The steps ``count`` and ``write`` for rows that are parted at selected elements."""
    return _addresses(_PartedBlock, form, f"parted_{form.name}")


@cache
def parted_whole(form: WordForm) -> list[int]:
    """The step ``part`` for rows of one block."""
    name = f"part_{form.name}"

    def generate() -> str:
        functions = [_part(form, name), *([] if _repeats(form) else [_write_equal(form)])]
        return module_of(functions)

    return [loading.load(name, generate, (name,))[name]]


@cache
def marked() -> list[int]:
    """The steps ``count`` and ``write`` for rows of booleans."""
    return _addresses(_MarkedBlock, WordForm(dtypes.bool_, indices=True), "marked")


def _addresses(kind: type[_RowBlock], form: WordForm, name: str) -> list[int]:
    names = f"count_{name}", f"write_{name}"

    def generate() -> str:
        functions = [_count(kind, form, names[0]), _write(kind, form, names[1])]
        return module_of(functions)

    return list(loading.load(name, generate, names, title=names[-1]).values())


class _RowBlock:
    """A block of elements of a row."""

    def __init__(self, form: WordForm, code: Code, unit: str) -> None:
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
    """Whether all elements of the second group have the bits of the selected one."""

    def groups(self, L: Lanes, raw: Value) -> Groups:
        """Which elements are in each group."""
        raise NotImplementedError


class _PartedBlock(_RowBlock):
    def __init__(self, form: WordForm, code: Code, unit: str) -> None:
        super().__init__(form, code, unit)
        self.selected = read(code.scalar, form.key, code.memory(SELECTED), self.row)
        self.repeats = _repeats(form)

    def groups(self, L: Lanes, raw: Value) -> Groups:
        return _groups(self.form, L, raw, self.selected)


class _MarkedBlock(_RowBlock):
    def groups(self, L: Lanes, raw: Value) -> Groups:
        return L.not_equal(raw, 0), L.constant(0, dtypes.bool_), L.equal(raw, 0)


def _repeats(form: WordForm) -> bool:
    """Whether results for equal elements have equal bits."""
    return not (form.indices or form.dtype.is_floating or form.dtype.is_complex)


def _groups(form: WordForm, L: Lanes, raw: Value, selected: Value) -> Groups:
    """Which elements are smaller than the selected one, which equal it, and which are larger.

    Numbers are compared as such, where there is an instruction for it. NaN equals NaN and is larger than all numbers.
    """
    dtype = form.dtype
    if not (dtype.is_integer or dtype in (dtypes.float32, dtypes.float64)):
        key, limit = keys.equal(L, raw, dtype), L.splat(keys.equal(selected.lanes, selected, dtype))
        return key < limit, L.equal(key, limit), key > limit
    if dtype.is_integer:
        number, limit = Value(L, raw.name, dtype), L.splat(Value(selected.lanes, selected.name, dtype))
        return number < limit, L.equal(number, limit), number > limit
    number, limit = L.bitcast(raw, dtype), L.splat(selected.lanes.bitcast(selected, dtype))
    is_nan = L.is_nan(limit)
    smaller = (number < limit) | (is_nan & ~L.is_nan(number))
    larger = ~((number <= limit) | is_nan)
    return smaller, ~(smaller | larger), larger


def _count(kind: type[_RowBlock], form: WordForm, name: str) -> EmittedFunction:
    code = Code()
    e = code.e
    slots = [e.slot("i64") for _ in (FIRST, SECOND)]
    with e.loop("%begin", "%end") as unit:
        block = kind(form, code, unit)
        for slot in slots:
            code.keep("0", slot)

        def count(L: Lanes, start: str, mask: str | None, block: _RowBlock = block) -> None:
            found = block.groups(L, read(L, form.key, block.source, start, mask))
            for slot, lanes in zip(slots, found[:RECORD], strict=True):
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


def _write(kind: type[_RowBlock], form: WordForm, name: str) -> EmittedFunction:
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


def _result(form: WordForm, code: Code, L: Lanes, raw: Value, index: str) -> Value:
    """The results for elements from ``index`` of a row on: the elements or their indices."""
    if not form.indices:
        return raw
    return L.convert(Value(L, code.counting(L, index).name, dtypes.uint64), dtypes.uint32)


def _write_lanes(block: _RowBlock, ends: list[str]) -> None:
    code, e, form = block.code, block.code.e, block.form
    v = Vectors(code, form.result.size)
    counts = [code.integer(block.count_of(block.number, group)) for group in (FIRST, SECOND)]
    counts.append(code.subtract(code.subtract(block.count, counts[0]), counts[1]))
    stops = [code.add(code.integer(end), count) for end, count in zip(ends, counts, strict=True)]

    def write_vector(start: str, inside: Value | None, fits: bool) -> None:
        raw = read(v.L, form.key, block.source, start, None if inside is None else str(inside.name))
        result = _result(form, code, v.L, raw, code.add(block.first, start))
        groups = [group if inside is None else group & inside for group in block.groups(v.L, raw)]
        for group in (0, 2):
            _put(v, result, groups[group], block.target, ends[group], None if fits else stops[group])
        if not block.repeats:
            with e.when(v.L.any_lane(groups[1])):  # in most vectors there are none
                _put(v, result, groups[1], block.target, ends[1], stops[1])

    _each_vector(v, block.count, ends[::2], stops[::2], write_vector)
    if block.repeats:
        _repeat(block, code.integer(ends[1]), stops[1])


def _each_vector(
    v: Vectors, count: str, ends: list[str], stops: list[str], body: Callable[[str, Value | None, bool], None]
) -> None:
    """Call ``body(start, inside, fits)`` for each vector of the elements, as `Vectors.each` does.

    ``fits`` says that a whole vector fits between each of ``ends`` and its ``stop``, wherever elements of this vector
    go. So as many elements are read without looking again as the group with the least room could hold.
    """
    code, e = v.code, v.e
    done, has_room = e.slot("i64"), e.slot("i1")
    code.keep("0", done)
    e.store("i1", "true", has_room)
    with e.repeat_while(has_room):
        start = code.integer(done)
        rooms = [code.subtract(stop, code.integer(end)) for end, stop in zip(ends, stops, strict=True)]
        room = reduce(code.smaller, rooms, code.subtract(count, start))
        behind = code.add(start, e.assign(f"and i64 {room}, {-AT_ONCE * v.width}"))
        with e.loop(start, behind, v.width) as index:
            body(index, None, True)
        code.keep(behind, done)
        e.store("i1", code.compare("sgt", behind, start), has_room)
    v.each(count, lambda start, inside: body(start, inside, False), code.integer(done))


def _put(v: Vectors, result: Value, lanes: Value, target: str, end: str, stop: str | None) -> None:
    """Store the lanes of a group, and move its ``end``.

    A whole vector takes less time to store than some of its lanes, so it is stored where it fits before ``stop``, which
    is None if it fits in any case: elements after the group's end so far are overwritten later.
    """
    code, e = v.code, v.e
    index, found = code.integer(end), lane_count(code, v.L, lanes)
    if stop is None:
        v.store(v.together(result, lanes), target, index)
    else:
        fits = code.compare("sle", code.add(index, v.width), stop)
        with e.when(fits):
            v.store(v.together(result, lanes), target, index)
        with e.when(e.assign(f"and i1 {code.negated(fits)}, {code.compare('ne', found, 0)}")):
            v.store(v.together(result, lanes), target, index, str(v.below(found).name))
    code.keep(code.add(index, found), end)


def _repeat(block: _RowBlock, first: str, stop: str) -> None:
    """Write the selected element to the positions from ``first`` up to, but without, ``stop``."""
    code = block.code
    target = code.moved(block.target, code.multiply(first, block.form.result.size))

    def repeat(L: Lanes, start: str, mask: str | None) -> None:
        write(L, L.splat(block.selected), target, start, mask)

    rows.vectors(code, code.subtract(stop, first), repeat)


def _write_each(block: _RowBlock, ends: list[str]) -> None:
    code, e, L = block.code, block.code.e, block.code.scalar
    with e.loop("0", block.count) as start:
        raw = read(L, block.form.key, block.source, start)
        groups = block.groups(L, raw)
        indices = [code.integer(end) for end in ends]
        index = code.either(str(groups[1].name), indices[1], indices[2])
        index = code.either(str(groups[0].name), indices[0], index)
        write(L, _result(block.form, code, L, raw, code.add(block.first, start)), block.target, index)
        for end, before, lane in zip(ends, indices, groups, strict=True):
            code.keep(code.add(before, lane_count(code, L, lane)), end)


def _part(form: WordForm, name: str) -> EmittedFunction:
    """Write rows of one block.

    The selected element is at index ``kth`` of the sorted row, so at most ``kth`` elements are smaller: they fit before
    that index, and the larger ones behind it.
    """
    code = Code()
    e = code.e
    ends = [e.slot("i64") for _ in range(2)]
    write_sides = _write_sides_in_lanes if vector_bytes(form.result.size) else _write_sides_each
    behind = code.add(code.number(KTH), 1)
    with e.loop("%begin", "%end") as unit:
        block = _PartedBlock(form, code, unit)
        for value, end in zip(("0", behind), ends, strict=True):
            code.keep(value, end)
        write_sides(block, ends, [behind, block.count])
        first, last = code.integer(ends[0]), code.subtract(code.integer(ends[1]), behind)
        stop = code.subtract(block.count, last)
        with e.when(code.compare("ne", stop, behind)):
            size = form.result.size
            source, target = (code.moved(block.target, code.multiply(index, size)) for index in (behind, stop))
            e.declarations["memmove"] = "declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)"
            e.emit(
                f"call void @llvm.memmove.p0.p0.i64(ptr {target}, ptr {source}, i64 {code.multiply(last, size)}, "
                "i1 false)"
            )
        if block.repeats:
            _repeat(block, first, stop)
        else:
            selected = code.moved(code.memory(SELECTED), code.multiply(block.row, form.key.size))
            e.emit(
                f"call void @write_equal(ptr {block.source}, i64 {block.count}, ptr {selected}, ptr {block.target}, "
                f"i64 {first}, i64 {stop})"
            )
    return code.finished(name, STEP, "")


def _write_sides_in_lanes(block: _PartedBlock, ends: list[str], stops: list[str]) -> None:
    """Write the smaller elements to the first of ``ends``, the larger ones to the second one, and move both."""
    v = Vectors(block.code, block.form.result.size)

    def write_vector(start: str, inside: Value | None, fits: bool) -> None:
        raw = read(v.L, block.form.key, block.source, start, None if inside is None else str(inside.name))
        result = _result(block.form, block.code, v.L, raw, start)
        for side, end, stop in zip(block.groups(v.L, raw)[::2], ends, stops, strict=True):
            _put(v, result, side if inside is None else side & inside, block.target, end, None if fits else stop)

    _each_vector(v, block.count, ends, stops, write_vector)


def _write_sides_each(block: _PartedBlock, ends: list[str], stops: list[str]) -> None:
    """As `_write_sides_in_lanes`. An equal element is written where the next smaller one belongs, which overwrites it;
    if there is none, an equal element belongs there."""
    code, e, L = block.code, block.code.e, block.code.scalar
    with e.loop("0", block.count) as start:
        raw = read(L, block.form.key, block.source, start)
        smaller, _, larger = block.groups(L, raw)
        indices = [code.integer(end) for end in ends]
        index = code.either(str(larger.name), indices[1], indices[0])
        write(L, _result(block.form, code, L, raw, start), block.target, index)
        for end, before, side in zip(ends, indices, (smaller, larger), strict=True):
            code.keep(code.add(before, lane_count(code, L, side)), end)


def _write_equal(form: WordForm) -> EmittedFunction:
    """Write the results of elements that equal the one at ``%selected`` to the positions from ``%first`` to ``%stop``,
    which is how many there are."""
    code = Code()
    e = code.e
    end = e.slot("i64")
    code.keep("%first", end)
    selected = read(code.scalar, form.key, "%selected")

    def equal(L: Lanes, raw: Value) -> Value:
        return _groups(form, L, raw, selected)[SECOND]

    def leave_if_done() -> None:
        with e.when(code.compare("eq", code.integer(end), "%stop")):
            e.leave()

    if vector_bytes(form.result.size):
        v = Vectors(code, form.result.size)

        def write_vector(start: str, inside: Value | None) -> None:
            raw = read(v.L, form.key, "%from", start, None if inside is None else str(inside.name))
            lanes = equal(v.L, raw) if inside is None else equal(v.L, raw) & inside
            with e.when(v.L.any_lane(lanes)):
                _put(v, _result(form, code, v.L, raw, start), lanes, "%to", end, "%stop")
                leave_if_done()

        v.each("%count", write_vector)
    else:

        def write_each(L: Lanes, start: str, mask: str | None) -> None:
            with (
                e.when(L.any_lane(equal(L, read(L, form.key, "%from", start, mask)))),
                e.loop(start, code.smaller(code.add(start, L.width), "%count")) as index,
            ):
                raw = read(code.scalar, form.key, "%from", index)
                with e.when(str(equal(code.scalar, raw).name)):
                    before = code.integer(end)
                    write(code.scalar, _result(form, code, code.scalar, raw, index), "%to", before)
                    code.keep(code.add(before, 1), end)
                    leave_if_done()

        rows.vectors(code, "%count", write_each)
    return code.finished("write_equal", "ptr %from, i64 %count, ptr %selected, ptr %to, i64 %first, i64 %stop")
