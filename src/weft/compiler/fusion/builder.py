"""Makes one kernel from a group: expressions of loop indices from nodes, then the loop nest around these
expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import weft.primitives as p
from weft import dtypes
from weft.compiler.compared_keys import Lookup
from weft.compiler.index import behind_in
from weft.compiler.kernel import VIRTUAL_LANES, Access, Instruction, Kernel, Launch, Level
from weft.compiler.parameters import ExactParameters
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives import index_code
from weft.primitives.index import ZERO, Term, Terms, shifted, weighted
from weft.runtime.memory import contiguous_strides

from .groups import Chunks
from .reads import Reader

EMPTY: Mapping[int, int] = MappingProxyType({})
NARROW_LANES = VIRTUAL_LANES // 4

InMemory = Callable[[Node], tuple[Any, Sequence[int], int] | None]
_Shown = tuple[Node, Terms, tuple[Any, Sequence[int], int] | None]
"""What a view shows at an index: a node, the index in it, and its operand, strides and offset if it is in memory."""


class Draft:
    """Kernel instructions over loop axis ids, before the axes are ordered.

    ``in_memory(node)`` gives the operand, strides and offset (in elements) of a node that is in memory, or None.
    ``chunks`` says how the reduced axis is cut. ``loops`` gives the extents of the axes, in order, of a group that
    folds and scans nothing. ``lookup`` makes the dictionaries that have indices in their keys. `Indexed.element` is
    given a `Reader` of this draft. If an axis has a ``fixed`` index, it is no loop.
    """

    def __init__(
        self,
        in_memory: InMemory,
        reduced: Sequence[int],
        chunks: Chunks | None = None,
        loops: Mapping[int, int] = EMPTY,
        lookup: Lookup = dict,
    ) -> None:
        self._in_memory = in_memory
        self._reduced = tuple(reduced)
        self.chunks = chunks
        self._loops = loops
        self._lookup = lookup
        self._values = lookup()
        self._fixed: tuple[int, int] | None = None
        self._found, self._expressions = lookup(), lookup()
        self.instructions: list[Instruction] = []
        self.terms: list[Term | None] = []
        self.depends: list[frozenset[int]] = []

    def fix(self, axis: int, index: int) -> None:
        """From now on, write what is done at an index of an axis. What is the same at other indices is not written
        again."""
        self._fixed = axis, index
        self._found, self._expressions = self._lookup(), self._lookup()

    def _here(self, term: Term) -> Term:
        """A term in which the axis with a fixed index is replaced by that index."""
        if self._fixed is None:
            return term
        fixed, index = self._fixed
        start = term.start + sum([step * index for axis, step in term.axes if axis == fixed])
        return Term(start, tuple([step for step in term.axes if step[0] != fixed]), term.computed)

    def _emit(self, instruction: Instruction, term: Term | None = None, axes: Sequence[int] = ()) -> int:
        depends = set(axes)
        needed = list(instruction.inputs)
        if instruction.where is not None:
            needed.append(instruction.where)
        if term is not None:
            depends.update(axis for axis, _ in term.axes)
            needed.extend(value for value, _ in term.computed)
        stage = 0
        for value in needed:
            source = self.instructions[value]
            after = source.operation == "reduce"
            depends |= self.depends[value]
            stage = max(stage, source.stage + after)
        if instruction.operation == "reduce":
            depends -= set(self._reduced)
        instruction.stage = stage
        self.instructions.append(instruction)
        self.terms.append(term)
        self.depends.append(frozenset(depends))
        return len(self.instructions) - 1

    def _once(self, key: Any, make: Callable[[], int]) -> int:
        value = self._values.get(key)
        if value is None:
            value = self._values[key] = make()
        return value

    def value(self, node: Node, terms: Terms, where: int | None = None) -> int:
        """The value of ``node`` at an index. Formulas may be thousands of operations deep, so operations whose inputs
        are not there yet wait on a list instead of Python's call stack."""
        found = self._found
        waiting: list[tuple[tuple[Node, Terms, int | None], _Shown | None]] = [((node, terms, where), None)]
        while waiting:
            wanted, shown = waiting[-1]
            if wanted not in found:
                if shown is None:
                    source, at, location = shown = self._behind_views(wanted[0], wanted[1])
                    inputs = self._inputs(source, at) if location is None else []
                    missing = [key for x, index in inputs if (key := (x, index, where)) not in found]
                    if missing:
                        waiting[-1] = wanted, shown
                        waiting.extend([(key, None) for key in reversed(missing)])
                        continue
                found[wanted] = self._made(*shown, where)
            waiting.pop()
        return found[node, terms, where]

    def _behind_views(self, node: Node, terms: Terms) -> _Shown:
        """What a view shows at an index: something in memory, or something to compute."""
        while True:
            location = self._in_memory(node)
            step = None if location is not None else behind_in(self._loops, node, terms)
            if step is None:
                return node, terms, location
            node, terms = step

    def _inputs(self, node: Node, terms: Terms) -> list[tuple[Node, Terms]]:
        """The inputs of an elementwise operation, each at its index."""
        if not isinstance(node.primitive, p.Elementwise):
            return []
        return [(source, terms if source.shape else ()) for source in node.inputs]

    def _made(
        self, node: Node, terms: Terms, location: tuple[Any, Sequence[int], int] | None, where: int | None
    ) -> int:
        """The value at an index: loaded if the node is in memory, else computed."""
        if location is None:
            key = node, terms, where
            found: int | None = self._expressions.get(key)
            if found is None:
                found = self._expressions[key] = self._expression(node, terms, where)
            return found
        # An empty array has no element to read, not even in a loop that is never entered.
        return self._load(node, location, terms, where) if node.size else self.zero(node.dtype)

    def _load(self, node: Node, location: tuple[Any, Sequence[int], int], terms: Terms, where: int | None) -> int:
        operand, strides, offset = location
        term = self._here(shifted(weighted(terms, strides), offset))
        distances = [abs(stride) * (extent - 1) for stride, extent in zip(strides, node.shape, strict=True)]
        if term.computed and sum(distances) > index_code.NARROW:
            term = self._wide(term)

        def make() -> int:
            access = Access(node.dtype, (), (), 0, 0, (), operand)
            return self._emit(Instruction("load", node.dtype, (), access=access, where=where), term)

        return self._once(("load", operand, term, where), make)

    def _wide(self, term: Term) -> Term:
        """A term whose computed values have 64 bits."""
        values = [(index_code.converted(self, value, dtypes.int64), step) for value, step in term.computed]
        return Term(term.start, term.axes, tuple(values))

    def dtype_of(self, value: int) -> Dtype:
        return self.instructions[value].dtype

    def applied(self, value: int) -> tuple[Any, tuple[int, ...]]:
        """The primitive whose scalar code computes a value, or None, and the values to which it is applied."""
        return self.instructions[value].primitive, self.instructions[value].inputs

    def zero(self, dtype: Dtype) -> int:
        """Zero in a dtype."""
        return index_code.converted(self, self.index_value(Term(0)), dtype)

    def _expression(self, node: Node, terms: Terms, where: int | None) -> int:
        primitive = node.primitive
        if isinstance(primitive, p.Elementwise):
            inputs = tuple([self.value(source, at, where) for source, at in self._inputs(node, terms)])
            return self._apply(primitive, inputs, node.dtype, node.keywords)
        if p.is_constant(node):
            return self._once(
                ("scalar", node), lambda: self._emit(Instruction("scalar", node.dtype, (), scalar=node.params[0]))
            )
        if isinstance(primitive, p.Folding):
            return self._reduce(node, terms)
        if isinstance(primitive, p.Scan):
            return self._scan(node, terms)
        if isinstance(primitive, p.ChunkTotals):
            return self._total(node, terms)
        return int(primitive.element(Reader(self, node, where), terms, node))

    def _apply(self, primitive: p.Elementwise, inputs: tuple[int, ...], dtype: Dtype, params: dict[str, Any]) -> int:
        named = tuple(params.items())
        key = (primitive, inputs, named if primitive.equal_is_same else ExactParameters(named))
        return self._once(key, lambda: self._emit(Instruction("apply", dtype, inputs, primitive, params)))

    def _reduce(self, node: Node, terms: Terms) -> int:
        source, axes = node.inputs[0], node.params[0]
        inner = list(terms)
        reduced = iter(self._reduced)
        for axis in axes:
            inner.insert(axis, ZERO if source.shape[axis] == 1 else Term(0, ((next(reduced), 1),)))
        inputs = [self.value(source, tuple(inner)) for source in node.inputs]
        if node.primitive.reducer.needs_index:
            inputs.append(
                self.index_value(
                    weighted([inner[axis] for axis in axes], contiguous_strides([source.shape[a] for a in axes]))
                )
            )
        manner = node.primitive.manner(node)
        return self._emit(Instruction("reduce", node.dtype, tuple(inputs), node.primitive, manner), axes=self._reduced)

    def _scan(self, node: Node, terms: Terms) -> int:
        primitive = node.primitive
        inputs = [self.value(source, terms) for source in primitive.scanned(node)]
        for source in primitive.before(node):
            assert self.chunks is not None
            chunk = Term(0, ((self.chunks.number, 1),))
            inputs.append(self.value(source, _with_term(terms, primitive.axis(node), chunk)))
        instruction = Instruction("scan", node.dtype, tuple(inputs), primitive, primitive.manner(node))
        return self._emit(instruction, axes=self._reduced)

    def _total(self, node: Node, terms: Terms) -> int:
        """The fold of one chunk of a row."""
        assert self.chunks is not None
        element = Term(0, ((self.chunks.axis, 1),))
        at = _with_term(terms, node.primitive.axis(node), element)
        inputs = [self.value(source, at) for source in node.inputs]
        if node.primitive.reducer.needs_index:
            inputs.append(self.index_value(element))
        instruction = Instruction("reduce", node.dtype, tuple(inputs), node.primitive, node.primitive.manner(node))
        return self._emit(instruction, axes=(*self._reduced, self.chunks.number))

    def index_value(self, term: Term) -> int:
        """The value of an index, as int64."""
        term = self._here(term)
        return self._once(("index", term), lambda: self._emit(Instruction("index", dtypes.int64, ()), term))

    def index_from(
        self,
        node: Node,
        terms: Terms,
        count: int,
        extent: int,
        read: Callable[..., tuple[int, int]] = index_code.nearest,
        where: int | None = None,
    ) -> tuple[Term, int | None]:
        """An index that an integer node holds, along an axis of ``extent``; and the condition that it is one from 0 to
        ``count - 1`` (None: always true). ``read`` replaces an index outside of that range by the nearest one inside,
        or leaves it as it is. The node is read only where ``where`` holds."""
        affine = affine_index(node, terms, count)
        if affine is not None:
            return affine, None
        index, inside = read(self, self.value(node, terms, where), count, extent)
        return Term(0, (), ((index, 1),)), inside

    def apply(self, primitive: p.Elementwise, *values: int, **params: Any) -> int:
        """Scalar code on values."""
        dtype = primitive.value_dtype(self.dtype_of(values[-1]), **params)
        return self._apply(primitive, values, dtype, params)

    def store(
        self,
        value: int,
        term: Term,
        operand: Any,
        dtype: Dtype,
        axes: Sequence[int],
        combine: Any = None,
        where: int | None = None,
    ) -> None:
        """Write a value, once for every index of ``axes`` at which a condition holds."""
        if self._fixed is not None:
            term, axes = self._here(term), [axis for axis in axes if axis != self._fixed[0]]
        access = Access(dtype, (), (), 0, 0, (), operand)
        store = Instruction("store", dtype, (value,), access=access, combine=combine, where=where)
        self._emit(store, self._wide(term) if term.computed else term, axes)


def _with_term(terms: Terms, axis: int, term: Term) -> Terms:
    """``terms`` with the term along ``axis`` replaced."""
    return (*terms[:axis], term, *terms[axis + 1 :])


def affine_index(node: Node, terms: Terms, count: int) -> Term | None:
    """The index as a term, if ``node`` only counts along an axis and stays below ``count``."""
    while node.primitive is not None:
        step = node.primitive.behind(node, terms)
        if step is None:
            axis = node.primitive.counts_along(node)
            return None if axis is None or node.shape[axis] > count else terms[axis]
        node, terms = step
    return None


def axes_apart(node: Node, write: p.ScatterWrite, at: Terms) -> set[int]:
    """The loop axes along which no two updates of a scatter meet, because an index counts along them."""
    indices = [node.inputs[position] for position in write.indices]
    slices = node.inputs[write.position].shape[len(at) :]
    found: set[int] = set()
    for index, axis in zip(indices, write.axes, strict=True):
        counted = affine_index(index, at, node.shape[axis]) if slices[axis] == 1 else None
        if counted is not None:
            found |= {loop for loop, _ in counted.axes}
    return found


def launch_of(
    draft: Draft, axes: Sequence[int], extents: dict[int, int], lanes_apart: bool = False, scattered_lanes: int = 0
) -> Launch:
    """Order and merge the loop axes of a draft, and find the level of every instruction. With ``lanes_apart``, the last
    axis becomes that of the lanes, and no other axis is merged with it. From ``scattered_lanes`` lanes on, which are
    not 0, what a scatter combines is computed in lanes."""
    reduced = set(draft._reduced)
    parallel = [axis for axis in axes if axis not in reduced]
    lane = axes[-1] if axes else None
    if lane in reduced and _scatters(draft):
        in_lanes = 0 < scattered_lanes <= extents[lane] and _combines(draft)
        lane = lane if in_lanes else None
    mode = "none" if lane is None else ("reduced" if lane in reduced else "parallel")
    rows = [axis for axis in parallel if axis != lane]
    sweeps = [axis for axis in axes if axis in reduced and axis != lane]
    nest = _Nest(draft, extents)
    free = mode == "parallel" and not lanes_apart
    rows = nest.merge_rows(rows, lane if free else None)
    chunks, whole = draft.chunks, 0
    if mode == "parallel" and chunks is None and not any(i.operation == "scan" for i in draft.instructions):
        sweeps = nest.merge_sweeps(sweeps)
    if chunks is not None:
        whole = extents[chunks.axis]
        nest.cut(chunks)
        rows.append(chunks.number)
    elif lane is not None and free and rows and not sweeps and nest.is_narrow(lane, rows[-1]):
        rows[-1], lane = lane, rows[-1]
    elif lane is not None and free and not sweeps:
        rows = nest.with_neighbours_last(rows, lane)
    nest.fill_in(rows, sweeps, lane, mode)
    kernel = Kernel(len(rows), len(sweeps), mode, draft.instructions, ragged=chunks is not None)
    lane_extent = 1 if lane is None else nest.extents[lane]
    row_extents, sweep_extents = ([nest.extents[axis] for axis in axes] for axes in (rows, sweeps))
    return Launch(kernel, tuple(row_extents), tuple(sweep_extents), lane_extent, whole)


def _scatters(draft: Draft) -> bool:
    """Whether a store has computed indices: then several lanes may write to one element."""
    return any(
        instruction.operation == "store" and term is not None and term.computed
        for instruction, term in zip(draft.instructions, draft.terms, strict=True)
    )


def _combines(draft: Draft) -> bool:
    """Whether all stores combine what they write with what is there."""
    return all(i.combine is not None for i in draft.instructions if i.operation == "store")


class _Nest:
    """The strides of every access per loop axis, while axes are merged."""

    def __init__(self, draft: Draft, extents: dict[int, int]) -> None:
        self._draft = draft
        self.extents = dict(extents)
        self._strides = [dict(term.axes) if term is not None else None for term in draft.terms]

    def is_narrow(self, lane: int, row: int) -> bool:
        """Whether lanes along the last axis would leave most of a vector empty, and lanes along the axis before it
        would not. An axis of pairs or of coordinates is so short."""
        return self.extents[lane] <= NARROW_LANES and self.extents[row] >= VIRTUAL_LANES

    def with_neighbours_last(self, rows: list[int], lane: int) -> list[int]:
        """The row axes in the order in which a transposed operand, whose neighbours in memory are in neighbouring rows
        instead of lanes, can be read in tiles: the axis along which they are neighbours is the last one."""
        apart = [
            strides
            for instruction, strides in zip(self._draft.instructions, self._strides, strict=True)
            if instruction.operation == "load" and strides is not None and strides.get(lane, 0) not in (0, 1)
        ]
        for strides in apart:
            beside = [axis for axis in rows if strides.get(axis, 0) == 1 and self.extents[axis] >= VIRTUAL_LANES]
            if beside:
                return [axis for axis in rows if axis != beside[-1]] + beside[-1:]
        return rows

    def merge_rows(self, rows: list[int], lane: int | None) -> list[int]:
        """Merge neighbouring axes if every access can go over both with one stride."""
        order = rows if lane is None else [*rows, lane]
        merged: list[int] = []
        for axis in order:
            if merged and self._mergeable(merged[-1], axis):
                self._merge(merged.pop(), axis)
            merged.append(axis)
        return merged if lane is None else merged[:-1]

    def merge_sweeps(self, sweeps: list[int]) -> list[int]:
        """Merge neighbouring folded axes in the same way, until two are left: the sums of one that is long are made of
        those of its parts, so their order would change."""
        merged: list[int] = []
        for done, axis in enumerate(reversed(sweeps)):
            left = len(sweeps) - done + len(merged)
            if merged and left > 2 and self._mergeable(axis, merged[-1]):
                self._merge(axis, merged[-1])
            else:
                merged.append(axis)
        return merged[::-1]

    def _merge(self, outer: int, inner: int) -> None:
        self.extents[inner] *= self.extents[outer]
        for strides in self._strides:
            if strides is not None:
                strides.pop(outer, None)
        self._draft.depends = [
            (depends - {outer}) | {inner} if outer in depends else depends for depends in self._draft.depends
        ]

    def _mergeable(self, outer: int, inner: int) -> bool:
        extent = self.extents[inner]
        if not all(
            strides is None or strides.get(outer, 0) == strides.get(inner, 0) * extent for strides in self._strides
        ):
            return False
        # A value that depends on only one of them would be computed for every element of both.
        return all((outer in depends) == (inner in depends) for depends in self._draft.depends)

    def cut(self, chunks: Chunks) -> None:
        """Split a loop axis in two: its chunks, and the elements of a chunk."""
        self.extents[chunks.axis] = chunks.size
        for strides in self._strides:
            if strides is not None and chunks.axis in strides:
                strides[chunks.number] = strides.get(chunks.number, 0) + strides[chunks.axis] * chunks.size
        self._draft.depends = [
            depends | {chunks.number} if chunks.axis in depends else depends for depends in self._draft.depends
        ]

    def fill_in(self, rows: list[int], sweeps: list[int], lane: int | None, mode: str) -> None:
        """Set accesses and levels of all instructions, for a final order of the axes."""
        order = {axis: position + 1 for position, axis in enumerate(sweeps)}
        draft = self._draft
        for instruction, depends, term, strides in zip(
            draft.instructions, draft.depends, draft.terms, self._strides, strict=True
        ):
            if term is not None and strides is not None:
                access = instruction.access or Access(instruction.dtype, (), (), 0, 0, (), None)
                access.rows = tuple([strides.get(axis, 0) for axis in rows])
                access.sweeps = tuple([strides.get(axis, 0) for axis in sweeps])
                access.lane = strides.get(lane, 0) if lane is not None else 0
                access.offset, access.computed = term.start, term.computed
                instruction.access = access
            instruction.varying = lane in depends
            instruction.sweep = max([order[axis] for axis in depends if axis in order], default=0) if order else 0
            below = instruction.sweep or (mode == "reduced" and instruction.varying)
            in_row = instruction.stage > 0 or instruction.operation in ("store", "reduce")
            if below:
                instruction.level = Level.SWEEP
            elif in_row or not depends.isdisjoint(rows) or self._after_sweep(instruction):
                instruction.level = Level.ROW
            else:
                instruction.level = Level.KERNEL

    def _after_sweep(self, instruction: Instruction) -> bool:
        return any(self._draft.instructions[value].level is not Level.KERNEL for value in instruction.inputs)
